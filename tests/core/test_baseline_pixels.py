"""Pixels of our own decoder against the twin, libjpeg-turbo and Pillow: sampling, sizes, crops, types, layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from baseline_header import read_header
from baseline_outcomes import assert_own_or_libjpegs, expected, outcome
from baseline_reference import colour_planes, decode, rgb
from baseline_scan import decode_scan
from numpy.typing import NDArray
from pictures import decoded, jpeg, photograph
from reference import Box, centre_box, pillow_resize, random_box, resize

from hpcai500 import _core

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
MEAN_LEVELS = 1.0
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(
    ("dtype", "item", "tolerance"),
    # Half a unit in the last place of each type at 255, and float32's own error.
    [
        ("float32", np.float32, 1e-3),
        ("float16", np.float16, 0.0635),
        ("bfloat16", np.uint16, 0.501),
        ("uint8", np.uint8, 0.501),
    ],
)
def test_every_type_and_layout_has_the_twins_pixels(
    kind: str, layout: str, dtype: str, item: type[np.generic], tolerance: float
) -> None:
    data = jpeg(photograph(43, 38), **KINDS[kind], restart_marker_blocks=2)
    for size in (1, 2, 15, 16, 17, 33, 47):
        spec = _core.DecodeSpec(size=size, layout=layout, dtype=dtype, mean=(0, 0, 0), std=(1, 1, 1))
        guarded = np.full(3 * size * size + 64, 77, item)
        _core.decode_crop(data, spec, guarded[: 3 * size * size], seed=11, epoch=2, sample=size)
        assert (guarded[3 * size * size :] == 77).all()
        box = random_box(43, 38, seed=11, epoch=2, sample=size)
        levels = decode(data, box, size, crop_first=True).levels
        image = as_float(guarded[: 3 * size * size].reshape(spec.shape))
        if layout == "nchw":
            image = image.transpose(1, 2, 0)
        np.testing.assert_allclose(image, levels, rtol=0, atol=tolerance)


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
