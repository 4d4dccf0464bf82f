"""The boxes of climate images as a detector wants them, following an image that was rolled and cropped in longitude."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.box_table import usable

Boxes = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

# A box that is cut keeps its truth while this share of its width is left: of less, no one could tell what it was.
LEAST_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class Truth:
    """What one image holds: boxes (m, 4) as x1 y1 x2 y2 in pixels, labels (m,) from 1 (0 is background)."""

    boxes: Boxes
    labels: Labels


def truths_of(boxes: npt.NDArray[np.int32], height: int, width: int) -> list[Truth]:
    """The truth of each image of a file: `boxes` (images, 15, 5) as `ymin xmin ymax xmax class`.

    Rows that cannot be used are left out, boxes over the edge of the height x width grid are cut there, as `data check`
    says (`box_table`).
    """
    kept = usable(boxes, height, width)
    return [_truth_of(rows[used], height, width) for rows, used in zip(boxes, kept, strict=True)]


def _truth_of(rows: npt.NDArray[np.int32], height: int, width: int) -> Truth:
    corners = np.clip(rows[:, [1, 0, 3, 2]], 0, [width, height, width, height])
    return Truth(corners.astype(np.float32), rows[:, 4].astype(np.int64) + 1)


def most_boxes(truths: Iterable[Truth], *, rolled: bool) -> int:
    """The most boxes that `moved` leaves in any of these images: where they are `rolled`, by however much."""
    return max((len(truth.labels) + (_most_cut(truth) if rolled else 0) for truth in truths), default=0)


def _most_cut(truth: Truth) -> int:
    """How many boxes one meridian cuts at most: it may lie just behind the western side of any of them."""
    x1, x2 = truth.boxes[:, 0], truth.boxes[:, 2]
    return int(((x1 <= x1[:, None]) & (x1[:, None] < x2)).sum(axis=1).max(initial=0))


def moved(truth: Truth, roll: int, image_width: int, width: int) -> Truth:
    """The truth of an image that was rolled `roll` pixels to the east, as far as its first `width` columns show it.

    Longitude is periodic, so a box that the roll moved over the edge goes on at the other side: it becomes two. A part
    with less than a quarter of the box's width is dropped.
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
