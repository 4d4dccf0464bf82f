"""How members of an ensemble vote (V3.0 section 3.1): their files of predictions, and the counting by benchmark.

Image Classification averages class probabilities; Extreme Weather Analytics fuses the members' boxes. Results do not
depend on the order of the members. Files of predictions are untrusted.
"""

from __future__ import annotations

import math
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from hpcai500.data.derived import map_in_order
from hpcai500.errors import WrongAnswerError
from hpcai500.layers import Recipe
from hpcai500.methodology.sampling import SampleIds
from hpcai500.plugins import function_of
from hpcai500.streams import escaped
from hpcai500.workloads.base import Evaluation
from hpcai500.workloads.operators import batched_nms
from hpcai500.workloads.quality import AveragePrecision

# ----------------------------------------------------------------------------------------------------
# The interface that counts votes.


Predictions = Mapping[str, npt.NDArray[Any]]
"""Arrays by name, from `Workload.predictions`. `samples` are ids, ascending; the other arrays depend on the voter."""

Form = Mapping[str, tuple[str, int]]
"""The type of each array of predictions, in NumPy's notation, and its number of dimensions."""

SAMPLES = "samples"


class Voter(Protocol):
    """Counts the predictions of members on the same samples, one member after the other.

    Results do not depend on the order of the members. A member may predict only some of the samples. One with invalid
    predictions is refused entirely. `form` is the form of the predictions.
    """

    form: Form

    def alone(self, predictions: Predictions) -> Evaluation | None:
        """Quality of these predictions alone, as in the benchmark's own evaluation; None for no samples.

        Raises:
            WrongAnswerError: they are not valid predictions of a member.
        """

    def add(self, predictions: Predictions) -> None:
        """Count one member's predictions.

        Raises:
            WrongAnswerError: they are invalid, or contradict earlier ones; nothing was counted.
        """

    def evaluation(self) -> Evaluation | None:
        """Quality of the vote so far, over the samples with at least one vote; None if there are none."""

    @property
    def votes(self) -> int:
        """Total number of votes on all samples."""


def places_of(predictions: Predictions, samples: SampleIds) -> SampleIds:
    """Positions of the predicted samples in `samples`, which are ascending.

    Raises:
        WrongAnswerError: some are not among them, or they are not ascending.
    """
    found = predictions[SAMPLES]
    if np.any(np.diff(found) <= 0):
        raise WrongAnswerError("the samples are not ascending: each may be predicted once")
    places = np.searchsorted(samples, found)
    if np.any(places == samples.size) or np.any(samples[places] != found):
        raise WrongAnswerError("predicts samples that are not voted on")
    return np.asarray(places, np.int64)


def require(holds: bool, what: str) -> None:
    """Raise WrongAnswerError with the message `what` unless `holds` is true."""
    if not holds:
        raise WrongAnswerError(what)


# ----------------------------------------------------------------------------------------------------
# The voter of each benchmark.


def voter(recipe: Recipe, samples: SampleIds) -> Voter:
    """The voter for members of `recipe` on `samples`: ids, ascending.

    Raises:
        EnvironmentLacksError: the benchmark's plug-in cannot be used.
    """
    match recipe.benchmark:
        case "ic":
            return classes_voter(recipe, samples)
        case "ewa":
            return boxes_voter(recipe, samples)
        case _:
            made: Voter = function_of(recipe.benchmark, "voter")(recipe, samples)
            return made


def classes_voter(recipe: Recipe, samples: SampleIds) -> Voter:
    """The voter by mean class probabilities; predictions are in SOFTMAX_FORM."""
    assert recipe.ensemble is not None
    assert recipe.ensemble.vote == "mean"
    return SoftmaxMean(samples)


def boxes_voter(recipe: Recipe, samples: SampleIds) -> Voter:
    """The voter that fuses boxes of extreme weather; predictions are in DETECTIONS_FORM."""
    from hpcai500.data.climate.years import CLASSES  # an ensemble has one kind of vote

    options = recipe.ensemble
    assert options is not None
    fuse = {"weighted-boxes": weighted_boxes, "nms": best_boxes}[options.vote]
    return PooledBoxes(samples, CLASSES, partial(fuse, iou=options.vote_iou))


