"""Pixels of both decoders against Pillow, the twin and each other: sizes, crops, types, layouts, instruction sets."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders.instruction_sets import on_each
from jpeg_files import decoded, jpeg, photograph
from jpeg_twin import (
    Box,
    assert_own_or_libjpegs,
    centre_box,
    colour_planes,
    decode,
    decode_scan,
    expected,
    late_clamp_bounds,
    normalise,
    outcome,
    pillow_resize,
    random_box,
    read_header,
    resize,
    rgb,
)
from numpy.typing import NDArray
from PIL import Image

from hpcai500 import _core

# ----------------------------------------------------------------------------------------------------
# Both decoders against Pillow and the reference.


DECODERS = ["own", "libjpeg-turbo"]
# Pillow rounds to whole levels between its two passes and after them, we round once: two levels at worst. And our own
# decoder cuts levels at the output's size only, where Pillow averages what was cut: colours out of range differ.
WORST_LEVELS = {"own": 16, "libjpeg-turbo": 2}
MEAN_LEVELS = 1.0
ITEMS = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "uint8": np.uint8}


def image_of(data: bytes, spec: _core.DecodeSpec, sample: int = 0) -> np.ndarray:
    out = np.full(spec.shape, 77, ITEMS[spec.dtype])
    _core.decode_crop(data, spec, out, seed=11, epoch=2, sample=sample)
    return out


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("mode", ["random", "centre"])
@pytest.mark.parametrize(("width", "height"), [(500, 375), (375, 500), (180, 900), (120, 90), (256, 256), (1000, 700)])
def test_a_crop_equals_pillows(width: int, height: int, mode: str, decoder: str) -> None:
    """A random crop crop().resize(), a centre crop resize() of a fractional box."""
    data = jpeg(photograph(width, height), quality=92)
    image = decoded(data)
    spec = _core.DecodeSpec(size=224, mode=mode, dtype="uint8", layout="nhwc", decoder=decoder)
    crops = [(0, centre_box(width, height, size=224, resize_shorter=256))]
    if mode == "random":
        crops = [(sample, random_box(width, height, seed=11, epoch=2, sample=sample)) for sample in range(12)]
    for sample, box in crops:
        found = image_of(data, spec, sample).astype(int)
        error = np.abs(found - pillow_resize(image, box, 224, crop_first=mode == "random"))
        assert error.mean() <= MEAN_LEVELS
        assert error.max() <= WORST_LEVELS[decoder]


@pytest.mark.parametrize("mode", ["random", "centre"])
def test_float32_is_the_references_to_rounding(mode: str) -> None:
    """Of Pillow's pixels, so libjpeg's."""
    data = jpeg(photograph(300, 200))
    pixels = np.asarray(decoded(data))
    spec = _core.DecodeSpec(size=64, mode=mode, resize_shorter=72, layout="nhwc", decoder="libjpeg-turbo")
    for sample in range(5):
        box = (
            random_box(300, 200, seed=11, epoch=2, sample=sample)
            if mode == "random"
            else centre_box(300, 200, size=64, resize_shorter=72)
        )
        expected = normalise(resize(pixels, box, 64, crop_first=mode == "random"), spec.mean, spec.std)
        np.testing.assert_allclose(image_of(data, spec, sample), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("std", [(58.395, 57.12, 57.375), (1e6, 1e7, 3e8), (1e-3, 1e-2, 1e-4)])
def test_half_precision_is_float32_rounded_to_nearest_even(
    layout: str, std: tuple[float, float, float], decoder: str
) -> None:
    data, settings = jpeg(photograph(120, 100)), {"size": 50, "layout": layout, "std": std, "decoder": decoder}
    for sample in range(4):
        exact = image_of(data, _core.DecodeSpec(**settings), sample)
        half = image_of(data, _core.DecodeSpec(**settings, dtype="float16"), sample)
        brain = image_of(data, _core.DecodeSpec(**settings, dtype="bfloat16"), sample)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(half, exact.astype(np.float16))
        np.testing.assert_array_equal(
            brain.view(np.int16), torch.from_numpy(exact).bfloat16().view(torch.int16).numpy()
        )


@pytest.mark.parametrize("decoder", DECODERS)
def test_uint8_is_the_level_rounded_half_to_even(decoder: str) -> None:
    data = jpeg(photograph(120, 100))
    levels = image_of(data, _core.DecodeSpec(size=50, mean=(0, 0, 0), std=(1, 1, 1), decoder=decoder))
    rounded = image_of(data, _core.DecodeSpec(size=50, dtype="uint8", decoder=decoder))
    np.testing.assert_array_equal(rounded, np.rint(levels))


@pytest.mark.parametrize("decoder", DECODERS)
def test_layouts_hold_the_same_values(decoder: str) -> None:
    data = jpeg(photograph(120, 100))
    planar, interleaved = (
        image_of(data, _core.DecodeSpec(size=37, layout=layout, decoder=decoder)) for layout in ("nchw", "nhwc")
    )
    np.testing.assert_array_equal(planar.transpose(1, 2, 0), interleaved)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("offset", [4, 16, 32, 60])
def test_an_output_may_start_anywhere(offset: int, decoder: str) -> None:
    data = jpeg(photograph(120, 100))
    spec = _core.DecodeSpec(size=48, decoder=decoder)
    memory = np.zeros(spec.image_bytes + 192, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    unaligned = memory[start : start + spec.image_bytes].view(np.float32)
    _core.decode_crop(data, spec, unaligned, seed=11, epoch=2, sample=0)
    np.testing.assert_array_equal(unaligned.reshape(spec.shape), image_of(data, spec))


# libjpeg rounds chroma when it interpolates, and colours when it converts them; our own decoder does not.
ROUNDING = 2


def late_clamp_errors(planes: np.ndarray, size: int, subsampling: str = "4:4:4", quality: int = 100) -> np.ndarray:
    """Levels between our own decoder and libjpeg of a whole picture, whose JPEG has these Y, Cb and Cr."""
    buffer = io.BytesIO()
    Image.fromarray(planes, "YCbCr").save(buffer, "JPEG", quality=quality, subsampling=subsampling)
    whole = Box(0, 0, planes.shape[1], planes.shape[0], flip=False)
    own, other = (outcome(buffer.getvalue(), whole, size, decoder).pixels for decoder in DECODERS)
    return np.abs(own - other)


@pytest.mark.parametrize(
    ("channel", "beyond", "within", "share"),
    [(0, (0, 128, 0), (255, 128, 128), 10), (1, (255, 0, 0), (0, 128, 128), 11), (2, (0, 0, 128), (255, 128, 128), 9)],
)
def test_saturated_pictures_come_near_the_bound_of_the_late_cut(
    channel: int, beyond: tuple[int, ...], within: tuple[int, ...], share: int
) -> None:
    """Of 17 blocks in a row or column, `share` are as far out of range as a JPEG can be, the others at its end."""
    rows, columns = np.mgrid[0:17, 0:17]
    is_beyond = np.kron((5 * rows + 2 * columns) % 17 < share, np.ones((8, 8), bool))
    planes = np.where(is_beyond[..., None], np.uint8(beyond), np.uint8(within)).astype(np.uint8)
    bound = late_clamp_bounds()[channel]
    for size in (1, 3, 8):
        errors = late_clamp_errors(planes, size)[..., channel]
        assert 0.97 * bound < errors.max() <= bound + ROUNDING


def test_no_picture_is_beyond_the_bound_of_the_late_cut() -> None:
    rng, bounds = np.random.default_rng(15), late_clamp_bounds()
    assert bounds.max() == pytest.approx(120.04, abs=0.01)
    for _ in range(60):
        side, square = int(rng.integers(16, 130)), int(rng.choice([1, 2, 4, 8, 16]))
        levels = rng.choice([0, 128, 255], (side // square + 1, side // square + 1, 3)).astype(np.uint8)
        planes = np.kron(levels, np.ones((square, square, 1), np.uint8))[:side, :side]
        subsampling, quality = str(rng.choice(["4:4:4", "4:2:2", "4:2:0"])), int(rng.choice([5, 50, 92, 100]))
        errors = late_clamp_errors(planes, int(rng.integers(1, 40)), subsampling, quality)
        assert (errors.max(axis=(0, 1)) <= bounds + ROUNDING).all()


@pytest.mark.parametrize(("decoder", "levels"), [("own", 2), ("libjpeg-turbo", 0)])
def test_a_partly_decoded_crop_equals_the_crop_of_the_whole_image(decoder: str, levels: int) -> None:
    """Every place of a small window: the cuts meet every phase of blocks, chroma and interpolation.

    Our own decoder does not round where Pillow does: when it interpolates chroma and when it converts colours.
    """
    pixels = photograph(83, 61)
    spec = _core.DecodeSpec(size=16, dtype="uint8", layout="nhwc", decoder=decoder)
    for subsampling, progressive in [("4:2:0", False), ("4:2:2", False), ("4:4:4", False), ("4:2:0", True)]:
        data = jpeg(pixels, subsampling=subsampling, progressive=progressive)
        whole = np.asarray(decoded(data)).astype(int)
        out = np.empty(spec.shape, np.uint8)
        for x in range(83 - 16):
            for y in range(0, 61 - 16, 1 if x % 16 in (0, 7) else 9):
                _core.decode_box(data, spec, out, x=x, y=y, width=16, height=16, flip=False)
                assert np.abs(out - whole[y : y + 16, x : x + 16]).max() <= levels, (subsampling, x, y)


def test_pixels_of_another_decoder_get_the_same_crop() -> None:
    data = jpeg(photograph(150, 110))
    pixels = np.asarray(decoded(data))
    for settings in ({"mode": "random"}, {"mode": "centre", "resize_shorter": 60}):
        spec = _core.DecodeSpec(size=50, **settings, decoder="libjpeg-turbo")
        for sample in range(8):
            out = np.empty(spec.shape, np.float32)
            _core.crop_pixels(pixels, spec, out, seed=11, epoch=2, sample=sample)
            np.testing.assert_array_equal(out, image_of(data, spec, sample))


def test_an_image_of_one_colour_stays_that_colour() -> None:
    pixels = np.full((40, 60, 3), (10, 128, 250), np.uint8)
    out = np.empty((33, 33, 3), np.uint8)
    _core.crop_pixels(pixels, _core.DecodeSpec(size=33, dtype="uint8", layout="nhwc"), out, seed=0, epoch=0, sample=1)
    assert (out == (10, 128, 250)).all()


def test_dct_scaling_is_off_by_default_and_close_where_it_is_used() -> None:
    data = jpeg(photograph(1000, 800), quality=92)
    # A crop below twice the output's size is decoded in full: then nothing changes.
    for box, scaled in ((Box(100, 80, 800, 640, flip=False), True), (Box(100, 80, 300, 300, flip=False), False)):
        exact = outcome(data, box, 224, dtype="uint8").pixels.astype(int)
        error = np.abs(exact - outcome(data, box, 224, dtype="uint8", dct_scaling=True).pixels).mean()
        assert 0 < error < 2 if scaled else error == 0


_MAKE_IMAGES = """
import sys
import numpy as np
from jpeg_files import jpeg, photograph
items = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "uint8": np.uint8}
data, images = jpeg(photograph(200, 150)), {}
for size in (30, 64, 77):
    for dtype, item in items.items():
        for layout in ("nchw", "nhwc"):
            for decoder in ("own", "libjpeg-turbo"):
                spec = _core.DecodeSpec(size=size, dtype=dtype, layout=layout, decoder=decoder)
                out = images[f"{dtype}-{layout}-{size}-{decoder}"] = np.empty(spec.shape, item)
                _core.decode_crop(data, spec, out, seed=4, epoch=0, sample=size)
