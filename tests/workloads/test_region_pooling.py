"""Regions are pooled from the level of their size, at the places that RoIAlign samples."""

from __future__ import annotations

import pytest
import torch

from hpcai500.recipe import load_recipe
from hpcai500.workloads.ewa import build_model
from hpcai500.workloads.models.detector import RegionPooling


def level_of(pooling: RegionPooling, regions: torch.Tensor) -> list[float]:
    """Strides of the levels that regions (K, 4) of a 640 x 640 image are pooled from; levels hold their stride."""
    levels = [torch.full((1, 1, 640 // stride, 640 // stride), float(stride)) for stride in pooling.strides]
    pooled = pooling(levels, torch.cat([torch.zeros(len(regions), 1), regions], dim=1))
    # Bilinear weights add up to 1 but for rounding.
    strides = pooled.round(decimals=3).flatten(1)
    assert (strides == strides[:, :1]).all(), "a region is pooled from one level"
    return strides[:, 0].tolist()


def squares(*sides: float) -> torch.Tensor:
    return torch.tensor([[0.0, 0.0, side, side] for side in sides])


@pytest.mark.parametrize("canonical_side", [56.0, 112.0, 224.0])
def test_regions_go_to_the_level_of_their_size(canonical_side: float) -> None:
    """Lin et al. 2017, equation 1: the canonical side on stride 16, half of it one level finer."""
    pooling = RegionPooling([4, 8, 16, 32], canonical_side)
    unit = canonical_side / 2
    sides = (unit / 8, unit / 2, unit - 0.01, unit, 2 * unit - 0.01, 2 * unit, 4 * unit - 0.01, 4 * unit, 5.5 * unit)
    assert level_of(pooling, squares(*sides)) == [4, 4, 4, 8, 8, 16, 16, 32, 32]


def test_another_finest_level_leaves_the_canonical_one_at_stride_16() -> None:
    sides = (20.0, 111.99, 112, 223.99, 224, 447.99, 448)
    assert level_of(RegionPooling([8, 16, 32], 224), squares(*sides)) == [8, 8, 8, 8, 16, 16, 32]
    assert level_of(RegionPooling([4, 8, 16], 224), squares(*sides)) == [4, 4, 8, 8, 16, 16, 16]


def test_the_reference_pools_regions_of_224_pixels_at_stride_16() -> None:
    """Lin et al.'s k0 = 4; the coarsest of the five levels only proposes."""
    with torch.device("meta"):
        pooling = build_model(load_recipe("ewa/reference").workload).roi_heads.pooling  # type: ignore[arg-type]
    assert pooling.strides == [4, 8, 16, 32]
    assert level_of(pooling, squares(111.99, 112, 223.99, 224, 447.99, 448)) == [4, 8, 8, 16, 16, 32]


def test_the_size_is_the_root_of_the_area() -> None:
    regions = torch.tensor([[0.0, 0, 56, 448], [0, 0, 448, 27.9], [300, 200, 412, 312]])
    assert level_of(RegionPooling([4, 8, 16, 32], 224), regions) == [8, 4, 8]


def test_rounding_moves_no_region_of_the_canonical_size() -> None:
    starts = torch.linspace(288.1, 400.3, 200)
    regions = torch.stack([starts, starts, starts + 224, starts + 224], dim=1)
    sides = ((regions[:, 2] - regions[:, 0]) * (regions[:, 3] - regions[:, 1])).sqrt()
    assert (sides < 224).any(), "float32 makes some of them smaller"
    assert set(level_of(RegionPooling([4, 8, 16, 32], 224), regions)) == {16}


def test_an_empty_region_goes_somewhere() -> None:
    assert level_of(RegionPooling([4, 8], 32), torch.tensor([[5.0, 5, 5, 5], [9, 9, 4, 4]])) == [4, 4]


def test_regions_come_back_in_their_order() -> None:
    pooling = RegionPooling([4, 8], canonical_side=32)
    regions = torch.tensor([[0.0, 0, 60, 60], [0, 0, 8, 8], [10, 10, 70, 70]])
    assert level_of(pooling, regions) == [8, 4, 8]


@pytest.mark.parametrize("level", [0, 1])
def test_a_bin_is_the_mean_of_two_by_two_samples(level: int) -> None:
    """By hand, on x^2 + 10 y^2, 14 cells from column 2 and row 3 on, so that a bin is two cells wide.

    Bin j is sampled at x = a + 1/2 and a + 3/2 with a = 2 + 2 j; between a^2 and (a + 1)^2 lies their mean
    a^2 + a + 1/2, so the bin's mean is (a + 1)^2 + 1/2. One sample, at a + 1, would give (a + 1)^2; samples moved
    half a cell, as `aligned`, (a^2 + (a + 1)^2) / 2.
    """
    strides = [4, 8]
    stride = strides[level]
    cells = torch.arange(24.0)
    levels = [torch.zeros(1, 1, 24, 24) for _ in strides]
    levels[level] = (cells**2 + 10 * cells[:, None] ** 2)[None, None]
    region = torch.tensor([[0.0, 2, 3, 16, 17]]) * stride
    pooled = RegionPooling(strides, canonical_side=224)(levels, region)
    bins = torch.arange(7.0)
    expected = (2 * bins + 3) ** 2 + 0.5 + 10 * ((2 * bins[:, None] + 4) ** 2 + 0.5)
    torch.testing.assert_close(pooled[0, 0], expected, rtol=1e-6, atol=0)
