"""Fused boxes: by hand, against our own suppression, in any order; and what is no box is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.errors import WrongAnswerError
from hpcai500.workloads import voting
from hpcai500.workloads.operators import nms
from hpcai500.workloads.quality import AveragePrecision
from hpcai500.workloads.voting import Image, PooledBoxes, Seen, best_boxes, flat, weighted_boxes

CLASSES = ("storm", "river")
IOU = 0.5


def seen(*rows: tuple[float, ...]) -> Seen:
    """Of rows (x1, y1, x2, y2, score, label)."""
    table = np.array(rows, np.float32).reshape(-1, 6)
    return Seen(table[:, :4], table[:, 4], table[:, 5].astype(np.int64))


def pooled(*members: Seen) -> Seen:
    parts = ([getattr(one, name) for one in members] for name in ("boxes", "scores", "labels"))
    return Seen(*(np.concatenate(part) for part in parts))


def rows(found: Seen) -> list[list[float]]:
    return np.column_stack([found.boxes, found.scores, found.labels]).tolist()


def test_two_boxes_of_one_thing_become_their_mean_weighted_by_score() -> None:
    # IoU of the first two: 80 x 100 / (2 x 9,000 + 1,000 - 8,000 ...): they share x 10 to 90 of 0 to 90 and 10 to 100,
    # so 8,000 / 10,000 = 0.8. Scores 0.9 and 0.3: weights 3/4 and 1/4.
    # x1 = (0.9 x 0 + 0.3 x 10) / 1.2 = 2.5; x2 = (0.9 x 90 + 0.3 x 100) / 1.2 = 92.5; score (0.9 + 0.3) / 2 = 0.6.
    # The third lies elsewhere and is one member's alone: its score is halved, for one of two has not seen it.
    one = seen((0, 0, 90, 100, 0.9, 1), (200, 200, 250, 250, 0.8, 1))
    other = seen((10, 0, 100, 100, 0.3, 1))
    found = rows(weighted_boxes(pooled(one, other), 2, iou=IOU))
    assert np.allclose(found, [[2.5, 0, 92.5, 100, 0.6, 1], [200, 200, 250, 250, 0.4, 1]], rtol=1e-6)


def test_boxes_of_different_classes_are_never_one() -> None:
    found = weighted_boxes(pooled(seen((0, 0, 50, 50, 0.8, 1)), seen((0, 0, 50, 50, 0.6, 2))), 2, iou=IOU)
    assert np.allclose(rows(found), [[0, 0, 50, 50, 0.4, 1], [0, 0, 50, 50, 0.3, 2]])


def test_three_members_of_which_two_agree() -> None:
    # Score (0.9 + 0.6) / 2 x 2/3 = 0.5; x1 = (0.9 x 0 + 0.6 x 5) / 1.5 = 2.
    found = weighted_boxes(pooled(seen((0, 0, 100, 100, 0.9, 2)), seen((5, 0, 100, 100, 0.6, 2))), 3, iou=IOU)
    assert np.allclose(rows(found), [[2, 0, 100, 100, 0.5, 2]], rtol=1e-6)


def test_boxes_without_area_are_passed_over_and_nothing_fuses_to_nothing() -> None:
    assert rows(weighted_boxes(seen((5, 5, 5, 9, 0.9, 1)), 2, iou=IOU)) == []
    assert rows(weighted_boxes(seen(), 2, iou=IOU)) == []
    assert rows(best_boxes(seen(), 2, iou=IOU)) == []


def scene(random: np.random.Generator, count: int) -> Seen:
    """A few places, and boxes near them: much overlaps; some scores are equal."""
    corner = random.integers(0, 3, (count, 2)) * 100 + random.integers(0, 12, (count, 2))
    size = random.integers(30, 60, (count, 2))
    scores = random.integers(1, 8, count) / 8
    return Seen(
        np.concatenate([corner, corner + size], axis=1).astype(np.float32),
        scores.astype(np.float32),
        random.integers(1, 3, count),
    )


def test_pooled_suppression_keeps_what_our_operator_keeps_of_each_class() -> None:
    found = scene(np.random.default_rng(3), 80)
    expected = []
    for label in (1, 2):
        mine = np.flatnonzero(found.labels == label)
        order = mine[np.lexsort((*found.boxes[mine].T, -found.scores[mine]))]
        kept = nms(torch.from_numpy(found.boxes[order]), torch.from_numpy(found.scores[order]), IOU).numpy()
        expected += rows(Seen(found.boxes[order[kept]], found.scores[order[kept]], found.labels[order[kept]]))
    assert sorted(rows(best_boxes(found, 4, iou=IOU))) == sorted(expected)
    assert len(expected) < 40


@given(st.integers(0, 2**32), st.randoms(use_true_random=False))
def test_the_order_of_members_changes_no_bit_of_a_fusion(seed: int, shuffle: Any) -> None:
    random = np.random.default_rng(seed)
    members = [scene(random, int(random.integers(0, 8))) for _ in range(4)]
    other = list(members)
    shuffle.shuffle(other)
    for fuse in (weighted_boxes, best_boxes):
        assert rows(fuse(pooled(*members), 4, iou=IOU)) == rows(fuse(pooled(*other), 4, iou=IOU))


def test_as_many_members_again_that_say_the_same_change_nothing_but_rounding() -> None:
    members = [scene(np.random.default_rng(seed), 6) for seed in range(3)]
    once, twice = (weighted_boxes(pooled(*members * times), 3 * times, iou=IOU) for times in (1, 2))
    # Boxes that a member has twice in one place may count up to the number of members, so it is said of two at most.
    assert len(once.labels) == len(twice.labels)


TRUTH = [seen((0, 0, 50, 50, 0, 1)), seen((10, 10, 80, 80, 0, 2)), seen()]


def member(found: list[Seen], samples: tuple[int, ...] = (0, 1, 2)) -> dict[str, Any]:
    return flat([Image(sample, TRUTH[sample], one) for sample, one in zip(samples, found, strict=True)])


def box(fuse: Any = weighted_boxes) -> PooledBoxes:
    return PooledBoxes(np.arange(3), CLASSES, partial(fuse, iou=IOU))


FIRST = [seen((0, 0, 48, 50, 0.9, 1)), seen((12, 10, 80, 80, 0.4, 2), (0, 0, 9, 9, 0.7, 2)), seen()]
SECOND = [seen((60, 60, 90, 90, 0.5, 1)), seen((10, 12, 80, 80, 0.8, 2)), seen((0, 0, 20, 20, 0.1, 1))]


@pytest.mark.parametrize("fuse", [weighted_boxes, best_boxes])
def test_an_ensemble_of_one_is_its_member_bit_for_bit(fuse: Any) -> None:
    votes = box(fuse)
    votes.add(member(FIRST))
    assert votes.evaluation() == votes.alone(member(FIRST))
    reference = AveragePrecision(CLASSES)
    for truth, one in zip(TRUTH, FIRST, strict=True):
        reference.add(truth.boxes, truth.labels, one.boxes, one.scores, one.labels)
    found = votes.alone(member(FIRST))
    assert found is not None
    assert (found.value, found.per_class) == (reference.result().mean, reference.result().per_class)


def test_two_members_are_judged_by_what_their_fused_boxes_find() -> None:
    votes = box()
    votes.add(member(FIRST))
    votes.add(member(SECOND))
    reference = AveragePrecision(CLASSES)
    for truth, one, other in zip(TRUTH, FIRST, SECOND, strict=True):
        fused = weighted_boxes(pooled(one, other), 2, iou=IOU)
        reference.add(truth.boxes, truth.labels, fused.boxes, fused.scores, fused.labels)
    found = votes.evaluation()
    assert found is not None
    assert (found.value, found.per_class, found.samples) == (reference.result().mean, reference.result().per_class, 3)
    alone = votes.alone(member(SECOND))
    assert alone is not None
    assert found.value > alone.value


def test_several_processes_find_what_one_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    votes = box()
    votes.add(member(FIRST))
    votes.add(member(SECOND))
    alone = votes.evaluation()
    monkeypatch.setattr(voting, "_BOXES_FOR_ONE_PROCESS", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert votes.evaluation() == alone


def test_out_of_bag_an_image_is_fused_of_those_who_speak_of_it() -> None:
    votes = box()
    votes.add(member(FIRST[:2], (0, 1)))
    votes.add(member(SECOND[1:2], (1,)))
    reference = AveragePrecision(CLASSES)
    fused = weighted_boxes(pooled(FIRST[1], SECOND[1]), 2, iou=IOU)
    for truth, one in ((TRUTH[0], FIRST[0]), (TRUTH[1], fused)):
        reference.add(truth.boxes, truth.labels, one.boxes, one.scores, one.labels)
    found = votes.evaluation()
    assert found is not None
    assert (found.value, found.samples, votes.votes) == (reference.result().mean, 2, 3)


def test_of_no_votes_there_is_no_quality() -> None:
    votes = box()
    assert votes.evaluation() is None
    votes.add(member([], ()))
    assert votes.evaluation() is None
    assert votes.alone(member([], ())) is None


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("scores", [0.9, 0.4, 1.5], "scores that are not 0 to 1"),
        ("scores", [0.9, np.nan, 0.7], "scores that are not 0 to 1"),
        ("scores", [0.9], "1 scores of 3 boxes"),
        ("labels", [1, 2, 3], "labels of boxes beyond its 2 classes"),
        ("offsets", [0, 2, 1, 3], "offsets that do not cut its 3 boxes"),
        ("offsets", [0, 1, 3, 4], "offsets that do not cut its 3 boxes"),
        ("offsets", [0, 3], "2 offsets of 3 images"),
        ("boxes", [[0, 0, 1, 1]], r"\(1, 4\) boxes, 3 labels"),
        ("boxes", [[0, 0, 1, np.inf]] * 3, "boxes that are none"),
        ("boxes", [[0, np.nan, 1, 1]] * 3, "boxes that are none"),
        ("boxes", [[9, 0, 1, 1]] * 3, "boxes that are none"),
        ("truth_labels", [2, 2], "other labels than members before it"),
        ("truth_boxes", [[0, 0, 50, 50], [10, 10, 80, 81]], "other labels than members before it"),
        ("samples", [0, 1, 5], "samples that are not voted on"),
    ],
)
def test_what_no_detector_finds_is_refused_and_leaves_the_count_alone(name: str, value: Any, reason: str) -> None:
    votes = box()
    votes.add(member(FIRST))
    before = votes.evaluation()
    good = member(SECOND[:1] + FIRST[1:])
    good = member(FIRST)
    with pytest.raises(WrongAnswerError, match=reason):
        votes.add({**good, name: np.array(value, good[name].dtype)})
    assert (votes.evaluation(), votes.votes) == (before, 3)