np.savez(sys.argv[1], **images)
"""


def test_all_instruction_sets_of_this_build_agree(tmp_path: Path) -> None:
    first, *others = (np.load(tmp_path / f"{isa}.npz") for isa in on_each(_MAKE_IMAGES, tmp_path / "{isa}.npz"))
    assert len(first.files) == 3 * 4 * 2 * 2
    for other in others:
        for name in first.files:
            one, another = first[name], other[name]
            if name.startswith("bfloat16"):
                one, another = ((values.astype(np.uint32) << 16).view(np.float32) for values in (one, another))
            # Fused multiply-add rounds once: the last bit of float32, so at most one step of a shorter type.
            step = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2, "uint8": 1}[name.split("-")[0]]
            np.testing.assert_allclose(one.astype(float), another.astype(float), rtol=0, atol=step)


_MAKE_HARD_IMAGES = """
import sys
import numpy as np
from jpeg_twin import outcome
from jpeg_files import PLAIN_CODES, Block, Frame, write_blocks
from jpeg_files import jpeg, photograph
from jpeg_twin import Box
rng = np.random.default_rng(0)
images = {}

def keep(name, data, box, size, **settings):
    found = outcome(data, box, size, **settings)
    assert found.failure is None and found.warnings == 0
    images[name] = found.pixels

