"""The contestants of input_loaders.py: each makes batches of training images from JPEG files, on the training process.

A contestant is made by `KINDS[kind](images, workers)`, and `epoch(batches)` yields a batch of images (float32, NCHW,
normalised) and one of labels for each array of sample numbers. Images may be overwritten once the next batch is
requested. All draw a random-resized crop and flip with probability 1/2; files are read anew in each epoch.

FFCV itself cannot be built here: "records, threads" does what FFCV does, with simplejpeg, OpenCV and Numba.
"""

from __future__ import annotations

import importlib
import mmap
import os
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from decode_rivals import AREA, BATCH, MEAN, RATIO, SIZE, STD, crop_of, write_index
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hpcai500 import _core
from hpcai500.data.imagenet.index import make_split
from hpcai500.data.imagenet.loader import JpegBatches
from hpcai500.data.imagenet.seek_index import SEEK_INDEX

Ids = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]
Planes = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Images:
    """The files `paths` (relative to `root`) of classes `labels`, and what is made of them."""

    root: Path
    paths: tuple[str, ...]
    labels: Ids
    batch: int = BATCH
    size: int = SIZE
    area: tuple[float, float] = AREA

    @property
    def files(self) -> list[str]:
        return [str(self.root / path) for path in self.paths]

    @property
    def records(self) -> Path:
        """All files one after the other, and where each begins: written beside the set on first use."""
        path = self.root.with_suffix(f".{len(self.paths)}.records")
        if not path.is_file():
            unfinished = path.with_suffix(f".{os.getpid()}")
            unfinished.write_bytes(b"".join(Path(file).read_bytes() for file in self.files))
            unfinished.rename(path)
        return path


class Contestant(Protocol):
    def epoch(self, batches: Sequence[Ids]) -> Iterator[tuple[Tensor, Tensor]]: ...


# ----------------------------------------------------------------------------------------------------
# Ours, as a training run uses it.


class Ours:
    """The native loader with as many batches in its ring as the reference recipe has."""

    def __init__(self, images: Images, workers: int) -> None:
        sizes = np.zeros(len(images.paths), np.int64)
        self._loader = JpegBatches(
            make_split("train", images.paths, sizes, images.labels.copy()),
            images.root,
            batch_size=images.batch,
            threads=workers,
            depth=4,
            mode="random",
            size=images.size,
            area=images.area,
            ratio=RATIO,
            flip_probability=0.5,
        )
        self._epoch = 0

    def epoch(self, batches: Sequence[Ids]) -> Iterator[tuple[Tensor, Tensor]]:
        self._epoch += 1
        for batch in self._loader.epoch(batches, seed=1, epoch=self._epoch):
            yield batch.images, batch.labels


def ours_with_index(images: Images, workers: int) -> Contestant:
    """The same files below another root, which has a seek index: `hpcai500 data index ic DIR` makes one."""
    root = images.root.with_name(f"{images.root.name}-indexed")
    root.mkdir(exist_ok=True)
    for name in {path.partition("/")[0] for path in images.paths}:
        if not (root / name).exists():
            (root / name).symlink_to(images.root / name)
    if not (root / SEEK_INDEX).exists():
        # An index knows files by what is in them: once is enough for all copies.
        distinct = {Path(file).read_bytes(): Path(file) for file in images.files}
        unfinished = root / f"{SEEK_INDEX}.{os.getpid()}"
        write_index(list(distinct.values()), unfinished)
        unfinished.rename(root / SEEK_INDEX)
    return Ours(replace(images, root=root), workers)


# ----------------------------------------------------------------------------------------------------
# Datasets in torch's DataLoader.


class Loading:
    """torch's DataLoader, its workers kept between epochs; `finish` makes the batch from what they send."""

    def __init__(self, dataset: Dataset[Any], workers: int, finish: Callable[[Tensor], Tensor]) -> None:
        self._batches: list[list[int]] = []
        self._finish = finish
        self._loader = DataLoader(
            dataset, batch_sampler=self._batches, num_workers=workers, persistent_workers=workers > 0
        )

    def epoch(self, batches: Sequence[Ids]) -> Iterator[tuple[Tensor, Tensor]]:
        self._batches[:] = [batch.tolist() for batch in batches]
        for images, labels in self._loader:
            yield self._finish(images), labels


