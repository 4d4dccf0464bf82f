"""The status of an ensemble: the state of all members, statistics over them, and how both are shown.

It comes from one answer of the scheduler and a bounded look at the members' records (`members`). It can be read once,
or followed: on a terminal as a table that is redrawn, elsewhere as a line now and then.
"""

from __future__ import annotations

import math
import shlex
import shutil
import statistics
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from hpcai500.ensemble.journal import RECIPE, Ensemble, read_ensemble
from hpcai500.ensemble.members import (
    GIVEN_UP,
    STATES,
    Jobs,
    MemberState,
    MemberStatus,
    Memory,
    Poll,
    member_status,
    orders_of,
)
from hpcai500.ensemble.scheduler import Scheduler
from hpcai500.errors import EnvironmentLacksError, ExitCode, RecordError, RunError
from hpcai500.methodology.samples import samples_of
from hpcai500.progress import PLAIN_INTERVAL_SECONDS, Redrawn, Tracker, is_ascii, is_terminal, silent
from hpcai500.streams import escaped, say
from hpcai500.text import aligned, progress_bar

# ----------------------------------------------------------------------------------------------------
# Statistics over all members: percentiles, which are slow or silent, and when the last one will be done. Pure.


# A member counts as silent after the time of this many epochs, and at least this many seconds.
_SILENT_EPOCHS = 3.0
_LEAST_SILENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of a number over `count` members."""

    count: int
    least: float
    p10: float
    p50: float
    p90: float
    greatest: float


def percentiles(values: Sequence[float]) -> Percentiles | None:
    """Percentiles of `values` by the nearest rank, except the median, a mean for even counts; None without values."""
    if not values:
        return None
    ordered = sorted(values)

    def rank(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Percentiles(len(ordered), ordered[0], rank(0.1), statistics.median(ordered), rank(0.9), ordered[-1])


def is_stuck(row: MemberStatus, usual: float | None, now_s: float) -> bool:
    """Whether a running member has been silent for longer than three epochs take.

    `usual` is the median seconds of an epoch; `now_s` are UNIX seconds.
    """
    age = row.age_seconds(now_s)
    if row.state != "running" or age is None or usual is None:
        return False
    return age > max(_LEAST_SILENCE_SECONDS, _SILENT_EPOCHS * max(usual, row.pace_seconds or 0.0))


def left_seconds(row: MemberStatus, epochs: int, usual: float | None, now_s: float) -> float | None:
    """Estimate of how long a running member still takes, at the pace of its last epoch, or else at the `usual` one.

    None if no pace is known.
    """
    pace = usual if row.pace_seconds is None else row.pace_seconds
    if pace is None:
        return None
    # Progress since its last event is estimated by the clock, up to one epoch.
    since = min(row.age_seconds(now_s) or 0.0, pace)
    return max(0.0, (epochs - row.progress) * pace - since)


def eta_seconds(rows: Sequence[MemberStatus], epochs: int, usual: float | None, now_s: float) -> float | None:
    """Estimate of when the last member will be done, if as many keep running as run now; None if unknown.

    Waiting members take the places of those that end. The estimate is the larger of two times: the total work spread
    evenly over the running members, and the rest of the slowest running one.
    """
    running = [row for row in rows if row.state == "running"]
    if usual is None or not running:
        return None
    left = [left_seconds(row, epochs, usual, now_s) or 0.0 for row in running]
    waiting = sum((epochs - row.progress) * usual for row in rows if row.state == "waiting")
    return max(*left, (sum(left) + waiting) / len(running))


# ----------------------------------------------------------------------------------------------------
# Bars of characters: how a number is distributed over members.


_BLOCKS = "▁▂▃▄▅▆▇█"
_LETTERS = "_.-=+*#@"
_WIDTH = 30


def spread_bar(values: Sequence[float], *, ascii_only: bool, width: int = _WIDTH) -> str:
    """A histogram of `values` from the least to the greatest; higher means more, a space means none."""
    low, high = min(values), max(values)
    counts = [0] * width
    for value in values:
        counts[int((value - low) / (high - low) * (width - 1) + 0.5) if high > low else width // 2] += 1
    levels = _LETTERS if ascii_only else _BLOCKS
    most = max(counts)
    return "".join(levels[(len(levels) - 1) * count // most] if count else " " for count in counts)


# ----------------------------------------------------------------------------------------------------
# A map of the members: one character for each, or for several, in the order of their numbers.


_MARKS: dict[MemberState, str] = {
    "waiting": ".", "done": "#", "stopped": "s", "cancelled": "c", "failed": "F", "diverged": "D", "lost": "L",
    "unread": "?",
}  # fmt: skip
STUCK = "!"
# If several members share a place, the first of these marks is shown; digits come after them.
_WORST = "LFD!sc"
_LEAST_WIDTH = 20
_STATUS_MAP_WIDTH = 100

LEGEND = (
    "0-9 running (tenths done), # done, . waiting, ? not read yet,",
    "! silent, s stopped, c cancelled, F failed, D diverged, L lost",
)


def map_lines(
    rows: Sequence[MemberStatus], stuck: Collection[int], epochs: int, width: int | None, most_lines: int | None
) -> Iterator[str]:
    """The map and its legend.

    Args:
        stuck: numbers of those that are silent.
        most_lines: of the map; if there are more members than places, several share one, and the worst is shown.
            None: a place for each.
    """
    places = max(_LEAST_WIDTH, (width or _STATUS_MAP_WIDTH) - len(str(len(rows))) - 2)
    room = places * most_lines if most_lines else len(rows)
    share = -(-len(rows) // room)
    marks = [_mark(row, stuck, epochs) for row in rows]
    shown = "".join(min(marks[first : first + share], key=_badness) for first in range(0, len(marks), share))
    if share > 1:
        # Each line begins with a round number.
        places -= places % 10
    digits = len(str(len(rows)))
    for first in range(0, len(shown), places):
        yield f"{first * share:>{digits}}  {shown[first : first + places].rstrip()}"
    if share > 1:
        yield f"{'':{digits}}  a letter stands for {share} members, and shows the worst of them:"
    yield from (f"{'':{digits}}  {line}" for line in LEGEND)


def _mark(row: MemberStatus, stuck: Collection[int], epochs: int) -> str:
    if row.member in stuck:
        return STUCK
    if row.state == "running":
        return str(min(9, int(10 * row.progress / epochs)))
    return _MARKS[row.state]


def _badness(mark: str) -> tuple[int, str]:
    """Sort key of a mark: trouble first, then running, slowest first, then not read, waiting and done."""
    if mark in _WORST:
        return 0, str(_WORST.index(mark))
    return (1, mark) if mark.isdecimal() else (2 + "?.#".index(mark), mark)


# ----------------------------------------------------------------------------------------------------
# The status for people: a summary, the map, and the rows worth reading.


_MAP_LINES = 8
_MOST_NAME = 40
_MOST_HOSTS = 2
_LEAST_WRONG = 24
# With fewer members, the rows show as much as map and histogram.
_LEAST_PICTURED = 8
# Shown as the benchmark calls its samples.
_RATE = "images/s"
_HEAD = (
    "member", "state", "hosts", "job", "restarts", "attempts", "epoch", "step", "quality", _RATE, "started (UTC)",
    "silent for", "what is wrong",
)  # fmt: skip
_NUMBERS = {0, 4, 5, 6, 7, 8, 9, 11}
# Columns left out on a narrow terminal, in this order.
_LEFT_OUT = ("started (UTC)", "step", "attempts", "job", "restarts", "hosts")
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0


def status_lines(
    status: Status, width: int | None, rows: int | None, *, ascii_only: bool, whole: bool
) -> Iterator[str]:
    """As `Status.lines` says."""
    yield from (part for line in _summary(status, ascii_only=ascii_only) for part in _wrapped(line, width, 11))
    if len(status.rows) >= _LEAST_PICTURED:
        yield ""
        most_lines = _MAP_LINES if rows is not None else None
        lines = map_lines(status.rows, status.stuck, status.epochs, width, most_lines)
        yield from (cut(line, width) for line in lines)
    shown = choose(status, rows)
    if shown:
        yield ""
        yield from _table(status, shown, width, whole=whole)
    if len(shown) < len(status.rows):
        yield cut(f"{len(status.rows) - len(shown)} more members; all of them: --all, or --json", width)


def headline(status: Status) -> str:
    """The whole status in one line: `3 of 8 done, 4 running, 1 waiting; …`."""
    found = [f"{count} {state}" for state, count in status.states.items() if count and state != "done"]
    parts = [f"{status.states['done']} of {len(status.rows)} done", *found]
    if status.stuck:
        parts.append(f"{len(status.stuck)} silent")
    line = f"{', '.join(parts)}; {percent(status.progress)} of all epochs"
    if status.states["running"] and status.rates:
        line += f", {number(sum(status.rates))} {_rate_unit(status)}"
    return line + (f", about {duration(status.eta_seconds)} left" if status.eta_seconds is not None else "")


def _rate_unit(status: Status) -> str:
    return samples_of(status.ensemble.start.get("benchmark")).rate_unit


def next_line(status: Status) -> str | None:
    """The command to type next; None while members run, or when all is done."""
    events, states = status.ensemble.events, status.states
    folder = escaped(shlex.quote(str(status.ensemble.path)))
    if states["done"] == len(status.rows):
        return None if events[-1]["key"] == "collect" else f"hpcai500 ensemble collect {folder}"
    if states["done"] + states["diverged"] == len(status.rows):
        if events[-1]["key"] == "collect" and events[-1]["value"].get("vote_sha256"):
            return None
        return f"hpcai500 ensemble collect {folder} --accept-incomplete: those that diverged are final"
    has_answer = status.source.name is not None and status.source.problem is None
    if states["running"] or states["unread"] or (has_answer and status.is_going_on):
        return None
    command = "submit" if status.source.name == "slurm" else "run"
    if not any(row.submitted for row in status.rows):
        return f"hpcai500 ensemble run {folder} (on this machine), or hpcai500 ensemble submit {folder} (to Slurm)"
    left = [row for row in status.rows if row.state not in ("done", "diverged")]
    goes_on = any(row.can_go_on for row in left)
    how = "continue from their last checkpoints" if goes_on else "are run"
    final = "; those that diverged are final" if states["diverged"] else ""
    return f"hpcai500 ensemble {command} {folder}: those that are not done {how}{final}"


def trouble(status: Status) -> Iterator[tuple[int, str]]:
    """(Number, sentence) of each member that something is wrong with."""
    for row in status.rows:
        if row.state in (*GIVEN_UP, "stopped", "cancelled"):
            yield row.member, f"member {row.member} {row.state}" + (f": {escaped(row.wrong)}" if row.wrong else "")
        elif row.elsewhere:
            yield row.member, f"member {row.member}: {escaped(row.wrong or 'another process runs it')}"
        elif row.member in status.stuck:
            yield row.member, f"member {row.member} has been silent for longer than three epochs take"


def choose(status: Status, most: int | None) -> Sequence[MemberStatus]:
    """The rows to show: all in order if they fit; else those in trouble and the slowest, half each."""
    rows = status.rows
    if most is None or len(rows) <= most:
        return rows
    bad = [row for row in rows if row.state in GIVEN_UP or row.member in status.stuck]
    bad += [row for row in rows if row.state in ("stopped", "cancelled")]
    usual = status.usual_pace
    slow = [row for row in rows if row.state == "running" and row.member not in status.stuck]
    slow.sort(key=lambda row: (row.epoch is None, -(left_seconds(row, status.epochs, usual, status.now_s) or 0.0)))
    shown = bad[: max(most // 2, most - len(slow))]
    return [*shown, *slow[: most - len(shown)]]


def _wrapped(line: str, width: int | None, indent: int) -> Iterator[str]:
    if width is None or len(line) <= width:
        yield line
        return
    room = max(width, 2 * indent)
    yield from textwrap.wrap(line, room, subsequent_indent=" " * indent, break_on_hyphens=False)


def cut(line: str, width: int | None) -> str:
    """`line`, cut to `width` with an ellipsis."""
    return line if width is None or len(line) <= width else line[: max(1, width - 1)] + "…"


def number(value: float) -> str:
    """Three digits or more: `0.0421`, `4.21`, `42.1`, `4210`."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def percent(share: float) -> str:
    """`45 %`, rounded down, so that 100 means done."""
    return f"{int(100 * share + 1e-9)} %"


