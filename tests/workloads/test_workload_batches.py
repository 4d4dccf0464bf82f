"""The workloads as the engine sees them: what is in a batch, what a member of an ensemble draws, what is shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from inspect import GEN_CLOSED, getgeneratorstate
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from builders.runs import TINY, TINY_WEATHER, member_recipe

from hpcai500 import _core
from hpcai500.data.climate.index import load_climate_index
from hpcai500.data.climate.synthetic import SyntheticYears, make_years
from hpcai500.data.climate.years import CHANNELS, file_name
from hpcai500.data.device_batches import convert_images
from hpcai500.data.imagenet.index import load_index
from hpcai500.layers import Recipe
from hpcai500.methodology.sampling import Coverage, draws
from hpcai500.recipe import load_recipe
from hpcai500.workloads import factory
from hpcai500.workloads.base import Place
from hpcai500.workloads.blank import BlankWorkload
from hpcai500.workloads.ewa import ClimateInput, ExtremeWeatherWorkload
from hpcai500.workloads.ic import ImageInput
from hpcai500.workloads.models.detector import Targets

CPU = torch.device("cpu")
TINY_OF = {"ic": TINY, "ewa": TINY_WEATHER}
SIZE = {"ic": 33, "ewa": 10}
SEED = "hyperparameters.seed=5"
Kept = tuple[list[int], torch.Tensor, Any]


@contextmanager
def workload(recipe: Recipe, data: Path, shares: tuple[int, ...] = (0,), total: int = 1) -> Iterator[Any]:
    place = Place(CPU, torch.float32, 2, shares=shares, total_shares=total)
    made = factory(recipe.benchmark)(recipe, data, place)
    try:
        yield made
    finally:
        made.close()


def of_one_model(benchmark: str, *settings: str) -> Recipe:
    return load_recipe(f"{benchmark}/smoke", (*TINY_OF[benchmark], *settings))


def weather_of(weather: Path, *settings: str, **how: Any) -> AbstractContextManager[ExtremeWeatherWorkload]:
    return workload(of_one_model("ewa", *settings), weather, **how)


def epoch(made: Any, number: int = 1, first_step: int = 0) -> list[Kept]:
    """Ids, images and the rest of each batch, of which no view is left."""
    found = []
    for batch in made.training_batches(number, first_step):
        images, rest = batch.payload
        found.append((batch.samples.tolist(), images[: len(batch.samples)].clone(), rest))
    return found


def require_same(ours: list[Kept], theirs: list[Kept]) -> None:
    """The same samples, and images to the bit."""
    assert [batch[0] for batch in ours] == [batch[0] for batch in theirs]
    assert all(torch.equal(one[1], other[1]) for one, other in zip(ours, theirs, strict=True))


# --- both workloads


@pytest.fixture(params=["ic", "ewa"])
def benchmark(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def data(benchmark: str, images: Path, weather: Path) -> Path:
    return images if benchmark == "ic" else weather


@pytest.mark.parametrize("sampling", ["bootstrap", "poisson"])
def test_every_epoch_delivers_the_draws_of_the_seed(benchmark: str, data: Path, sampling: str) -> None:
    with workload(member_recipe(benchmark, SEED, sampling=sampling), data) as made:
        expected = draws(SIZE[benchmark], 5, sampling).tolist()
        orders = [[sample for batch in epoch(made, number) for sample in batch[0]] for number in (1, 2)]
        facts = made.dataset()
    assert sorted(orders[0]) == sorted(orders[1]) == expected
    assert orders[0] != orders[1]
    assert (facts["training_samples"], facts["drawn"]["draws"]) == (SIZE[benchmark], len(expected))


def test_an_epoch_that_is_closed_leaves_no_memory_to_its_loader(benchmark: str, data: Path) -> None:
    with workload(of_one_model(benchmark), data) as made:
        batches = made.training_batches(1, 0)
        next(batches)
        batches.close()
        assert getgeneratorstate(made._training._running) == GEN_CLOSED
        assert epoch(made, 2)


def test_repeats_of_a_sample_are_seen_differently(benchmark: str, data: Path) -> None:
    with workload(member_recipe(benchmark, SEED), data) as made:
        batches = epoch(made)
    seen: dict[int, list[torch.Tensor]] = {}
    for samples, pictures, _ in batches:
        for sample, picture in zip(samples, pictures, strict=True):
            seen.setdefault(sample, []).append(picture)
    pairs = [(views[0], views[1]) for views in seen.values() if len(views) > 1]
    assert len(pairs) > 1
    assert not any(torch.equal(one, other) for one, other in pairs)


def test_all_samples_once_are_the_batches_of_one_model_bit_for_bit(benchmark: str, data: Path) -> None:
    found = []
    for recipe in (of_one_model(benchmark, SEED), member_recipe(benchmark, SEED, sampling="all")):
        with workload(recipe, data) as made:
            found.append((epoch(made), made.dataset()))
    (one, facts), (member, member_facts) = found
    require_same(one, member)
    assert "drawn" not in facts
    assert {key: value for key, value in member_facts.items() if key != "drawn"} == facts


def test_an_update_holds_the_same_draws_whatever_the_number_of_ranks(benchmark: str, data: Path) -> None:
    recipe = member_recipe(benchmark, SEED, "hyperparameters.batch_size=2")
    with workload(recipe, data, (0, 1), total=2) as made:
        alone = epoch(made)
    ranks = []
    for rank in (0, 1):
        with workload(recipe, data, (rank,), total=2) as made:
            ranks.append(epoch(made))
    require_same([batch for step in zip(*ranks, strict=True) for batch in step], alone)


@pytest.mark.parametrize("of_a_member", [True, False])
def test_an_epoch_goes_on_at_any_step_with_the_same_batches(benchmark: str, data: Path, of_a_member: bool) -> None:
    with workload((member_recipe if of_a_member else of_one_model)(benchmark, SEED), data) as made:
        whole, rest = epoch(made, 2), epoch(made, 2, first_step=1)
    require_same(whole[1:], rest)
    for (_, _, truth), (_, _, same) in zip(whole[1:], rest, strict=True):
        for one, other in ((truth.boxes, same.boxes), (truth.seeds, same.seeds)) if benchmark == "ewa" else ():
            assert torch.equal(one, other)


def test_batches_from_memory_keep_their_own_truth(benchmark: str, data: Path) -> None:
    with workload(member_recipe(benchmark, SEED), data) as made:
        first = epoch(made)[0]
        made.hold_in_memory(1)
        held = epoch(made)[0]
        assert torch.equal(first[1], held[1])
        truth, of_held = (batch[2] if benchmark == "ic" else batch[2].boxes for batch in (first, held))
        assert torch.equal(truth, of_held)


def test_labels_are_those_of_the_images(images: Path) -> None:
    with workload(member_recipe("ic", SEED), images) as made:
        # Eleven images a class, one class after the other.
        assert all(
            labels[: len(samples)].tolist() == [sample // 11 for sample in samples]
            for samples, _, labels in epoch(made)
        )


def test_strata_keep_the_shares_of_classes_and_years(images: Path, tmp_path: Path) -> None:
    with workload(member_recipe("ic", SEED, strata="class"), images) as made:
        assert made.dataset()["drawn"]["strata"] == [11, 11, 11]
        assert made.drawn is not None
        assert np.bincount(made.drawn // 11).tolist() == [11, 11, 11]
    years = tmp_path / "years"
    make_years(years, SyntheticYears(last_year=1981, images_per_year=6, height=64, width=96), workers=1)
    spans = ("problem.training_years=[1979, 1980]", "problem.evaluation_years=[1981, 1981]")
    with workload(member_recipe("ewa", SEED, *spans, strata="year"), years) as made:
        assert made.dataset()["drawn"]["strata"] == [6, 6]
        assert made.drawn is not None
        assert np.bincount(made.drawn // 6).tolist() == [6, 6]


def test_boxes_and_choices_belong_to_each_repeat(weather: Path) -> None:
    """Without rolls, repeats of an image have its boxes; the seeds of their random choices differ all the same."""
    with workload(member_recipe("ewa", SEED, "workload.longitude_roll=false"), weather) as made:
        batches = epoch(made)
    boxes: dict[int, list[list[Any]]] = {}
    seeds = []
    for samples, _, targets in batches:
        for position, sample in enumerate(samples):
            boxes.setdefault(sample, []).append(targets.boxes_of(position).tolist())
            seeds.append(targets.seeds[position])
    assert all(one == of_sample[0] for of_sample in boxes.values() for one in of_sample)
    assert len({str(of_sample[0]) for of_sample in boxes.values()}) == len(boxes)
    assert len(set(seeds)) == len(seeds) == 10


@pytest.mark.parametrize("layout", ["shipped", "image"])
def test_repeats_do_not_seek_each_other_s_company(layout: str, tmp_path: Path) -> None:
    """Where images share chunks their window is met as a whole; where they do not, repeats lie anywhere in an epoch."""
    years = tmp_path / "years"
    wanted = SyntheticYears(last_year=1980, images_per_year=60, height=64, width=96, layout=layout)
    make_years(years, wanted, workers=1)
    with workload(member_recipe("ewa", SEED, "hyperparameters.batch_size=1"), years) as made:
        assert isinstance(made, ExtremeWeatherWorkload)
        ids = [samples[0] for samples, _, _ in epoch(made)]
        width = made.dataset()["images_per_window"]
    places: dict[int, list[int]] = {}
    for place, sample in enumerate(ids):
        places.setdefault(sample // width, []).append(place)
    apart = [max(group) - min(group) + 1 - len(group) for group in places.values() if len(group) > 1]
    if width > 1:
        assert apart == [0] * len(apart), "each window is entered once"
    else:
        assert np.mean(apart) > 10


# --- extreme weather


def normalised(weather: Path, year: int) -> np.ndarray:
    """All images of `year`, by the statistics of the training year, with NumPy."""
    with h5py.File(weather / file_name(1979)) as file:
        training = file["images"][:].astype(np.float64)
    with h5py.File(weather / file_name(year)) as file:
        values = file["images"][:].astype(np.float64)
    mean, std = training.mean(axis=(0, 2, 3), keepdims=True), training.std(axis=(0, 2, 3), keepdims=True)
    return (values - mean) / std


def rows_of(weather: Path) -> list[np.ndarray]:
    """The rows of boxes of the training year, of each image those that are used."""
    with h5py.File(weather / file_name(1979)) as file:
        return [rows[rows[:, 4] >= 0] for rows in file["boxes"][:]]


def test_batches_hold_the_normalised_images_and_boxes_of_the_file(weather: Path) -> None:
    expected, rows = normalised(weather, 1979), rows_of(weather)
    seen = []
    with weather_of(weather, "workload.longitude_roll=false") as made:
        for samples, images, targets in epoch(made):
            for position, sample in enumerate(samples):
                np.testing.assert_allclose(images[position].numpy(), expected[sample], atol=2e-4)
                truth = rows[sample]
                np.testing.assert_array_equal(targets.boxes_of(position).numpy(), truth[:, [1, 0, 3, 2]])
                np.testing.assert_array_equal(targets.labels_of(position).numpy(), truth[:, 4] + 1)
            seen += samples
    assert sorted(seen) == list(range(10))


def test_boxes_follow_the_turn_of_the_globe(weather: Path) -> None:
    """Inside a box that was not cut, the turned image holds what the file holds inside the file's box."""
    expected, rows = normalised(weather, 1979), rows_of(weather)
    compared = 0
    with weather_of(weather) as made:
        for samples, images, targets in epoch(made, 3):
            for position, sample in enumerate(samples):
                truth = rows[sample]
                for x1, y1, x2, y2 in targets.boxes_of(position).int().tolist():
                    whole = truth[(truth[:, 0] == y1) & (truth[:, 2] == y2) & (truth[:, 3] - truth[:, 1] == x2 - x1)]
                    for ymin, xmin, ymax, xmax, _ in whole[:1]:
                        inside = images[position, :, y1:y2, x1:x2].numpy()
                        np.testing.assert_allclose(inside, expected[sample][:, ymin:ymax, xmin:xmax], atol=2e-4)
                        compared += 1
    assert compared > 20


