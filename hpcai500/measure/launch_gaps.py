"""Launch gaps: when a CUDA device was idle, for how long, and why.

A gap is time between two pieces of work of the profiled steps in which nothing runs on any stream. Its cause is the
host if the call that started the next work had not returned when the gap began, so that nothing was queued; for the
part in which the host waited for a batch, the cause is input. Otherwise the work was queued, and the cause is the
device itself, as it is between two pieces of work of one call, which belong to a CUDA graph.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcai500.measure.trace import INPUT as INPUT_MARK
from hpcai500.measure.trace import ROUNDING_SECONDS, STEP, Slice, Trace
from hpcai500.methodology import kernel_classes
from hpcai500.methodology.kernel_classes import ALL_REDUCE, COMPUTE, Stretch, kernel_class

HOST, INPUT, DEVICE = "host", "input", "device"
# If the device waits for host and input for a smaller share, the device is the bottleneck.
_LITTLE = 0.05
_LONGEST_SHOWN, _LANE_PIECES = 10, 300
_STARTS_WORK = re.compile(r"^cu(da)?(GraphLaunch|Launch|Memcpy|Memset)")
_WAITS = re.compile(r"Synchronize")


@dataclass(frozen=True)
class _Gap:
    """Time in which the device was idle, with seconds by cause, and what the host did meanwhile."""

    start: float
    end: float
    after: Slice
    by_cause: Mapping[str, float]
    host: str | None

    @property
    def cause(self) -> str:
        return max(self.by_cause, key=lambda cause: self.by_cause[cause])


def launch_table(trace: Trace, step_seconds: float) -> dict[str, Any] | None:
    """The table `launch` of profile.json (docs/profile.md); None if no device worked in a step.

    `step_seconds` is that of a step without the profiler, under which the host is slower.
    """
    marks = sorted((one for one in trace.host if one.name == STEP), key=lambda one: one.start)
    calls = {one.arguments["correlation"]: one for one in trace.calls if "correlation" in one.arguments}
    works = _within(marks, trace.device, calls)
    if not works:
        return None
    stretches = kernel_classes.timeline(Stretch(one.start, one.end, _kind(one)) for one in works)
    start, end = stretches[0].start, stretches[-1].end
    seconds = kernel_classes.seconds_of(stretches)
    busy, idle = sum(seconds.values()), end - start - sum(seconds.values())
    found = list(_explained(kernel_classes.gaps(stretches, ROUNDING_SECONDS), works, calls, trace))
    by_cause = {cause: sum(gap.by_cause[cause] for gap in found) for cause in (HOST, INPUT, DEVICE)}
    undisturbed = max(0.0, 1 - busy / len(marks) / step_seconds)
    return {
        "seconds": end - start,
        **{f"{kind}_seconds": value for kind, value in seconds.items()},
        "idle_seconds": idle,
        "idle_share": idle / (end - start),
        "idle_share_without_profiler": undisturbed,
        "idle_seconds_by_cause": by_cause,
        "bound": _bound(by_cause, end - start, undisturbed),
        "gaps": len(found),
        "longest": [
            _row(gap, start, works) for gap in sorted(found, key=lambda gap: gap.start - gap.end)[:_LONGEST_SHOWN]
        ],
        **_of_host(marks, trace),
        "works": len(works),
        **_middle_step(marks, works, calls, stretches),
    }


def _within(marks: Sequence[Slice], device: Sequence[Slice], calls: Mapping[Any, Slice]) -> list[Slice]:
    """Device work that was started in a step (if its call was not traced: that ran in one), in the order of running."""
    if not marks:
        return []
    first, last = marks[0].start, marks[-1].end
    started = ((one, calls.get(one.arguments.get("correlation"))) for one in device)
    inside = (one for one, call in started if first <= (call or one).start <= last)
    return sorted(inside, key=lambda one: (one.start, one.end))


def _kind(work: Slice) -> str:
    if work.category != "kernel":
        return kernel_classes.COPY
    return kernel_classes.COMMUNICATION if kernel_class(work.name) == ALL_REDUCE else COMPUTE


def _explained(
    found: Sequence[tuple[float, float]], works: Sequence[Slice], calls: Mapping[Any, Slice], trace: Trace
) -> Iterator[_Gap]:
    host = _Host(trace)
    starts = [one.start for one in works]
    begun = _first_starts(works)
    for start, end in found:
        after = works[bisect_left(starts, end)]
        correlation = after.arguments.get("correlation")
        call = calls.get(correlation)
        if call and (call.end <= start or begun[correlation] < start):
            yield _Gap(start, end, after, {HOST: 0.0, INPUT: 0.0, DEVICE: end - start}, None)
            continue
        late = min(end, max(start, call.start)) if call else end
        waited = min(late - start, sum(_overlap(one, start, late) for one in trace.inputs))
        by_cause = {HOST: end - start - waited, INPUT: waited, DEVICE: 0.0}
        yield _Gap(start, end, after, by_cause, host.doing((start + late) / 2, call.thread) if call else None)


def _first_starts(works: Sequence[Slice]) -> dict[Any, float]:
    """When the first work of each call began, by correlation; `works` must be in the order of running."""
    found: dict[Any, float] = {}
    for one in works:
        found.setdefault(one.arguments.get("correlation"), one.start)
    return found


class _Host:
    def __init__(self, trace: Trace) -> None:
        self._slices: dict[tuple[Any, Any], list[Slice]] = defaultdict(list)
        self._calls: dict[tuple[Any, Any], list[Slice]] = defaultdict(list)
        for found, slices in ((self._slices, trace.host), (self._calls, trace.calls)):
            for one in sorted(slices, key=lambda one: (one.start, -one.seconds)):
                found[one.thread].append(one)
        self._inputs = trace.inputs

    def doing(self, moment: float, thread: tuple[Any, Any]) -> str:
        """The wait for a batch; else outermost operator, innermost operator and call into CUDA; "python" for none."""
        if any(one.thread == thread and one.start <= moment <= one.end for one in self._inputs):
            return INPUT_MARK
        inner = _at(self._slices[thread], moment)
        line = [one.name for one in (inner, *inner.ancestors()) if one.name != STEP] if inner else []
        call = _at(self._calls[thread], moment)
        words = [*line[-1:], *line[:1], *([call.name] if call else [])]
        return " > ".join(dict.fromkeys(words)) or "python"


def _at(slices: Sequence[Slice], moment: float) -> Slice | None:
    """The innermost of `slices`, which are sorted by start, that `moment` lies in."""
    place = bisect_right(slices, moment, key=lambda one: one.start) - 1
    one = slices[place] if place >= 0 else None
    while one is not None and one.end < moment:
        one = one.parent
    return one


def _bound(by_cause: Mapping[str, float], seconds: float, undisturbed: float) -> str:
    waited = by_cause[HOST] + by_cause[INPUT]
    if undisturbed < _LITTLE or waited / seconds < _LITTLE:
        return DEVICE
    return INPUT if by_cause[INPUT] > by_cause[HOST] else HOST


def _row(gap: _Gap, start: float, works: Sequence[Slice]) -> dict[str, Any]:
    before = max((one for one in works if one.end <= gap.start), key=lambda one: one.end)
    return {
        "t": gap.start - start,
        "seconds": gap.end - gap.start,
        "cause": gap.cause,
        "before": before.name,
        "after": gap.after.name,
        "host": gap.host,
    }


def _of_host(marks: Sequence[Slice], trace: Trace) -> dict[str, Any]:
    first, last = marks[0].start, marks[-1].end
    calls = [one for one in trace.calls if first <= one.start <= last]
    launching = [one for one in calls if _STARTS_WORK.search(one.name)]
    waiting = [one for one in calls if _WAITS.search(one.name)]
    # Of the training thread only, since waits of other threads do not delay a step.
    idle = [one for one in (*waiting, *trace.inputs) if one.thread == marks[0].thread and first <= one.start <= last]
    return {
        "launches": len(launching),
        "launch_seconds": sum(one.seconds for one in launching),
        "synchronisations": len(waiting),
        "host_seconds": sum(one.seconds for one in marks) - sum(one.seconds for one in idle),
    }


def _middle_step(
    marks: Sequence[Slice],
    works: Sequence[Slice],
    calls: Mapping[Any, Slice],
    stretches: Sequence[Stretch],
) -> dict[str, Any]:
    """What the device did in the middle step, from its first work to that of the next step."""
    begins = []
    for mark in marks:
        own = (
            one
            for one in works
            if (call := calls.get(one.arguments.get("correlation"))) and mark.start <= call.start <= mark.end
        )
        begins.append(min((one.start for one in own), default=None))
    known = [*(begin for begin in begins if begin is not None), stretches[-1].end]
    middle = (len(known) - 1) // 2
    start, end = known[middle], known[min(middle + 1, len(known) - 1)]
    if end <= start:
        start, end = stretches[0].start, stretches[-1].end
    return {"lane_seconds": end - start, "lane": kernel_classes.shares_over_time(stretches, start, end, _LANE_PIECES)}


def _overlap(one: Slice, start: float, end: float) -> float:
    return max(0.0, min(one.end, end) - max(one.start, start))
