"""accelerator.conversion: what the native loaders leave to the device, and that the model gets the same images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import TINY, TINY_WEATHER

from hpcai500 import _core
from hpcai500.data.climate.index import load_climate_index
from hpcai500.data.device_batches import convert_images
from hpcai500.data.imagenet.index import load_index
from hpcai500.layers import Recipe
from hpcai500.recipe import load_recipe
from hpcai500.workloads import factory
from hpcai500.workloads.base import Place
from hpcai500.workloads.ewa import ClimateInput
from hpcai500.workloads.ic import ImageInput

CPU = torch.device("cpu")
TINY_OF = {"ic": TINY, "ewa": TINY_WEATHER}


def recipe(benchmark: str, conversion: str, *settings: str) -> Recipe:
    """Of a tiny run on a CUDA device: only there does a recipe have the choice."""
    asked = ("accelerator.device=cuda", f"accelerator.conversion={conversion}", *settings)
    return load_recipe(f"{benchmark}/smoke", (*TINY_OF[benchmark], *asked))


def climate_input(conversion: str, dtype: torch.dtype) -> ClimateInput:
    place = Place(CPU, dtype, input_threads=2)
    return ClimateInput(recipe("ewa", conversion), place, [3, 0], np.array([4.0, -7.0]), np.array([0.3, 11.0]))


def first_images(conversion: str, dtype: torch.dtype, years: Path) -> torch.Tensor:
    (year,) = load_climate_index(years).select(1979, 1979)
    made = climate_input(conversion, dtype)
    loader = made.loader([(year.path, year.storage)], np.array([[0, 0], [0, 1]]), width=year.width)
    assert made.on_device(loader) is loader, "on a CPU there is nothing to move"
    images = next(iter(loader.epoch([np.array([1, 0])], seed=0, epoch=0))).images.clone()
    loader.close()
    return images


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_climate_values_are_left_as_stored_for_the_device(weather: Path, dtype: torch.dtype) -> None:
    stored = first_images("device", dtype, weather)
    assert stored.dtype == torch.float32
    expected = first_images("host", dtype, weather)
    assert convert_images(stored, [4.0, -7.0], [0.3, 11.0], dtype).equal(expected)


@pytest.mark.parametrize("channels_last", [False, True])
def test_pictures_are_left_as_levels_for_the_device(images: Path, channels_last: bool) -> None:
    index, layout = load_index(images), torch.channels_last if channels_last else torch.contiguous_format
    ids, settings = [np.arange(4)], f"framework.channels_last={str(channels_last).lower()}"
    place = Place(CPU, torch.float32, input_threads=2)
    host = ImageInput(recipe("ic", "host", settings), index.root, place).evaluation(index.train)
    device = ImageInput(recipe("ic", "device", settings), index.root, place).evaluation(index.train)
    (expected,) = (batch.images.clone() for batch in host.epoch(ids, seed=0, epoch=0))
    (levels,) = (batch.images.clone() for batch in device.epoch(ids, seed=0, epoch=0))
    host.close()
    device.close()
    assert levels.dtype == torch.uint8
    assert levels.is_contiguous(memory_format=layout)
    mean, std = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]
    off = (convert_images(levels, mean, std) - expected).abs()
    assert (off <= 0.5 / torch.tensor(std).view(3, 1, 1) + 1e-5).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.skipif(not _core.cuda_architectures(), reason="no CUDA device can be used by a build without CUDA")
@pytest.mark.parametrize("benchmark", ["ic", "ewa"])
def test_a_workload_gets_the_same_images_either_way(benchmark: str, images: Path, weather: Path) -> None:
    data = images if benchmark == "ic" else weather
    found = []
    for conversion in ("host", "device"):
        place = Place(torch.device("cuda", 0), torch.float32, input_threads=2)
        made = factory(benchmark)(recipe(benchmark, conversion), data, place)
        found.append([batch.payload[0].clone() for batch in made.training_batches(1, 0)])
        made.close()
    for ours, theirs in zip(*found, strict=True):
        assert theirs.is_cuda
        assert torch.allclose(ours, theirs, rtol=0, atol=0.5 / 57 + 1e-5 if benchmark == "ic" else 0)