def duration(seconds: float) -> str:
    """`8 s`, `3 min 20 s`, `2 h 5 min`, `3 days 4 h`."""
    if seconds < _MINUTE:
        return f"{int(seconds)} s"
    if seconds < _HOUR:
        return f"{int(seconds // _MINUTE)} min {int(seconds % _MINUTE)} s"
    if seconds < 2 * _DAY:
        return f"{int(seconds // _HOUR)} h {int(seconds % _HOUR // _MINUTE)} min"
    return f"{int(seconds // _DAY)} days {int(seconds % _DAY // _HOUR)} h"


def _summary(status: Status, *, ascii_only: bool) -> Iterator[str]:
    ensemble, shape = status.ensemble, status.ensemble.shape
    kind = escaped(f"{ensemble.start.get('benchmark')}, edition {ensemble.start.get('edition')}", _MOST_NAME)
    yield f"ensemble   {escaped(str(ensemble.path))}: {kind}"
    many = "accelerator" if shape.degree == 1 else "accelerators"
    counts = ", ".join(f"{count} {state}" for state, count in status.states.items() if count)
    silent = f" ({len(status.stuck)} silent)" if status.stuck else ""
    unsubmitted = sum(not row.submitted for row in status.rows)
    if unsubmitted:
        silent += f" ({'none' if unsubmitted == len(status.rows) else f'{unsubmitted} not'} submitted yet)"
    yield f"members    {shape.members} of {shape.degree} {many} each: {counts}{silent}"
    left = f", about {duration(status.eta_seconds)} left" if status.eta_seconds is not None else ""
    yield f"progress   {progress_bar(status.progress)} {percent(status.progress)} of all epochs{_steps(status)}{left}"
    yield from _ranges(status, ascii_only=ascii_only)
    yield f"scheduler  {_scheduler(status)}"
    yield f"looked at  {_looked(status)}"
    if line := next_line(status):
        yield f"next       {line}"


