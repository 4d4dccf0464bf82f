"""Findings of checks: lines of JSON in a file, which the job appends to and the command reads.

A line marks the beginning of each check, so that a check that crashes its process can be named.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

from hpcai500.errors import ExitCode, HpcAi500Error
from hpcai500.streams import say

Status = Literal["pass", "fail", "skip"]
_BEGINS = "begins"


class CannotBeChecked(Exception):  # noqa: N818 - nothing went wrong
    """The check cannot run here; the text says what is missing. It is reported as skipped, never as passed."""


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        status: `skip` if it cannot be checked here.
        detail: what was found, or what is wrong and how to fix it.
        exit_code: of a command with this finding only.
    """

    name: str
    status: Status
    detail: str
    seconds: float = 0.0
    exit_code: int = ExitCode.PASS

    def document(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        """A line for people, with the reason if it failed or was skipped."""
        why = "" if self.status == "pass" else f": {self.detail}"
        return f"self-test: {self.status} {self.name} ({self.seconds:.1f} s){why}"


class FindingsLog:
    """Appends to the file `path`; `stream` gets a line for people when a check has ended."""

    def __init__(self, path: Path, stream: TextIO | None = None) -> None:
        self._path = path
        self._stream = stream

    def check(self, name: str, body: Callable[[], str]) -> Finding:
        """Run one check, whose `body` returns what it found, and write its finding.

        An HpcAi500Error is a failure with its own exit code (2 for a wrong answer), any other error one with 1.
        """
        self._append({_BEGINS: name})
        started = time.perf_counter()
        status: Status = "fail"
        exit_code = ExitCode.RUN_FAILED
        try:
            status, detail, exit_code = "pass", body(), ExitCode.PASS
        except CannotBeChecked as reason:
            status, detail, exit_code = "skip", str(reason), ExitCode.PASS
        except HpcAi500Error as error:
            detail, exit_code = str(error), error.exit_code
        except Exception as error:  # noqa: BLE001 - whatever a kernel raises is a finding
            detail = " ".join(f"{type(error).__name__}: {error}".split())
        finding = Finding(name, status, detail, round(time.perf_counter() - started, 3), exit_code)
        self._append(finding.document())
        if self._stream:
            say(finding.line(), stream=self._stream)
        return finding

    def _append(self, line: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


@dataclass(frozen=True)
class Findings:
    """The checks in a file that have ended, in order, and the name of the one that is still running."""

    ended: tuple[Finding, ...]
    running: str | None


def read_findings(path: Path) -> Findings:
    """What `path` contains so far; nothing if it does not exist yet. An unfinished last line is ignored."""
    content = path.read_text(encoding="utf-8") if path.is_file() else ""
    ended: list[Finding] = []
    running: str | None = None
    for line in content.split("\n")[:-1]:
        values = json.loads(line)
        if _BEGINS in values:
            running = str(values[_BEGINS])
        else:
            running = None
            ended.append(Finding(**values))
    return Findings(tuple(ended), running)
