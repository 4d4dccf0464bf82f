"""What a member of an ensemble trains on: its draws, each repeat with a crop, a roll and choices of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from member_runs import member_recipe
from tiny_runs import TINY, TINY_WEATHER

from hpcai500.data.climate.synthetic import SyntheticYears, make_years
from hpcai500.layers import Recipe
from hpcai500.methodology.sampling import draws
from hpcai500.recipe import load_recipe
from hpcai500.workloads.base import Place, TrainingBatch
from hpcai500.workloads.ewa import ExtremeWeatherWorkload
from hpcai500.workloads.ic import ImageClassificationWorkload

Workload = ImageClassificationWorkload | ExtremeWeatherWorkload
SEED = "hyperparameters.seed=5"


@contextmanager
def workload(recipe: Recipe, data: Path, shares: tuple[int, ...] = (0,), total: int = 1) -> Iterator[Workload]:
    place = Place(torch.device("cpu"), torch.float32, 2, shares=shares, total_shares=total)
    kind = ImageClassificationWorkload if recipe.benchmark == "ic" else ExtremeWeatherWorkload
    made: Workload = kind(recipe, data, place)
    try:
        yield made
    finally:
        made.close()


def kept(batch: TrainingBatch) -> tuple[list[int], torch.Tensor, Any]:
    """Ids, images and the rest of a batch, of which no view is left."""
    images, rest = batch.payload
    return batch.samples.tolist(), images[: len(batch.samples)].clone(), rest


def epoch(made: Workload, number: int = 1, first_step: int = 0) -> list[tuple[list[int], torch.Tensor, Any]]:
    return [kept(batch) for batch in made.training_batches(number, first_step)]


@pytest.fixture(params=["ic", "ewa"])
def benchmark(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def data(benchmark: str, images: Path, weather: Path) -> Path:
    return images if benchmark == "ic" else weather


SIZE = {"ic": 33, "ewa": 10}


@pytest.mark.parametrize("sampling", ["bootstrap", "poisson"])
def test_every_epoch_delivers_the_draws_of_the_seed(benchmark: str, data: Path, sampling: str) -> None:
    with workload(member_recipe(benchmark, SEED, sampling=sampling), data) as made:
        expected = draws(SIZE[benchmark], 5, sampling).tolist()
        orders = [[sample for batch in epoch(made, number) for sample in batch[0]] for number in (1, 2)]
        facts = made.dataset()
    assert sorted(orders[0]) == sorted(orders[1]) == expected
    assert orders[0] != orders[1]
    assert (facts["training_samples"], facts["drawn"]["draws"]) == (SIZE[benchmark], len(expected))


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
    tiny = TINY if benchmark == "ic" else TINY_WEATHER
    found = []
    for recipe in (load_recipe(f"{benchmark}/smoke", [*tiny, SEED]), member_recipe(benchmark, SEED, sampling="all")):
        with workload(recipe, data) as made:
            found.append((epoch(made), made.dataset()))
    (one, facts), (member, member_facts) = found
    assert [batch[0] for batch in one] == [batch[0] for batch in member]
    assert all(torch.equal(left[1], right[1]) for left, right in zip(one, member, strict=True))
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
    together = [batch for step in zip(*ranks, strict=True) for batch in step]
    assert [batch[0] for batch in together] == [batch[0] for batch in alone]
    assert all(torch.equal(left[1], right[1]) for left, right in zip(together, alone, strict=True))


def test_an_epoch_goes_on_at_any_step_with_the_same_batches(benchmark: str, data: Path) -> None:
    with workload(member_recipe(benchmark, SEED), data) as made:
        whole, rest = epoch(made, 2), epoch(made, 2, first_step=1)
    assert [batch[0] for batch in whole[1:]] == [batch[0] for batch in rest]
    assert all(torch.equal(left[1], right[1]) for left, right in zip(whole[1:], rest, strict=True))


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


def test_batches_from_memory_keep_their_own_boxes(benchmark: str, data: Path) -> None:
    with workload(member_recipe(benchmark, SEED), data) as made:
        first = epoch(made)[0]
        made.hold_in_memory(1)
        held = epoch(made)[0]
        assert torch.equal(first[1], held[1])
        if benchmark == "ewa":
            assert torch.equal(first[2].boxes, held[2].boxes)
        else:
            assert torch.equal(first[2], held[2])
