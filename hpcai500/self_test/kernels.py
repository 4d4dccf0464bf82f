"""Checks of the core's kernels on the CPU against references; `accelerator` compares a CUDA device with the CPU.

References share no code with the kernels: Pillow for JPEG, h5py and NumPy for climate data, and definitions in NumPy
for the rest. Each check returns a line that says what it compared, and raises `WrongAnswerError` at the first wrong
value.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import h5py
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hpcai500 import _core
from hpcai500.data.climate.years import Storage, storage_of
from hpcai500.self_test.checking import require, require_close, require_equal


def checks(folder: Path) -> dict[str, Callable[[], str]]:
    """All checks by name; they write files into `folder`."""
    return {
        "crop boxes": check_crop_boxes,
        "JPEG decode and crop": check_decoding,
        "JPEG types and layouts": check_types,
        "JPEG seek points": partial(check_seek_index, folder),
        "JPEG headers and windows": check_headers,
        "JPEG loader": partial(check_loader, folder),
        "climate layouts": partial(check_layouts, folder),
        "climate damage": partial(check_damage, folder),
        "climate normalisation": partial(check_normalising, folder),
        "climate rolls and windows": partial(check_windows, folder),
        "image conversion": check_conversion,
        "gradient packing": check_packing,
        "gradient quantisation": check_quantising,
        "layer norms": check_norms,
        "memory copies": check_copies,
        "sums in shared memory": partial(check_shared_sums, folder),
        "non-maximum suppression": check_nms,
        "RoIAlign and gradient": check_roi_align,
    }


# ----------------------------------------------------------------------------------------------------
# The JPEG decoder, its crops and its loader, against Pillow and against the definition of a crop.


_Decoder: TypeAlias = Literal["own", "libjpeg-turbo"]
# Pillow rounds to whole levels between its two passes and after them, we round once: two levels at most. Our decoder
# also does not round chroma before the resize, and clips levels to their range after it.
_WORST_LEVELS: dict[_Decoder, int] = {"libjpeg-turbo": 2, "own": 3}
_MEAN_LEVELS = 1.0
_SIZES = ((250, 187), (90, 310))
_SEED, _EPOCH, _SAMPLES = 11, 2, 4
_ITEMS = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "uint8": np.uint8}
_MASK = 0xFFFFFFFF


def check_crop_boxes() -> str:
    """Each sample's box is torchvision's RandomResizedCrop with draws of Philox, both written again here."""
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
    """The greatest error of a single value, and the greatest mean error of a crop, in levels."""
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
    """Every output type is the same image rounded once, for every layout and decoder."""
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
    """Images are the same with seek points, and seek points of another file are not used."""
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
    return f"{_SAMPLES} images are the same with seek points, exactly; wrong ones are not used"


def check_headers() -> str:
    """Probed headers, windows of an image, and a file that ends too early."""
    pixels = _picture(83, 61)
    data = _jpeg(pixels, subsampling="4:2:2", progressive=True)
    info = _core.probe_jpeg(data)
    require_equal("probed header", [info.width, info.height, info.components, info.progressive], [83, 61, 3, True])
    require_equal("checked image", _core.check_jpeg(data), (83, 61, 0))
    spec = _core.DecodeSpec(size=16, dtype="uint8", layout="nhwc")
    out, whole = np.empty(spec.shape, np.uint8), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    for x, y in ((0, 0), (37, 21), (67, 45)):
        _core.decode_box(data, spec, out, x=x, y=y, width=16, height=16, flip=False)
        # Another release of libjpeg-turbo may round a chroma sample differently.
        require_close(f"window at {x}, {y}", out, whole[y : y + 16, x : x + 16], 1)
    try:
        _core.check_jpeg(_jpeg(pixels)[:-700])
    except _core.JpegError as error:
        require(error.kind == "truncated", f"a truncated file is reported as {error.kind}")
    else:
        require(False, "a truncated file was accepted")
    return "header, check, three windows, and a truncated file refused"


def check_loader(folder: Path) -> str:
    """Batches of the native threads equal images decoded one by one, and a missing file is reported."""
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
    return "2 batches of 3 equal their images, exactly; a missing file is reported"


def bfloat16_of(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves of the bits, rounded to nearest even; NaN stays NaN."""
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


