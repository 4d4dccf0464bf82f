"""Checks that take their time, as they end: lines of JSON in a file, which one half appends to and the other one reads.

A line before each check says that it begins, so that a check that never ends is known by its name, and what was found
before it is not lost.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcai500.system.checks import Check

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
