"""What a sample shows: settings, checked at the boundary, and the crop, a pure function of the sample's key."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jpeg_files import jpeg, photograph
from jpeg_twin import centre_box, philox4x32, random_box

from hpcai500 import _core

KEY = {"seed": 0, "epoch": 0, "sample": 0}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 0}, "size must be in [1, 16384], got 0"),
        ({"size": 20_000}, "size must be in [1, 16384], got 20000"),
        ({"mode": "center"}, "mode must be one of random, centre; got 'center'"),
        ({"dtype": "float64"}, "dtype must be one of float32, float16, bfloat16, uint8; got 'float64'"),
        ({"layout": "chw"}, "layout must be one of nchw, nhwc; got 'chw'"),
        ({"area": (0.5, 0.1)}, "area must satisfy 0 < low <= high <= 1, got (0.5, 0.1)"),
        ({"area": (0.0, 1.0)}, "area must satisfy"),
        ({"area": (0.1, 1.5)}, "area must satisfy"),
        ({"ratio": (2.0, 1.0)}, "ratio must satisfy 0 < low <= high, both finite, got (2, 1)"),
        ({"ratio": (1.0, float("inf"))}, "ratio must satisfy"),
        ({"ratio": (float("nan"), 1.0)}, "ratio must satisfy"),
        ({"flip_probability": -0.1}, "flip_probability must be in [0, 1], got -0.1"),
        ({"mode": "centre", "resize_shorter": 200}, "size <= resize_shorter, got size 224 and resize_shorter 200"),
        ({"resize_shorter": 0}, "resize_shorter must be in [1, 16384], got 0"),
        ({"mean": (0, float("nan"), 0)}, "got mean nan and std 57.12 for channel 1"),
        ({"std": (1, 1, 0)}, "std above 0, and 1 / std and mean / std within float32, got mean 103.53 and std 0 for"),
        ({"std": (1e-300, 1, 1)}, "got mean 123.675 and std 1e-300 for channel 0"),
    ],
)
def test_a_wrong_setting_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        _core.DecodeSpec(**{"size": 224, **wrong})


def test_a_spec_tells_its_settings_and_cannot_be_changed() -> None:
    spec = _core.DecodeSpec(size=32, mode="centre", dtype="bfloat16", layout="nhwc", resize_shorter=40)
    assert (spec.size, spec.mode, spec.dtype, spec.layout, spec.resize_shorter) == (
        32,
        "centre",
        "bfloat16",
        "nhwc",
        40,
    )
    assert (spec.shape, spec.itemsize, spec.image_bytes) == ((32, 32, 3), 2, 32 * 32 * 3 * 2)
    assert (spec.area, spec.ratio, spec.flip_probability) == ((0.05, 1.0), (3 / 4, 4 / 3), 0.5)
    assert (spec.mean, spec.std) == ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
    assert not spec.dct_scaling
    assert "dtype='bfloat16'" in repr(spec)
    with pytest.raises(AttributeError):
        spec.size = 33  # type: ignore[misc]


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.zeros((3, 8, 8), np.float64), "out must have the type f4, got f8"),
        (np.zeros((3, 8, 8), np.int32), "out must have the type f4, got i4"),
        (np.zeros((3, 8, 8), ">f4"), "out must have the type f4, got >f4"),
        (np.zeros((3, 8, 9), np.float32), "out must have 1 x 768 bytes, got 864"),
        (np.zeros((3, 8, 16), np.float32)[:, :, ::2], "out must be C-contiguous"),
    ],
)
def test_an_output_that_does_not_fit_is_refused(out: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _core.decode_crop(jpeg(photograph(20, 20)), _core.DecodeSpec(size=8), out, **KEY)


def test_a_read_only_output_is_refused() -> None:
    out = np.zeros((3, 8, 8), np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out must be writable"):
        _core.decode_crop(jpeg(photograph(20, 20)), _core.DecodeSpec(size=8), out, **KEY)


@pytest.mark.parametrize(("name", "value"), [("seed", -1), ("seed", 2**64), ("epoch", 2**32), ("sample", 2**63)])
def test_a_key_out_of_range_is_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} must be in"):
        _core.crop_box(_core.DecodeSpec(size=8), 10, 10, **{**KEY, name: value})


def decode_box(x: float, y: float, width: float, height: float) -> np.ndarray:
    """Of an image of 20 x 20 pixels."""
    data, spec, out = jpeg(photograph(20, 20)), _core.DecodeSpec(size=8), np.full((3, 8, 8), np.nan, np.float32)
    _core.decode_box(data, spec, out, x=x, y=y, width=width, height=height, flip=False)
    return out


@pytest.mark.parametrize("box", [(-1, 0, 5, 5), (0, 0, 21, 5), (0, 0, 0, 5), (18, 0, 5, 5), (0, float("nan"), 5, 5)])
def test_a_box_outside_the_image_is_refused(box: tuple[float, float, float, float]) -> None:
    with pytest.raises(ValueError, match="box must lie inside the image of 20 x 20 pixels"):
        decode_box(*box)


@pytest.mark.parametrize("place", [7.0, 7.5, 20.0])
@pytest.mark.parametrize("side", [0.0, -1.0, 5e-324, 1e-16])
def test_a_box_whose_side_is_lost_beside_its_place_is_refused_as_an_empty_one(place: float, side: float) -> None:
    for box in ((place, 0, side, 5), (0, place, 5, side)):
        with pytest.raises(ValueError, match=r"box must lie inside .*: make both sides a pixel or more; got x"):
            decode_box(*box)


@pytest.mark.parametrize("place", [0.0, 7.0, 7.5, 20.0])
def test_a_box_of_an_ulp_is_none_that_is_empty(place: float) -> None:
    before = max(np.nextafter(place, 0), 0.0)
    side = float(np.nextafter(before, np.inf) - before)
    for box in ((before, 0, side, 5), (0, before, 5, side)):
        assert np.isfinite(decode_box(*box)).all()


def test_any_buffer_holds_a_jpeg() -> None:
    data = jpeg(photograph(20, 20))
    assert {_core.check_jpeg(kind(data)) for kind in (bytes, bytearray, memoryview)} == {(20, 20, 0)}


def test_the_build_describes_itself() -> None:
    info = _core.build_info()
    assert set(info) == {"compiler", "build_type", "flags", "libjpeg_turbo", "libdeflate", "isa", "cuda_compiler"}
    assert _core.cpu_isa() in info["isa"]
    assert info["isa"][-1] == "portable"


# ----------------------------------------------------------------------------------------------------
# The crop of a sample, equal in C++ and in the reference to the last bit.


SIZES = st.integers(1, 6000)
SEEDS = st.integers(0, 2**64 - 1)
EPOCHS = st.integers(0, 2**32 - 1)
SAMPLES = st.integers(0, 2**63 - 1)


def test_the_reference_generator_gives_the_answers_its_authors_publish() -> None:
    assert philox4x32((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    digits_of_pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    assert philox4x32(*digits_of_pi) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


RANDOM_CROPS = {
    "area": st.tuples(st.floats(1e-6, 1), st.floats(1e-6, 1)).map(sorted).map(tuple),
    "ratio": st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)).map(sorted).map(tuple),
    "flip_probability": st.floats(0, 1),
}


@given(
    width=SIZES,
    height=SIZES,
    crop=st.just({}) | st.fixed_dictionaries(RANDOM_CROPS),
    seed=SEEDS,
    epoch=EPOCHS,
    sample=SAMPLES,
)
def test_a_random_crop_is_the_references(
    width: int, height: int, crop: dict[str, Any], seed: int, epoch: int, sample: int
) -> None:
    """With the settings of training, and with any area, ratio and flip."""
    key = {"seed": seed, "epoch": epoch, "sample": sample}
    box = _core.crop_box(_core.DecodeSpec(size=224, **crop), width, height, **key)
    expected = random_box(width, height, **crop, **key)
    assert box == (expected.x, expected.y, expected.width, expected.height, expected.flip)


@given(width=SIZES, height=SIZES, sample=SAMPLES)
def test_a_random_crop_has_whole_pixels_inside_the_image(width: int, height: int, sample: int) -> None:
    box = _core.crop_box(_core.DecodeSpec(size=224), width, height, seed=0, epoch=0, sample=sample)
    assert all(value == int(value) for value in box[:4])
    assert box.x >= 0
    assert box.y >= 0
    assert 1 <= box.width <= width - box.x
    assert 1 <= box.height <= height - box.y


@given(width=st.integers(200, 6000), height=st.integers(200, 6000), sample=SAMPLES)
def test_its_area_and_ratio_are_in_range_but_for_rounding(width: int, height: int, sample: int) -> None:
    box = _core.crop_box(_core.DecodeSpec(size=224), width, height, seed=0, epoch=0, sample=sample)
    half_a_pixel = 0.5
    assert (box.width + half_a_pixel) * (box.height + half_a_pixel) >= 0.05 * width * height or (
        # No try fitted a very long image: then it is the largest central crop.
        max(width / height, height / width) > 4 / 3
    )
    assert (box.width - half_a_pixel) / (box.height + half_a_pixel) <= 4 / 3
    assert (box.width + half_a_pixel) / (box.height - half_a_pixel) >= 3 / 4


@given(width=SIZES, height=SIZES, size=st.integers(1, 300), more=st.integers(0, 100))
def test_a_centre_crop_is_the_references_and_inside_the_image(width: int, height: int, size: int, more: int) -> None:
    spec = _core.DecodeSpec(size=size, mode="centre", resize_shorter=size + more)
    box = _core.crop_box(spec, width, height, seed=0, epoch=0, sample=0)
    expected = centre_box(width, height, size=size, resize_shorter=size + more)
    assert box == (expected.x, expected.y, expected.width, expected.height, False)
    assert box.x >= 0
    assert box.y >= 0
    assert box.x + box.width <= width
    assert box.y + box.height <= height


def test_an_image_too_long_for_any_try_is_cropped_in_its_middle() -> None:
    box = _core.crop_box(_core.DecodeSpec(size=224), 5000, 10, seed=0, epoch=0, sample=0)
    assert box[:4] == ((5000 - 13) // 2, 0, 13, 10)


def test_flips_and_places_are_spread_evenly() -> None:
    spec = _core.DecodeSpec(size=224, flip_probability=0.25)
    boxes = [_core.crop_box(spec, 500, 375, seed=1, epoch=2, sample=sample) for sample in range(20_000)]
    flips = np.mean([box.flip for box in boxes])
    middles = np.mean([box.x + box.width / 2 for box in boxes]), np.mean([box.y + box.height / 2 for box in boxes])
    assert flips == pytest.approx(0.25, abs=4 * np.sqrt(0.25 * 0.75 / 20_000))
    assert middles == pytest.approx((250, 187.5), abs=3)


@pytest.mark.parametrize("changed", ["seed", "epoch", "sample"])
def test_each_part_of_the_key_changes_the_crop(changed: str) -> None:
    spec = _core.DecodeSpec(size=224)
    key = {"seed": 5, "epoch": 6, "sample": 7}
    others = {_core.crop_box(spec, 500, 375, **{**key, changed: value}) for value in range(100, 120)}
    assert len(others) == 20