def _steps(status: Status) -> str:
    """How many steps of the first epoch are done, while no member has finished it."""
    begun = [row for row in status.rows if row.steps and row.epoch is not None]
    if not begun or any(row.epochs_done for row in status.rows):
        return ""
    least, most = min(row.step for row in begun), max(row.step for row in begun)
    done = f"{least}" if least == most else f"{least} to {most}"
    return f", {done} of {max(row.steps or 0 for row in begun)} steps of the first one"


def _ranges(status: Status, *, ascii_only: bool) -> Iterator[str]:
    if status.rates and (found := status.rate_percentiles):
        total = f"{number(sum(status.rates))} {_rate_unit(status)} together; " if status.states["running"] else ""
        yield f"{_rate_unit(status):10} {total}{_range(found)} (each over its last epoch of training)"
        if len(status.rates) >= _LEAST_PICTURED:
            bar = spread_bar(status.rates, ascii_only=ascii_only)
            yield f"           {number(found.least)} |{bar}| {number(found.greatest)}"
    if len(status.begun) > 1 and (found := status.epoch_percentiles):
        yield f"epochs     of {status.epochs}: {_range(found)}"
    if found := status.quality_percentiles:
        yield f"quality    of those done: {_range(found, '.4f')}"


def _range(found: Percentiles, form: str | None = None) -> str:
    def shown(value: float) -> str:
        return format(value, form) if form else number(value)

    if found.least == found.greatest:
        return shown(found.p50)
    most = "" if found.count < _LEAST_PICTURED else f"{shown(found.p10)} to {shown(found.p90)} for 8 of 10, "
    return f"median {shown(found.p50)}, {most}{shown(found.least)} to {shown(found.greatest)} for all"