class TorchvisionFiles(Dataset[tuple[Any, int]]):
    """torchvision's ImageFolder, whose loader is Pillow, without its listing of the folder."""

    def __init__(self, images: Images, transform: Callable[[Any], Any]) -> None:
        self._files, self._labels, self._transform = images.files, images.labels.tolist(), transform

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from torchvision.datasets.folder import pil_loader

        return self._transform(pil_loader(self._files[index])), self._labels[index]


def torchvision_v2(images: Images, workers: int) -> Contestant:
    """Crop and flip on Pillow's image, then a batch of 8-bit values is normalised on the training process.

    Each is faster than what tutorials do, which is to crop tensors (0.6 times), and to normalise each image in the
    workers (0.8 times). torchvision's own decoder of JPEG is not used: it does not load beside every torch.
    """
    _find_torchvision()
    from torchvision.transforms import v2

    transform = v2.Compose(
        [
            v2.RandomResizedCrop(images.size, scale=images.area, ratio=RATIO, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
        ]
    )
    normalise = v2.Compose(
        [
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([value / 255 for value in MEAN], [value / 255 for value in STD], inplace=True),
        ]
    )
    return Loading(TorchvisionFiles(images, transform), workers, normalise)


def _find_torchvision() -> None:
    """Import torchvision, also beside a torch for another device than its wheel's.

    Such a wheel's own operators do not load, and the import fails because they are not defined. Of them, nothing here
    calls any: a definition is enough. `make bench` puts the wheel where only this looks, because others who import it
    need the operators.
    """
    apart = Path(sys.prefix) / "torchvision"
    if apart.is_dir() and str(apart) not in sys.path:
        sys.path.append(str(apart))
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        _define_operators()
        importlib.import_module("torchvision")


_LIBRARIES = []  # what was defined lives as long as its library


def _define_operators() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    _LIBRARIES.append(library)
    names = ("roi_align", "ps_roi_align", "roi_pool", "ps_roi_pool", "deform_conv2d")
    for name in ("nms", "qnms", "qroi_align", *names, *(f"_{name}_backward" for name in names)):
        library.define(f"{name}(Tensor values) -> Tensor")
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]


class SimplejpegFiles(Dataset[tuple[Pixels, int]]):
    """8-bit crops (size, size, 3)."""

    def __init__(self, images: Images) -> None:
        self._files, self._labels = images.files, images.labels.tolist()
        self._size, self._area = images.size, images.area

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        data = Path(self._files[index]).read_bytes()
        return simplejpeg_crop(data, self._size, self._area), self._labels[index]


def simplejpeg_opencv(images: Images, workers: int) -> Contestant:
    """The workers send 8-bit images; the training process normalises a batch in one pass, into the same memory."""
    import cv2

    cv2.setNumThreads(1)
    out = torch.empty(images.batch, 3, images.size, images.size)
    normalise = normaliser()

    def finish(pixels: Tensor) -> Tensor:
        made = out[: len(pixels)]
        normalise(pixels.numpy(), made.numpy())
        return made

    return Loading(SimplejpegFiles(images), workers, finish)


# ----------------------------------------------------------------------------------------------------
# One file of records and threads, as FFCV does.