def test_channels_come_in_the_order_of_the_recipe(weather: Path) -> None:
    with weather_of(weather, 'workload.channels=["TMQ", "PSL"]', "workload.longitude_roll=false") as made:
        samples, images, _ = epoch(made)[0]
    numbers = [CHANNELS.index("TMQ"), CHANNELS.index("PSL")]
    np.testing.assert_allclose(images[0], normalised(weather, 1979)[samples[0]][numbers], atol=2e-4)


def test_the_shares_of_an_update_are_an_epoch_together(weather: Path) -> None:
    coverage, samples = Coverage(), []
    for shares in ((0, 2), (1,)):
        with weather_of(weather, "hyperparameters.batch_size=2", shares=shares, total=3) as made:
            for batch in made.training_batches(1, 0):
                coverage = coverage.add(batch.samples)
                samples += batch.samples.tolist()
    assert sorted(samples) == list(range(10))
    assert coverage.digest == Coverage.expected(10).digest


def test_the_scenes_shown_are_the_images_evaluated(weather: Path) -> None:
    expected = normalised(weather, 1980)
    # Five batches through a ring of two: what was shown first is long overwritten at the end.
    small = ("hyperparameters.batch_size=2", "accelerator.prefetch_batches=2")
    with weather_of(weather, *small) as made, torch.inference_mode():
        made.evaluate(made.model.eval(), lambda samples: None)
        scenes = made._scenes
        assert len(scenes) == 4
        for scene in scenes:
            np.testing.assert_allclose(scene.image, expected[scene.sample], atol=2e-4)
        assert made.pictures()["detections.png"].startswith(b"\x89PNG")