def _scheduler(status: Status) -> str:
    source = status.source
    name = escaped(source.name) if source.name else "none: nothing was submitted yet"
    if source.problem is None:
        return name
    since = f"{clock(1000 * source.answered_s)} UTC" if source.answered_s is not None else None
    shown = f"its last answer, of {since}, is shown" if since else "the states come from the records alone"
    return f"{name}: {escaped(source.problem)}; {shown}"


def _looked(status: Status) -> str:
    polls, looked = status.polls, [row.looked_s for row in status.rows if row.state == "running" and row.looked_s]
    members = sum(poll.members for poll in polls)
    oldest = f"; the oldest reading of a running one is {duration(status.now_s - min(looked))} old" if looked else ""
    return f"{members} members{oldest}"


def _table(status: Status, rows: Sequence[MemberStatus], width: int | None, *, whole: bool) -> Iterator[str]:
    head = tuple(_rate_unit(status) if title == _RATE else title for title in _HEAD)
    cells = [head, *(_cells(row, status) for row in rows)]
    wrongs = [(row[0], row[-1]) for row in cells[1:] if row[-1]]
    if whole and width is not None and any(len(wrong) > _LEAST_WRONG for _, wrong in wrongs):
        # Long sentences are printed in full below the table.
        yield from _table_without(cells, {"what is wrong"}, width)
        for member, wrong in wrongs:
            yield from _wrapped(f"  member {member}: {wrong}", width, 4)
        return
    yield from _table_without(cells, set(), width)


