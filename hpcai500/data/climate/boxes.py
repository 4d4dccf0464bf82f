"""Boxes of climate images for a detector, rolled and cropped with their image, and anchors fitted to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.years import usable
from hpcai500.errors import DataError

# ----------------------------------------------------------------------------------------------------
# Ground truth of an image that was rolled and cropped in longitude.


Boxes = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

# A cut box is kept if at least this share of its width is left; with less, its class cannot be recognised.
LEAST_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class Truth:
    """Ground truth of one image: boxes (m, 4) as x1 y1 x2 y2 in pixels, labels (m,) from 1 (0 is background)."""

    boxes: Boxes
    labels: Labels


def truths_of(boxes: npt.NDArray[np.int32], height: int, width: int) -> list[Truth]:
    """The truth of each image of a file: `boxes` (images, 15, 5) as `ymin xmin ymax xmax class`.

    Rows that cannot be used are left out, and boxes over the edge of the height x width grid are cut there, as
    `data check` reports them.
    """
    truths = []
    for rows, used in zip(boxes, usable(boxes, height, width), strict=True):
        corners = np.clip(rows[used][:, [1, 0, 3, 2]], 0, [width, height, width, height])
        truths.append(Truth(corners.astype(np.float32), rows[used][:, 4].astype(np.int64) + 1))
    return truths


def most_boxes(truths: Iterable[Truth], *, rolled: bool) -> int:
    """The most boxes that `moved` returns for any of these images; over all rolls if they are `rolled`."""
    return max((len(truth.labels) + (_most_cut(truth) if rolled else 0) for truth in truths), default=0)


def _most_cut(truth: Truth) -> int:
    """The most boxes that one meridian cuts. The worst meridian lies just east of the western edge of some box."""
    x1, x2 = truth.boxes[:, 0], truth.boxes[:, 2]
    return int(((x1 <= x1[:, None]) & (x1[:, None] < x2)).sum(axis=1).max(initial=0))


def moved(truth: Truth, roll: int, image_width: int, width: int) -> Truth:
    """The truth of an image after a roll of `roll` pixels to the east, cropped to its first `width` columns.

    Longitude is periodic, so a box that the roll moved over the edge becomes two, one at each side. A part with less
    than a quarter of the box's width is dropped.
    """
    if roll == 0 and width == image_width:
        return truth
    x1, x2 = truth.boxes[:, 0], truth.boxes[:, 2]
    start = np.mod(x1 + roll, image_width)
    parts = [truth.boxes.copy(), truth.boxes.copy()]
    for part, shift in zip(parts, (0, image_width), strict=True):
        part[:, 0] = np.clip(start - shift, 0, width)
        part[:, 2] = np.clip(start - shift + (x2 - x1), 0, width)
    boxes = np.concatenate(parts)
    whole = np.tile(x2 - x1, 2)
    kept = (boxes[:, 2] - boxes[:, 0]) >= np.maximum(LEAST_SHARE * whole, 1)
    return Truth(boxes[kept], np.tile(truth.labels, 2)[kept])


# ----------------------------------------------------------------------------------------------------
# Anchors that fit the boxes of a training set, by k-means under the distance 1 - IoU (Redmon and Farhadi 2017).


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
    """`shapes` (n, 2), with those of rare classes repeated until every class is about as frequent as the commonest.

    Mean average precision weights all classes equally, so anchors must fit rare classes as well.
    """
    if not len(labels):
        return shapes
    counts = np.bincount(labels)
    repeats = np.round(counts.max() / np.maximum(counts, 1)).astype(np.int64)
    repeated: Shapes = np.repeat(shapes, repeats[labels], axis=0)
    return repeated


def fit_anchors(shapes: Shapes, levels: int, per_level: int) -> AnchorFit:
    """Fit `levels` x `per_level` anchors to boxes of `shapes` (n, 2) as (height, width) in pixels.

    Anchors are assigned to levels by increasing area: finer levels of a pyramid detect smaller objects.

    Raises:
        DataError: there are fewer different shapes than anchors, or `levels` or `per_level` is below 1.
    """
    count = levels * per_level
    if levels < 1 or per_level < 1:
        raise DataError(f"cannot fit {per_level} anchors on each of {levels} levels: both must be at least 1")
    if len(np.unique(shapes, axis=0)) < count:
        raise DataError(
            f"cannot fit {count} anchors to {len(np.unique(shapes, axis=0))} different box shapes: "
            "take more years, or fewer anchors"
        )
    centres = _start(shapes, count, np.random.default_rng(0))
    nearest = _overlaps(shapes, centres).argmax(axis=1)
    for _ in range(_MOST_ROUNDS):
        centres = np.stack([_median(shapes, nearest == k, centres[k]) for k in range(count)])
        before, nearest = nearest, _overlaps(shapes, centres).argmax(axis=1)
        if np.array_equal(before, nearest):
            break
    rounded = np.maximum(centres.round(), 1)
    rounded = rounded[np.argsort(rounded.prod(axis=1), kind="stable")]
    by_level = rounded.reshape(levels, per_level, 2)
    anchors = tuple(tuple((float(height), float(width)) for height, width in level) for level in by_level)
    return AnchorFit(anchors, float(_overlaps(shapes, rounded).max(axis=1).mean()), len(shapes))


def _overlaps(shapes: Shapes, centres: Shapes) -> Shapes:
    """IoU (n, k) of boxes that share their centre."""
    common = np.minimum(shapes[:, None], centres[None]).prod(axis=2)
    overlaps: Shapes = common / (shapes.prod(axis=1)[:, None] + centres.prod(axis=1)[None] - common)
    return overlaps


def _start(shapes: Shapes, count: int, random: np.random.Generator) -> Shapes:
    """k-means++ (Arthur and Vassilvitskii 2007): the next centre is likely to be where no centre is near."""
    centres = shapes[[random.integers(len(shapes))]]
    while len(centres) < count:
        distance = 1 - _overlaps(shapes, centres).max(axis=1)
        weight = distance**2
        centres = np.concatenate([centres, shapes[[random.choice(len(shapes), p=weight / weight.sum())]]])
    return centres


def _median(shapes: Shapes, members: npt.NDArray[np.bool_], otherwise: npt.NDArray[Any]) -> Shapes:
    # The median is nearer to the minimum of 1 - IoU than the mean, and it is robust to outliers.
    centre: Shapes = np.median(shapes[members], axis=0) if members.any() else otherwise
    return centre
