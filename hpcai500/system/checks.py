"""Checks of `hpcai500 doctor`: the result of one, the log of those that measure, and the verdict of all."""

from __future__ import annotations

import json
import platform
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

# Checks and their verdict.


SCHEMA = "hpcai500-doctor-2"

# `skip`: it could not be checked (the detail says why); the run can start nevertheless.
Status = Literal["pass", "warn", "fail", "skip"]
Verdict = Literal["pass", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        name: the same in every version, because programs look for it.
        fix: the command to type, or what to do; None if nothing is wrong.
    """

    name: str
    status: Status
    detail: str
    fix: str | None = None

    @property
    def sentence(self) -> str:
        """Detail and fix in one line, as in errors."""
        return f"{self.detail}; {self.fix}" if self.fix else self.detail


def verdict(checks: Sequence[Check]) -> Verdict:
    found = {check.status for check in checks}
    return "fail" if "fail" in found else "warn" if "warn" in found else "pass"


def document(checks: Sequence[Check]) -> dict[str, Any]:
    """All checks as a JSON document."""
    return {
        "schema": SCHEMA,
        "verdict": verdict(checks),
        "host": platform.node(),
        "checks": [asdict(check) for check in checks],
    }


def lines(checks: Sequence[Check]) -> Iterator[str]:
    """All checks as text: a line for each, its fix below it, the verdict last."""
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        yield f"{check.status}  {check.name:{width}}  {check.detail}"
        if check.fix:
            yield f"{'':4}  {'':{width}}    fix: {check.fix}"
    yield f"verdict {verdict(checks)}"


# ----------------------------------------------------------------------------------------------------
# The log of checks that measure: lines of JSON in a file, appended by the in-job half and read by the login half.
#
# A line marks the beginning of each check, so that a check that never ends can be named, and earlier results are kept.


_BEGINS, _CHECK, _BROKEN, _STOPPED = "begins", "check", "broken", "stopped"


class CheckLog:
    """Appends to the file `path`, on rank 0.

    Args:
        path: None on other ranks, which write nothing.
        limit_seconds: time limit of each check.
        late: called in its own thread after the time limit; it ends the process.
        on_begin: called with the name of each check that begins.
    """

    def __init__(
        self,
        path: Path | None,
        limit_seconds: float,
        late: Callable[[], None],
        on_begin: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._path, self._limit_seconds, self._late, self._on_begin = path, limit_seconds, late, on_begin
        # Re-entrant, because a signal may come while a line is written.
        self._turn = threading.RLock()
        self._watch: threading.Timer | None = None

    def begin(self, name: str, limit_seconds: float = 0.0) -> None:
        """Begin the check `name` and end the previous one. `limit_seconds` counts if longer than the log's."""
        self.close()
        if self._path is None:
            return
        self._on_begin(name)
        self._append({_BEGINS: name})
        limit = max(limit_seconds, self._limit_seconds)
        self._watch = threading.Timer(limit, self._expire, [limit])
        self._watch.daemon = True
        self._watch.start()

    def found(self, checks: Iterable[Check]) -> None:
        """Write the results of the current check."""
        self.close()
        for check in checks:
            self._append({_CHECK: asdict(check)})

    def broken(self, reason: str) -> None:
        """Write why the current check will not end."""
        self._append({_BROKEN: reason})

    def stopped(self, by: str) -> None:
        """Write that the user stopped doctor `by` Ctrl-C or a signal."""
        self._append({_STOPPED: by})

    def _expire(self, limit_seconds: float) -> None:
        self.broken(f"not finished within {limit_seconds:g} s")
        self._late()

    def close(self) -> None:
        """End the current check, if there is one."""
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
    """The content of a log.

    Attributes:
        checks: those that ended, in order.
        running: the check that has begun and not ended.
        reason: why it has not ended; the first reason, because later ones follow from it.
        stopped: how the user stopped doctor.
    """

    checks: tuple[Check, ...] = ()
    running: str | None = None
    reason: str | None = None
    stopped: str | None = None


def read_log(path: Path) -> Told:
    """The content of `path` so far; empty if it does not exist. An unfinished last line is ignored."""
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
# The names of the checks that measure, and the results of those that could not end.


RANKS = "ranks"
VERSIONS = "versions"
NODES = "nodes"
CLOCKS = "clocks"
DEVICES = "devices"
GEMM = "GEMM"
CONVOLUTIONS = "convolutions"
ALL_REDUCE = "all-reduce"
READING = "reading"
MODEL_MEMORY = "model memory"
DISK = "disk"
POWER = "power"
# Time limits of one check, and of the start of all ranks: importing torch from a busy file system is slow.
CHECK_SECONDS, START_SECONDS = 180.0, 300.0
# In the order in which they run, and in which problems should be fixed.
MEASURED = (
    *(RANKS, VERSIONS, NODES, CLOCKS, DEVICES, GEMM, CONVOLUTIONS, ALL_REDUCE, READING, MODEL_MEMORY, DISK),
    POWER,
)

# If one of these fails, no rank can begin.
_NEEDED = ("temporary", "backend", "launcher", "accelerator")
# If the check on the left fails, the one on the right would only repeat it.
_FOR_ONE = {"data": READING, "out": DISK}


@dataclass(frozen=True)
class Plan:
    """The checks to measure, and those that are skipped, with the reason."""

    names: tuple[str, ...]
    skipped: tuple[Check, ...]


def plan(checks: Sequence[Check]) -> Plan:
    """What to measure, given the results of the `checks` that measure nothing."""
    failed = [check.name for check in checks if check.status == "fail"]
    if blocking := [name for name in failed if name in _NEEDED]:
        return Plan((), skipped(MEASURED, f"not measured: first fix `{blocking[0]}`"))
    causes = {_FOR_ONE[name]: name for name in failed if name in _FOR_ONE}
    return Plan(
        tuple(name for name in MEASURED if name not in causes),
        tuple(Check(name, "skip", f"not measured: first fix `{cause}`") for name, cause in causes.items()),
    )


def skipped(names: Sequence[str], reason: str) -> tuple[Check, ...]:
    """The checks `names` as skipped."""
    return tuple(Check(name, "skip", reason) for name in names)


def concluded(log: Told, names: Sequence[str], ended_by: str | None) -> list[Check]:
    """All checks `names` after the ranks have ended: those in the log, the one that broke, and the skipped rest.

    `ended_by` says how the ranks ended; None if they ended well.
    """
    checks = list(log.checks)
    missing = [name for name in names if name not in {check.name for check in checks}]
    if not missing:
        return checks
    if log.stopped:
        # The verdict must not be good if checks were not made.
        again = Check(missing[0], "fail", f"stopped by {log.stopped} before it ended", "let doctor finish")
        return [*checks, again, *skipped(missing[1:], f"not measured: stopped by {log.stopped}")]
    broken = log.running or missing[0]
    # The monitor's message is meant for a training run.
    reason = (log.reason or ended_by or "its processes ended without a message").removesuffix("; go on with --resume")
    fix = "see the messages of the ranks above and docs/doctor.md, or try again without that host"
    rest = [name for name in missing if name != broken]
    return [*checks, Check(broken, "fail", reason, fix), *skipped(rest, f"not measured: `{broken}` did not finish")]


def in_order(checks: Sequence[Check]) -> list[Check]:
    """Checks that measure nothing in the given order, then the measured ones in the order of MEASURED."""
    place = {name: number for number, name in enumerate(MEASURED)}
    return sorted(checks, key=lambda check: place.get(check.name, -1))
