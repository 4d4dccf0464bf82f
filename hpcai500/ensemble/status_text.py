"""The status of an ensemble for people: what all members come to, a map of them, and the rows worth reading."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hpcai500.ensemble.member_status import GIVEN_UP, MemberStatus
from hpcai500.ensemble.status_bars import progress_bar, spread_bar
from hpcai500.ensemble.status_map import map_lines
from hpcai500.ensemble.status_summary import Percentiles, left_seconds
from hpcai500.results.columns import aligned
from hpcai500.results.show import scaled
from hpcai500.streams import spelt_out

if TYPE_CHECKING:
    from hpcai500.ensemble.status import Status

_MAP_LINES = 8
_MOST_NAME = 40
_MOST_HOSTS = 2
_LEAST_WRONG = 24
# A picture of fewer members says nothing that their rows do not.
_LEAST_PICTURED = 8
_HEAD = (
    "member", "state", "hosts", "job", "restarts", "attempts", "epoch", "step", "quality", "images/s", "started (UTC)",
    "silent for", "what is wrong",
)  # fmt: skip
_NUMBERS = {0, 4, 5, 6, 7, 8, 9, 11}
# On a narrow terminal these are left out, one after the other.
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
    """All in one line, for where lines go by: `3 of 8 done, 4 running, 1 waiting; …`."""
    found = [f"{count} {state}" for state, count in status.states.items() if count and state != "done"]
    parts = [f"{status.states['done']} of {len(status.rows)} done", *found]
    if status.stuck:
        parts.append(f"{len(status.stuck)} silent")
    line = f"{', '.join(parts)}; {percent(status.progress)} of all epochs"
    if status.states["running"] and status.rates:
        line += f", {number(sum(status.rates))} images/s"
    return line + (f", about {duration(status.eta_seconds)} left" if status.eta_seconds is not None else "")


def next_line(status: Status) -> str | None:
    """What to type where nothing goes on by itself; None where something does, or nothing is left to do."""
    events, states = status.ensemble.events, status.states
    folder = spelt_out(shlex.quote(str(status.ensemble.path)))
    if states["done"] == len(status.rows):
        return None if events[-1]["key"] == "collect" else f"hpcai500 ensemble collect {folder}"
    if states["done"] + states["diverged"] == len(status.rows):
        if events[-1]["key"] == "collect" and events[-1]["value"].get("vote_sha256"):
            return None
        return f"hpcai500 ensemble collect {folder} --accept-incomplete: those that diverged are final"
    is_told = status.source.name is not None and status.source.problem is None
    if states["running"] or states["unread"] or (is_told and status.is_going_on):
        return None
    command = "submit" if status.source.name == "slurm" else "run"
    if not any(row.submitted for row in status.rows):
        return f"hpcai500 ensemble run {folder} (on this machine), or hpcai500 ensemble submit {folder} (to Slurm)"
    left = [row for row in status.rows if row.state not in ("done", "diverged")]
    goes_on = any(row.can_go_on for row in left)
    how = "go on from their last checkpoints" if goes_on else "are run"
    final = "; those that diverged are final" if states["diverged"] else ""
    return f"hpcai500 ensemble {command} {folder}: those that are not done {how}{final}"


def trouble(status: Status) -> Iterator[tuple[int, str]]:
    """(Number, sentence) of each member that something is wrong with."""
    for row in status.rows:
        if row.state in (*GIVEN_UP, "stopped", "cancelled"):
            yield row.member, f"member {row.member} {row.state}" + (f": {spelt_out(row.wrong)}" if row.wrong else "")
        elif row.elsewhere:
            yield row.member, f"member {row.member}: {spelt_out(row.wrong or 'another process runs it')}"
        elif row.member in status.stuck:
            yield row.member, f"member {row.member} is silent for longer than three epochs take"


def choose(status: Status, most: int | None) -> Sequence[MemberStatus]:
    """The rows that are shown: all in order where there is room; else those in trouble and the slowest, half each."""
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
    """`line` in as many lines as it takes."""
    if width is None or len(line) <= width:
        yield line
        return
    room = max(width, 2 * indent)
    yield from textwrap.wrap(line, room, subsequent_indent=" " * indent, break_on_hyphens=False)


def cut(line: str, width: int | None) -> str:
    """The part of `line` that fits."""
    return line if width is None or len(line) <= width else line[: max(1, width - 1)] + "…"


def number(value: float) -> str:
    """Three digits at least: `0.0421`, `4.21`, `42.1`, `4210`."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def percent(share: float) -> str:
    """`45 %`; never 100 before all is done."""
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
    kind = spelt_out(f"{ensemble.start.get('benchmark')}, edition {ensemble.start.get('edition')}", _MOST_NAME)
    yield f"ensemble   {spelt_out(str(ensemble.path))}: {kind}"
    many = "accelerator" if shape.degree == 1 else "accelerators"
    counts = ", ".join(f"{count} {state}" for state, count in status.states.items() if count)
    silent = f" ({len(status.stuck)} silent)" if status.stuck else ""
    unasked = sum(not row.submitted for row in status.rows)
    if unasked:
        silent += f" ({'none' if unasked == len(status.rows) else f'{unasked} not'} submitted yet)"
    yield f"members    {shape.members} of {shape.degree} {many} each: {counts}{silent}"
    left = f", about {duration(status.eta_seconds)} left" if status.eta_seconds is not None else ""
    yield f"progress   {progress_bar(status.progress)} {percent(status.progress)} of all epochs{left}"
    yield from _ranges(status, ascii_only=ascii_only)
    yield f"scheduler  {_scheduler(status)}"
    yield f"looked at  {_looked(status)}"
    if line := next_line(status):
        yield f"next       {line}"