# ----------------------------------------------------------------------------------------------------
# Arrays in an uncompressed ZIP file of NumPy's own format (.npz): written without a copy, read as untrusted.
#
# Equal arrays give equal files, byte by byte: they contain no timestamps.


_SUFFIX = ".npy"
_MOST_CHARACTERS = 60
# The arrays written here have headers of 128 bytes.
_HEADER_BYTES = 1024


def write_arrays(stream: IO[bytes], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write `arrays` by name to the seekable `stream`. Raises OSError if the disk is full."""
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(name + _SUFFIX), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)


def read_arrays(stream: IO[bytes], form: Form) -> dict[str, npt.NDArray[Any]]:
    """Exactly the arrays of `form`, from an untrusted file; uses no more memory than the file's size.

    Raises:
        WrongAnswerError: it has other content.
        OSError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(stream) as archive:
            _require_entries(archive, form)
            return {name: _array(archive, name, *form[name]) for name in form}
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError) as error:
        raise WrongAnswerError(f"not a file of predictions: {_first_line(error)}") from error


def _require_entries(archive: zipfile.ZipFile, form: Form) -> None:
    entries = archive.infolist()
    found, expected = [entry.filename for entry in entries], [name + _SUFFIX for name in form]
    if sorted(found) != sorted(expected):
        named = ", ".join(escaped(name, _MOST_CHARACTERS) for name in found[:8])
        raise WrongAnswerError(f"holds {named or 'nothing'}; expected {', '.join(expected)}")
    if any(entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size for entry in entries):
        raise WrongAnswerError("is compressed; predictions are not")


def _array(archive: zipfile.ZipFile, name: str, dtype: str, dimensions: int) -> npt.NDArray[Any]:
    """Read one entry; its header is checked before memory is allocated."""
    size = archive.getinfo(name + _SUFFIX).file_size
    with archive.open(name + _SUFFIX) as member:
        version = np.lib.format.read_magic(member)
        if version != (1, 0):
            raise WrongAnswerError(f"{name}: in version {version[0]}.{version[1]} of NumPy's format, expected 1.0")
        shape, is_fortran, found = np.lib.format.read_array_header_1_0(member, max_header_size=_HEADER_BYTES)
        if found != np.dtype(dtype) or len(shape) != dimensions or is_fortran:
            text = f"{found} in {len(shape)} dimensions"
            raise WrongAnswerError(
                f"{name}: {escaped(text, _MOST_CHARACTERS)}, expected {np.dtype(dtype)} in {dimensions}"
            )
        if math.prod(shape) * found.itemsize != size - member.tell():
            raise WrongAnswerError(f"{name}: claims the shape {shape}, which does not match its size")
        array = np.empty(shape, found)
        _fill(member, array)
    return array


def _fill(member: IO[bytes], array: npt.NDArray[Any]) -> None:
    rest = memoryview(array.reshape(-1).view(np.uint8).data)
    while rest:
        block = member.read(min(len(rest), 1 << 24))
        if not block:
            raise WrongAnswerError("is truncated")
        rest[: len(block)] = block
        rest = rest[len(block) :]
    # The checksum of an entry is verified when its end is read.
    member.read(1)


def _first_line(error: Exception) -> str:
    return escaped((str(error).splitlines() or [type(error).__name__])[0], _MOST_CHARACTERS)


# ----------------------------------------------------------------------------------------------------
# Boxes of many images in flat arrays: those of image i are rows offsets[i] to offsets[i + 1].


Array = npt.NDArray[Any]

DETECTIONS_FORM: Form = {
    SAMPLES: ("<i8", 1),
    "offsets": ("<i8", 1),
    "boxes": ("<f4", 2),
    "scores": ("<f4", 1),
    "labels": ("<i2", 1),
    "truth_offsets": ("<i8", 1),
    "truth_boxes": ("<f4", 2),
    "truth_labels": ("<i2", 1),
}
# No image has as many pixels in a row or column.
_MOST_PIXELS = 2.0**24


@dataclass(frozen=True, eq=False)
class Seen:
    """Boxes of one image, true or found: boxes (d, 4) x1 y1 x2 y2, scores (d,), labels (d,) from 1."""

    boxes: Array
    scores: Array
    labels: Array


