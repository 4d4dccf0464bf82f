"""The contestants of decode_crop.py: each makes batches of random-resized crops, float32 NCHW, normalised.

A contestant is a function `make(paths, threads) -> run`, and `run(batches)` returns when that many batches of BATCH
images have been made. All draw an area of 5 to 100 % and a ratio of 3/4 to 4/3, and flip with probability 1/2.
"""

from __future__ import annotations

import io
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

BATCH = 64
SIZE = 224
AREA = (0.05, 1.0)
RATIO = (3 / 4, 4 / 3)
MEAN = (123.675, 116.28, 103.53)
STD = (58.395, 57.12, 57.375)

Run = Callable[[int], None]


def ours(paths: Sequence[Path], threads: int) -> Run:
    """hpcai500's JpegLoader: reads the files, decodes and writes batches into a ring of three."""
    return _ours(paths, threads)


def ours_with_index(paths: Sequence[Path], threads: int) -> Run:
    """The same with a seek index, which is made first."""
    from hpcai500 import _core

    target = paths[0].parent.with_suffix(f".{os.getpid()}.seek")
    try:
        write_index(paths, target)
        index = _core.SeekIndex(os.fsencode(target))
    finally:
        target.unlink(missing_ok=True)
    return _ours(paths, threads, index=index)


def write_index(paths: Sequence[Path], target: Path) -> None:
    """Write the seek index of the files to `target`, which must not be there."""
    from hpcai500 import _core

    writer = _core.SeekIndexWriter(os.fsencode(target))
    for data in (path.read_bytes() for path in paths):
        writer.add(*_core.seek_key(data), _core.seek_points(data))
    writer.finish()


def ours_by_libjpeg_turbo(paths: Sequence[Path], threads: int) -> Run:
    """The same with libjpeg-turbo as the decoder."""
    return _ours(paths, threads, decoder="libjpeg-turbo")


def ours_with_avx2(paths: Sequence[Path], threads: int) -> Run:
    """The same on a processor that has no AVX-512."""
    os.environ["HPCAI500_ISA"] = "avx2"
    return _ours(paths, threads)


def _ours(paths: Sequence[Path], threads: int, *, decoder: str = "own", **named: object) -> Run:
    from hpcai500 import _core

    spec = _core.DecodeSpec(size=SIZE, area=AREA, ratio=RATIO, mean=MEAN, std=STD, decoder=decoder)
    slots = [_aligned((BATCH, *spec.shape)) for _ in range(3)]
    names = [path.name for path in paths]
    loader = _core.JpegLoader(str(paths[0].parent), names, spec, slots=slots, threads=threads, **named)
    rng = np.random.default_rng(0)
    epoch = 0

    def run(batches: int) -> None:
        nonlocal epoch
        epoch += 1
        for _ in range(batches):
            loader.submit(rng.integers(0, len(paths), BATCH), seed=1, epoch=epoch)
        for _ in range(batches):
            batch = loader.next()
            if batch.failures:
                raise RuntimeError(batch.failures[0])
            loader.release(batch.slot)

    return run


def _aligned(shape: tuple[int, ...]) -> np.ndarray:
    """A float32 array on a 64-byte boundary, as torch allocates."""
    size = 4 * math.prod(shape)
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(np.float32).reshape(shape)


def dali_fused(paths: Sequence[Path], threads: int) -> Run:
    """DALI at its strongest on a CPU: partial decoding, resize without antialiasing, fused normalisation."""
    from nvidia.dali import fn

    def images(jpegs: object) -> object:
        cropped = fn.decoders.image_random_crop(
            jpegs, device="cpu", random_area=list(AREA), random_aspect_ratio=list(RATIO)
        )
        return fn.resize(cropped, resize_x=SIZE, resize_y=SIZE, antialias=False)

    return _dali(paths, threads, images)


def dali_antialiased(paths: Sequence[Path], threads: int) -> Run:
    """DALI with the resize that computes what we compute."""
    from nvidia.dali import fn

    def images(jpegs: object) -> object:
        cropped = fn.decoders.image_random_crop(
            jpegs, device="cpu", random_area=list(AREA), random_aspect_ratio=list(RATIO)
        )
        return fn.resize(cropped, resize_x=SIZE, resize_y=SIZE, antialias=True)

    return _dali(paths, threads, images)


def dali_unfused(paths: Sequence[Path], threads: int) -> Run:
    """DALI as its tutorials write it: decode all of the image, then crop."""
    from nvidia.dali import fn

    def images(jpegs: object) -> object:
        decoded = fn.decoders.image(jpegs, device="cpu")
        return fn.random_resized_crop(
            decoded, size=SIZE, random_area=list(AREA), random_aspect_ratio=list(RATIO), antialias=False
        )

    return _dali(paths, threads, images)


