"""The members' boxes of each image, pooled and fused into one answer, judged like those of one detector."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hpcai500.data.worker_pool import map_in_order
from hpcai500.methodology.coverage import SampleIds
from hpcai500.workloads.base import Evaluation
from hpcai500.workloads.quality.average_precision import AveragePrecision
from hpcai500.workloads.voting.base import SAMPLES, Predictions, places_of, require
from hpcai500.workloads.voting.detections import FORM, Seen, found_in, require_sound, truth_of

Fuse = Callable[[Seen, int], Seen]
_ABSENT = -1
# So many are fused before other processes have started.
_BOXES_FOR_ONE_PROCESS = 50_000
# x1 y1 x2 y2, score, label
_COLUMNS = 6


class PooledBoxes:
    """Keeps all members' boxes in an unnamed file, however many members there are, and fuses image by image.

    An image that one member alone votes on keeps that member's boxes as they are.

    Args:
        samples: ids that are voted on, ascending.
        classes: names of the labels, which count from 1.
        fuse: makes one answer of the boxes that so many members found.
    """

    form = FORM

    def __init__(self, samples: SampleIds, classes: Sequence[str], fuse: Fuse) -> None:
        self._samples, self._classes, self._fuse = samples, list(classes), fuse
        self._truths: list[Seen | None] = [None] * samples.size
        self._kept = tempfile.TemporaryFile(prefix="hpcai500-vote-")  # noqa: SIM115 - ends with this object
        self._rows = 0
        # Of each member: first row and number of rows for each sample, as they are in the file.
        self._first: list[SampleIds] = []
        self._counts: list[SampleIds] = []

    def alone(self, predictions: Predictions) -> Evaluation | None:
        """Average precision of the boxes themselves."""
        require_sound(predictions, len(self._classes))
        precision = AveragePrecision(self._classes)
        for place in range(len(predictions[SAMPLES])):
            _judge(precision, truth_of(predictions, place), found_in(predictions, place))
        return _evaluation(precision)

    def add(self, predictions: Predictions) -> None:
        """Count one member in."""
        require_sound(predictions, len(self._classes))
        places = places_of(predictions, self._samples)
        truths = [truth_of(predictions, place) for place in range(places.size)]
        for place, truth in zip(places.tolist(), truths, strict=True):
            require(_agree(self._truths[place], truth), "other labels than members before it")
        for place, truth in zip(places.tolist(), truths, strict=True):
            self._truths[place] = self._truths[place] or truth
        self._keep(predictions, places)

    def evaluation(self) -> Evaluation | None:
        """Average precision of what the fused boxes find."""
        precision = AveragePrecision(self._classes)
        counts = np.array(self._counts).reshape(-1, self._samples.size)
        places = np.flatnonzero((counts != _ABSENT).any(axis=0)).tolist()
        alone = self._rows <= _BOXES_FOR_ONE_PROCESS
        workers = 1 if alone else len(os.sched_getaffinity(0))
        pooled = map(self._pooled, places)
        for place, answer in zip(
            places, map_in_order(partial(_answer, self._fuse), pooled, workers, what="fuses boxes"), strict=True
        ):
            truth = self._truths[place]
            assert truth is not None
            _judge(precision, truth, answer)
        return _evaluation(precision)

    @property
    def votes(self) -> int:
        """Votes on all samples together."""
        return sum(int((counts != _ABSENT).sum()) for counts in self._counts)

    def _keep(self, predictions: Predictions, places: SampleIds) -> None:
        boxes, scores, labels = (predictions[name] for name in ("boxes", "scores", "labels"))
        rows = np.column_stack([boxes, scores, labels]).astype(np.float32)
        self._kept.seek(0, os.SEEK_END)
        self._kept.write(rows.tobytes())
        self._kept.flush()
        first, counts = np.zeros(self._samples.size, np.int64), np.full(self._samples.size, _ABSENT, np.int64)
        first[places] = self._rows + predictions["offsets"][:-1]
        counts[places] = np.diff(predictions["offsets"])
        self._first.append(first)
        self._counts.append(counts)
        self._rows += len(rows)

    def _pooled(self, place: int) -> tuple[Seen, int]:
        """What the members found in one image, and how many they are."""
        found = [
            self._read(int(first[place]), int(counts[place]))
            for first, counts in zip(self._first, self._counts, strict=True)
            if counts[place] != _ABSENT
        ]
        rows = np.concatenate(found)
        return Seen(rows[:, :4], rows[:, 4], rows[:, 5].astype(np.int64)), len(found)

    def _read(self, first: int, count: int) -> np.ndarray:
        row_bytes = _COLUMNS * 4
        content = os.pread(self._kept.fileno(), count * row_bytes, first * row_bytes)
        return np.frombuffer(content, np.float32).reshape(count, _COLUMNS)


def _answer(fuse: Fuse, pooled: tuple[Seen, int]) -> Seen:
    """What the members say of one image together."""
    found, votes = pooled
    return found if votes == 1 else fuse(found, votes)


def _judge(precision: AveragePrecision, truth: Seen, found: Seen) -> None:
    precision.add(truth.boxes, truth.labels, found.boxes, found.scores, found.labels)


def _evaluation(precision: AveragePrecision) -> Evaluation | None:
    if not precision.images:
        return None
    result = precision.result()
    return Evaluation(result.mean, precision.images, result.per_class)


def _agree(known: Seen | None, truth: Seen) -> bool:
    if known is None:
        return True
    return np.array_equal(known.boxes, truth.boxes) and np.array_equal(known.labels, truth.labels)
