"""The decoder, its crops and its loader, against Pillow and against the definition of a crop."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hpcai500 import _core
from hpcai500.self_test.checking import require, require_close, require_equal

_Decoder: TypeAlias = Literal["own", "libjpeg-turbo"]
# Pillow rounds to whole levels between its two passes and after them, we round once: two levels at worst. Our decoder
# does not round chroma before it resizes it either, and cuts levels to their range after the resize.
_WORST_LEVELS: dict[_Decoder, int] = {"libjpeg-turbo": 2, "own": 3}
_MEAN_LEVELS = 1.0
_SIZES = ((250, 187), (90, 310))
_SEED, _EPOCH, _SAMPLES = 11, 2, 4
_ITEMS = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "uint8": np.uint8}
_MASK = 0xFFFFFFFF


def check_crop_boxes() -> str:
    """The box of a sample is torchvision's RandomResizedCrop on Philox's draws, computed here again."""
    spec = _core.DecodeSpec(size=224)
    for width, height in _SIZES:
        for sample in (*range(50), 2**40):
            box = _core.crop_box(spec, width, height, seed=_SEED, epoch=_EPOCH, sample=sample)
            require_equal(f"crop {sample} of {width}x{height}", box, _random_box(width, height, sample))
    return "102 crops equal their definition, exactly"


def check_decoding() -> str:
    """Random and centre crops are those of Pillow's decoder and resize."""
    found = []
    for decoder, allowed in _WORST_LEVELS.items():
        worst, mean = _errors_of(decoder)
        require(
            worst <= allowed and mean <= _MEAN_LEVELS,
            f"crops by {decoder} differ from Pillow's by up to {worst} levels ({mean:.2f} on average), expected at "
            f"most {allowed} ({_MEAN_LEVELS:g})",
        )
        found.append(f"{worst} (allowed: {allowed}) by {decoder}")
    return f"greatest difference from Pillow's crops, in levels of 255: {', '.join(found)}"


def _errors_of(decoder: _Decoder) -> tuple[int, float]:
    """The greatest error of a value, and the greatest mean error of a crop."""
    worst, mean = 0, 0.0
    for width, height in _SIZES:
        data = _jpeg(_picture(width, height))
        image = Image.open(io.BytesIO(data)).convert("RGB")
        crops: list[tuple[Literal["random", "centre"], int]] = [("random", sample) for sample in range(_SAMPLES)]
        for mode, sample in [*crops, ("centre", 0)]:
            spec = _core.DecodeSpec(
                size=96, mode=mode, resize_shorter=110, dtype="uint8", layout="nhwc", decoder=decoder
            )
            error = np.abs(_decoded(data, spec, sample).astype(int) - _pillow(image, spec, sample))
            worst, mean = max(worst, int(error.max())), max(mean, float(error.mean()))
    return worst, mean


def check_types() -> str:
    """Every type is the same image rounded once, and layouts and decoders do not matter."""
    data = _jpeg(_picture(120, 100))
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    for sample in range(_SAMPLES):
        exact = _decoded(data, _core.DecodeSpec(size=50), sample)
        half, brain = (_decoded(data, _core.DecodeSpec(size=50, dtype=t), sample) for t in ("float16", "bfloat16"))
        require_equal("float16", half, exact.astype(np.float16))
        require_equal("bfloat16", brain, bfloat16_of(exact))
        levels = _decoded(data, _core.DecodeSpec(size=50, mean=(0, 0, 0), std=(1, 1, 1)), sample)
        require_equal("uint8", _decoded(data, _core.DecodeSpec(size=50, dtype="uint8"), sample), np.rint(levels))
        mean, std = (
            np.array(t).reshape(3, 1, 1) for t in (_core.DecodeSpec(size=1).mean, _core.DecodeSpec(size=1).std)
        )
        # Three operations in float32 on values up to 255, divided by at least 57.
        require_close("normalised", exact, (levels - mean) / std, 2e-6)
        last = _decoded(data, _core.DecodeSpec(size=50, layout="nhwc"), sample)
        require_equal("layout nhwc", last.transpose(2, 0, 1), exact)
        out = np.empty((3, 50, 50), np.float32)
        _core.crop_pixels(pixels, _core.DecodeSpec(size=50), out, seed=_SEED, epoch=_EPOCH, sample=sample)
        same = _core.DecodeSpec(size=50, decoder="libjpeg-turbo")
        require_equal("crop of given pixels", out, _decoded(data, same, sample))
    return "float32, float16, bfloat16, uint8; both layouts; exactly"