# ----------------------------------------------------------------------------------------------------
# The bucket kernels against NumPy: casts into one buffer and back, int8, norms, and copies that bypass the cache.


Floats = NDArray[np.float32]
_DType = Literal["float32", "float16", "bfloat16"]
_BUCKETS_ITEMS: Final[dict[_DType, Any]] = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
_BLOCK, _CHUNK, _CHUNK_BYTES = 256, 4096, 4160
# Empty, near a vector, a block and a chunk, and large enough for several threads.
_BUCKETS_SIZES = (0, 1, 17, 255, 256, 257, 4095, 4097, 300_001)
# NumPy adds float64 squares in another order: the error of a sum grows at most with its length.
NORM_TOLERANCE = 1e-10


def check_packing() -> str:
    """Scale and cast into one buffer of each type and back, with the norms of input and output."""
    tensors = _tensors()
    count, norms, target = sum(t.size for t in tensors), np.empty(len(tensors)), np.empty(0, np.float32)
    for dtype, item in _BUCKETS_ITEMS.items():
        out, target = np.empty(count, item), np.empty(count, np.float32)
        _core.pack(tensors, out, wire=dtype, scale=0.3, threads=2, norms=norms)
        scaled = _flat(tensors) * np.float32(0.3)
        expected = _cast(scaled, dtype)
        require_equal(f"packed {dtype}", out, expected)
        _require_norms(f"norms of packed {dtype}", norms, tensors)
        _core.unpack(out, [target], wire=dtype, scale=3.0, threads=2, norms=norms[:1])
        require_equal(f"unpacked {dtype}", target, _wide(expected, dtype) * np.float32(3.0))
        _require_norms(f"norm of unpacked {dtype}", norms[:1], [target])
    return f"{count} values of {len(tensors)} tensors; float32, float16, bfloat16; exactly (norms to 1e-10)"


def check_quantising() -> str:
    """Quantisation to int8 with error feedback, twice, so that the residual of the first pass enters the second."""
    tensors = _tensors()
    count, norms = sum(t.size for t in tensors), np.empty(len(tensors))
    out = np.empty(_core.quantised_bytes(count), np.uint8)
    residual = np.zeros(count, np.float32)
    for _ in range(2):
        expected, rest = _quantised(_flat(tensors) * np.float32(1.7) + residual)
        _core.quantise(tensors, out, scale=1.7, threads=2, residual=residual, norms=norms)
        require_equal("quantised buffer", out, expected)
        require_equal("residual", residual, rest)
        _require_norms("norms of quantised tensors", norms, tensors)
        target = np.ones(count, np.float32)
        _core.dequantise(out, [target], scale=0.5, threads=2, norms=norms[:1])
        require_equal("dequantised", target, values := _dequantised(expected, count, 0.5))
        _require_norms("norm of the dequantised buffer", norms[:1], [target])
        _core.dequantise(out, [target], scale=0.5, threads=2, accumulate=True)
        require_equal("dequantised and added", target, values + values)
    return f"{count} values, int8 with error feedback, twice; exactly (norms to 1e-10)"


def check_norms() -> str:
    """Norms of all layers, also if a square overflows or underflows float32."""
    tensors = [*_tensors(), np.full(10_000, 3e38, np.float32), np.full(10_000, 1e-45, np.float32)]
    norms = np.empty(len(tensors))
    _core.layer_norms(tensors, norms, threads=2)
    _require_norms("layer norms", norms, tensors)
    return f"{len(tensors)} tensors, to 1e-10 of their norms in float64"


