"""The table of V2.0 Fig. 10: time of each class of kernels, its share and calls, and the kernels that take most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hpcai500.measure.profile.layouts import conversions_of
from hpcai500.measure.profile.onednn import Reorder
from hpcai500.measure.profile.work import Work
from hpcai500.methodology.kernel_classes import CLASSES, TRANSFORMATION

_MOST_KERNELS = 25
_MOST_CONVERSIONS = 40


def breakdown(works: Sequence[Work], hidden: Sequence[Reorder], steps: int) -> dict[str, Any]:
    """The parts of profile.json that tell of kernels: `classes`, `unclassified`, `top`, `layout`, `kernel_seconds`.

    Args:
        works: all kernels of `steps` steps.
        hidden: layout changes of one step inside them; counted as transformation, and no more in their owner's class.
        steps: at least 1.
    """
    total = sum(work.seconds for work in works)
    seconds: dict[str | None, float] = defaultdict(float)
    calls: dict[str | None, int] = defaultdict(int)
    for work in works:
        seconds[work.kind] += work.seconds
        calls[work.kind] += work.is_call
    moved = _scaled(hidden, seconds, steps)
    for one in moved:
        seconds[one.owner] -= one.seconds * steps
        seconds[TRANSFORMATION] += one.seconds * steps
        calls[TRANSFORMATION] += steps
    conversions = conversions_of(works, moved, steps)
    return {
        "kernel_seconds": total,
        "classes": {name: _row(seconds[name], total, calls[name]) for name in CLASSES},
        "unclassified_share": _share(seconds[None], total),
        "unclassified": [row for row in _top(works, total) if row["class"] is None],
        "top": _top(works, total)[:_MOST_KERNELS],
        "layout": {
            "seconds": seconds[TRANSFORMATION],
            "share": _share(seconds[TRANSFORMATION], total),
            "hidden_share": _share(sum(one.seconds for one in moved) * steps, total),
            "conversions": [{**row, "share": _share(row["seconds"], total)} for row in conversions[:_MOST_CONVERSIONS]],
        },
    }


def _scaled(hidden: Sequence[Reorder], seconds: dict[str | None, float], steps: int) -> list[Reorder]:
    """`hidden`, which was measured in another step, no longer than the operators that it lies in."""
    inside: dict[str, float] = defaultdict(float)
    for one in hidden:
        inside[one.owner] += one.seconds * steps
    factors = {owner: min(1.0, seconds[owner] / inside[owner]) if inside[owner] else 0.0 for owner in inside}
    return [replace(one, seconds=one.seconds * factors[one.owner]) for one in hidden]


def _top(works: Sequence[Work], total: float) -> list[dict[str, Any]]:
    """All kernels by name and class, the longest first."""
    sums: dict[tuple[str, str | None], list[float]] = defaultdict(lambda: [0.0, 0])
    for work in works:
        sums[work.name, work.kind][0] += work.seconds
        sums[work.name, work.kind][1] += 1
    rows = [
        {"name": name, "class": kind, **_row(seconds, total, int(calls))}
        for (name, kind), (seconds, calls) in sums.items()
    ]
    return sorted(rows, key=lambda row: -float(row["seconds"]))


def _row(seconds: float, total: float, calls: int) -> dict[str, Any]:
    return {"seconds": seconds, "share": _share(seconds, total), "calls": calls}


def _share(seconds: float, total: float) -> float:
    return seconds / total if total else 0.0
