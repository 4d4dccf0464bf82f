"""Boxes of many images in flat arrays: those of image i are rows offsets[i] to offsets[i + 1]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcai500.methodology.coverage import SampleIds
from hpcai500.workloads.voting.base import SAMPLES, Form, Predictions, require

Array = npt.NDArray[Any]

FORM: Form = {
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
    """What one image holds, or what was found in it: boxes (d, 4) x1 y1 x2 y2, scores (d,), labels (d,) from 1."""

    boxes: Array
    scores: Array
    labels: Array


@dataclass(frozen=True, eq=False)
class Image:
    """One image: its truth (without scores), and what was found in it."""

    sample: int
    truth: Seen
    found: Seen


def flat(images: Sequence[Image]) -> dict[str, Array]:
    """`images`, ascending by sample, as arrays of FORM."""
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
    return {name: arrays[name].astype(np.dtype(dtype)) for name, (dtype, _) in FORM.items()}


def found_in(predictions: Predictions, place: int) -> Seen:
    """What was found in the image at `place`."""
    rows = slice(*predictions["offsets"][place : place + 2])
    return Seen(*(predictions[name][rows] for name in ("boxes", "scores", "labels")))


def truth_of(predictions: Predictions, place: int) -> Seen:
    """What the image at `place` holds."""
    rows = slice(*predictions["truth_offsets"][place : place + 2])
    return Seen(predictions["truth_boxes"][rows], np.empty(0), predictions["truth_labels"][rows])


def require_sound(predictions: Predictions, classes: int) -> None:
    """Refuse what no detector of so many classes finds.

    Raises:
        WrongAnswerError: with what is wrong.
    """
    images = predictions[SAMPLES]
    for prefix in ("", "truth_"):
        boxes, labels, offsets = (predictions[prefix + name] for name in ("boxes", "labels", "offsets"))
        name = "truths" if prefix else "boxes"
        require(
            boxes.shape == (len(labels), 4) and len(offsets) == len(images) + 1,
            f"{boxes.shape} {name}, {len(labels)} labels and {len(offsets)} offsets of {len(images)} images",
        )
        whole = offsets[0] == 0 and offsets[-1] == len(labels) and bool(np.all(np.diff(offsets) >= 0))
        require(whole, f"offsets that do not cut its {len(labels)} {name}")
        require(bool(np.all((labels >= 1) & (labels <= classes))), f"labels of {name} beyond its {classes} classes")
        require(_are_boxes(boxes), f"{name} that are none")
    scores = predictions["scores"]
    require(len(scores) == len(predictions["labels"]), f"{len(scores)} scores of {len(predictions['labels'])} boxes")
    require(bool(np.all((scores >= 0) & (scores <= 1))), "scores that are not 0 to 1")


def _are_boxes(boxes: Array) -> bool:
    low, high = boxes[:, :2], boxes[:, 2:]
    return bool(np.all((low >= 0) & (low <= high) & (high <= _MOST_PIXELS)))


def _offsets(found: Sequence[Seen]) -> SampleIds:
    return np.concatenate([[0], np.cumsum([len(one.labels) for one in found])]).astype(np.int64)


def _joined(parts: Sequence[Array], empty: tuple[int, ...]) -> Array:
    return np.concatenate(parts) if parts else np.empty(empty)
