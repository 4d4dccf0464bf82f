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


class Resolution(NamedTuple):
    """How finely a source measures, as its samples show it: of its counter if it has one, otherwise of its power.

    Attributes:
        step: smallest difference between two readings that differ; None if none do.
        unit: of `step`, W or J.
        update_seconds: median time between two changes, which cannot be below the sampling interval; None below two.
    """

    step: float | None
    unit: str
    update_seconds: float | None


@dataclass(frozen=True)
class Energy:
    """The integral over a window.

    Attributes:
        joules: None if power is unknown for more than 1 % of the window.
        seconds: length of the window.
        samples: how many lie in the window.
        gaps: (from, to) in seconds since the window's start, where power is unknown.
        resolution: of the source, by all samples.
        reason: why `joules` is None.
    """

    joules: float | None
    seconds: float
    samples: int
    gaps: tuple[tuple[float, float], ...]
    resolution: Resolution
    reason: str | None = None

    @property
    def mean_watts(self) -> float | None:
        """Energy over time; None if either is unknown or 0 s."""
        return self.joules / self.seconds if self.joules is not None and self.seconds > 0 else None

    @property
    def note(self) -> str | None:
        """What makes the energy less certain, or None: too few samples by MLPerf's rules, or a slow source."""
        notes = [self._few_samples() if self.samples < max(LEAST_SAMPLES, math.floor(self.seconds)) else None]
        period = self.resolution.update_seconds
        if period is not None and period > _SHORTEST_GAP_SECONDS and self.seconds > 0:
            part = min(period / self.seconds, 1.0)
            notes.append(
                f"readings change only every {period:.0f} s: {part:.1%} of the energy may belong to other times"
            )
        return "; ".join(note for note in notes if note) or None

    def _few_samples(self) -> str:
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
    points = _counts(ordered) if counts else _powers(ordered)
    resolution = _resolution(points, "J" if counts else "W")
    between = _counted(points) if counts else _sampled(points, limit)
    pieces = _cut(_with_edges(between, window, limit), window)
    known = [piece for piece in pieces if piece[4]]
    known_seconds = math.fsum([stop - start for start, stop, *_ in known])
    unknown_seconds = max(0.0, window.seconds - known_seconds)
    gaps = tuple(_merged((piece for piece in pieces if not piece[4]), window.start_s))
    if not known or unknown_seconds > _MOST_UNKNOWN * window.seconds:
        reason = f"power is unknown for {unknown_seconds:.1f} s of {window.seconds:.1f} s"
        return Energy(None, window.seconds, inside, gaps, resolution, reason)
    joules = math.fsum([(before + after) / 2 * (stop - start) for start, stop, before, after, _ in known])
    return Energy(joules * (window.seconds / known_seconds), window.seconds, inside, gaps, resolution)


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


def _resolution(points: Sequence[tuple[float, float]], unit: str) -> Resolution:
    # Files of samples have at most six digits; a count that falls was begun again.
    steps = [
        (time_s, round(abs(value - before), 6))
        for (_, before), (time_s, value) in pairwise(points)
        if value > before or (value < before and unit == "W")
    ]
    between = [after - before for (before, _), (after, _) in pairwise(steps)]
    period = round(median(between), 6) if between else None
    return Resolution(min((step for _, step in steps if step > 0), default=None), unit, period)


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
# Several sources of one run: the first counts, the others are compared with it. docs/methodology.md has the rules.


# Two sources that measure the same may differ by this part of the first: meters of 1 % to 5 %, and power supplies of
# 94 % efficiency, before or behind which they measure.
MOST_DIFFERENCE = 0.10
_WIDTH = {"device": 0, "node": 1, "pdu": 2}