def check_seek_index(folder: Path) -> str:
    """Images are the same with seek points, and points that are wrong are not used."""
    data, other = _jpeg(_picture(250, 187)), _jpeg(_picture(250, 187) // 2)
    spec = _core.DecodeSpec(size=50)
    for use, points in (("used", _core.seek_points(data)), ("false", _core.seek_points(other))):
        path = str(folder / use)
        writer = _core.SeekIndexWriter(path)
        writer.add(*_core.seek_key(data), points)
        writer.finish()
        index = _core.SeekIndex(path)
        for sample in range(_SAMPLES):
            image = _decoded(data, spec, sample, index)
            require_equal("use of seek points", _core.last_seek(), use)
            require_equal("image by seek points", image, _decoded(data, spec, sample))
    return f"{_SAMPLES} images are the same with seek points, exactly; false ones are not used"


def check_headers() -> str:
    """Whole images, windows of them, headers, and a file that ends too early."""
    pixels = _picture(83, 61)
    data = _jpeg(pixels, subsampling="4:2:2", progressive=True)
    info = _core.probe_jpeg(data)
    require_equal("probed header", [info.width, info.height, info.components, info.progressive], [83, 61, 3, True])
    require_equal("checked image", _core.check_jpeg(data), (83, 61, 0))
    spec = _core.DecodeSpec(size=16, dtype="uint8", layout="nhwc")
    out, whole = np.empty(spec.shape, np.uint8), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    for x, y in ((0, 0), (37, 21), (67, 45)):
        _core.decode_box(data, spec, out, x=x, y=y, width=16, height=16, flip=False)
        # Another release of libjpeg-turbo may round a chroma sample otherwise.
        require_close(f"window at {x}, {y}", out, whole[y : y + 16, x : x + 16], 1)
    try:
        _core.check_jpeg(_jpeg(pixels)[:-700])
    except _core.JpegError as error:
        require(error.kind == "truncated", f"a truncated file is called {error.kind}")
    else:
        require(False, "a truncated file was taken for a whole one")
    return "header, check, three windows, and a truncated file refused"


def check_loader(folder: Path) -> str:
    """Batches of the native threads are the images one by one, and a missing file is told."""
    spec = _core.DecodeSpec(size=40)
    files = {f"{number}.JPEG": _jpeg(_picture(100 + number, 90)) for number in range(5)}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    slots = [np.empty((3, *spec.shape), np.float32) for _ in range(2)]
    with _core.JpegLoader(str(folder), [*files, "missing.JPEG"], spec, slots=slots, threads=2) as loader:
        for samples in ([4, 0, 2], [1, 5, 3]):
            loader.submit(np.array(samples), seed=_SEED, epoch=_EPOCH)
            batch = loader.next()
            failed = [failure.kind for failure in batch.failures]
            require_equal("failures of a batch", failed, ["unreadable"] if 5 in samples else [])
            for place, sample in enumerate(samples):
                if sample < len(files):
                    expected = _decoded(files[f"{sample}.JPEG"], spec, sample)
                    require_equal(f"sample {sample} of a batch", slots[batch.slot][place], expected)
            loader.release(batch.slot)
    return "2 batches of 3 equal their images, exactly; a missing file is told"


def bfloat16_of(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Upper halves of the bits, rounded to nearest even; NaN stays NaN."""
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(np.uint16)


def _picture(width: int, height: int) -> NDArray[np.uint8]:
    """Smooth colours, an edge and a little noise."""
    random = np.random.default_rng([width, height])
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [110 + 70 * np.sin(columns / (17 + 5 * c) + c) * np.cos(rows / (13 + 4 * c)) for c in range(3)]
    levels = np.stack(waves, axis=-1) + random.normal(0, 3, (height, width, 3))
    levels[np.hypot(columns - width / 3, rows - height / 2) < 25] += 50
    return np.clip(levels, 0, 255).astype(np.uint8)


def _jpeg(pixels: NDArray[np.uint8], **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=92, **options)
    return buffer.getvalue()


def _decoded(data: bytes, spec: _core.DecodeSpec, sample: int, index: _core.SeekIndex | None = None) -> NDArray[Any]:
    out = np.full(spec.shape, 77, _ITEMS[spec.dtype])
    warnings = _core.decode_crop(data, spec, out, seed=_SEED, epoch=_EPOCH, sample=sample, index=index)
    require_equal("warnings of a whole file", warnings, 0)
    return out


def _pillow(image: Image.Image, spec: _core.DecodeSpec, sample: int) -> NDArray[Any]:
    """The same crop by Pillow: crop().resize(), or resize(box=...)."""
    target, bilinear = (spec.size, spec.size), Image.Resampling.BILINEAR
    if spec.mode == "centre":
        side = min(image.size) * spec.size / spec.resize_shorter
        x, y = ((length - side) / 2 for length in image.size)
        return np.asarray(image.resize(target, bilinear, box=(x, y, x + side, y + side)))
    x, y, width, height, flip = _random_box(*image.size, sample)
    pixels = np.asarray(image.crop((x, y, x + width, y + height)).resize(target, bilinear))
    return pixels[:, ::-1] if flip else pixels


def _random_box(width: int, height: int, sample: int) -> tuple[int, int, int, int, bool]:
    """RandomResizedCrop (area 0.05-1, ratio 3/4-4/3): try t uses block t of the sample's draws, the flip block 10."""
    flip = _draw(sample, 10)[0] < 2**31
    for attempt in range(10):
        words = _draw(sample, attempt)
        target = width * height * (0.05 + (1.0 - 0.05) * (words[0] / 2**32))
        aspect = math.exp(math.log(3 / 4) + (math.log(4 / 3) - math.log(3 / 4)) * (words[1] / 2**32))
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            return words[2] * (width - w + 1) >> 32, words[3] * (height - h + 1) >> 32, w, h, flip
    w, h = width, height
    if width / height < 3 / 4:
        h = min(round(width / (3 / 4)), height)
    elif width / height > 4 / 3:
        w = min(round(height * (4 / 3)), width)
    return (width - w) // 2, (height - h) // 2, w, h, flip


def _draw(sample: int, block: int) -> tuple[int, int, int, int]:
    """Philox4x32-10 (Salmon et al., SC 2011): key = seed, counter = sample, epoch, block."""
    c0, c1, c2, c3 = sample & _MASK, sample >> 32, _EPOCH, block
    k0, k1 = _SEED, 0
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & _MASK, (first >> 32) ^ c3 ^ k1, first & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3