class Records:
    """Threads read from one mapped file, decode, and write to one of three batches, two of them ahead."""

    AHEAD = 2

    def __init__(self, images: Images, workers: int) -> None:
        import cv2

        cv2.setNumThreads(1)
        self._images, self._workers = images, workers
        self._path = images.records
        self._ends = np.cumsum([Path(file).stat().st_size for file in images.files])
        self._pool = ThreadPoolExecutor(workers)
        self._batches = [torch.empty(images.batch, 3, images.size, images.size) for _ in range(self.AHEAD + 1)]
        self._normalise = normaliser()

    def epoch(self, batches: Sequence[Ids]) -> Iterator[tuple[Tensor, Tensor]]:
        with (
            self._path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as view,
        ):
            waiting: deque[list[Future[None]]] = deque()
            for number in range(len(batches) + self.AHEAD):
                if number < len(batches):
                    waiting.append(self._submit(mapped, view, batches[number], number))
                if number >= self.AHEAD:
                    for made in waiting.popleft():
                        made.result()
                    ids = batches[number - self.AHEAD]
                    images = self._batches[(number - self.AHEAD) % len(self._batches)]
                    yield images[: len(ids)], torch.from_numpy(self._images.labels[ids])

    def _submit(self, mapped: mmap.mmap, view: memoryview, ids: Ids, number: int) -> list[Future[None]]:
        out = self._batches[number % len(self._batches)].numpy()
        for sample in ids:
            start, end = self._range(sample)
            start -= start % mmap.PAGESIZE
            mapped.madvise(mmap.MADV_WILLNEED, start, end - start)
        return [
            self._pool.submit(self._make, view, ids, out, position, self._workers) for position in range(self._workers)
        ]

    def _range(self, sample: int) -> tuple[int, int]:
        return int(self._ends[sample - 1]) if sample else 0, int(self._ends[sample])

    def _make(self, view: memoryview, ids: Ids, out: Planes, first: int, step: int) -> None:
        for position in range(first, len(ids), step):
            start, end = self._range(ids[position])
            pixels = simplejpeg_crop(view[start:end], self._images.size, self._images.area)
            self._normalise(pixels[None], out[position : position + 1])


def simplejpeg_crop(data: Any, size: int, area: tuple[float, float]) -> Pixels:
    """A random-resized crop (size, size, 3) without antialiasing, mirrored at random."""
    import cv2
    import simplejpeg

    pixels = simplejpeg.decode_jpeg(data)
    x, y, width, height = crop_of(pixels.shape[1], pixels.shape[0], area)
    made = cv2.resize(pixels[y : y + height, x : x + width], (size, size), interpolation=cv2.INTER_LINEAR)
    return cast(Pixels, cv2.flip(made, 1) if random.random() < 0.5 else made)


_SCALE = (1 / np.array(STD)).astype(np.float32)
_BIAS = (-np.array(MEAN) / np.array(STD)).astype(np.float32)


def normaliser() -> Callable[[Pixels, Planes], None]:
    """Writes pixels (N, H, W, 3) to planes (N, 3, H, W): by Numba in one pass without the GIL, or by NumPy in two."""
    try:
        import numba
    except ImportError:

        def by_numpy(pixels: Pixels, out: Planes) -> None:
            np.multiply(pixels.transpose(0, 3, 1, 2), _SCALE[:, None, None], out=out)
            out += _BIAS[:, None, None]

        return by_numpy

    scale, bias = _SCALE, _BIAS

    @numba.njit(nogil=True, fastmath=True)  # type: ignore[untyped-decorator]
    def in_one_pass(pixels: Pixels, out: Planes) -> None:
        for image in range(pixels.shape[0]):
            for channel in range(3):
                for row in range(pixels.shape[1]):
                    for column in range(pixels.shape[2]):
                        value = np.float32(pixels[image, row, column, channel])
                        out[image, channel, row, column] = value * scale[channel] + bias[channel]

    return cast(Callable[[Pixels, Planes], None], in_one_pass)


# ----------------------------------------------------------------------------------------------------
# DALI.


