"""Votes of an ensemble: the mean of softmax outputs, fused boxes, and the files of predictions that they count.

Neither the order of members nor what nobody can have predicted changes what comes out.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch.nn import functional as F

from hpcai500.errors import WrongAnswerError
from hpcai500.workloads import voting
from hpcai500.workloads.operators import nms
from hpcai500.workloads.quality import AveragePrecision
from hpcai500.workloads.voting import (
    MOST_MEMBERS,
    Image,
    PooledBoxes,
    Seen,
    SoftmaxMean,
    best_boxes,
    flat,
    read_arrays,
    softmax,
    weighted_boxes,
    write_arrays,
)

Member = dict[str, Any]


# ----------------------------------------------------------------------------------------------------
# Classifiers: the mean of their softmax outputs.


def says(logits: Any, labels: Any, samples: Any = None) -> Member:
    """What a classifier says of samples, by default of 0, 1, 2 ..."""
    rows = np.array(logits, np.float32)
    ids = np.arange(len(rows)) if samples is None else np.array(samples, np.int64)
    return {"samples": ids, "labels": np.array(labels, np.int64), "logits": rows}


def vote(members: list[Member], samples: Any) -> SoftmaxMean:
    box = SoftmaxMean(np.array(samples))
    for one in members:
        box.add(one)
    return box


def quality(votes: SoftmaxMean | PooledBoxes) -> tuple[float, int]:
    """Of all members together, and the samples that it is judged by."""
    found = votes.evaluation()
    assert found is not None
    return found.value, found.samples


def test_the_mean_of_two_is_that_of_their_probabilities_and_not_of_their_logits() -> None:
    # By hand: the first is sure of class 0 (p = 0.95), the second nearly sure of 1 and says so twice as loudly in
    # logits; probabilities of class 0: (0.95 + 0.02) / 2 = 0.485, of class 1: 0.515.
    sure = says([[math.log(0.95 / 0.05), 0.0]], [1])
    surer = says([[0.0, math.log(0.98 / 0.02)]], [1])
    assert quality(vote([sure, surer], [0])) == (1.0, 1)
    # Three classes: two lukewarm votes for class 2 outweigh one hot one: 0.34 + 0.35 > 0.66 + 0 for class 0.
    three = ([[0.66, 0.33, 0.01]], [[0.01, 0.31, 0.68]], [[0.30, 0.31, 0.39]])
    assert quality(vote([says(np.log(one), [2]) for one in three], [0])) == (1.0, 1)


def test_probabilities_are_those_of_torch_and_do_not_overflow() -> None:
    logits = np.random.default_rng(1).normal(scale=100, size=(50, 7)).astype(np.float32)
    expected = F.softmax(torch.from_numpy(logits).double(), dim=1).numpy()
    assert np.abs(softmax(logits) - expected).max() < 1e-14
    assert softmax(np.array([[3e38, -3e38, 0]], np.float32)).tolist() == [[1.0, 0.0, 0.0]]


@given(
    npst.arrays(np.float32, (6, 4, 3), elements=st.floats(-30, 30, width=32).map(lambda value: round(value, 1))),
    st.permutations(range(6)),
)
def test_neither_the_order_of_members_nor_doubling_all_of_them_changes_the_vote(logits: Any, order: list[int]) -> None:
    members = [says(one, [0, 1, 2, 0]) for one in logits]
    found, again = vote(members, range(4)), vote([members[place] for place in order], range(4))
    assert np.array_equal(found._sums, again._sums)
    assert found.evaluation() == again.evaluation() == vote(members * 2, range(4)).evaluation()


@given(npst.arrays(np.float32, (5, 3), elements=st.floats(-1e4, 1e4, width=32)))
def test_an_ensemble_of_one_classifier_is_its_member(logits: Any) -> None:
    # What float32 resolves below 2**-40 of the largest logit, probabilities do not.
    logits = np.round(logits, 3)
    one = says(logits, [0, 1, 2, 0, 1])
    box = vote([one], range(5))
    alone = box.alone(one)
    assert alone is not None
    assert alone.value == (torch.from_numpy(one["logits"]).argmax(dim=1).numpy() == one["labels"]).mean()
    sure, given = np.sort(softmax(one["logits"]), axis=1), np.sort(logits, axis=1)
    if np.all((sure[:, -1] - sure[:, -2] > 1e-12) | (given[:, -1] == given[:, -2])):
        assert box.evaluation() == alone


def test_out_of_bag_each_sample_is_judged_by_those_who_have_not_drawn_it() -> None:
    # Nobody speaks of sample 40. Sample 20: 0.6 + 0.1 against 0.4 + 0.9.
    one = says(np.log([[0.9, 0.1], [0.6, 0.4]]), [0, 1], [10, 20])
    other = says(np.log([[0.1, 0.9], [0.8, 0.2]]), [1, 1], [20, 30])
    box = vote([one, other], [10, 20, 30, 40])
    assert (*quality(box), box.votes) == (2 / 3, 3, 4)


def test_the_most_members_that_are_all_sure_of_one_class_are_still_counted() -> None:
    sure = says([[99.0, -99.0]], [0])
    box = vote([sure], [0])
    assert box._sums is not None
    # What all the others but one would have added.
    box._sums *= MOST_MEMBERS - 1
    box.add(sure)
    assert quality(box) == (1.0, 1)
    assert box._sums[0, 0] > 0


# ----------------------------------------------------------------------------------------------------
# Detectors: their boxes, fused.


CLASSES = ("storm", "river")
IOU = 0.5
EACH_WAY = pytest.mark.parametrize("fuse", [weighted_boxes, best_boxes])


def seen(*rows: tuple[float, ...]) -> Seen:
    """Of rows (x1, y1, x2, y2, score, label)."""
    table = np.array(rows, np.float32).reshape(-1, 6)
    return Seen(table[:, :4], table[:, 4], table[:, 5].astype(np.int64))


def pooled(*members: Seen) -> Seen:
    parts = ([getattr(one, name) for one in members] for name in ("boxes", "scores", "labels"))
    return Seen(*(np.concatenate(part) for part in parts))


def rows(found: Seen) -> list[list[float]]:
    return np.column_stack([found.boxes, found.scores, found.labels]).tolist()


@pytest.mark.parametrize(
    ("members", "size", "fused"),
    [
        # They share x 10 to 90 of 0 to 90 and 10 to 100: IoU 8,000 / 10,000. Scores 0.9 and 0.3: weights 3/4 and 1/4.
        # x1 = (0.9 x 0 + 0.3 x 10) / 1.2, x2 = (0.9 x 90 + 0.3 x 100) / 1.2, score (0.9 + 0.3) / 2.
        # The other box is one member's alone: its score is halved, for one of two has not seen it.
        (
            [[(0, 0, 90, 100, 0.9, 1), (200, 200, 250, 250, 0.8, 1)], [(10, 0, 100, 100, 0.3, 1)]],
            2,
            [[2.5, 0, 92.5, 100, 0.6, 1], [200, 200, 250, 250, 0.4, 1]],
        ),
        (
            [[(0, 0, 50, 50, 0.8, 1)], [(0, 0, 50, 50, 0.6, 2)]],
            2,
            [[0, 0, 50, 50, 0.4, 1], [0, 0, 50, 50, 0.3, 2]],
        ),
        # Score (0.9 + 0.6) / 2 x 2/3 = 0.5; x1 = (0.9 x 0 + 0.6 x 5) / 1.5 = 2.
        ([[(0, 0, 100, 100, 0.9, 2)], [(5, 0, 100, 100, 0.6, 2)]], 3, [[2, 0, 100, 100, 0.5, 2]]),
        ([[(5, 5, 5, 9, 0.9, 1)]], 2, []),
        ([[]], 2, []),
    ],
    ids=["one thing", "two classes", "two of three agree", "no area", "nothing"],
)
def test_boxes_of_one_thing_become_their_mean_weighted_by_score(
    members: list[list[tuple[float, ...]]], size: int, fused: list[list[float]]
) -> None:
    found = rows(weighted_boxes(pooled(*(seen(*one) for one in members)), size, iou=IOU))
    assert len(found) == len(fused)
    assert np.allclose(found, fused, rtol=1e-6)


def scene(random: np.random.Generator, count: int) -> Seen:
    """A few places, and boxes near them: much overlaps; some scores are equal."""
    corner = random.integers(0, 3, (count, 2)) * 100 + random.integers(0, 12, (count, 2))
    boxes = np.concatenate([corner, corner + random.integers(30, 60, (count, 2))], axis=1).astype(np.float32)
    return Seen(boxes, (random.integers(1, 8, count) / 8).astype(np.float32), random.integers(1, 3, count))


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
    assert rows(best_boxes(seen(), 2, iou=IOU)) == []


@given(st.integers(0, 2**32), st.randoms(use_true_random=False))
def test_the_order_of_members_changes_no_bit_of_a_fusion(seed: int, shuffle: Any) -> None:
    random = np.random.default_rng(seed)
    members = [scene(random, int(random.integers(0, 8))) for _ in range(4)]
    other = list(members)
    shuffle.shuffle(other)
    for fuse in (weighted_boxes, best_boxes):
        assert rows(fuse(pooled(*members), 4, iou=IOU)) == rows(fuse(pooled(*other), 4, iou=IOU))


def test_as_many_members_again_that_say_the_same_find_as_many_boxes() -> None:
    members = [scene(np.random.default_rng(seed), 6) for seed in range(3)]
    # Boxes that a member has twice in one place may count up to the number of members, so it is said of two at most.
    once, twice = (weighted_boxes(pooled(*members * times), 3 * times, iou=IOU) for times in (1, 2))
    assert len(once.labels) == len(twice.labels)


TRUTH = [seen((0, 0, 50, 50, 0, 1)), seen((10, 10, 80, 80, 0, 2)), seen()]
FIRST = [seen((0, 0, 48, 50, 0.9, 1)), seen((12, 10, 80, 80, 0.4, 2), (0, 0, 9, 9, 0.7, 2)), seen()]
SECOND = [seen((60, 60, 90, 90, 0.5, 1)), seen((10, 12, 80, 80, 0.8, 2)), seen((0, 0, 20, 20, 0.1, 1))]


def sees(found: list[Seen], samples: tuple[int, ...] = (0, 1, 2)) -> Member:
    """What a detector sees in images."""
    return flat([Image(sample, TRUTH[sample], one) for sample, one in zip(samples, found, strict=True)])


def detectors(*members: Member, fuse: Any = weighted_boxes) -> PooledBoxes:
    votes = PooledBoxes(np.arange(3), CLASSES, partial(fuse, iou=IOU))
    for one in members:
        votes.add(one)
    return votes


def judged(found: dict[int, Seen]) -> tuple[float, Any, int]:
    """Mean and per-class precision of what was found in each image, by the metric of training, and their number."""
    reference = AveragePrecision(CLASSES)
    for sample, one in found.items():
        truth = TRUTH[sample]
        reference.add(truth.boxes, truth.labels, one.boxes, one.scores, one.labels)
    return reference.result().mean, reference.result().per_class, len(found)


def of(found: Any) -> tuple[float, Any, int]:
    return found.value, found.per_class, found.samples


@EACH_WAY
def test_an_ensemble_of_one_detector_is_its_member_bit_for_bit(fuse: Any) -> None:
    votes = detectors(sees(FIRST), fuse=fuse)
    assert votes.evaluation() == votes.alone(sees(FIRST))
    assert of(votes.evaluation()) == judged(dict(enumerate(FIRST)))


def test_two_detectors_are_judged_by_what_their_fused_boxes_find(monkeypatch: pytest.MonkeyPatch) -> None:
    votes = detectors(sees(FIRST), sees(SECOND))
    fused = [weighted_boxes(pooled(one, other), 2, iou=IOU) for one, other in zip(FIRST, SECOND, strict=True)]
    together, alone = votes.evaluation(), votes.alone(sees(SECOND))
    assert of(together) == judged(dict(enumerate(fused)))
    assert together is not None
    assert alone is not None
    assert together.value > alone.value
    # Several processes find what one finds.
    monkeypatch.setattr(voting, "_BOXES_FOR_ONE_PROCESS", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert votes.evaluation() == together


def test_out_of_bag_an_image_is_fused_of_those_who_speak_of_it() -> None:
    votes = detectors(sees(FIRST[:2], (0, 1)), sees(SECOND[1:2], (1,)))
    fused = weighted_boxes(pooled(FIRST[1], SECOND[1]), 2, iou=IOU)
    assert of(votes.evaluation()) == judged({0: FIRST[0], 1: fused})
    assert votes.votes == 3


# ----------------------------------------------------------------------------------------------------
# Of both.


@pytest.mark.parametrize(
    ("votes", "nothing"), [(vote([], [3, 4]), says(np.empty((0, 2)), [], [])), (detectors(), sees([], ()))]
)
def test_of_no_votes_there_is_no_quality(votes: Any, nothing: Member) -> None:
    assert votes.evaluation() is None
    assert votes.alone(nothing) is None
    votes.add(nothing)
    assert votes.evaluation() is None


GOOD = says([[0.0, 1.0], [1.0, 0.0]], [1, 0])


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("labels", [1, 2], "labels beyond its 2 classes"),
        ("labels", [-1, 0], "labels beyond its 2 classes"),
        ("labels", [1], "2 samples, 1 labels and 2 rows"),
        ("labels", [0, 0], "its labels are not those of earlier members"),
        ("logits", np.zeros((2, 3)), "3 classes; earlier members have 2"),
        ("logits", np.zeros((2, 0)), "no class"),
        ("logits", [[0, np.nan], [1, np.inf]], "the scores of 2 samples are not finite"),
        ("samples", [0, 0], "not ascending"),
        ("samples", [0, 9], "samples that are not voted on"),
    ],
)
def test_what_no_classifier_says_is_refused_and_leaves_the_count_alone(name: str, value: Any, reason: str) -> None:
    assert_refused(vote([GOOD], range(2)), GOOD, name, value, reason)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("scores", [0.9, 0.4, 1.5], "scores outside 0 to 1"),
        ("scores", [0.9, np.nan, 0.7], "scores outside 0 to 1"),
        ("scores", [0.9], "1 scores of 3 boxes"),
        ("labels", [1, 2, 3], "labels of boxes beyond its 2 classes"),
        ("offsets", [0, 2, 1, 3], "offsets do not match its 3 boxes"),
        ("offsets", [0, 1, 3, 4], "offsets do not match its 3 boxes"),
        ("offsets", [0, 3], "2 offsets of 3 images"),
        ("boxes", [[0, 0, 1, 1]], r"\(1, 4\) boxes, 3 labels"),
        ("boxes", [[0, 0, 1, np.inf]] * 3, "invalid boxes"),
        ("boxes", [[0, np.nan, 1, 1]] * 3, "invalid boxes"),
        ("boxes", [[9, 0, 1, 1]] * 3, "invalid boxes"),
        ("truth_labels", [2, 2], "its labels are not those of earlier members"),
        ("truth_boxes", [[0, 0, 50, 50], [10, 10, 80, 81]], "its labels are not those of earlier members"),
        ("samples", [0, 1, 5], "samples that are not voted on"),
    ],
)
def test_what_no_detector_finds_is_refused_and_leaves_the_count_alone(name: str, value: Any, reason: str) -> None:
    assert_refused(detectors(sees(FIRST)), sees(FIRST), name, value, reason)


def assert_refused(votes: Any, good: Member, name: str, value: Any, reason: str) -> None:
    before = votes.evaluation(), votes.votes
    with pytest.raises(WrongAnswerError, match=reason):
        votes.add({**good, name: np.array(value, good[name].dtype)})
    assert (votes.evaluation(), votes.votes) == before


# ----------------------------------------------------------------------------------------------------
# Files of predictions: whole, the same for the same arrays, and harmless whoever made them.


FORM = {"samples": ("<i8", 1), "logits": ("<f4", 2)}
ARRAYS = {"samples": np.arange(3), "logits": np.arange(6, dtype=np.float32).reshape(3, 2)}


def written(arrays: dict[str, Any] = ARRAYS) -> bytes:
    stream = io.BytesIO()
    write_arrays(stream, arrays)
    return stream.getvalue()


@pytest.mark.parametrize("arrays", [ARRAYS, {"samples": np.arange(0), "logits": np.empty((0, 2), np.float32)}])
def test_arrays_come_back_and_numpy_reads_them_too(arrays: dict[str, Any]) -> None:
    found = read_arrays(io.BytesIO(written(arrays)), FORM)
    loaded = np.load(io.BytesIO(written(arrays)), allow_pickle=False)
    for name, array in arrays.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert np.array_equal(found[name], array)
        assert np.array_equal(loaded[name], array)


def test_equal_arrays_make_equal_files(monkeypatch: pytest.MonkeyPatch) -> None:
    before = written()
    monkeypatch.setattr("time.time", lambda: 2e9)
    assert written() == before


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=True)
    return stream.getvalue()


def zipped(logits: bytes | None, compression: int = zipfile.ZIP_STORED, **more: bytes) -> bytes:
    """A file with good samples and these logits."""
    entries = {"samples.npy": npy(ARRAYS["samples"]), **({"logits.npy": logits} if logits else {}), **more}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return stream.getvalue()


def header(text: str) -> bytes:
    line = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line


LOGITS = npy(ARRAYS["logits"])
HUGE = header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 1000), }")
CHANGED = written().replace(np.float32(5).tobytes(), np.float32(4).tobytes())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a file of predictions"),
        (b"PK\x03\x04 and no more", "not a file of predictions"),
        (written()[:-40], "not a file of predictions"),
        (CHANGED, "not a file of predictions: Bad CRC"),
        (zipped(None), "holds samples.npy; expected samples.npy, logits.npy"),
        (zipped(LOGITS, more=b""), "holds .*more"),
        (zipped(npy(ARRAYS["samples"])), "logits: int64 in 1 dimensions, expected float32"),
        (zipped(LOGITS, zipfile.ZIP_DEFLATED), "is compressed"),
        (zipped(HUGE), "which does not match its size"),
        (zipped(npy(np.array([[None]], object))), "expected float32"),
        (zipped(pickle.dumps(print)), "not a file of predictions"),
        (zipped(npy(ARRAYS["logits"].T)), "expected float32 in 2"),
        (zipped(npy(ARRAYS["logits"].astype(">f4"))), "logits: >f4"),
    ],
)
def test_what_is_no_file_of_predictions_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(WrongAnswerError, match=reason):
        read_arrays(io.BytesIO(content), FORM)


def test_whatever_bytes_are_changed_nothing_but_a_refusal_or_arrays_of_the_form_comes() -> None:
    random, refusals = Random(5), []
    for _ in range(1500):
        content = bytearray(written())
        for _ in range(random.randint(1, 4)):
            content[random.randrange(len(content))] = random.randrange(256)
        try:
            found = read_arrays(io.BytesIO(bytes(content)), FORM)
        except WrongAnswerError as error:
            refusals.append(str(error))
        else:
            assert {name: (array.dtype.str, array.ndim) for name, array in found.items()} == FORM
    assert len(refusals) > 500
    assert not [line for line in refusals if "\n" in line or len(line) > 300]