noise = rng.integers(0, 256, (43, 43, 3), dtype=np.uint8)
for quality in (5, 50, 95, 100):
    for kind in ({"mode": "L"}, {"subsampling": "4:4:4"}):
        data = jpeg(noise, quality=quality, **kind)
        keep(f"same {quality} {kind}", data, Box(0, 0, 43, 43, False), 43, dtype="uint8")
        keep(f"same part {quality} {kind}", data, Box(17, 9, 26, 26, False), 26, dtype="uint8")

# Coefficients that no picture has: sums wrap and results are cut, everywhere alike.
frame = Frame(64, 64, [(1, 1)], [PLAIN_CODES], quantiser=255)
blocks = []
for _ in range(64):
    dc, ac = (int(bits) for bits in rng.integers(0, (9, 11)))
    symbols = [(int(bits), int(rng.integers(1 << bits >> 1, 1 << bits))) for bits in rng.integers(1, ac + 2, 63)]
    symbols = [(min(bits, 10), value if bits < 11 else 1023) for bits, value in symbols]
    blocks.append([Block(0, [(dc, (1 << dc) - 1), *symbols])])
keep("same wild", write_blocks(frame, blocks), Box(0, 0, 64, 64, False), 64, dtype="uint8")

for kind in ("4:4:4", "4:2:2", "4:2:0"):
    data = jpeg(photograph(83, 61), subsampling=kind, restart_marker_blocks=2)
    for size in (30, 64):
        for layout in ("nchw", "nhwc"):
            keep(f"float {kind} {size} {layout}", data, Box(5, 7, 71, 50, True), size, layout=layout)