def _table_without(cells: Sequence[Sequence[str]], left_out: set[str], width: int | None) -> Iterator[str]:
    left_out |= {name for place, name in enumerate(_HEAD) if all(row[place] in ("-", "") for row in cells[1:])}
    wrong = 0 if "what is wrong" in left_out else _LEAST_WRONG
    for name in (None, *_LEFT_OUT):
        left_out |= {name} if name else set()
        places = [place for place, title in enumerate(_HEAD) if title not in left_out]
        fixed = [max(len(row[place]) for row in cells) + 2 for place in places if _HEAD[place] != "what is wrong"]
        if width is None or sum(fixed) + wrong <= width:
            break
    right = {index for index, place in enumerate(places) if place in _NUMBERS}
    shown = [[row[place] for place in places] for row in cells]
    yield from (cut(line, width) for line in aligned(shown, right))


def _cells(row: MemberStatus, status: Status) -> tuple[str, ...]:
    age = row.age_seconds(status.now_s)
    goes_on = row.state in ("running", "lost", "unread") and age is not None
    return (
        str(row.member),
        "silent" if row.member in status.stuck else row.state,
        _hosts(row.hosts),
        escaped(row.job, _MOST_NAME) or "-",
        "-" if row.restarts is None else str(row.restarts),
        "-" if row.attempts is None else str(row.attempts),
        "-" if row.epoch is None else f"{row.epoch}/{status.epochs}",
        "-" if row.steps is None or row.state == "done" else f"{row.step}/{row.steps}",
        "-" if row.quality is None else f"{row.quality:.4f}",
        "-" if row.images_per_second is None else number(row.images_per_second),
        "-" if row.started_ms is None else clock(row.started_ms),
        duration(age) if goes_on and age is not None else "-",
        escaped(row.wrong) if row.wrong else "",
    )


def _hosts(hosts: Sequence[str]) -> str:
    shown = [escaped(host, _MOST_NAME) for host in hosts[:_MOST_HOSTS]]
    return ",".join(shown) + (f",+{len(hosts) - _MOST_HOSTS}" if len(hosts) > _MOST_HOSTS else "") or "-"


def clock(time_ms: float) -> str:
    """`2026-11-22 07:20:13` in UTC; the number if `time_ms` is out of the range of dates."""
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return f"{time_ms:.0f} ms"


# ----------------------------------------------------------------------------------------------------
# The status itself, and how it is read.


SCHEMA = "hpcai500-ensemble-status-1"


@dataclass(frozen=True)
class Source:
    """The scheduler that says which members run.

    Attributes:
        name: scheduler of the last `submit`; None if nothing was submitted.
        problem: why it does not answer; None if it does.
        answered_s: when it gave the answer that is shown (UNIX seconds); None: now, or never.
    """

    name: str | None = None
    problem: str | None = None
    answered_s: float | None = None


_NO_SOURCE = Source()