def _ranges(status: Status, *, ascii_only: bool) -> Iterator[str]:
    if status.rates and (found := status.rate_percentiles):
        total = f"{number(sum(status.rates))} images/s together; " if status.states["running"] else ""
        yield f"images/s   {total}{_range(found)} (each over its last epoch of training)"
        if len(status.rates) >= _LEAST_PICTURED:
            bar = spread_bar(status.rates, ascii_only=ascii_only)
            yield f"           {number(found.least)} |{bar}| {number(found.greatest)}"
    if len(status.told) > 1 and (found := status.epoch_percentiles):
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
    name = spelt_out(source.name) if source.name else "none: nothing was submitted yet"
    if source.problem is None:
        return name
    since = f"{clock(1000 * source.answered_s)} UTC" if source.answered_s is not None else None
    told = f"shown is its answer of {since}" if since else "who runs is told by the records alone"
    return f"{name}: {spelt_out(source.problem)}; {told}"


def _looked(status: Status) -> str:
    polls, looked = status.polls, [row.looked_s for row in status.rows if row.state == "running" and row.looked_s]
    members, files, size, seconds = (
        sum(getattr(poll, name) for poll in polls) for name in ("members", "files", "read_bytes", "seconds")
    )
    oldest = f"; the oldest look at a running one is {duration(status.now_s - min(looked))} old" if looked else ""
    return f"{members} members ({files} files opened, {scaled(size, 'B')} read, {seconds:.2f} s){oldest}"


def _table(status: Status, rows: Sequence[MemberStatus], width: int | None, *, whole: bool) -> Iterator[str]:
    cells = [_HEAD, *(_cells(row, status) for row in rows)]
    wrongs = [(row[0], row[-1]) for row in cells[1:] if row[-1]]
    if whole and width is not None and any(len(wrong) > _LEAST_WRONG for _, wrong in wrongs):
        # Sentences that people must read to their end go beneath.
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
        spelt_out(row.job, _MOST_NAME) or "-",
        "-" if row.restarts is None else str(row.restarts),
        "-" if row.attempts is None else str(row.attempts),
        "-" if row.epoch is None else f"{row.epoch}/{status.epochs}",
        "-" if row.steps is None or row.state == "done" else f"{row.step}/{row.steps}",
        "-" if row.quality is None else f"{row.quality:.4f}",
        "-" if row.images_per_second is None else number(row.images_per_second),
        "-" if row.started_ms is None else clock(row.started_ms),
        duration(age) if goes_on and age is not None else "-",
        spelt_out(row.wrong) if row.wrong else "",
    )


def _hosts(hosts: Sequence[str]) -> str:
    shown = [spelt_out(host, _MOST_NAME) for host in hosts[:_MOST_HOSTS]]
    return ",".join(shown) + (f",+{len(hosts) - _MOST_HOSTS}" if len(hosts) > _MOST_HOSTS else "") or "-"


def clock(time_ms: float) -> str:
    """`2026-11-22 07:20:13`, or what is no such moment, as a number."""
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return f"{time_ms:.0f} ms"
