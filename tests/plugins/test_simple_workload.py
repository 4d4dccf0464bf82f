"""The workload that plug-ins get for nothing keeps every rule that those of hpcai500 keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders.ranks import run_ranks
from torch import nn

from hpcai500.comm.communicator import Communicator
from hpcai500.data.derived import MANIFEST
from hpcai500.errors import DataError
from hpcai500.layers import Recipe
from hpcai500.methodology.sampling import Coverage, draws
from hpcai500.recipe import load_recipe
from hpcai500.workloads.base import Place
from hpcai500.workloads.simple import ArrayClassifier, Arrays
from hpcai500.workloads.voting import classes_voter

PER_CLASS = (9, 4, 10)
CPU = Place(torch.device("cpu"), torch.float32, 1)


def arrays(seed: int, per_class: tuple[int, ...] = PER_CLASS) -> Arrays:
    """Points of the plane in a mixed order; a class lies around (class, class)."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(len(per_class)), per_class))
    points = labels[:, None] + random.normal(0, 0.1, (len(labels), 2))
    return Arrays(points.astype(np.float32), labels)


def recipe(*overrides: str) -> Recipe:
    return load_recipe("ic/smoke", ["hyperparameters.batch_size=4", *overrides], "v3.0")


def workload(*overrides: str, place: Place = CPU, root: Path = Path()) -> ArrayClassifier:
    torch.manual_seed(0)
    return ArrayClassifier(recipe(*overrides), place, nn.Linear(2, 3), arrays(1), arrays(2), root)


def trained(found: ArrayClassifier, epoch: int = 1) -> Coverage:
    coverage = Coverage()
    for batch in found.training_batches(epoch, 0):
        assert len(batch.payload[0]) == 4 == len(batch.samples) + batch.padded
        coverage = coverage.add(batch.samples)
    return coverage


def test_an_epoch_delivers_every_sample_once_with_its_own_label() -> None:
    found, given = workload(), arrays(1)
    assert found.steps_per_epoch == 6
    assert trained(found).digest == found.dataset()["coverage"] == Coverage.expected(23).digest
    told = {tuple(point): label for point, label in zip(given.samples.tolist(), given.labels.tolist(), strict=True)}
    for batch in found.training_batches(1, 0):
        points, labels = batch.payload
        assert [told[tuple(point)] for point in points.tolist()] == labels.tolist()


def test_epochs_have_other_orders_and_go_on_anywhere() -> None:
    found = workload()
    whole = [batch.samples.tolist() for batch in found.training_batches(2, 0)]
    assert [batch.samples.tolist() for batch in found.training_batches(2, 4)] == whole[4:]
    assert [batch.samples.tolist() for batch in found.training_batches(1, 0)] != whole


def test_a_member_trains_on_what_it_drew() -> None:
    found = workload("ensemble.members=2", "hyperparameters.seed=7")
    assert found.drawn is not None
    assert found.drawn.tolist() == draws(23, 7, "bootstrap").tolist()
    facts = found.dataset()
    assert trained(found).digest == facts["coverage"] != Coverage.expected(23).digest
    assert facts["drawn"]["draws"] == facts["training_samples"] == 23


def test_draws_by_class_keep_the_classes_shares() -> None:
    found = workload("ensemble.members=2", "ensemble.strata=class")
    assert found.dataset()["drawn"]["strata"] == list(PER_CLASS)
    labels = torch.cat([batch.payload[1][: len(batch.samples)] for batch in found.training_batches(1, 0)])
    assert torch.bincount(labels).tolist() == list(PER_CLASS)


def test_the_fingerprint_is_that_of_the_values() -> None:
    one = workload().dataset()
    changed = arrays(1)
    changed.samples[3, 1] += 1
    other = ArrayClassifier(recipe(), CPU, nn.Linear(2, 3), changed, arrays(2), Path())
    assert one["fingerprint"] == workload().dataset()["fingerprint"]
    assert one["fingerprint"] != other.dataset()["fingerprint"]


def test_made_data_are_told_by_their_mark(tmp_path: Path) -> None:
    assert workload(root=tmp_path).dataset()["synthetic"] is False
    (tmp_path / MANIFEST).write_text("{}")
    assert workload(root=tmp_path).dataset()["synthetic"] is True