@dataclass(frozen=True)
class Status:
    """The state of an ensemble at the time `now_s` (UNIX seconds); `rows` has all members, in order."""

    ensemble: Ensemble
    rows: Sequence[MemberStatus] = field(repr=False)
    source: Source
    polls: Sequence[Poll]
    now_s: float

    @cached_property
    def epochs(self) -> int:
        return _epochs(self.ensemble)

    @cached_property
    def states(self) -> dict[MemberState, int]:
        """Members by state; every state is a key."""
        found = Counter(row.state for row in self.rows)
        return {state: found[state] for state in STATES}

    @property
    def is_going_on(self) -> bool:
        """Whether members run or wait for their turn."""
        return bool(self.states["running"] or any(row.state == "waiting" and row.submitted for row in self.rows))

    @property
    def exit_code(self) -> ExitCode:
        """2 if a member will not finish by itself; 0 otherwise."""
        return ExitCode.WRONG_ANSWER if any(self.states[state] for state in GIVEN_UP) else ExitCode.PASS

    @cached_property
    def usual_pace(self) -> float | None:
        """Median seconds of an epoch, over all members that have finished one; None if none has."""
        paces = [row.pace_seconds for row in self.rows if row.pace_seconds is not None]
        return statistics.median(paces) if paces else None

    @cached_property
    def stuck(self) -> frozenset[int]:
        """Members that run and have been silent for too long."""
        return frozenset(row.member for row in self.rows if is_stuck(row, self.usual_pace, self.now_s))

    @cached_property
    def progress(self) -> float:
        """Share of all epochs of all members that is done, from 0 to 1."""
        return sum(row.progress for row in self.rows) / (self.epochs * len(self.rows))

    @cached_property
    def begun(self) -> Sequence[MemberStatus]:
        """The members that percentiles are over: the running ones, or else all that have begun."""
        running = [row for row in self.rows if row.state == "running" and row.epoch is not None]
        return running or [row for row in self.rows if row.epoch is not None]

    @cached_property
    def rates(self) -> list[float]:
        """Images a second of each of `begun`, where known."""
        return [row.images_per_second for row in self.begun if row.images_per_second is not None]

    @property
    def rate_percentiles(self) -> Percentiles | None:
        return percentiles(self.rates)

    @property
    def epoch_percentiles(self) -> Percentiles | None:
        return percentiles([row.progress for row in self.begun])

    @property
    def quality_percentiles(self) -> Percentiles | None:
        """Over members that are done."""
        return percentiles([row.quality for row in self.rows if row.state == "done" and row.quality is not None])

    @cached_property
    def eta_seconds(self) -> float | None:
        """Estimate of the time until the last member is done; None if unknown."""
        return eta_seconds(self.rows, self.epochs, self.usual_pace, self.now_s)

    def lines(
        self, width: int | None = None, rows: int | None = 20, *, ascii_only: bool = False, whole: bool = True
    ) -> Iterator[str]:
        """For people.

        Args:
            width: columns of the terminal; None: unlimited.
            rows: of the table, at most; None: one for each member.
            ascii_only: whether bars are drawn in ASCII.
            whole: whether what is wrong is shown in full, below the table if needed, or cut to the table's width.
        """
        return status_lines(self, width, rows, ascii_only=ascii_only, whole=whole)

    def document(self) -> dict[str, Any]:
        """For programs."""
        ensemble = self.ensemble
        ranges = {
            "epochs_done": self.epoch_percentiles,
            "images_per_second": self.rate_percentiles,
            "quality_of_done": self.quality_percentiles,
        }
        return {
            "schema": SCHEMA,
            "path": str(ensemble.path),
            "identity": ensemble.identity,
            "benchmark": ensemble.start.get("benchmark"),
            "edition": ensemble.start.get("edition"),
            "members": ensemble.shape.members,
            "degree": ensemble.shape.degree,
            "epochs": self.epochs,
            "scheduler": asdict(self.source),
            "states": self.states,
            "stuck": sorted(self.stuck),
            "going_on": self.is_going_on,
            "progress": self.progress,
            "eta_seconds": self.eta_seconds,
            "percentiles": {name: asdict(found) if found else None for name, found in ranges.items()},
            "polls": [asdict(poll) for poll in self.polls],
            "rows": [row.document(self.now_s) for row in self.rows],
        }


def read_status(ensemble: Ensemble, jobs: Jobs | None, memory: Memory, source: Source = _NO_SOURCE) -> Status:
    """The state of all members, after one poll of their records.

    `jobs` is None without a scheduler: then only the records count. `memory` belongs to one ensemble.
    """
    return status_of(ensemble, jobs, memory, [memory.poll(ensemble, jobs)], source)