def check_copies() -> str:
    """The copy and the read that measure memory bandwidth."""
    source, target = _lines(1 << 20), _lines(1 << 20)
    source[:] = np.random.default_rng(5).integers(0, 256, source.size, np.uint8)
    _core.stream_copy(source, target, threads=2)
    require_equal("copied bytes", target, source)
    largest = int((source.view("<u4") & 0x7FFFFFFF).max())
    require_equal("largest word read", _core.stream_read(source, threads=2), largest)
    return "1 MiB, exactly"


def check_shared_sums(folder: Path) -> str:
    """The sums over three ranks, here threads, that share memory."""
    random = np.random.default_rng(6)
    parts = [random.standard_normal(300_000).astype(np.float32) for _ in range(3)]
    expected = parts[0] + parts[1] + parts[2]
    (folder / "shared").unlink(missing_ok=True)
    members = [_core.SharedSum(str(folder / "shared"), rank, 3) for rank in range(3)]
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(member.all_reduce, part) for member, part in zip(members, parts, strict=True)]:
            done.result()
    for rank, part in enumerate(parts):
        require_equal(f"sum on rank {rank}", part, expected)
    return "300000 values of 3 ranks, exactly"


def _tensors() -> list[Floats]:
    random = np.random.default_rng(2)
    tensors = [(random.standard_normal(n) * 10.0 ** random.integers(-6, 3)).astype(np.float32) for n in _BUCKETS_SIZES]
    tensors.append(random.standard_normal((3, 5, 2, 7)).astype(np.float32).transpose(0, 3, 1, 2))
    tensors.append(np.array([7e4, -1e30, 1e-41, -0.0], np.float32))
    return tensors


def _flat(tensors: Sequence[Floats]) -> Floats:
    """All elements in memory order, one tensor after the other."""
    axes = [sorted(range(t.ndim), key=lambda axis, t=t: -t.strides[axis]) for t in tensors]  # type: ignore[misc]
    return np.concatenate([t.transpose(order).reshape(-1) for t, order in zip(tensors, axes, strict=True)])


def _cast(values: Floats, dtype: _DType) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        return bfloat16_of(values) if dtype == "bfloat16" else values.astype(_BUCKETS_ITEMS[dtype])


def _wide(buffer: NDArray[Any], dtype: _DType) -> Floats:
    if dtype == "bfloat16":
        return (buffer.astype(np.uint32) << 16).view(np.float32)
    wide: Floats = buffer.astype(np.float32)
    return wide