np.savez(sys.argv[1], **images)
"""


def test_integers_are_the_same_on_all_instruction_sets_and_sums_of_floats_to_their_last_bits(tmp_path: Path) -> None:
    isas = on_each(_MAKE_HARD_IMAGES, tmp_path / "{isa}.npz")
    first, *others = (np.load(tmp_path / f"{isa}.npz") for isa in isas)
    assert len(first.files) == 4 * 2 * 2 + 1 + 3 * 2 * 2
    for other in others:
        for name in first.files:
            # Levels, as in jpeg_twin.py: a fused multiply-add rounds once.
            atol = 0 if name.startswith("same") else 1e-4
            np.testing.assert_allclose(first[name], other[name], rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("name", ["sse9", "AVX2"])
def test_an_unknown_instruction_set_is_an_import_error(name: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", "import hpcai500"],
        env={**os.environ, "HPCAI500_ISA": name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    assert "HPCAI500_ISA must be one of" in result.stderr


def test_pillow_agrees_with_the_reference() -> None:
    """The reference itself, so that the two are not wrong together."""
    pixels = photograph(130, 90)
    box = Box(7, 5, 100, 80, flip=True)
    levels = resize(pixels, box, 40, crop_first=True)
    assert np.abs(levels - pillow_resize(Image.fromarray(pixels), box, 40, crop_first=True)).max() <= 1.01


# ----------------------------------------------------------------------------------------------------
# Our own decoder against the twin.


KINDS: dict[str, dict[str, Any]] = {
    "4:4:4": {"subsampling": "4:4:4"},
    "4:2:2": {"subsampling": "4:2:2"},
    "4:2:0": {"subsampling": "4:2:0"},
    "grey": {"mode": "L"},
}
RESTARTS: dict[str, dict[str, Any]] = {
    "no restarts": {},
    "restarts by MCU": {"restart_marker_blocks": 1},
    "restarts by 3 MCUs": {"restart_marker_blocks": 3, "optimize": True},
    "restarts by row": {"restart_marker_rows": 1},
}
LEAST_PSNR = 50.0


def boxes(width: int, height: int, rng: np.random.Generator) -> list[Box]:
    """All of it, and parts: of any place, of one pixel, of one row."""
    w, h = (int(rng.integers(1, length + 1)) for length in (width, height))
    x, y = int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1))
    return [
        Box(0, 0, width, height, flip=False),
        Box(x, y, w, h, flip=True),
        Box(x, y, 1, 1, flip=False),
        Box(0, y, width, 1, flip=True),
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("restarts", RESTARTS)
def test_any_part_of_a_picture_of_any_size_is_the_twins(kind: str, restarts: str) -> None:
    rng = np.random.default_rng([len(kind), len(restarts)])
    for _ in range(20):
        width, height = (int(value) for value in rng.integers(1, 41, 2))
        options = {**KINDS[kind], **RESTARTS[restarts], "quality": int(rng.integers(5, 100))}
        data = jpeg(photograph(width, height, noise=20), **options)
        for box in boxes(width, height, rng):
            size = int(rng.integers(1, 24))
            assert_own_or_libjpegs(data, box, size, note=f"{options} {width}x{height} {box} {size}")


@pytest.mark.parametrize("kind", KINDS)
def test_every_small_size_is_the_twins(kind: str) -> None:
    """Up to two MCUs: edges of planes, of crops and of the picture meet."""
    for width in range(1, 34, 2 if kind == "4:2:0" else 3):
        for height in (1, 2, 7, 8, 9, 17):
            data = jpeg(photograph(width, height, noise=20), **KINDS[kind])
            twin = assert_own_or_libjpegs(data, Box(0, 0, width, height, flip=False), 9, note=f"{width}x{height}")
            # libjpeg repeats chroma of two samples a row; our own decoder leaves that to it.
            assert (twin is None) == (kind in ("4:2:2", "4:2:0") and width < 5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_centre_crop_is_the_twins(kind: str) -> None:
    """A box of fractions, around which the filter may reach."""
    for width, height, size, shorter in [(40, 31, 24, 28), (33, 39, 5, 6), (21, 40, 21, 21), (37, 37, 30, 64)]:
        data = jpeg(photograph(width, height, noise=20), **KINDS[kind])
        box = centre_box(width, height, size=size, resize_shorter=shorter)
        assert_own_or_libjpegs(data, box, size, mode="centre", note=f"{width}x{height} {size} of {shorter}")


def as_float(image: NDArray[Any]) -> NDArray[np.float64]:
    if image.dtype == np.uint16:
        image = (image.astype(np.uint32) << 16).view(np.float32)
    return image.astype(np.float64)


# Half a unit in the last place of each type at 255, and float32's own error.
TOLERANCES = {
    "own": {"float32": 1e-3, "float16": 0.0635, "bfloat16": 0.501, "uint8": 0.501},
    "libjpeg-turbo": {"float32": 1e-4, "float16": 0.0626, "bfloat16": 0.501, "uint8": 0.5001},
}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ITEMS)
def test_every_type_layout_and_size_has_the_twins_pixels_and_nothing_behind_them(
    decoder: str, kind: str, layout: str, dtype: str
) -> None:
    """Of our own decoder's samples, or of Pillow's pixels, which are libjpeg's."""
    data = jpeg(photograph(43, 38), **KINDS[kind], restart_marker_blocks=2)
    pixels = np.asarray(decoded(data))
    for size in (1, 2, 3, 5, 15, 16, 17, 31, 33, 47, 100, 225):
        plain = {"mean": (0, 0, 0), "std": (1, 1, 1), "decoder": decoder}
        spec = _core.DecodeSpec(size=size, layout=layout, dtype=dtype, **plain)
        guarded = np.full(3 * size * size + 64, 77, ITEMS[dtype])
        _core.decode_crop(data, spec, guarded[: 3 * size * size], seed=11, epoch=2, sample=size)
        assert (guarded[3 * size * size :] == 77).all()
        box = random_box(43, 38, seed=11, epoch=2, sample=size)
        own = decoder == "own"
        levels = decode(data, box, size, crop_first=True).levels if own else resize(pixels, box, size, crop_first=True)
        image = as_float(guarded[: 3 * size * size].reshape(spec.shape))
        if layout == "nchw":
            image = image.transpose(1, 2, 0)
        np.testing.assert_allclose(image, levels, rtol=0, atol=TOLERANCES[decoder][dtype])


