"""Energy from samples of power or of an energy counter, and the power and efficiency of a run (docs/power.md)."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from statistics import fmean, median
from typing import Any, NamedTuple

from hpcai500.methodology.passes import Event, Timeline

# ----------------------------------------------------------------------------------------------------
# Energy as an integral over a window, and the unknown parts of the window. docs/power.md derives the rules.


# MLPerf's power rules ask for at least one sample a second, and at least this many.
LEAST_SAMPLES = 60
# Power is linear between two samples that are no further apart than the larger of these.
_MOST_INTERVALS = 3.0
_SHORTEST_GAP_SECONDS = 3.0
# Energy is unknown where power is unknown for more than this part of the window.
_MOST_UNKNOWN = 0.01


class Sample(NamedTuple):
    """What a source reported at a moment.

    Attributes:
        time_s: on any clock that does not jump.
        watts: None if only energy is counted.
        joules: a counter's reading since its count began; 0 begins a new count. None if there is no counter.
    """

    time_s: float
    watts: float | None = None
    joules: float | None = None


class Window(NamedTuple):
    """The time over which power is integrated, on the clock of the samples."""

    start_s: float
    stop_s: float

    @property
    def seconds(self) -> float:
        return self.stop_s - self.start_s


@dataclass(frozen=True)
class Energy:
    """The integral over a window.

    Attributes:
        joules: None if power is unknown for more than 1 % of the window.
        seconds: length of the window.
        samples: how many lie in the window.
        gaps: (from, to) in seconds since the window's start, where power is unknown.
        reason: why `joules` is None.
    """

    joules: float | None
    seconds: float
    samples: int
    gaps: tuple[tuple[float, float], ...]
    reason: str | None = None

    @property
    def mean_watts(self) -> float | None:
        """Energy over time; None if either is unknown or 0 s."""
        return self.joules / self.seconds if self.joules is not None and self.seconds > 0 else None

    @property
    def note(self) -> str | None:
        """Which of MLPerf's rules the samples break, or None. The energy is reported in both cases."""
        if self.samples >= max(LEAST_SAMPLES, math.floor(self.seconds)):
            return None
        samples = f"{self.samples} power sample{'' if self.samples == 1 else 's'}"
        rule = f"one a second, and at least {LEAST_SAMPLES}"
        return f"{samples} in {self.seconds:.1f} s: fewer than MLPerf's rules require ({rule})"


# Power as a line between two moments: from, to, power at both, and whether it is known. A plain tuple, because there is
# one for each second and node.
_Piece = tuple[float, float, float, float, bool]


def _within(piece: _Piece, window: Window) -> _Piece | None:
    """The part of `piece` in the window, interpolated at its ends; None if there is none."""
    begin, end, at_begin, at_end, known = piece
    start, stop = max(begin, window.start_s), min(end, window.stop_s)
    if start >= stop:
        return None
    slope = (at_end - at_begin) / (end - begin)
    return start, stop, at_begin + slope * (start - begin), at_begin + slope * (stop - begin), known


def integrate(samples: Iterable[Sample], window: Window, interval_seconds: float) -> Energy:
    """The energy in `window`.

    Power is integrated by the trapezoidal rule. Where a source counts energy, differences of its readings are taken, so
    that a gap between two samples of one count loses nothing. Unknown parts, up to 1 % of the window, count with the
    mean power of the rest.

    Args:
        samples: in any order; of several at one moment, powers are averaged and the largest count is taken. Those
            outside the window only serve to interpolate at its ends.
        window: on the clock of the samples.
        interval_seconds: how often the source is sampled.
    """
    ordered = sorted(samples, key=itemgetter(0))
    limit = max(_MOST_INTERVALS * interval_seconds, _SHORTEST_GAP_SECONDS)
    inside = sum(window.start_s <= time_s <= window.stop_s for time_s, _, _ in ordered)
    counts = any(joules is not None for _, _, joules in ordered)
    between = _counted(_counts(ordered)) if counts else _sampled(_powers(ordered), limit)
    pieces = _cut(_with_edges(between, window, limit), window)
    known = [piece for piece in pieces if piece[4]]
    known_seconds = math.fsum([stop - start for start, stop, *_ in known])
    unknown_seconds = max(0.0, window.seconds - known_seconds)
    gaps = tuple(_merged((piece for piece in pieces if not piece[4]), window.start_s))
    if not known or unknown_seconds > _MOST_UNKNOWN * window.seconds:
        reason = f"power is unknown for {unknown_seconds:.1f} s of {window.seconds:.1f} s"
        return Energy(None, window.seconds, inside, gaps, reason)
    joules = math.fsum([(before + after) / 2 * (stop - start) for start, stop, before, after, _ in known])
    return Energy(joules * (window.seconds / known_seconds), window.seconds, inside, gaps)


