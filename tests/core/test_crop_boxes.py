"""The crop of a sample is a pure function, equal in C++ and in the reference to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import centre_box, philox4x32, random_box

from hpcai500 import _core

SIZES = st.integers(1, 6000)
SEEDS = st.integers(0, 2**64 - 1)
EPOCHS = st.integers(0, 2**32 - 1)
SAMPLES = st.integers(0, 2**63 - 1)


def test_the_reference_generator_gives_the_answers_its_authors_publish() -> None:
    assert philox4x32((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    digits_of_pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    assert philox4x32(*digits_of_pi) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


@given(width=SIZES, height=SIZES, seed=SEEDS, epoch=EPOCHS, sample=SAMPLES)
def test_a_random_crop_is_the_references(width: int, height: int, seed: int, epoch: int, sample: int) -> None:
    spec = _core.DecodeSpec(size=224)
    key = {"seed": seed, "epoch": epoch, "sample": sample}
    box, expected = _core.crop_box(spec, width, height, **key), random_box(width, height, **key)
    assert box == (expected.x, expected.y, expected.width, expected.height, expected.flip)


@given(
    width=SIZES,
    height=SIZES,
    area=st.tuples(st.floats(1e-6, 1), st.floats(1e-6, 1)).map(sorted).map(tuple),
    ratio=st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)).map(sorted).map(tuple),
    flip=st.floats(0, 1),
    sample=SAMPLES,
)
def test_so_it_is_for_any_area_ratio_and_flip(
    width: int, height: int, area: tuple[float, float], ratio: tuple[float, float], flip: float, sample: int
) -> None:
    spec = _core.DecodeSpec(size=224, area=area, ratio=ratio, flip_probability=flip)
    key = {"seed": 3, "epoch": 1, "sample": sample}
    box = _core.crop_box(spec, width, height, **key)
    expected = random_box(width, height, area=area, ratio=ratio, flip_probability=flip, **key)
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