def devices(payload: tuple[torch.Tensor, torch.Tensor | Targets]) -> set[str]:
    images, truth = payload
    parts = (truth.boxes, truth.labels) if isinstance(truth, Targets) else (truth,)
    return {part.device.type for part in (images, *parts)}


def test_input_of_timed_steps_is_on_the_device_already(benchmark: str, data: Path) -> None:
    recipe, meta = of_one_model(benchmark), torch.device("meta")
    with workload(recipe, data) as made:
        made._place = replace(made._place, device=meta)  # a GPU cannot exist here
        assert devices(made.blank_payload()) == {"meta"}
    assert devices(BlankWorkload(recipe, Place(meta, torch.float32, 1), 3, (64, 96)).blank_payload()) == {"meta"}


def form(targets: Targets) -> list[tuple[torch.Size, tuple[int, ...], torch.dtype]]:
    """All that a compiler looks at of these tensors before it makes code for them."""
    return [(one.shape, one.stride(), one.dtype) for one in (targets.boxes, targets.labels, targets.seeds)]


@pytest.mark.parametrize("settings", [(), ("workload.longitude_roll=false",), ("workload.crop_width=64",)])
def test_the_warm_up_has_seen_the_form_of_all_batches(weather: Path, settings: tuple[str, ...]) -> None:
    with weather_of(weather, *settings) as made:
        batches = [batch for number in (1, 2, 3) for batch in epoch(made, number)]
        images, _ = next(made.training_batches(1, 0)).payload
        blank_images, blank = made.blank_payload()
        assert (blank_images.shape, blank_images.dtype) == (images.shape, images.dtype)
        assert made.loss(made.model.train(), (blank_images, blank)).isfinite()
    targets = [of_batch for _, _, of_batch in batches]
    assert [form(one) for one in targets] == [form(blank)] * 9
    assert len({int(one.present.sum(dim=1).amax()) for one in targets}) > 1