def test_normalisation_is_that_of_the_other_decoder() -> None:
    """Grey, whose levels are the same for both."""
    data = jpeg(photograph(43, 38), mode="L")
    for layout in ("nchw", "nhwc"):
        own, other = (
            outcome(
                data,
                Box(3, 4, 30, 20, flip=True),
                19,
                decoder,
                layout=layout,
                mean=(123.675, 116.28, 103.53),
                std=(58.395, 57.12, 57.375),
            )
            for decoder in ("own", "libjpeg-turbo")
        )
        np.testing.assert_allclose(own.pixels, other.pixels, rtol=0, atol=1e-5)


# Photographs as ImageNet has them, small: smooth, and noisy with hard colours, whose levels libjpeg cuts earlier.
PHOTOGRAPHS = {"smooth": {"noise": 3.0, "quality": 92}, "noisy": {"noise": 12.0, "quality": 94}}


def crops(width: int, height: int, size: int) -> list[tuple[str, int, Box]]:
    random = [(sample, random_box(width, height, seed=11, epoch=2, sample=sample)) for sample in range(8)]
    centre = centre_box(width, height, size=size, resize_shorter=size * 8 // 7)
    return [("centre", 0, centre), *(("random", sample, box) for sample, box in random)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("restarts", ["no restarts", "restarts by MCU"])
@pytest.mark.parametrize("content", PHOTOGRAPHS)
def test_a_photograph_is_libjpegs_within_a_level_and_pillows_within_50_db(
    kind: str, restarts: str, content: str
) -> None:
    options = {**KINDS[kind], **RESTARTS[restarts], **PHOTOGRAPHS[content]}
    noise = float(options.pop("noise"))
    squares = []
    for seed, (width, height, size) in enumerate([(200, 150, 96), (120, 161, 112)]):
        data = jpeg(photograph(width, height, seed, noise=noise), **options)
        image = decoded(data)
        for mode, sample, box in crops(width, height, size):
            images = []
            for decoder in ("own", "libjpeg-turbo"):
                spec = _core.DecodeSpec(
                    size=size,
                    mode=mode,
                    resize_shorter=size * 8 // 7,
                    dtype="uint8",
                    layout="nhwc",
                    decoder=decoder,
                )
                images.append(np.empty(spec.shape, np.uint8))
                _core.decode_crop(data, spec, images[-1], seed=11, epoch=2, sample=sample)
            own, other = (made.astype(float) for made in images)
            assert np.abs(own - other).mean() <= MEAN_LEVELS, (mode, sample)
            pillows = pillow_resize(image, box, size, crop_first=mode == "random")
            squares.append(float(np.mean((own - pillows) ** 2)))
    assert 10 * np.log10(255**2 / np.mean(squares)) >= LEAST_PSNR


@pytest.mark.parametrize("kind", KINDS)
def test_where_levels_are_cut_is_all_that_the_two_decoders_differ_in(kind: str) -> None:
    """Colours that leave 0 to 255 by far, in crops of a few pixels: there a mean of 1 level is not to be had.

    libjpeg cuts each pixel, we cut what was made of them. The twin can do either, and is libjpeg's but for rounding.
    """
    rng = np.random.default_rng(len(kind))
    for _ in range(40):
        width, height, size = (int(value) for value in rng.integers(5, 41, 3))
        pixels = (rng.integers(0, 2, (height, width, 3)) * 255).astype(np.uint8)
        data = jpeg(pixels, **KINDS[kind], quality=int(rng.integers(5, 100)))
        header = read_header(data)
        cut_early = rgb(colour_planes(header, decode_scan(data, header, header.mcus_down, header.mcus_across)))
        for box in boxes(width, height, rng):
            levels = resize(cut_early, box, size, crop_first=True)
            other = outcome(data, box, size, "libjpeg-turbo").pixels
            np.testing.assert_allclose(levels, other, rtol=0, atol=1.5)


@pytest.mark.parametrize("kind", ["4:4:4", "4:2:2", "4:2:0"])
def test_our_own_decoder_is_the_default_and_was_asked(kind: str) -> None:
    """It rounds samples only: levels of a whole picture at its own size aren't whole, as libjpeg's are."""
    data, box = jpeg(photograph(40, 40), **KINDS[kind]), Box(0, 0, 40, 40, flip=False)
    own, other = outcome(data, box, 40).pixels, outcome(data, box, 40, "libjpeg-turbo").pixels
    assert expected(data, box, 40) is not None
    assert _core.DecodeSpec(size=40).decoder == "own"
    assert (other == np.rint(other)).all()
    assert (own != np.rint(own)).mean() > 0.5
    np.testing.assert_allclose(own, other, rtol=0, atol=2)


# ----------------------------------------------------------------------------------------------------
# Samples of our own decoder are libjpeg's to the bit: grey pictures, whole, at their own size, are nothing else.


QUALITIES = [1, 3, 10, 25, 50, 75, 90, 96, 100]


def noise(side: int, seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)


def extremes(side: int, seed: int) -> NDArray[np.uint8]:
    """Black and white only: the largest coefficients that a picture can have."""
    return (noise(side, seed) >> 7) * np.uint8(255)


PICTURES = {"photograph": lambda side, seed: photograph(side, side, seed), "noise": noise, "extremes": extremes}


def pillows_grey(data: bytes) -> NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(data)))