def status_of(
    ensemble: Ensemble, jobs: Jobs | None, memory: Memory, polls: Sequence[Poll], source: Source = _NO_SOURCE
) -> Status:
    """The state of all members after `polls`, from `memory`; reads nothing."""
    orders, epochs, known = orders_of(ensemble), _epochs(ensemble), jobs or {}
    rows = [
        member_status(number, known.get(number), memory.member(number), epochs, orders) for number in ensemble.members
    ]
    return Status(ensemble, rows, source, polls, memory.now_s)


def _epochs(ensemble: Ensemble) -> int:
    """Epochs of each member.

    Raises:
        RecordError: the recipe does not say.
    """
    problem = ensemble.tables.get("problem")
    epochs = problem.get("epochs") if isinstance(problem, Mapping) else None
    if not isinstance(epochs, int) or epochs < 1:
        raise RecordError(f"{ensemble.path / RECIPE}: problem.epochs: expected 1 or more, got {epochs!r}")
    return epochs


# ----------------------------------------------------------------------------------------------------
# The status while the ensemble runs: on a terminal a table that is redrawn, elsewhere a line now and then.


# Largest share of the time that reading the status may take.
_SHARE = 0.05
_LEAST_SECONDS = 1.0
# Lines other than the rows of the table: summary, map and legend, heads and empty lines.
_OTHER_LINES = 24
_LEAST_ROWS = 5
_MOST_TROUBLES = 10
_LOUD = {r"\b(failed|diverged|lost)\b": "bold red", r"\bsilent\b": "yellow", r"\brunning\b": "green"}


def lines_for(stream: TextIO, status: Status) -> Iterator[str]:
    """`status` with as many columns and rows as the terminal `stream` has; elsewhere 20 rows of any width."""
    size = shutil.get_terminal_size((100, 40))
    width, rows = (size.columns, max(_LEAST_ROWS, size.lines - _OTHER_LINES)) if is_terminal(stream) else (None, 20)
    return iter(status.lines(width, rows, ascii_only=is_ascii(stream), whole=False))


class Screen:
    """Shows one status after the other.

    On a terminal it is a table that is redrawn. On any other `stream` it is a line for all every `interval_seconds`,
    and one for each member as soon as it gets into trouble; each line begins with `prefix`.
    """

    def __init__(
        self, stream: TextIO, interval_seconds: float = PLAIN_INTERVAL_SECONDS, prefix: str = "hpcai500: "
    ) -> None:
        self._stream, self._interval_seconds, self._prefix = stream, interval_seconds, prefix
        self._is_terminal = is_terminal(stream)
        self._redrawn = Redrawn(stream, _LOUD)
        self._reported: set[tuple[int, str]] = set()
        self._printed_s: float | None = None
        self._last_line = ""

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._redrawn.close()

    def show(self, status: Status, *, is_last: bool = False) -> None:
        """Show `status` in place of the one before it; the last one is shown whatever the interval."""
        if self._is_terminal:
            self._draw(status)
        else:
            self._print(status, is_last=is_last)

    def _draw(self, status: Status) -> None:
        self._redrawn.draw(lines_for(self._stream, status))

    def _print(self, status: Status, *, is_last: bool) -> None:
        troubles = [sentence for sentence in trouble(status) if sentence not in self._reported]
        now = time.monotonic()
        is_early = self._printed_s is not None and now - self._printed_s < self._interval_seconds
        if is_early and not troubles and not is_last:
            return
        for _, sentence in troubles[:_MOST_TROUBLES]:
            self._say(sentence)
        if len(troubles) > _MOST_TROUBLES:
            self._say(f"and {len(troubles) - _MOST_TROUBLES} more members like these")
        self._reported.update(troubles)
        line = headline(status)
        if line != self._last_line:
            self._say(f"{clock(1000 * status.now_s)} UTC: {line}")
        self._printed_s, self._last_line = now, line

    def _say(self, line: str) -> None:
        say(line, prefix=self._prefix, stream=self._stream)