def test_compiled_code_of_the_warm_up_serves_all_batches(weather: Path) -> None:
    with weather_of(weather) as made:
        torch.compiler.reset()
        compiled = torch.compile(made.model.train(), backend="eager")
        made.loss(compiled, made.blank_payload()).backward()
        with torch.compiler.set_stance("fail_on_recompile"):
            losses = [made.loss(compiled, batch.payload) for batch in made.training_batches(1, 0)]
        torch.compiler.reset()
    assert all(loss.isfinite() for loss in losses)


@pytest.mark.parametrize("width", [64, 96])
def test_the_counted_work_is_that_of_the_image_trained_on(weather: Path, width: int) -> None:
    with weather_of(weather, f"workload.crop_width={width}") as made:
        _, (images, regions) = made.counted()
    assert tuple(images.shape[1:]) == (16, 64, width)
    assert len(regions) == 2 * 64


# --- accelerator.conversion: what the native loaders leave to the device


def converting(benchmark: str, conversion: str, *settings: str) -> Recipe:
    """Of a tiny run on a CUDA device: only there does a recipe have the choice."""
    return of_one_model(benchmark, "accelerator.device=cuda", f"accelerator.conversion={conversion}", *settings)


def first_images(conversion: str, dtype: torch.dtype, years: Path) -> torch.Tensor:
    (year,) = load_climate_index(years).select(1979, 1979)
    place, moments = Place(CPU, dtype, input_threads=2), (np.array([4.0, -7.0]), np.array([0.3, 11.0]))
    made = ClimateInput(converting("ewa", conversion), place, [3, 0], *moments)
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
    place, found = Place(CPU, torch.float32, input_threads=2), []
    for conversion in ("host", "device"):
        recipe = converting("ic", conversion, f"framework.channels_last={str(channels_last).lower()}")
        batches = ImageInput(recipe, index.root, place).evaluation(index.train)
        (made,) = (batch.images.clone() for batch in batches.epoch([np.arange(4)], seed=0, epoch=0))
        batches.close()
        found.append(made)
    expected, levels = found
    assert levels.dtype == torch.uint8
    assert levels.is_contiguous(memory_format=layout)
    mean, std = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]
    off = (convert_images(levels, mean, std) - expected).abs()
    assert (off <= 0.5 / torch.tensor(std).view(3, 1, 1) + 1e-5).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.skipif(not _core.cuda_architectures(), reason="no CUDA device can be used by a build without CUDA")
def test_a_workload_gets_the_same_images_either_way(benchmark: str, data: Path) -> None:
    found = []
    for conversion in ("host", "device"):
        place = Place(torch.device("cuda", 0), torch.float32, input_threads=2)
        made = factory(benchmark)(converting(benchmark, conversion), data, place)
        found.append([batch.payload[0].clone() for batch in made.training_batches(1, 0)])
        made.close()
    for ours, theirs in zip(*found, strict=True):
        assert theirs.is_cuda
        assert torch.allclose(ours, theirs, rtol=0, atol=0.5 / 57 + 1e-5 if benchmark == "ic" else 0)