def our_grey(data: bytes, side: int, mode: str = "centre") -> NDArray[np.uint8]:
    found = outcome(data, Box(0, 0, side, side, flip=False), side, mode=mode, resize_shorter=side, dtype="uint8")
    assert (found.failure, found.warnings) == (None, 0)
    assert (found.pixels == found.pixels[..., :1]).all()
    return found.pixels[..., 0]


@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize("quality", QUALITIES)
@pytest.mark.parametrize("options", [{}, {"optimize": True}, {"restart_marker_blocks": 3}], ids=str)
def test_a_whole_grey_picture_is_pillows(kind: str, quality: int, options: dict[str, Any]) -> None:
    data = jpeg(PICTURES[kind](57, 0), mode="L", quality=quality, **options)
    np.testing.assert_array_equal(our_grey(data, 57), pillows_grey(data))


@pytest.mark.parametrize("side", range(1, 41))
def test_a_whole_grey_picture_of_any_size_is_pillows(side: int) -> None:
    for seed, options in enumerate([{}, {"restart_marker_blocks": 1}, {"restart_marker_rows": 1, "optimize": True}]):
        data = jpeg(noise(side, seed), mode="L", quality=80, **options)
        for mode in ("centre", "random"):
            np.testing.assert_array_equal(our_grey(data, side, mode), pillows_grey(data))


def test_every_part_of_a_grey_picture_is_pillows() -> None:
    """What lies above and beside a part is passed over, not decoded."""
    data = jpeg(noise(60, 1), mode="L", quality=85, restart_marker_blocks=5)
    whole, rng = pillows_grey(data), np.random.default_rng(0)
    for _ in range(200):
        side = int(rng.integers(1, 30))
        x, y = (int(value) for value in rng.integers(0, 60 - side, 2))
        part = outcome(data, Box(x, y, side, side, flip=False), side, dtype="uint8").pixels
        np.testing.assert_array_equal(part[..., 0], whole[y : y + side, x : x + side], err_msg=f"{x} {y} {side}")


@pytest.mark.parametrize("quality", QUALITIES)
def test_the_twins_samples_are_pillows_as_well(quality: int) -> None:
    """The twin itself, so that the two are not wrong together."""
    data = jpeg(noise(41, quality), mode="L", quality=quality, restart_marker_blocks=2)
    header = read_header(data)
    planes = colour_planes(header, decode_scan(data, header, header.mcus_down, header.mcus_across))
    np.testing.assert_array_equal(planes[..., 0], pillows_grey(data))
