"""What one check of the surroundings found, and what all of them amount to."""

from __future__ import annotations

import json
import platform
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

# ----------------------------------------------------------------------------------------------------
# What one check of the surroundings found, and what all of them amount to.


SCHEMA = "hpcai500-doctor-2"

# `skip`: it could not be found out (the detail says why), and nothing speaks against a run.
Status = Literal["pass", "warn", "fail", "skip"]
Verdict = Literal["pass", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: the same in every version: programs look for it.
        status: whether a run can go on.
        detail: what was found, in words.
        fix: the line to type, or what to do; None where nothing is wrong.
    """

    name: str
    status: Status
    detail: str
    fix: str | None = None

    @property
    def sentence(self) -> str:
        """Detail and fix in one line, as errors have them."""
        return f"{self.detail}; {self.fix}" if self.fix else self.detail


def verdict(checks: Sequence[Check]) -> Verdict:
    """The worst of all."""
    found = {check.status for check in checks}
    return "fail" if "fail" in found else "warn" if "warn" in found else "pass"


def document(checks: Sequence[Check]) -> dict[str, Any]:
    """For programs."""
    return {
        "schema": SCHEMA,
        "verdict": verdict(checks),
        "host": platform.node(),
        "checks": [asdict(check) for check in checks],
    }


def lines(checks: Sequence[Check]) -> Iterator[str]:
    """For people: a line for each check, its fix below it, the verdict last."""
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        yield f"{check.status}  {check.name:{width}}  {check.detail}"
        if check.fix:
            yield f"{'':4}  {'':{width}}    fix: {check.fix}"
    yield f"verdict {verdict(checks)}"


# ----------------------------------------------------------------------------------------------------
# Checks that take their time, as they end: lines of JSON in a file, which one half appends to and the other one reads.
#
# A line before each check says that it begins, so that a check that never ends is known by its name, and what was found
# before it is not lost.


_BEGINS, _CHECK, _BROKEN, _STOPPED = "begins", "check", "broken", "stopped"


class CheckLog:
    """Appends to the file `path`; rank 0 has one.

    Args:
        path: the file; None on other ranks, which write nothing.
        limit_seconds: how long one check may take.
        late: called, in a thread of its own, when that is over: it ends the process.
        told: gets the name of each check that begins.
    """

    def __init__(
        self,
        path: Path | None,
        limit_seconds: float,
        late: Callable[[], None],
        told: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._path, self._limit_seconds, self._late, self._told = path, limit_seconds, late, told
        # A signal may come while a line is written.
        self._turn = threading.RLock()
        self._watch: threading.Timer | None = None

    def begin(self, name: str, limit_seconds: float = 0.0) -> None:
        """The check `name` begins; the one before it has ended. It may take `limit_seconds`, where that is longer."""
        self._rest()
        if self._path is None:
            return
        self._told(name)
        self._append({_BEGINS: name})
        limit = max(limit_seconds, self._limit_seconds)
        self._watch = threading.Timer(limit, self._expire, [limit])
        self._watch.daemon = True
        self._watch.start()

    def found(self, checks: Iterable[Check]) -> None:
        """What the check that has begun found."""
        self._rest()
        for check in checks:
            self._append({_CHECK: asdict(check)})

    def broken(self, reason: str) -> None:
        """Why the check that has begun will not end."""
        self._append({_BROKEN: reason})

    def stopped(self, by: str) -> None:
        """The user wants no more: `by` Ctrl-C or a signal."""
        self._append({_STOPPED: by})

    def close(self) -> None:
        """All checks are done."""
        self._rest()

    def _expire(self, limit_seconds: float) -> None:
        self.broken(f"no end within {limit_seconds:g} s")
        self._late()

    def _rest(self) -> None:
        if self._watch:
            self._watch.cancel()
            self._watch = None

    def _append(self, line: dict[str, Any]) -> None:
        if self._path is None:
            return
        with self._turn, self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


@dataclass(frozen=True)
class Told:
    """What a log says.

    Attributes:
        checks: those that ended, in order.
        running: the one that had begun and not ended.
        reason: why it did not; the first reason counts, what follows comes of it.
        stopped: by what the user ended it.
    """

    checks: tuple[Check, ...] = ()
    running: str | None = None
    reason: str | None = None
    stopped: str | None = None


def read_log(path: Path) -> Told:
    """What `path` holds by now; nothing if it is not there yet. A last line without its end is not read."""
    content = path.read_text(encoding="utf-8") if path.is_file() else ""
    checks: list[Check] = []
    running = reason = stopped = None
    for text in content.split("\n")[:-1]:
        line = json.loads(text)
        if _CHECK in line:
            checks.append(Check(**line[_CHECK]))
            running = None
        running = line.get(_BEGINS, running)
        reason = reason or line.get(_BROKEN)
        stopped = stopped or line.get(_STOPPED)
    return Told(tuple(checks), running, reason, stopped)


# ----------------------------------------------------------------------------------------------------
# The checks of `hpcai500 doctor` that measure: their names, and what becomes of those that could not end.


RANKS = "ranks"
VERSIONS = "versions"
NODES = "nodes"
CLOCKS = "clocks"
DEVICES = "devices"
GEMM = "GEMM"
CONVOLUTIONS = "convolutions"
ALL_REDUCE = "all-reduce"
READING = "reading"
DISK = "disk"
POWER = "power"
# What one check may take, and the start of all ranks: torch is imported, perhaps from a busy file system.
CHECK_SECONDS, START_SECONDS = 180.0, 300.0
# In the order in which they run, and in which people should mend what they find.
MEASURED = (RANKS, VERSIONS, NODES, CLOCKS, DEVICES, GEMM, CONVOLUTIONS, ALL_REDUCE, READING, DISK, POWER)

# Where one of these has failed, no rank can begin to work.
_NEEDED = ("temporary", "backend", "launcher", "accelerator")
# What the check on the left has found wrong, the one on the right would only say again.
_FOR_ONE = {"data": READING, "out": DISK}


@dataclass(frozen=True)
class Plan:
    """What there is to measure.

    Attributes:
        names: the checks that can be made.
        skipped: the others, with the reason.
    """

    names: tuple[str, ...]
    skipped: tuple[Check, ...]


def plan(looked_at: Sequence[Check]) -> Plan:
    """What to measure, after what was `looked_at` without measuring."""
    failed = [check.name for check in looked_at if check.status == "fail"]
    if in_the_way := [name for name in failed if name in _NEEDED]:
        return Plan((), skipped(MEASURED, f"not measured: first mend what `{in_the_way[0]}` says"))
    given_up = {_FOR_ONE[name]: name for name in failed if name in _FOR_ONE}
    return Plan(
        tuple(name for name in MEASURED if name not in given_up),
        tuple(Check(name, "skip", f"not measured: first mend what `{cause}` says") for name, cause in given_up.items()),
    )


def skipped(names: Sequence[str], reason: str) -> tuple[Check, ...]:
    """The checks `names` that were not made."""
    return tuple(Check(name, "skip", reason) for name in names)


def concluded(told: Told, names: Sequence[str], ended_by: str | None) -> list[Check]:
    """All checks `names` after the ranks have ended: what they told, what broke, and what was then not made.

    Args:
        told: their log.
        names: what they were to check.
        ended_by: how they ended, in words, where it was no good end; None otherwise.
    """
    checks = list(told.checks)
    missing = [name for name in names if name not in {check.name for check in checks}]
    if not missing:
        return checks
    if told.stopped:
        # What nobody looked at must not end in a verdict that says that all is well.
        again = Check(missing[0], "fail", f"stopped by {told.stopped} before it ended", "let doctor come to its end")
        return [*checks, again, *skipped(missing[1:], f"not measured: stopped by {told.stopped}")]
    broken = told.running or missing[0]
    # The monitor speaks to whoever trains.
    reason = (told.reason or ended_by or "its processes ended without a word").removesuffix("; go on with --resume")
    fix = "see what the ranks said above; docs/doctor.md has what helps, or try again without that host"
    rest = [name for name in missing if name != broken]
    return [*checks, Check(broken, "fail", reason, fix), *skipped(rest, f"not measured: `{broken}` came to no end")]


def in_order(checks: Sequence[Check]) -> list[Check]:
    """Those that were looked at as they come, then the measured ones in their usual order."""
    place = {name: number for number, name in enumerate(MEASURED)}
    return sorted(checks, key=lambda check: place.get(check.name, -1))
