"""Fits anchors to the boxes of a training set: k-means under the distance 1 - IoU (Redmon and Farhadi 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcai500.errors import DataError

Shapes = npt.NDArray[np.float64]

_MOST_ROUNDS = 200


@dataclass(frozen=True)
class AnchorFit:
    """Anchors and how well they fit.

    Attributes:
        anchors: (height, width) in pixels of each level's anchors, small levels first.
        mean_iou: mean over the boxes of the best overlap with an anchor of the same centre.
        boxes: number of boxes fitted to, repeated ones included.
    """

    anchors: tuple[tuple[tuple[float, float], ...], ...]
    mean_iou: float
    boxes: int


def balanced(shapes: Shapes, labels: npt.NDArray[np.int64]) -> Shapes:
    """`shapes` (n, 2), those of rare classes repeated until every class has about as many as the most frequent one.

    Mean average precision counts every class alike, so an anchor for a rare class is worth as much.
    """
    if not len(labels):
        return shapes
    counts = np.bincount(labels)
    repeats = np.round(counts.max() / np.maximum(counts, 1)).astype(np.int64)
    repeated: Shapes = np.repeat(shapes, repeats[labels], axis=0)
    return repeated


def fit_anchors(shapes: Shapes, levels: int, per_level: int, seed: int = 0) -> AnchorFit:
    """Fit `levels` x `per_level` anchors to boxes of `shapes` (n, 2) as (height, width) in pixels.

    Anchors are dealt to the levels by growing area, as finer levels of a pyramid see smaller things.

    Raises:
        DataError: there are fewer different shapes than anchors, or no anchors asked for.
    """
    count = levels * per_level
    if levels < 1 or per_level < 1:
        raise DataError(f"cannot fit {per_level} anchors on each of {levels} levels: both must be at least 1")
    if len(np.unique(shapes, axis=0)) < count:
        raise DataError(
            f"cannot fit {count} anchors to {len(np.unique(shapes, axis=0))} different box shapes: "
            "take more years, or fewer anchors"
        )
    centres = _start(shapes, count, np.random.default_rng(seed))
    nearest = _overlaps(shapes, centres).argmax(axis=1)
    for _ in range(_MOST_ROUNDS):
        centres = np.stack([_median(shapes, nearest == k, centres[k]) for k in range(count)])
        before, nearest = nearest, _overlaps(shapes, centres).argmax(axis=1)
        if np.array_equal(before, nearest):
            break
    rounded = np.maximum(centres.round(), 1)
    rounded = rounded[np.argsort(rounded.prod(axis=1), kind="stable")]
    deal = rounded.reshape(levels, per_level, 2)
    anchors = tuple(tuple((float(height), float(width)) for height, width in level) for level in deal)
    return AnchorFit(anchors, float(_overlaps(shapes, rounded).max(axis=1).mean()), len(shapes))


def _overlaps(shapes: Shapes, centres: Shapes) -> Shapes:
    """IoU (n, k) of boxes that share their centre."""
    common = np.minimum(shapes[:, None], centres[None]).prod(axis=2)
    overlaps: Shapes = common / (shapes.prod(axis=1)[:, None] + centres.prod(axis=1)[None] - common)
    return overlaps


def _start(shapes: Shapes, count: int, random: np.random.Generator) -> Shapes:
    """k-means++ (Arthur and Vassilvitskii 2007): each next centre is likely where no centre is near."""
    centres = shapes[[random.integers(len(shapes))]]
    while len(centres) < count:
        distance = 1 - _overlaps(shapes, centres).max(axis=1)
        weight = distance**2
        centres = np.concatenate([centres, shapes[[random.choice(len(shapes), p=weight / weight.sum())]]])
    return centres


def _median(shapes: Shapes, members: npt.NDArray[np.bool_], otherwise: npt.NDArray[Any]) -> Shapes:
    # The median, not the mean: it is nearer to the minimum of 1 - IoU, and a few odd boxes do not pull it away.
    centre: Shapes = np.median(shapes[members], axis=0) if members.any() else otherwise
    return centre
