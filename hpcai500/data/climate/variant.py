"""The two variants of ExtremeWeather in circulation, told apart by their boxes.

    shipped   ymin xmin ymax xmax class, classes 0 to 3
    swapped   xmin ymin xmax ymax class, classes 1 to 4

Nothing in a file names its variant. What tells are coordinates that fit one axis only, and the classes that occur. A
file whose two pieces of evidence contradict each other is ambiguous: it is neither used nor converted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.layout import CLASSES

Name = Literal["shipped", "swapped", "ambiguous"]
_Side = Literal["shipped", "swapped"] | None

# A third of the boxes of a real year end beyond 768 of 1152 columns; a few rows may be plain mistakes.
_LEAST_SHARE = 0.05


@dataclass(frozen=True)
class Variant:
    """Which variant the boxes of a file are of, and what says so, in a sentence."""

    name: Name
    evidence: str


def variant_of(boxes: npt.NDArray[np.int32], height: int, width: int) -> Variant:
    """Tell which variant `boxes` (images, rows, 5) on a grid of height x width are of.

    Boxes that tell nothing are taken as shipped.
    """
    rows = boxes[(boxes != -1).all(axis=-1)]
    axes, of_axes = _by_coordinates(rows, height, width)
    classes, of_classes = _by_classes(rows)
    evidence = f"{of_axes}; {of_classes}"
    if classes == "swapped" or axes == "swapped":
        return Variant("swapped" if axes == classes else "ambiguous", evidence)
    return Variant("shipped", evidence)


def _by_coordinates(rows: npt.NDArray[np.int32], height: int, width: int) -> tuple[_Side, str]:
    if height >= width:
        return None, f"on a grid of {height} x {width} no coordinate tells x from y"
    as_y, as_x = rows[:, [0, 2]].max(axis=1), rows[:, [1, 3]].max(axis=1)
    beyond = {
        "swapped": int(((as_y > height) & (as_y <= width)).sum()),
        "shipped": int(((as_x > height) & (as_x <= width)).sum()),
    }
    needed = max(1.0, _LEAST_SHARE * len(rows))
    swapped, shipped = (beyond[side] >= needed for side in ("swapped", "shipped"))
    text = f"of {len(rows)} boxes, {{}} go beyond {height} in {{}} column, where only x can"
    if swapped and not shipped:
        return "swapped", text.format(beyond["swapped"], "the first or third")
    if shipped and not swapped:
        return "shipped", text.format(beyond["shipped"], "the second or fourth")
    return None, f"the coordinates of {len(rows)} boxes do not tell x from y"


def _by_classes(rows: npt.NDArray[np.int32]) -> tuple[_Side, str]:
    labels = set(np.unique(rows[:, 4]).tolist())
    listed = ", ".join(map(str, sorted(labels)[:8])) or "none"
    if 0 in labels:
        return "shipped", f"classes {listed} count from 0"
    if labels and labels <= set(range(1, len(CLASSES) + 1)) and len(CLASSES) in labels:
        return "swapped", f"classes {listed} count from 1"
    return None, f"classes {listed} do not tell whether they count from 0 or 1"


def as_shipped(boxes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Convert swapped `boxes` (images, rows, 5): y before x, classes from 0; unused rows stay."""
    converted = boxes[..., [1, 0, 3, 2, 4]]
    converted[..., 4] -= 1
    converted[(boxes == -1).all(axis=-1)] = -1
    return converted
