"""Layout conversions called out: how long, from which operator, from which order of axes to which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from hpcai500.measure.profile.onednn import Reorder
from hpcai500.measure.profile.work import Work
from hpcai500.methodology.kernel_classes import TRANSFORMATION, Layout

_NAMES = {(0, 1, 2, 3): "NCHW", (0, 2, 3, 1): "NHWC", (0, 1): "rows", (1, 0): "columns"}
_UNKNOWN = "?"

Conversion = dict[str, Any]


def conversions_of(works: Iterable[Work], hidden: Sequence[Reorder], steps: int) -> list[Conversion]:
    """What changed a layout in `steps` steps, the longest first; `hidden` are those of one step inside operators.

    Keys: `from` (operator or class), `source` and `target` (orders of axes), `shape`, `seconds`, `calls`, and `hidden`:
    whether it is a part of another kernel's time, which only the library knows.
    """
    sums: dict[tuple[str, str, str, str, bool], list[float]] = defaultdict(lambda: [0.0, 0])
    for work in works:
        if work.kind == TRANSFORMATION:
            _add(sums, (work.origin or "the training step", *_described(work.change), False), work.seconds, 1)
    for one in hidden:
        _add(sums, (one.owner, one.source, one.target, one.shape, True), one.seconds * steps, steps)
    rows = [
        {
            "from": origin,
            "source": source,
            "target": target,
            "shape": shape,
            "hidden": inside,
            "seconds": seconds,
            "calls": int(calls),
        }
        for (origin, source, target, shape, inside), (seconds, calls) in sums.items()
    ]
    return sorted(rows, key=lambda row: -float(row["seconds"]))


def _add(sums: dict[Any, list[float]], key: Any, seconds: float, calls: int) -> None:
    sums[key][0] += seconds
    sums[key][1] += calls


def _described(change: tuple[Layout, Layout] | None) -> tuple[str, str, str]:
    """Orders before and after, and the shape."""
    if change is None:
        return _UNKNOWN, _UNKNOWN, _UNKNOWN
    target, source = change
    return _order(source), _order(target), "x".join(map(str, target.shape))


def _order(layout: Layout) -> str:
    """Axes of length 1 are nowhere: each is taken to be where the usual layouts have it."""
    order = layout.order()
    for full, name in _NAMES.items():
        if len(full) == len(layout.shape) and tuple(axis for axis in full if axis in order) == order:
            return name
    return f"axes {','.join(map(str, order))}"