class Dali:
    """DALI at its strongest on a CPU: partial decoding, resize without antialiasing, fused normalisation, two batches
    ahead, and tensors that share DALI's memory, as its PyTorch plug-in makes them. It shuffles by itself."""

    AHEAD = 2

    def __init__(self, images: Images, workers: int) -> None:
        from nvidia.dali import fn, pipeline_def, types

        # device_id=None is what runs without a driver.
        @pipeline_def(
            batch_size=images.batch,
            num_threads=max(workers, 1),
            device_id=None,
            prefetch_queue_depth=self.AHEAD,
            exec_dynamic=True,
        )
        def pipeline() -> Any:
            jpegs, labels = fn.readers.file(
                files=images.files,
                labels=images.labels.tolist(),
                random_shuffle=True,
                initial_fill=min(256, len(images.paths)),
                prefetch_queue_depth=2,
                dont_use_mmap=True,
                name="reader",
            )
            cropped = fn.decoders.image_random_crop(
                jpegs, device="cpu", random_area=list(images.area), random_aspect_ratio=list(RATIO)
            )
            made = fn.crop_mirror_normalize(
                fn.resize(cropped, resize_x=images.size, resize_y=images.size, antialias=False),
                mirror=fn.random.coin_flip(),
                dtype=types.FLOAT,
                mean=list(MEAN),
                std=list(STD),
                output_layout="CHW",
            )
            return made, fn.cast(labels, dtype=types.INT64)

        self._pipeline = pipeline()
        self._pipeline.build()

    def epoch(self, batches: Sequence[Ids]) -> Iterator[tuple[Tensor, Tensor]]:
        # By hand, so that nothing of an epoch is made before it begins or after it ends.
        for _ in batches[: self.AHEAD]:
            self._pipeline.schedule_run()
        for number in range(len(batches)):
            images, labels = (torch.from_dlpack(output.as_tensor()) for output in self._pipeline.share_outputs())
            yield images, labels.flatten()
            del images, labels
            self._pipeline.release_outputs()
            if number + self.AHEAD < len(batches):
                self._pipeline.schedule_run()


# ----------------------------------------------------------------------------------------------------
# What nobody can pass.


class Reading:
    """The files alone."""

    def __init__(self, images: Images, workers: int) -> None:
        self._files, self._pool = images.files, ThreadPoolExecutor(workers)
        self._nothing = torch.zeros(1), torch.zeros(1)

    def epoch(self, batches: Sequence[Ids]) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in self._pool.map(self._read, np.concatenate(batches).tolist(), chunksize=16):
            pass
        yield self._nothing

    def _read(self, sample: int) -> None:
        descriptor = os.open(self._files[sample], os.O_RDONLY)
        while os.read(descriptor, 1 << 20):
            pass
        os.close(descriptor)


class Decoding:
    """Our decoder alone: bytes in memory, images made on top of each other."""

    def __init__(self, images: Images, workers: int) -> None:
        # No more than a processor's cache and the files' own repeats need.
        self._files = [Path(file).read_bytes() for file in images.files[:128]]
        self._spec = _core.DecodeSpec(size=images.size, area=images.area, ratio=RATIO, mean=MEAN, std=STD)
        self._pool, self._workers = ThreadPoolExecutor(workers), workers
        self._nothing = torch.zeros(1), torch.zeros(1)

    def epoch(self, batches: Sequence[Ids]) -> Iterator[tuple[Tensor, Tensor]]:
        samples = np.concatenate(batches).tolist()
        for _ in self._pool.map(self._share, [samples[first :: self._workers] for first in range(self._workers)]):
            pass
        yield self._nothing

    def _share(self, samples: Sequence[int]) -> None:
        out = torch.empty(self._spec.shape).numpy()
        for sample in samples:
            data = self._files[sample % len(self._files)]
            _core.decode_crop(data, self._spec, out, seed=1, epoch=1, sample=sample)


KINDS: dict[str, Callable[[Images, int], Contestant]] = {
    "ours": Ours,
    "ours, index": ours_with_index,
    "torchvision v2, DataLoader": torchvision_v2,
    "simplejpeg + OpenCV, DataLoader": simplejpeg_opencv,
    "records, threads": Records,
    "DALI": Dali,
    "reading alone": Reading,
    "decoding alone": Decoding,
}