def _dali(paths: Sequence[Path], threads: int, images: Callable[[object], object]) -> Run:
    from nvidia.dali import fn, pipeline_def, types

    # device_id=None is what runs without a driver.
    @pipeline_def(batch_size=BATCH, num_threads=threads, device_id=None)
    def pipeline() -> object:
        jpegs, _ = fn.readers.file(files=[str(path) for path in paths], random_shuffle=True, name="reader")
        return fn.crop_mirror_normalize(
            images(jpegs),
            mirror=fn.random.coin_flip(),
            dtype=types.FLOAT,
            mean=list(MEAN),
            std=list(STD),
            output_layout="CHW",
        )

    built = pipeline()
    built.build()

    def run(batches: int) -> None:
        for _ in range(batches):
            built.run()

    return run


def pillow(paths: Sequence[Path], threads: int) -> Run:
    """Pillow in a thread pool, on bytes that are in memory."""
    from PIL import Image

    def image(data: bytes) -> np.ndarray:
        picture = Image.open(io.BytesIO(data)).convert("RGB")
        x, y, width, height = crop_of(*picture.size)
        box = (x, y, x + width, y + height)
        return _normalise(np.asarray(picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)))

    return _pool(paths, threads, image)


def simplejpeg_opencv(paths: Sequence[Path], threads: int) -> Run:
    """simplejpeg, OpenCV and NumPy in a thread pool, on bytes that are in memory; no antialiasing."""
    import cv2
    import simplejpeg

    cv2.setNumThreads(1)

    def image(data: bytes) -> np.ndarray:
        pixels = simplejpeg.decode_jpeg(data)
        x, y, width, height = crop_of(pixels.shape[1], pixels.shape[0])
        cropped = pixels[y : y + height, x : x + width]
        return _normalise(cv2.resize(cropped, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR))

    return _pool(paths, threads, image)


def _pool(paths: Sequence[Path], threads: int, image: Callable[[bytes], np.ndarray]) -> Run:
    contents = [path.read_bytes() for path in paths]
    pool = ThreadPoolExecutor(threads)
    batch = np.empty((BATCH, 3, SIZE, SIZE), np.float32)
    position = 0

    def place(index: int) -> None:
        batch[index] = image(contents[(position + index) % len(contents)])

    def run(batches: int) -> None:
        nonlocal position
        for _ in range(batches):
            list(pool.map(place, range(BATCH)))
            position += BATCH

    return run


def crop_of(width: int, height: int, area: tuple[float, float] = AREA) -> tuple[int, int, int, int]:
    """Left, top, width and height of a random crop."""
    for _ in range(10):
        drawn = width * height * random.uniform(*area)
        ratio = math.exp(random.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        crop_width, crop_height = round(math.sqrt(drawn * ratio)), round(math.sqrt(drawn / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            x, y = random.randint(0, width - crop_width), random.randint(0, height - crop_height)
            return x, y, crop_width, crop_height
    return 0, 0, width, height


_SCALE = (1 / np.array(STD)).astype(np.float32)
_MEAN = np.array(MEAN, np.float32)


def _normalise(pixels: np.ndarray) -> np.ndarray:
    """(SIZE, SIZE, 3) levels to (3, SIZE, SIZE) float32, half of them mirrored."""
    if random.random() < 0.5:
        pixels = pixels[:, ::-1]
    return ((pixels - _MEAN) * _SCALE).transpose(2, 0, 1)


CONTESTANTS: dict[str, Callable[[Sequence[Path], int], Run]] = {
    "ours": ours,
    "ours, index": ours_with_index,
    "ours, AVX2": ours_with_avx2,
    "ours, libjpeg-turbo": ours_by_libjpeg_turbo,
    "dali": dali_fused,
    "dali-antialiased": dali_antialiased,
    "dali-unfused": dali_unfused,
    "pillow": pillow,
    "simplejpeg+opencv": simplejpeg_opencv,
}


def measure(run: Run, batches: int) -> tuple[float, float]:
    """Make `batches` batches; returns seconds of wall time and of processor time until the process is idle again.

    DALI keeps about two batches ready: stopping the clock when run() returns would leave out work that goes on.
    A process that used under 2 ms of its threads in 20 ms is idle.
    """
    used_before = time.process_time()
    began = time.perf_counter()
    run(batches)
    ended = time.perf_counter()
    used = time.process_time()
    while True:
        time.sleep(0.02)
        now = time.process_time()
        if now - used < 0.002:
            return ended - began, used - used_before
        used, ended = now, time.perf_counter()