@dataclass(frozen=True, eq=False)
class Image:
    """One image: its true boxes (without scores), and the boxes that were found."""

    sample: int
    truth: Seen
    found: Seen


def flat(images: Sequence[Image]) -> dict[str, Array]:
    """`images`, ascending by sample, as arrays of DETECTIONS_FORM."""
    found, truths = [one.found for one in images], [one.truth for one in images]
    arrays = {
        SAMPLES: np.array([one.sample for one in images]),
        "offsets": _offsets(found),
        "boxes": _joined([one.boxes for one in found], (0, 4)),
        "scores": _joined([one.scores for one in found], (0,)),
        "labels": _joined([one.labels for one in found], (0,)),
        "truth_offsets": _offsets(truths),
        "truth_boxes": _joined([one.boxes for one in truths], (0, 4)),
        "truth_labels": _joined([one.labels for one in truths], (0,)),
    }
    return {name: arrays[name].astype(np.dtype(dtype)) for name, (dtype, _) in DETECTIONS_FORM.items()}


def found_in(predictions: Predictions, place: int) -> Seen:
    """The boxes that were found in the image at `place`."""
    rows = slice(*predictions["offsets"][place : place + 2])
    return Seen(*(predictions[name][rows] for name in ("boxes", "scores", "labels")))


def truth_of(predictions: Predictions, place: int) -> Seen:
    """The true boxes of the image at `place`, without scores."""
    rows = slice(*predictions["truth_offsets"][place : place + 2])
    return Seen(predictions["truth_boxes"][rows], np.empty(0), predictions["truth_labels"][rows])


def require_sound(predictions: Predictions, classes: int) -> None:
    """Raise WrongAnswerError unless these are valid predictions of a detector of `classes` classes."""
    images = predictions[SAMPLES]
    for prefix in ("", "truth_"):
        boxes, labels, offsets = (predictions[prefix + name] for name in ("boxes", "labels", "offsets"))
        name = "truths" if prefix else "boxes"
        require(
            boxes.shape == (len(labels), 4) and len(offsets) == len(images) + 1,
            f"{boxes.shape} {name}, {len(labels)} labels and {len(offsets)} offsets of {len(images)} images",
        )
        whole = offsets[0] == 0 and offsets[-1] == len(labels) and bool(np.all(np.diff(offsets) >= 0))
        require(whole, f"offsets do not match its {len(labels)} {name}")
        require(bool(np.all((labels >= 1) & (labels <= classes))), f"labels of {name} beyond its {classes} classes")
        require(_are_boxes(boxes), f"invalid {name}")
    scores = predictions["scores"]
    require(len(scores) == len(predictions["labels"]), f"{len(scores)} scores of {len(predictions['labels'])} boxes")
    require(bool(np.all((scores >= 0) & (scores <= 1))), "scores outside 0 to 1")


def _are_boxes(boxes: Array) -> bool:
    low, high = boxes[:, :2], boxes[:, 2:]
    return bool(np.all((low >= 0) & (low <= high) & (high <= _MOST_PIXELS)))


def _offsets(found: Sequence[Seen]) -> SampleIds:
    return np.concatenate([[0], np.cumsum([len(one.labels) for one in found])]).astype(np.int64)


def _joined(parts: Sequence[Array], empty: tuple[int, ...]) -> Array:
    return np.concatenate(parts) if parts else np.empty(empty)


# ----------------------------------------------------------------------------------------------------
# Fusing the boxes that members found in one image, independent of the order of the members.


