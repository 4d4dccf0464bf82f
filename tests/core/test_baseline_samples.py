"""Samples of our own decoder are libjpeg's to the bit: grey pictures, whole, at their own size, are nothing else."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from baseline_header import read_header
from baseline_outcomes import outcome
from baseline_reference import colour_planes
from baseline_scan import decode_scan
from numpy.typing import NDArray
from pictures import jpeg, photograph
from PIL import Image
from reference import Box

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
def test_so_it_is_at_any_size(side: int) -> None:
    for seed, options in enumerate([{}, {"restart_marker_blocks": 1}, {"restart_marker_rows": 1, "optimize": True}]):
        data = jpeg(noise(side, seed), mode="L", quality=80, **options)
        for mode in ("centre", "random"):
            np.testing.assert_array_equal(our_grey(data, side, mode), pillows_grey(data))


def test_so_is_every_part_of_it() -> None:
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