def test_its_predictions_have_the_quality_of_its_evaluation_and_speak_of_the_samples_asked_for() -> None:
    found = workload("ensemble.members=2")
    with torch.inference_mode():
        quality = found.evaluate(found.model, lambda samples: None)
        told = found.predictions(found.model, None, lambda samples: None)
        some = found.predictions(found.model, np.array([3, 8, 20]), lambda samples: None)
    alone = classes_voter(recipe("ensemble.members=2"), np.arange(23)).alone(told)
    assert alone == quality
    assert told["labels"].tolist() == arrays(2).labels.tolist()
    # In the order of labels: 9 of class 0, 4 of class 1, 10 of class 2.
    assert (some["samples"].tolist(), some["labels"].tolist()) == ([3, 8, 20], [0, 0, 2])


def on_ranks(communicator: Communicator) -> dict[str, Any]:
    """What the ranks of one model find together."""
    place = Place(
        torch.device("cpu"),
        torch.float32,
        1,
        communicator,
        total_shares=communicator.size,
        shares=(communicator.rank,),
    )
    found = workload(
        "ensemble.members=2", "hardware.accelerators_per_node=2", "communication.backend=torch", place=place
    )
    with torch.inference_mode():
        quality = found.evaluate(found.model, lambda samples: None)
        told = found.predictions(found.model, None, lambda samples: None)
    samples = [batch.samples.tolist() for batch in found.training_batches(1, 0)]
    return {"quality": quality.value, "logits": [row.tolist() for row in told.get("logits", [])], "samples": samples}


def test_two_ranks_share_the_work_and_find_what_one_finds() -> None:
    first, second = run_ranks(on_ranks, 2)
    found = workload("ensemble.members=2")
    with torch.inference_mode():
        quality = found.evaluate(found.model, lambda samples: None)
        told = found.predictions(found.model, None, lambda samples: None)
    assert first["quality"] == second["quality"] == quality.value
    assert first["logits"] == told["logits"].tolist()
    assert second["logits"] == []
    delivered = np.sort(np.concatenate([np.concatenate(one["samples"]) for one in (first, second)]))
    assert delivered.tolist() == (found.drawn if found.drawn is not None else np.arange(23)).tolist()


def test_batches_held_in_memory_are_repeated() -> None:
    found = workload()
    found.hold_in_memory(2)
    payloads = [batch.payload[0] for batch in found.training_batches(3, 0)]
    assert torch.equal(payloads[0], payloads[2])
    assert not torch.equal(payloads[0], payloads[1])


def test_whole_numbers_stay_what_they_are_and_floats_come_in_the_input_type() -> None:
    place = Place(torch.device("cpu"), torch.bfloat16, 1)
    assert workload(place=place).blank_payload()[0].dtype == torch.bfloat16
    words = Arrays(np.arange(12).reshape(6, 2), np.arange(6) % 3)
    found = ArrayClassifier(recipe(), place, nn.Embedding(12, 3), words, words, Path())
    assert found.blank_payload()[0].dtype == torch.int64
    assert found.blank_payload()[0].max() < 12
    on_device = workload(place=Place(torch.device("meta"), torch.float32, 1)).blank_payload()
    assert {part.device.type for part in on_device} == {"meta"}


@pytest.mark.parametrize(
    ("samples", "labels", "said"),
    [
        (np.zeros((3, 2)), np.zeros(2, np.int64), r"the training set needs samples, with one label each"),
        (np.zeros((0, 2)), np.zeros(0, np.int64), r"the training set needs samples, with one label each"),
        (np.zeros((3, 2)), np.zeros(3), r"labels of the training set: expected integers of 0 or more, got float64"),
        (np.zeros((3, 2)), np.array([0, -1, 1]), r"labels of the training set: expected integers of 0 or more"),
        (np.zeros((3, 2)), np.array([0, 1, 1]), r"has the label 2, which the training set lacks"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(samples: Any, labels: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        ArrayClassifier(recipe(), CPU, nn.Linear(2, 3), Arrays(samples, labels), arrays(2), Path())