class Live:
    """Shows the state of an ensemble's members while this process runs them.

    Args:
        total: how many of its members are run here.
        stream: None: stderr.
        memory: of the records; None: a new one.
    """

    def __init__(
        self, ensemble: Ensemble, total: int, stream: TextIO | None = None, memory: Memory | None = None
    ) -> None:
        self._ensemble = ensemble
        members = ensemble.shape.members
        self._source = Source("local" if total == members else f"local, which runs {total} of {members} members")
        self._screen = Screen(sys.stderr if stream is None else stream)
        self._memory = memory or Memory()
        self._next_s, self._jobs = 0.0, None  # type: float, Jobs | None

    def __enter__(self) -> Live:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._jobs is not None:
                self._look(self._jobs, is_last=True)
        finally:
            self._screen.__exit__(kind, error, trace)

    def update(self, jobs: Jobs) -> None:
        """Look and show, at most once a second and for at most a twentieth of the time, however often it is called."""
        self._jobs = jobs
        if time.monotonic() >= self._next_s:
            start = time.monotonic()
            self._look(jobs)
            now = time.monotonic()
            self._next_s = now + max(_LEAST_SECONDS, (now - start) / _SHARE)

    def _look(self, jobs: Jobs, *, is_last: bool = False) -> None:
        self._screen.show(read_status(self._ensemble, jobs, self._memory, self._source), is_last=is_last)


# ----------------------------------------------------------------------------------------------------
# Watching an ensemble that other processes run: one query of its scheduler, then a bounded look, once or repeatedly.


# After an answer, the scheduler is not asked for this many times as long as the answer took: a slow one is busy.
_PAUSE_FACTOR = 10.0


class Watch:
    """Watches the ensemble in one folder; if the scheduler does not answer, the last known state is shown.

    `schedulers` has a factory for each scheduler that can be asked, by name; each is called once, when needed.

    Attributes:
        members: how many the ensemble has.
        pause_seconds: how long to wait, at least, before the scheduler is asked again.
    """

    def __init__(
        self, folder: Path, schedulers: Mapping[str, Callable[[], Scheduler]], memory: Memory | None = None
    ) -> None:
        self._folder, self._schedulers, self._memory = folder, schedulers, memory or Memory()
        self.members = read_ensemble(folder).shape.members
        self._made: dict[str, Scheduler] = {}
        # The last answer of the scheduler, and when it came (UNIX seconds).
        self._jobs: Jobs | None = None
        self._answered_s: float | None = None
        self.pause_seconds = 0.0

    def look(self) -> Status:
        """One poll.

        Raises:
            RecordError: the ensemble's journal cannot be read any more.
        """
        ensemble = read_ensemble(self._folder)
        jobs, source = self._ask(ensemble)
        return read_status(ensemble, jobs, self._memory, source)

    def look_at_all(self, tracker: Tracker = silent) -> Status:
        """As many polls as are needed to read all news; the scheduler is asked once."""
        ensemble = read_ensemble(self._folder)
        jobs, source = self._ask(ensemble)
        polls = []
        with tracker(ensemble.shape.members, "reading records", "members") as progress:
            for poll in self._memory.catch_up(ensemble, jobs):
                progress.advance(poll.members)
                polls.append(poll)
        return status_of(ensemble, jobs, self._memory, polls, source)

    def _ask(self, ensemble: Ensemble) -> tuple[Jobs | None, Source]:
        name = orders_of(ensemble).scheduler
        if name is None or name not in self._schedulers:
            return None, Source(name, "members are processes of one machine" if name else None)
        start = time.monotonic()
        try:
            scheduler = self._made.get(name) or self._schedulers[name]()
            self._made[name] = scheduler
            self._jobs, self._answered_s = scheduler.jobs(ensemble), time.time()
        except (EnvironmentLacksError, RunError) as error:
            return self._jobs, Source(name, str(error), self._answered_s)
        finally:
            self.pause_seconds = _PAUSE_FACTOR * (time.monotonic() - start)
        return self._jobs, Source(name)


def follow(
    watch: Watch, show: Callable[[Status], None], interval_seconds: float, sleep: Callable[[float], None] = time.sleep
) -> Status:
    """Read and show the status until no member runs or waits any more; return the last one.

    Raises:
        RecordError: the ensemble's journal cannot be read any more.
    """
    while True:
        status = watch.look()
        show(status)
        if not status.is_going_on and not status.states["unread"]:
            return status
        sleep(max(interval_seconds, watch.pause_seconds))