def weighted_boxes(pooled: Seen, votes: int, *, iou: float) -> Seen:
    """Weighted boxes fusion (Solovyev, Wang, Gabruseva 2021), by its authors' own code.

    Boxes of one class that overlap by more than `iou` become one, whose corners are their mean weighted by score. Its
    score is their mean score, lowered by the share of members without such a box. `pooled` are the boxes of all
    members; `votes`, two or more, is the number of members that predicted the image.
    """
    # Imported late: it imports numba for other functions, which takes half a second.
    from ensemble_boxes import weighted_boxes_fusion

    pooled = _in_order(_with_area(pooled))
    if not len(pooled.labels):
        return pooled
    # The package requires coordinates of 0 to 1. Division by a power of two is exact.
    scale = 2.0 ** np.ceil(np.log2(max(1.0, float(pooled.boxes.max()))))
    # Members have equal weights, so only their number matters, not which member a box comes from.
    empty: list[float] = []
    boxes, scores, labels = weighted_boxes_fusion(
        [pooled.boxes.astype(np.float64) / scale] + [empty] * (votes - 1),
        [pooled.scores.astype(np.float64)] + [empty] * (votes - 1),
        [pooled.labels] + [empty] * (votes - 1),
        iou_thr=iou,
        skip_box_thr=0.0,
        conf_type="avg",
    )
    return _in_order(Seen(boxes * scale, scores, labels.astype(np.int64)))


def best_boxes(pooled: Seen, votes: int, *, iou: float) -> Seen:
    """Non-maximum suppression over the boxes of all members: of those that overlap by more than `iou`, the best."""
    del votes
    pooled = _in_order(pooled)
    kept = batched_nms(
        torch.from_numpy(np.ascontiguousarray(pooled.boxes, np.float32)),
        torch.from_numpy(np.ascontiguousarray(pooled.scores, np.float32)),
        torch.from_numpy(np.ascontiguousarray(pooled.labels, np.int64)),
        iou,
    ).numpy()
    return Seen(pooled.boxes[kept], pooled.scores[kept], pooled.labels[kept])


def _with_area(found: Seen) -> Seen:
    kept = np.all(found.boxes[:, 2:] > found.boxes[:, :2], axis=1)
    return Seen(found.boxes[kept], found.scores[kept], found.labels[kept])


def _in_order(found: Seen) -> Seen:
    """Sort by score, best first; equal scores by place and class, so that the order of members does not matter."""
    order = np.lexsort((found.labels, *found.boxes.T, -found.scores))
    return Seen(found.boxes[order], found.scores[order], found.labels[order])


# ----------------------------------------------------------------------------------------------------
# The members' boxes of each image, pooled and fused, and evaluated like those of one detector.


Fuse = Callable[[Seen, int], Seen]
_ABSENT = -1
# Up to this number of boxes, one process finishes before others have started.
_BOXES_FOR_ONE_PROCESS = 50_000
# x1 y1 x2 y2, score, label
_COLUMNS = 6


class PooledBoxes:
    """Keeps the boxes of any number of members in an unnamed temporary file, and fuses them image by image.

    An image with the vote of one member only keeps that member's boxes unchanged. `samples` are the ids to vote on,
    ascending; `classes` name the labels, which count from 1; `fuse` fuses the boxes of a number of members.
    """

    form = DETECTIONS_FORM

    def __init__(self, samples: SampleIds, classes: Sequence[str], fuse: Fuse) -> None:
        self._samples, self._classes, self._fuse = samples, list(classes), fuse
        self._truths: list[Seen | None] = [None] * samples.size
        self._kept = tempfile.TemporaryFile(prefix="hpcai500-vote-")  # noqa: SIM115 - ends with this object
        self._rows = 0
        # For each member, by sample: first row in the file and number of rows.
        self._first: list[SampleIds] = []
        self._counts: list[SampleIds] = []

    def alone(self, predictions: Predictions) -> Evaluation | None:
        require_sound(predictions, len(self._classes))
        precision = AveragePrecision(self._classes)
        for place in range(len(predictions[SAMPLES])):
            _add_image(precision, truth_of(predictions, place), found_in(predictions, place))
        return _evaluation(precision)

    def add(self, predictions: Predictions) -> None:
        require_sound(predictions, len(self._classes))
        places = places_of(predictions, self._samples)
        truths = [truth_of(predictions, place) for place in range(places.size)]
        for place, truth in zip(places.tolist(), truths, strict=True):
            require(_agree(self._truths[place], truth), "its labels are not those of earlier members")
        for place, truth in zip(places.tolist(), truths, strict=True):
            self._truths[place] = self._truths[place] or truth
        self._keep(predictions, places)

    def evaluation(self) -> Evaluation | None:
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
            _add_image(precision, truth, answer)
        return _evaluation(precision)

    @property
    def votes(self) -> int:
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
        """The boxes that members found in one image, and the number of members."""
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
    found, votes = pooled
    return found if votes == 1 else fuse(found, votes)


