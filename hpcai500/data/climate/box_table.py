"""The rows of `boxes`: which of them are boxes, which cannot be used, and how many and how large they are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.layout import CLASSES

Boxes = npt.NDArray[np.int32]
_QUANTILES = (0.05, 0.5, 0.95)


class RowKind(IntEnum):
    """What a row of `boxes` is; the first that applies. Rows of the first two kinds below UNUSED can be trained on."""

    UNUSED = 0
    GOOD = 1
    CLIPPED = 2
    OUTSIDE = 3
    EMPTY = 4
    UNKNOWN_CLASS = 5
    PARTLY_UNUSED = 6


MEANING = {
    RowKind.CLIPPED: "over the image's edge (cut there when used)",
    RowKind.OUTSIDE: "wholly outside the image (not used)",
    RowKind.EMPTY: "empty or inverted (not used)",
    RowKind.UNKNOWN_CLASS: f"of a class other than 0 to {len(CLASSES) - 1}",
    RowKind.PARTLY_UNUSED: "with some values of -1 (not used)",
}


def row_kinds(boxes: Boxes, height: int, width: int) -> npt.NDArray[np.int8]:
    """Return the RowKind of each row of `boxes` (images, rows, 5) on a grid of height x width, as (images, rows).

    Edges are pixel borders: a box that fills the image is 0 0 height width.
    """
    ymin, xmin, ymax, xmax, label = np.moveaxis(boxes, -1, 0)
    minus = (boxes == -1).sum(axis=-1)
    conditions = {
        RowKind.UNUSED: minus == boxes.shape[-1],
        RowKind.PARTLY_UNUSED: minus > 0,
        RowKind.UNKNOWN_CLASS: (label < 0) | (label >= len(CLASSES)),
        RowKind.EMPTY: (ymax <= ymin) | (xmax <= xmin),
        RowKind.OUTSIDE: (ymax <= 0) | (xmax <= 0) | (ymin >= height) | (xmin >= width),
        RowKind.CLIPPED: (ymin < 0) | (xmin < 0) | (ymax > height) | (xmax > width),
    }
    return np.select(list(conditions.values()), [int(kind) for kind in conditions], int(RowKind.GOOD)).astype(np.int8)


def usable(boxes: Boxes, height: int, width: int) -> npt.NDArray[np.bool_]:
    """Return which rows of `boxes` (images, rows, 5) can be trained on, once cut at the image's edges."""
    kinds = row_kinds(boxes, height, width)
    return np.isin(kinds, (RowKind.GOOD, RowKind.CLIPPED))


def class_counts(boxes: Boxes, kinds: npt.NDArray[np.int8]) -> tuple[int, ...]:
    """Return how many rows name each class, whether or not their coordinates can be used, as publications count."""
    named = ~np.isin(kinds, (RowKind.UNUSED, RowKind.PARTLY_UNUSED, RowKind.UNKNOWN_CLASS))
    return tuple(np.bincount(boxes[named][:, 4], minlength=len(CLASSES)).tolist())


@dataclass(frozen=True)
class OddRows:
    """Rows of one kind that deserve a look: how many, and where the first one is."""

    kind: RowKind
    rows: int
    first_image: int
    first_row: int
    first: tuple[int, ...]

    def __str__(self) -> str:
        place = f"image {self.first_image}, row {self.first_row}: {' '.join(map(str, self.first))}"
        return f"boxes {MEANING[self.kind]}: {self.rows}; the first: {place}"


def odd_rows(boxes: Boxes, kinds: npt.NDArray[np.int8]) -> tuple[OddRows, ...]:
    """Return what there is of each kind but UNUSED and GOOD."""
    found = []
    for kind in MEANING:
        places = np.argwhere(kinds == kind)
        if len(places):
            image, row = places[0].tolist()
            found.append(OddRows(kind, len(places), image, row, tuple(boxes[image, row].tolist())))
    return tuple(found)


@dataclass(frozen=True)
class BoxSizes:
    """5 %, 50 % and 95 % quantiles of the extent of a class's boxes in pixels; None where the class has no box."""

    height: tuple[float, ...] | None
    width: tuple[float, ...] | None


def box_sizes(rows: Boxes) -> tuple[BoxSizes, ...]:
    """Return the extent of the boxes of each class, over `rows` (boxes, 5) that are all used."""
    return tuple(_sizes(rows[rows[:, 4] == label]) for label in range(len(CLASSES)))


def _sizes(rows: Boxes) -> BoxSizes:
    if not len(rows):
        return BoxSizes(None, None)
    extents = rows[:, 2:4].astype(np.int64) - rows[:, 0:2]
    heights, widths = np.quantile(extents, _QUANTILES, axis=0).T.tolist()
    return BoxSizes(tuple(heights), tuple(widths))