def compare_sources(nodes: Sequence[Mapping[str, Any]], beside: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compare the mean power of the source that counts, whose entries are `nodes`, with that of others.

    A comparison has `hosts`, both sources (`source`, `other`) with their `watts` and `other_watts`, `ratio` (other by
    first) and `relation`: "same" if both measure the same, "part" if the other measures a part of what the first does,
    "whole" for the reverse, None if they cannot be compared. `finding` is a difference of over 10 % of the same, or a
    part above its whole, which is impossible; `reason` says why there is no ratio.
    """
    found = []
    for name in dict.fromkeys(entry["source"] for entry in beside):
        others = [entry for entry in beside if entry["source"] == name]
        groups: dict[frozenset[str], tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]] = {}
        # A meter of several nodes is compared with the sum of what is measured on each of them.
        wide = [frozenset(entry["covers"]) for entry in (*nodes, *others)]
        for side, entries in enumerate((nodes, others)):
            for entry in entries:
                mine = frozenset(entry["covers"])
                group = max((one for one in wide if mine <= one), key=len)
                groups.setdefault(group, ([], []))[side].append(entry)
        found += [_comparison(sorted(hosts), *sides) for hosts, sides in groups.items() if all(sides)]
    return found


def _comparison(
    hosts: list[str], first: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    watts, other_watts = _sum_of(hosts, first), _sum_of(hosts, other)
    relation = _relation(first[0], other[0])
    names = first[0]["source"], other[0]["source"]
    reason, finding = None, None
    if relation is None:
        reason = f"{names[0]} and {names[1]} measure different parts of a node"
    elif watts is None or other_watts is None:
        reason = f"the power by {names[0] if watts is None else names[1]} is unknown"
    elif not watts:
        reason = f"{names[0]} gives 0 W"
    ratio = other_watts / watts if reason is None and watts and other_watts is not None else None
    if ratio is not None:
        finding = _finding(
            _shown(hosts),
            relation,
            ratio,
            *((name, w or 0.0) for name, w in zip(names, (watts, other_watts), strict=True)),
        )
    return {
        "hosts": hosts,
        "source": names[0],
        "other": names[1],
        "relation": relation,
        "watts": watts,
        "other_watts": other_watts,
        "ratio": ratio,
        "finding": finding,
        "reason": reason,
    }


def _finding(
    where: str, relation: str | None, ratio: float, first: tuple[str, float], other: tuple[str, float]
) -> str | None:
    if relation == "same":
        if abs(ratio - 1) <= MOST_DIFFERENCE:
            return None
        more = f"{abs(ratio - 1):.1%} {'more' if ratio > 1 else 'less'}"
        return f"{where}: {other[0]} gives {other[1]:.1f} W, {more} than {first[0]} ({first[1]:.1f} W)"
    part, whole = (other, first) if relation == "part" else (first, other)
    if part[1] <= whole[1]:
        return None
    return (
        f"{where}: {part[0]} gives {part[1]:.1f} W for a part of what {whole[0]} measures with {whole[1]:.1f} W: "
        "one of them is wrong"
    )


def _relation(first: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    difference = _WIDTH[first["scope"]] - _WIDTH[other["scope"]]
    if difference:
        return "part" if difference > 0 else "whole"
    if first["scope"] == "device":
        # Accelerators and processors are both devices; of a meter's file only the site knows the parts.
        return "same" if first.get("parts") is not None and first.get("parts") == other.get("parts") else None
    return "same"


def _sum_of(hosts: Sequence[str], entries: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean power of `entries`; None if one is unknown, or if they do not cover all `hosts`."""
    known = [entry["mean_watts"] for entry in entries if entry["mean_watts"] is not None]
    covered = {host for entry in entries for host in entry["covers"]}
    return math.fsum(known) if len(known) == len(entries) and covered == set(hosts) else None


def _shown(hosts: Sequence[str]) -> str:
    return hosts[0] + (f" and {len(hosts) - 1} more" if hosts[1:] else "")


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
    findings = first_note([one["finding"] for one in power.get("comparisons", ()) if one["finding"]])
    return {
        "energy_joules": joules,
        "watts": watts,
        "power_source": ", ".join(sorted({node["source"] for node in nodes})) or None,
        "power_scope": ", ".join(sorted({node["scope"] for node in nodes})) or None,
        "power_note": reason or "; ".join(note for note in (findings, power.get("note")) if note) or None,
        "flops_per_watt": flops / watts if watts else None,
        "vflops_per_watt": vflops / watts if watts and vflops is not None else None,
    }


def first_note(notes: Sequence[str]) -> str | None:
    """The first of `notes`, and how many more there are; None for none."""
    return notes[0] + (f" (and {len(notes) - 1} more)" if notes[1:] else "") if notes else None