def _add_image(precision: AveragePrecision, truth: Seen, found: Seen) -> None:
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


# ----------------------------------------------------------------------------------------------------
# The mean of the members' softmax outputs: soft voting on classes (V3.0 section 3.1).


# Probabilities are counted in units of 2**-47: sums of integers do not depend on their order, and fewer than 2**16
# members fit. The rounding error is far below the resolution of float32 logits.
_UNIT_BITS = 47
MOST_MEMBERS = (1 << 16) - 1
_UNKNOWN = -1
# Rows that are processed at once: 32 MB for a thousand classes.
_ROWS = 4096


SOFTMAX_FORM: Form = {SAMPLES: ("<i8", 1), "labels": ("<i8", 1), "logits": ("<f4", 2)}


class SoftmaxMean:
    """Sums each member's class probabilities in fixed point; the ensemble's class is the one with the largest mean.

    `samples` are the ids to vote on, ascending.
    """

    form = SOFTMAX_FORM

    def __init__(self, samples: SampleIds) -> None:
        self._samples = samples
        self._labels = np.full(samples.size, _UNKNOWN, np.int64)
        self._votes = np.zeros(samples.size, np.int64)
        self._sums: npt.NDArray[np.int64] | None = None
        self._members = 0

    def alone(self, predictions: Predictions) -> Evaluation | None:
        _require_sound(predictions)
        logits, labels = predictions["logits"], predictions["labels"]
        right = sum(int((logits[rows].argmax(axis=1) == labels[rows]).sum()) for rows in _blocks(len(labels)))
        return Evaluation(right / len(labels), len(labels)) if len(labels) else None

    def add(self, predictions: Predictions) -> None:
        _require_sound(predictions)
        places, labels, logits = places_of(predictions, self._samples), predictions["labels"], predictions["logits"]
        classes = logits.shape[1]
        if self._sums is None:
            self._sums = np.zeros((self._samples.size, classes), np.int64)
        require(classes == self._sums.shape[1], f"{classes} classes; earlier members have {self._sums.shape[1]}")
        known = self._labels[places]
        require(bool(np.all((known == _UNKNOWN) | (known == labels))), "its labels are not those of earlier members")
        require(self._members < MOST_MEMBERS, f"more than {MOST_MEMBERS} members")
        for rows in _blocks(len(labels)):
            self._sums[places[rows]] += _counted(softmax(logits[rows]))
        self._labels[places] = labels
        self._votes[places] += 1
        self._members += 1

    def evaluation(self) -> Evaluation | None:
        voted = np.flatnonzero(self._votes)
        if self._sums is None or not voted.size:
            return None
        right = sum(
            int((self._sums[voted[rows]].argmax(axis=1) == self._labels[voted[rows]]).sum())
            for rows in _blocks(voted.size)
        )
        return Evaluation(right / int(voted.size), int(voted.size))

    @property
    def votes(self) -> int:
        return int(self._votes.sum())


def softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Probabilities of the classes of each row, (n, classes)."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    np.exp(shifted, out=shifted)
    shifted /= shifted.sum(axis=1, keepdims=True)
    return shifted


def _counted(probabilities: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    return np.rint(np.ldexp(probabilities, _UNIT_BITS)).astype(np.int64)


def _require_sound(predictions: Predictions) -> None:
    samples, labels, logits = (predictions[name] for name in (SAMPLES, "labels", "logits"))
    require(
        len(samples) == len(labels) == len(logits),
        f"{len(samples)} samples, {len(labels)} labels and {len(logits)} rows of logits",
    )
    classes = logits.shape[1]
    require(classes >= 1, "no classes")
    require(bool(np.all((labels >= 0) & (labels < classes))), f"labels beyond its {classes} classes")
    bad = sum(int((~np.isfinite(logits[rows]).all(axis=1)).sum()) for rows in _blocks(len(labels)))
    require(bad == 0, f"the scores of {bad} samples are not finite")


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(at, at + _ROWS) for at in range(0, rows, _ROWS))