def unwrapped(before: float, now: float, size: float | None) -> float | None:
    """What a counter has counted from `before` to `now`, if it wrapped around at most once.

    `size` is the count at which it starts at 0 again; None for a counter that never does. Returns None if it was reset:
    it is lower than before, and does not wrap around.
    """
    if now >= before:
        return now - before
    return now - before + size if size is not None else None


def usual_interval(samples: Sequence[Sample]) -> float | None:
    """Median of the times between samples, in seconds; None for fewer than two."""
    times = sorted({sample.time_s for sample in samples})
    return median(after - before for before, after in pairwise(times)) if len(times) > 1 else None


def _powers(ordered: Iterable[Sample]) -> list[tuple[float, float]]:
    """(time, watts), each time once."""
    points = [(time_s, watts) for time_s, watts, _ in ordered if watts is not None]
    if len(dict(points)) == len(points):
        return points
    found: dict[float, list[float]] = {}
    for moment, watts in points:
        found.setdefault(moment, []).append(watts)
    return [(moment, fmean(values)) for moment, values in found.items()]


def _counts(ordered: Iterable[Sample]) -> list[tuple[float, float]]:
    """(time, joules), each time once."""
    found: dict[float, float] = {}
    for time_s, _, joules in ordered:
        if joules is not None:
            found[time_s] = max(joules, found.get(time_s, 0.0))
    return list(found.items())


def _sampled(points: Sequence[tuple[float, float]], limit: float) -> list[_Piece]:
    if len(points) == 1:
        # A piece of no length, from which `_with_edges` takes the power.
        ((moment, watts),) = points
        return [(moment, math.nextafter(moment, math.inf), watts, watts, True)]
    return [(start, stop, before, after, stop - start <= limit) for (start, before), (stop, after) in pairwise(points)]


def _counted(points: Sequence[tuple[float, float]]) -> list[_Piece]:
    pieces: list[_Piece] = []
    for (start, before), (stop, after) in pairwise(points):
        # A count begins at 0. A counter that does not advance measures nothing.
        known = after > 0 and after >= before
        watts = (after - before) / (stop - start) if known else 0.0
        pieces.append((start, stop, watts, watts, known))
    return pieces


def _with_edges(pieces: list[_Piece], window: Window, limit: float) -> list[_Piece]:
    """`pieces`, extended to the ends of the window by the nearest power, which is known if it is near enough."""
    if not pieces:
        return [(*window, 0.0, 0.0, False)]
    begin, _, first, _, known_first = pieces[0]
    _, end, _, last, known_last = pieces[-1]
    before: list[_Piece] = []
    after: list[_Piece] = []
    if begin > window.start_s:
        before = [(window.start_s, begin, first, first, known_first and begin - window.start_s <= limit)]
    if end < window.stop_s:
        after = [(end, window.stop_s, last, last, known_last and window.stop_s - end <= limit)]
    return [*before, *pieces, *after]


