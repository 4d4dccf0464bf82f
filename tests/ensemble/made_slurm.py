"""Fakes of squeue and sacct: programs that print what Slurm 22.05 prints of arrays of a thousand elements each.

Elements that run or have run stand in a line each, those that wait in one for all of an array.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcai500.ensemble.journal import Ensemble, append
from hpcai500.ensemble.slurm_scripts import ELEMENTS

_WORDS = {
    "waiting": "PENDING",
    "running": "RUNNING",
    "ended": "COMPLETED",
    "failed": "FAILED",
    "cancelled": "CANCELLED",
}


def submit_arrays(ensemble: Ensemble, at_once: int) -> Ensemble:
    """The journal after all members were submitted: array 100 for members 0 to 999, 101 for the next ones, …"""
    count = -(-ensemble.shape.members // ELEMENTS)
    jobs = [str(100 + number) for number in range(count + 1)]
    told = {
        "scheduler": "slurm", "jobs": jobs, "members": list(ensemble.members), "at_once": at_once, "exclude": [],
    }  # fmt: skip
    return append(ensemble, "submit", told)


class MadeSlurm:
    """Puts the fakes into a folder, and lets them print how members stand.

    Attributes:
        environment: in which they are found before any others.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        for name in ("squeue", "sacct"):
            program = folder / name
            program.write_text(
                f'#!/bin/sh\nprintf "%s\\n" "{name} $*" >>{folder}/asked\nexec cat {folder}/{name}.txt\n'
            )
            program.chmod(0o755)
        self.environment = {"PATH": f"{folder}:/usr/bin:/bin"}

    def tell(self, states: Mapping[int, str]) -> None:
        """Let them print that members stand like this; squeue has forgotten those that have ended."""
        (self._folder / "squeue.txt").write_text("".join(_queue(states)))
        (self._folder / "sacct.txt").write_text("".join(_accounts(states)))

    def asked(self) -> list[str]:
        """The commands that were called since the last time."""
        path = self._folder / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        path.write_text("")
        return lines


def _queue(states: Mapping[int, str]) -> Iterator[str]:
    for member, state in states.items():
        if state == "running":
            job, task = divmod(member, ELEMENTS)
            yield f"{100 + job}|{task}|RUNNING|n{member % 1250:04d}|0|None|\n"
    for job, tasks in _waiting(states).items():
        yield f"{100 + job}|{tasks}%50|PENDING||0|JobArrayTaskLimit|\n"


def _accounts(states: Mapping[int, str]) -> Iterator[str]:
    for member, state in states.items():
        if state != "waiting":
            job, task = divmod(member, ELEMENTS)
            code = "1:0" if state == "failed" else "0:0"
            yield f"{100 + job}_{task}|{_WORDS[state]}|n{member % 1250:04d}|{code}\n"
    for job, tasks in _waiting(states).items():
        yield f"{100 + job}_[{tasks}%50]|PENDING|None assigned|0:0\n"


def _waiting(states: Mapping[int, str]) -> dict[int, str]:
    """The elements of each array that wait, as Slurm writes them: `3-7,9`."""
    found: dict[int, list[list[int]]] = {}
    for member in sorted(member for member, state in states.items() if state == "waiting"):
        job, task = divmod(member, ELEMENTS)
        ranges = found.setdefault(job, [])
        if ranges and ranges[-1][-1] == task - 1:
            ranges[-1] = [ranges[-1][0], task]
        else:
            ranges.append([task])
    return {job: ",".join("-".join(map(str, ends)) for ends in ranges) for job, ranges in found.items()}