def _quantised(values: Floats) -> tuple[NDArray[np.uint8], Floats]:
    """The buffer and the residual: a block's scale is its largest magnitude / 127, its codes the nearest integers."""
    padded = np.zeros(-(-len(values) // _CHUNK) * _CHUNK, np.float32)
    padded[: len(values)] = values
    blocks = padded.reshape(-1, _BLOCK)
    largest = np.abs(blocks).max(axis=1)
    codable = largest >= np.float32(2.0**-119)
    scales = np.where(codable, largest / np.float32(127), np.float32(0))
    inverse = np.where(codable, np.float32(127) / np.where(codable, largest, np.float32(1)), np.float32(0))
    codes = np.rint(blocks * inverse[:, None]).astype(np.int8)
    rest = (blocks - codes.astype(np.float32) * scales[:, None]).reshape(-1)[: len(values)]
    heads = scales.astype("<f4").reshape(-1, _CHUNK // _BLOCK).view(np.uint8)
    return np.concatenate([heads, codes.reshape(-1, _CHUNK).view(np.uint8)], axis=1).reshape(-1), rest


def _dequantised(buffer: NDArray[np.uint8], count: int, scale: float) -> Floats:
    chunks = buffer.reshape(-1, _CHUNK_BYTES)
    scales = np.ascontiguousarray(chunks[:, :64]).view("<f4").reshape(-1, 1)
    codes = np.ascontiguousarray(chunks[:, 64:]).view(np.int8).reshape(-1, _BLOCK)
    values: Floats = (codes.astype(np.float32) * scales * np.float32(scale)).reshape(-1)[:count]
    return values


def _require_norms(what: str, norms: NDArray[np.float64], tensors: Sequence[Floats]) -> None:
    expected = np.array([np.sqrt(np.square(t.astype(np.float64)).sum()) for t in tensors])
    with np.errstate(invalid="ignore"):
        off = ~((norms == expected) | (np.abs(norms - expected) <= NORM_TOLERANCE * expected))
    shown = f"{norms[off][:1]} instead of {expected[off][:1]}"
    require(not off.any(), f"{what}: {np.count_nonzero(off)} of {len(off)} are wrong, the first is {shown}")


def _lines(size_bytes: int) -> NDArray[np.uint8]:
    """Memory that begins at the start of a cache line."""
    memory = np.zeros(size_bytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size_bytes]


# ----------------------------------------------------------------------------------------------------
# Non-maximum suppression and RoIAlign against their definitions in NumPy.


# Sums of some hundred products of features of order 1: float32 in the kernel, float64 here.
_FLOAT32_TOLERANCE = 2e-5
_FLOAT64_TOLERANCE = 1e-12
# Exact in every type, as are the overlaps of integer boxes that equal them: rounding cannot decide which are kept.
_THRESHOLDS = (0.0, 0.25, 0.5)
_BINS, _SCALE = (3, 5), 0.5


def check_nms() -> str:
    """The kept boxes are those of the definition, also with ties, groups, and boxes of no area."""
    random = np.random.default_rng(4)
    corners = random.integers(0, 40, (300, 2))
    boxes = np.concatenate([corners, corners + random.integers(0, 14, (300, 2))], axis=1)
    groups = random.integers(-1, 2, 300)
    for real in (np.float32, np.float64):
        scores = random.integers(0, 90, 300).astype(real)
        for threshold in _THRESHOLDS:
            for grouped in (None, groups):
                kept = _core.nms(boxes.astype(real), scores, grouped, iou_threshold=threshold, threads=2)
                require_equal(f"boxes kept above {threshold}", kept, _kept_boxes(boxes, scores, grouped, threshold))
    return "300 boxes, with and without groups, 3 thresholds; the same are kept, in the same order"


def check_roi_align() -> str:
    """Bins and gradients in both layouts and every type, for rois inside, across and outside the edges."""
    random = np.random.default_rng(6)
    exact = random.standard_normal((2, 19, 9, 11))
    corners = random.uniform(-6, 20, (14, 2))
    rois = np.column_stack([random.integers(0, 2, 14), corners, corners + random.uniform(0, 12, (14, 2))])
    rois = rois.astype(np.float32).astype(np.float64)
    for ratio, aligned in ((2, False), (0, True)):
        for real, tolerance in ((np.float64, _FLOAT64_TOLERANCE), (np.float32, _FLOAT32_TOLERANCE)):
            _check_pooling(exact, rois, real, {"sampling_ratio": ratio, "aligned": aligned}, tolerance)
        _check_half(exact, rois, {"sampling_ratio": ratio, "aligned": aligned})
    return (
        "14 rois on 2 x 19 x 9 x 11, both layouts, with gradients: float64 to 1e-12, float32 to 2e-5, float16 to 1e-2"
    )


def _check_pooling(exact: NDArray[Any], rois: NDArray[Any], real: Any, sampling: dict[str, Any], limit: float) -> None:
    pooled = _pooled(exact, rois, **sampling)
    slopes = np.random.default_rng(7).standard_normal(pooled.shape)
    gradient = _spread(slopes, exact.shape, rois, **sampling)
    features = exact.astype(real)
    for layout in (features, _channels_last(features)):
        out, back = np.full(pooled.shape, 77, real), np.full_like(layout, 77)
        call = {**sampling, "spatial_scale": _SCALE, "threads": 2}
        _core.roi_align(layout, rois.astype(real), out, **call)
        require_close(f"pooled rois, {real.__name__}", out, pooled, limit)
        _core.roi_align_backward(slopes.astype(real), rois.astype(real), back, **call)
        require_close(f"gradient of rois, {real.__name__}", back, gradient, limit)


def _check_half(exact: NDArray[Any], rois: NDArray[Any], sampling: dict[str, Any]) -> None:
    half = exact.astype(np.float16)
    out = np.full((len(rois), exact.shape[1], *_BINS), 77, np.float16)
    _core.roi_align(half, rois.astype(np.float32), out, **sampling, spatial_scale=_SCALE, threads=2)
    # Between 2 and 4, float16 has steps of 2**-9, and there is one rounding.
    require_close("pooled rois, float16", out, _pooled(half.astype(np.float64), rois, **sampling), 1e-2)


def _kept_boxes(
    boxes: NDArray[Any], scores: NDArray[Any], groups: NDArray[Any] | None, threshold: float
) -> NDArray[Any]:
    """In descending order of score, a box is kept unless a kept box overlaps it by more than the threshold."""
    kept: list[int] = []
    for index in np.argsort(-scores, kind="stable"):
        rivals = [k for k in kept if groups is None or groups[k] == groups[index]]
        if not any(_overlap(boxes[k], boxes[index]) > threshold for k in rivals):
            kept.append(int(index))
    return np.array(kept, np.int64)


def _overlap(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Intersection over union; 0 where the union is empty."""
    width, height = (max(0, min(one[2 + a], other[2 + a]) - max(one[a], other[a])) for a in (0, 1))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    union = sum(areas) - width * height
    return float(width * height / union) if union else 0.0


def _pooled(features: NDArray[Any], rois: NDArray[Any], **sampling: Any) -> NDArray[Any]:
    """Each bin is the mean of bilinear samples: rows x image x columns, as two matrix products."""
    weights = [_weights(roi, features.shape[2:], **sampling) for roi in rois]
    return np.stack(
        [rows @ features[int(roi[0])] @ columns.T for roi, (rows, columns) in zip(rois, weights, strict=True)]
    )


def _spread(slopes: NDArray[Any], shape: tuple[int, ...], rois: NDArray[Any], **sampling: Any) -> NDArray[Any]:
    """The gradient: the same two products, transposed."""
    gradient = np.zeros(shape)
    for roi, slope in zip(rois, slopes, strict=True):
        rows, columns = _weights(roi, shape[2:], **sampling)
        gradient[int(roi[0])] += rows.T @ slope @ columns
    return gradient


def _weights(roi: NDArray[Any], size: tuple[int, ...], **sampling: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """The weight of each pixel in each bin: one matrix (bins, pixels) per axis."""
    _, x1, y1, x2, y2 = roi
    return _axis(y1, y2, _BINS[0], size[0], **sampling), _axis(x1, x2, _BINS[1], size[1], **sampling)


def _axis(low: float, high: float, bins: int, pixels: int, sampling_ratio: int, aligned: bool) -> NDArray[Any]:
    shift = 0.5 if aligned else 0.0
    start, length = low * _SCALE - shift, (high - low) * _SCALE
    length = length if aligned else max(length, 1.0)
    grid = sampling_ratio or max(math.ceil(length / bins), 1)
    table = np.zeros((bins, pixels))
    for b in range(bins):
        for i in range(grid):
            place = start + (b + (i + 0.5) / grid) * length / bins
            if -1 <= place <= pixels:
                place = min(max(place, 0.0), pixels - 1.0)
                first = min(int(place), pixels - 1)
                table[b, first] += (1 - (place - first)) / grid
                table[b, min(first + 1, pixels - 1)] += (place - first) / grid
    return table


def _channels_last(features: NDArray[Any]) -> NDArray[Any]:
    return features.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)


# ----------------------------------------------------------------------------------------------------
# Climate images against h5py and NumPy: layouts, filters, normalisation, types, rolls, crops and windows.


_SHAPE = (6, 5, 24, 36)
_LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks": {"chunks": (1, 5, 24, 36)},
    "gzip": {"chunks": (4, 1, 7, 9), "compression": "gzip"},
    "shuffle-gzip-fletcher32": {"chunks": (2, 3, 8, 36), "shuffle": True, "compression": "gzip", "fletcher32": True},
    "lzf": {"chunks": (3, 1, 24, 20), "compression": "lzf"},
}
_WEATHER_ITEMS = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


@dataclass(frozen=True, eq=False)
class _Year(Storage):
    """A storage with its path, as the reader takes it."""

    path: str


def check_layouts(folder: Path) -> str:
    """Every layout and filter reads as by h5py, bit for bit, also for arbitrary bit patterns."""
    bits = np.random.default_rng(0).integers(0, 2**32, _SHAPE, np.uint32).view(np.float32)
    for name, options in _LAYOUTS.items():
        for images in (_fields(), bits):
            year = _write(folder / "year.h5", images, options)
            with h5py.File(year.path) as file:
                expected = file["images"][:]
            with _reader(year) as reader:
                order = np.array([3, 0, 5, 1])
                require_equal(name, _read(reader, order).view(np.uint32), expected[order].view(np.uint32))
    return f"{', '.join(_LAYOUTS)}: h5py's bits"


def check_damage(folder: Path) -> str:
    """A chunk with a wrong checksum and a truncated file are errors."""
    year = _write(folder / "year.h5", _fields(), _LAYOUTS["shuffle-gzip-fletcher32"])
    path, content = Path(year.path), bytearray(Path(year.path).read_bytes())
    content[int(year.addresses[0]) + 40] ^= 0x10
    path.write_bytes(content)
    require_equal("a changed byte in a chunk", _kind_of_error(year), "corrupt")
    year = _write(folder / "year.h5", _fields(), {})
    path.write_bytes(path.read_bytes()[:-5000])
    require_equal("a truncated file", _kind_of_error(year), "truncated")
    return "a changed byte and a truncated file are refused"


def check_normalising(folder: Path) -> str:
    """Normalised images are rounded once; narrower types are rounded again, to nearest even."""
    images = _fields()
    mean = images.mean(axis=(0, 2, 3), dtype=np.float64)
    std = images.std(axis=(0, 2, 3), dtype=np.float64)
    year = _write(folder / "year.h5", images, {})
    expected = _normalised(images, mean, std)
    casts = {"float32": expected, "float16": expected.astype(np.float16), "bfloat16": bfloat16_of(expected)}
    for dtype in _WEATHER_ITEMS:
        with _reader(year, mean=mean, std=std, dtype=dtype) as reader:
            require_equal(f"normalised {dtype}", _read(reader, np.arange(len(images)), dtype), casts[dtype])
    return "float32, float16, bfloat16; exactly (one rounding)"


def check_conversion() -> str:
    """Batches that are normalised and laid out in memory are bitwise equal to those normalised by the reader."""
    images = _fields()
    mean = images.mean(axis=(0, 2, 3), dtype=np.float64)
    std = images.std(axis=(0, 2, 3), dtype=np.float64)
    expected = _normalised(images, mean, std)
    casts = {"float32": expected, "float16": expected.astype(np.float16), "bfloat16": bfloat16_of(expected)}
    for dtype, cast in casts.items():
        for order in ((0, 1, 2, 3), (0, 2, 3, 1)):
            # Stored in this order, and viewed as (images, channels, rows, columns).
            out = np.zeros([_SHAPE[axis] for axis in order], _WEATHER_ITEMS[dtype]).transpose(np.argsort(order))
            _core.convert_images(images, out, mean=mean.tolist(), std=std.tolist(), threads=2)
            require_equal(f"converted to {dtype}", out, cast)
    return "float32, float16, bfloat16; channels first and last; exactly (one rounding)"


def check_windows(folder: Path) -> str:
    """Rolls around the globe, crops, selected channels, and images of a window."""
    images, channels, rolls = _fields(), [4, 0, 2], np.array([0, 1, 35, 18, -7, 1000])
    left, width = 5, 20
    rolled = [np.roll(image[channels], roll, axis=-1) for image, roll in zip(images, rolls, strict=True)]
    expected = np.stack(rolled)[..., left : left + width]
    for name in ("contiguous", "gzip"):
        year = _write(folder / "year.h5", images, _LAYOUTS[name])
        with _reader(year, channels=channels, left=left, width=width) as reader:
            require_equal(f"rolled and cropped, {name}", _read(reader, np.arange(6), rolls=rolls), expected)
            window = np.full((4, 3, *_SHAPE[2:]), 77, np.float32)
            for part in range(3):
                reader.read_window(0, 2, 4, window, part=(part, part + 1, 3))
            require_equal(f"window, {name}", window, images[2:, channels])
            taken = np.full((2, *reader.image_shape), 77, np.float32)
            reader.take(window, np.array([3, 0]), taken, rolls=rolls[[5, 2]])
            require_equal(f"taken out of a window, {name}", taken, expected[[5, 2]])
    return "6 rolls, a crop, 3 of 5 channels, a window in 3 parts; exactly"


def _normalised(images: NDArray[np.float32], mean: NDArray[Any], std: NDArray[Any]) -> NDArray[np.float32]:
    scale, bias = ((1 / std).astype(np.float32), (-mean / std).astype(np.float32))
    # A float32 product is exact in longdouble, and its sum is rounded far below the last bit of float32.
    wide = images.astype(np.longdouble) * scale[:, None, None] + bias[:, None, None].astype(np.longdouble)
    narrow: NDArray[np.float32] = wide.astype(np.float32)
    return narrow


def _fields() -> NDArray[np.float32]:
    """Smooth fields with a little noise; channels differ in scale."""
    images, channels, rows, columns = _SHAPE
    n, c, y, x = np.ogrid[0:images, 0:channels, 0:rows, 0:columns]
    waves = np.sin(2 * np.pi * (x / columns + n / 7)) * np.cos(y / rows + c) + 3
    noise = 1e-3 * np.random.default_rng(1).standard_normal(_SHAPE)
    return (10.0 ** (c % 6 - 3) * (waves + noise)).astype(np.float32)


def _write(path: Path, images: NDArray[np.float32], options: dict[str, Any]) -> _Year:
    with h5py.File(path, "w") as file:
        file.create_dataset("images", data=images, **options)
    with h5py.File(path) as file:
        return _Year(**vars(storage_of(file["images"])), path=str(path))


def _reader(year: _Year, **settings: Any) -> _core.ClimateReader:
    everything = {"channels": range(year.shape[1]), "mean": None, "std": None, "dtype": "float32", "left": 0}
    return _core.ClimateReader([year], **{**everything, "width": year.shape[3], "threads": 2, **settings})


def _read(reader: _core.ClimateReader, images: NDArray[Any], dtype: str = "float32", **arguments: Any) -> NDArray[Any]:
    out = np.full((len(images), *reader.image_shape), 77, _WEATHER_ITEMS[dtype])
    reader.read(np.zeros(len(images), int), images, out, **arguments)
    return out


def _kind_of_error(year: _Year) -> str:
    with _reader(year) as reader:
        try:
            _read(reader, np.arange(_SHAPE[0]))
        except _core.ClimateError as error:
            return error.kind
    require(False, "damaged data was read without an error")
    return ""