def _cut(pieces: Sequence[_Piece], window: Window) -> list[_Piece]:
    """The parts in the window of pieces in order, which touch each other."""
    first = bisect_right(pieces, window.start_s, key=itemgetter(1))
    end = bisect_left(pieces, window.stop_s, key=itemgetter(0))
    if end - first < 2:
        return [cut for piece in pieces[first:end] if (cut := _within(piece, window))]
    # All but the outer ones are in it as a whole.
    outer = (_within(pieces[first], window), _within(pieces[end - 1], window))
    return [*filter(None, outer[:1]), *pieces[first + 1 : end - 1], *filter(None, outer[1:])]


def _merged(pieces: Iterable[_Piece], zero_s: float) -> Iterator[tuple[float, float]]:
    """(from, to) of pieces in order, in seconds since `zero_s`; those that touch are joined."""
    joined: list[tuple[float, float]] = []
    for start, stop, *_ in pieces:
        joined.append((joined.pop()[0] if joined and start <= joined[-1][1] else start, stop))
    return ((round(start - zero_s, 6), round(stop - zero_s, 6)) for start, stop in joined)


# ----------------------------------------------------------------------------------------------------
# From the event `power` to the fields of `result.json`.


# The fields of an old record, which has no such event.
_NOTHING: dict[str, Any] = {
    "energy_joules": None,
    "watts": None,
    "power_source": None,
    "power_scope": None,
    "power_note": None,
    "flops_per_watt": None,
    "vflops_per_watt": None,
}


def window_of(events: Sequence[Event]) -> Window:
    """From `run_start` to `run_stop` in UNIX seconds, by the wall clock of rank 0 without its corrections.

    Its length is the run's time, restarts included.

    Raises:
        StopIteration: the run did not finish.
    """
    start = next(event for event in events if event["key"] == "run_start")
    stop = next(event for event in reversed(events) if event["key"] == "run_stop")
    begin = start["time_ms"] / 1000
    return Window(begin, begin + Timeline(events).between(start, stop))


def hosts_of(events: Sequence[Event]) -> list[str]:
    """All hosts that the run was on, sorted; empty for an old record."""
    worlds = [event["value"] for event in events if event["key"] in ("run_start", "run_resume")]
    return sorted({host for world in worlds for host in world.get("hosts", ())})


def why_unknown(nodes: Sequence[Mapping[str, Any]], hosts: Iterable[str]) -> str | None:
    """Why the energy of all `hosts` is not the sum over `nodes`, or None if it is."""
    for node in nodes:
        if node["energy_joules"] is None:
            return f"{node['host']}: {node['reason']}"
    covered = {host for node in nodes for host in node["covers"]}
    missing = [host for host in hosts if host not in covered]
    if missing:
        return f"{missing[0]}: no power was measured" + (f" (and on {len(missing) - 1} more)" if missing[1:] else "")
    scopes = sorted({node["scope"] for node in nodes})
    return f"scopes differ between nodes: {', '.join(scopes)}" if len(scopes) > 1 else None


def power_of_run(events: Sequence[Event], seconds: float, flops: float, vflops: float | None) -> dict[str, Any]:
    """The fields of `result.json` about power; unknown is None.

    `events` are those of a complete run, which took `seconds` and attained `flops` and `vflops`.
    """
    power = next((event["value"] for event in reversed(events) if event["key"] == "power"), None)
    if power is None:
        return _NOTHING
    nodes = power["nodes"]
    reason = why_unknown(nodes, hosts_of(events)) if nodes else power["reason"]
    joules = None if reason else math.fsum(node["energy_joules"] for node in nodes)
    watts = joules / seconds if joules is not None and seconds > 0 else None
    return {
        "energy_joules": joules,
        "watts": watts,
        "power_source": ", ".join(sorted({node["source"] for node in nodes})) or None,
        "power_scope": ", ".join(sorted({node["scope"] for node in nodes})) or None,
        "power_note": reason or power.get("note"),
        "flops_per_watt": flops / watts if watts else None,
        "vflops_per_watt": vflops / watts if watts and vflops is not None else None,
    }


def first_note(notes: Sequence[str]) -> str | None:
    """The first of `notes`, and how many more there are; None for none."""
    return notes[0] + (f" (and {len(notes) - 1} more)" if notes[1:] else "") if notes else None
