"""Fakes of Slurm: squeue and sacct that print what they are told, and a scheduler whose members nobody runs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcai500.campaign.journal import SCHEMA as CAMPAIGN_SCHEMA
from hpcai500.ensemble.journal import Ensemble, append, create_ensemble
from hpcai500.ensemble.mapping import Shape, member_places, shape_of
from hpcai500.ensemble.scheduler import MemberJob
from hpcai500.ensemble.slurm_scripts import ELEMENTS
from hpcai500.recipe import load_recipe
from hpcai500.record import FIRST_PREVIOUS, event_line, line_hash
from hpcai500.run_progress import PROGRESS, Progress

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


# ----------------------------------------------------------------------------------------------------
START_S = 1_800_000_000.0
STEPS, SAMPLES = 100, 6400


def plan(folder: Path, members: int, *settings: str, epochs: int = 5) -> Ensemble:
    """A real, planned ensemble of members with one accelerator each."""
    short = (f"problem.epochs={epochs}", "hyperparameters.warmup_epochs=1")
    recipe = load_recipe("ic/ensemble", [*short, *settings], edition="v3.0")
    shape = Shape(members, 1, 8)
    return create_ensemble(folder, recipe, shape, member_places(shape, 1), folder.parent, None)


def planned(folder: Path, members: int = 3) -> Ensemble:
    """A real, planned ensemble of the smoke recipe, on nodes with one accelerator each."""
    shape = shape_of(1, members=members)
    recipe = load_recipe("ic/smoke", ["problem.epochs=3", f"ensemble.members={members}"], edition="v3.0")
    return create_ensemble(folder, recipe, shape, member_places(shape, 1), folder.parent / "data", None)


def submit_all(ensemble: Ensemble, at_once: int) -> Ensemble:
    """The journal after all members were submitted."""
    told = {
        "scheduler": "slurm", "jobs": ["7"], "members": list(ensemble.members), "at_once": at_once, "exclude": [],
    }  # fmt: skip
    return append(ensemble, "submit", told)


@dataclass
class MadeLog:
    """One chained log that grows; that of a record may keep `progress` in a file beside it."""

    path: Path
    progress: Progress | None = None
    previous: str = FIRST_PREVIOUS
    lines: int = 0
    first: str = ""

    def add(self, now_s: float, *events: tuple[str, Any]) -> None:
        """Append (key, value) events of the moment `now_s`."""
        content = b""
        for key, value in events:
            event = {
                "prev": self.previous, "seq": self.lines, "time_ms": int(1000 * now_s), "clock_s": now_s - START_S,
                "key": key, "value": value,
            }  # fmt: skip
            line = event_line(event)
            self.previous, self.lines = line_hash(line), self.lines + 1
            self.first = self.first or self.previous
            content += line + b"\n"
            if self.progress:
                self.progress.fold([event])
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(descriptor, content)
        os.close(descriptor)
        if self.progress:
            self.path.with_name(PROGRESS).write_text(self.progress.model_dump_json(by_alias=True))


@dataclass
class MadeMember:
    """One member: what it would write, at the moments that it is told to.

    `owner` is the token of the process that writes its record; one of version 0.2.0, `is_old`, keeps no progress.json.
    """

    ensemble: Ensemble
    member: int
    attempts: int = 0
    epoch: int = 1
    owner: str = ""
    is_old: bool = False
    record: Path = field(init=False)
    journal: MadeLog = field(init=False)
    events: MadeLog = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.ensemble.folder(self.member)
        self.journal = MadeLog(self.folder / "campaign.jsonl")

    def begin(self, now_s: float, host: str = "n1", plan: Any = None) -> None:
        """Another attempt, up to its first epoch."""
        ensemble = self.ensemble
        self.attempts, self.epoch = self.attempts + 1, 1
        name = "trial-01" + (f"-attempt-{self.attempts}" if self.attempts > 1 else "")
        self.record = self.folder / name
        self.record.mkdir(parents=True)
        start = {
            "schema": CAMPAIGN_SCHEMA, "benchmark": "ic", "edition": "v3.0", "recipe_hash": "0", "data": "/data",
            "trials": [{"trial": 1, "seed": ensemble.seed(self.member)}], "version": "0", "code_sha256": "0",
            "ensemble": plan or {"id": ensemble.identity, "member": self.member},
        }  # fmt: skip
        number = {"trial": 1, "attempt": self.attempts}
        attempt = {**number, "record": name, "command": ["hpcai500"], "launcher": "slurm", "slurm_job_id": "7"}
        first = [("campaign_start", start)] if self.attempts == 1 else []
        self.journal.add(now_s, *first, ("attempt_start", attempt))
        progress = None if self.is_old else Progress(owner=self.owner)
        self.events = MadeLog(self.record / "events.jsonl", progress)
        campaign = {"id": self.journal.first, **number, "head": self.journal.previous}
        init = {"benchmark": "ic", "edition": "v3.0", "recipe_hash": "0", "version": "0", "process": 4711}
        self.events.add(
            now_s,
            ("init_start", {**init, "boot_id": "another machine", "campaign": campaign}),
            ("model", {"parameters": 1, "steps_per_epoch": STEPS}),
            ("run_start", {"world_size": 1, "nodes": 1, "hosts": [host]}),
            ("epoch_start", {"epoch": 1, "step": 0}),
        )

    def finish_epoch(self, now_s: float, seconds: float = 10.0, quality: float = 0.5) -> None:
        """The end of an epoch, its evaluation and its checkpoint, and the next epoch's beginning."""
        place = {"epoch": self.epoch}
        done = {
            **place, "steps": STEPS, "samples": SAMPLES, "padded_samples": 0, "loss": 1.0, "seconds": seconds,
            "data_wait_seconds": 0.0, "coverage": "0",
        }  # fmt: skip
        found = {**place, "metric": "top1", "value": quality, "samples": 10, "seconds": 0.1}
        self.epoch += 1
        saved = {"epoch": self.epoch, "step": 0, "file": "epoch.pt", "sha256": "0"}
        self.events.add(
            now_s, ("epoch_stop", done), ("eval_start", place), ("eval_accuracy", found), ("eval_stop", place),
            ("checkpoint", saved),
        )  # fmt: skip
        if self.epoch <= self.ensemble.tables["problem"]["epochs"]:
            self.events.add(now_s, ("epoch_start", {"epoch": self.epoch, "step": 0}))

    def end(self, now_s: float, status: str = "done", reason: str | None = None) -> None:
        """The end of the attempt, in record and journal."""
        told = ("run_stop", {"status": "success"}) if status == "done" else ("run_error", {"reason": reason})
        self.events.add(now_s, told)
        self.stop(now_s, status, reason)

    def stop(self, now_s: float, status: str, reason: str | None = None) -> None:
        """The end of the attempt in the journal alone."""
        told = {"trial": 1, "attempt": self.attempts, "status": status, "exit_code": 0, "reason": reason}
        self.journal.add(now_s, ("attempt_stop", {**told, "head": self.events.previous}))


class MadeCluster:
    """A fake scheduler with a clock of its own: members run `at_once`, and write as they go on.

    Args:
        ensemble: planned; all its members are submitted here.
        at_once: that run side by side.
        epoch_seconds: of member 0; others take up to half as much again.
        failing: members that fail in their second epoch.
        submit: writes down that all members were submitted.
    """

    name = "slurm"

    def __init__(
        self,
        ensemble: Ensemble,
        at_once: int,
        epoch_seconds: float = 60.0,
        failing: Sequence[int] = (),
        submit: Callable[[Ensemble, int], Ensemble] | None = None,
    ) -> None:
        members = list(ensemble.members)
        self.ensemble = (submit or submit_all)(ensemble, at_once)
        self.now_s = START_S
        self.members = [MadeMember(ensemble, member) for member in members]
        self.states: dict[int, str] = dict.fromkeys(members, "waiting")
        self._at_once, self._epoch_seconds, self._failing = at_once, epoch_seconds, set(failing)
        self._waiting, self._due = members[::-1], dict[int, float]()
        self.questions = 0
        self._fill()

    def clock(self) -> float:
        """UNIX seconds, made up."""
        return self.now_s

    def pace(self, member: int) -> float:
        """Seconds of an epoch of a member."""
        return self._epoch_seconds * (1 + (member * 7 % 11) / 20)

    def advance(self, seconds: float) -> None:
        """Let time go by, and the members write what they would have written."""
        self.now_s += seconds
        for member, due in list(self._due.items()):
            if due <= self.now_s:
                self._finish_epoch(member)
        self._fill()

    def finish(self, member: int) -> None:
        """Let a member that runs be done now."""
        self.members[member].end(self.now_s)
        self._stop(member, "ended")

    def silence(self, member: int) -> None:
        """Let a member run on, as far as its scheduler knows, and say nothing more."""
        self._due[member] = math.inf

    def jobs(self, ensemble: Ensemble) -> dict[int, MemberJob]:
        """How all stand: one question."""
        self.questions += 1
        return {
            member: MemberJob(member, state, f"7_{member}", () if state == "waiting" else (f"n{member % 1250}",))  # type: ignore[arg-type]
            for member, state in self.states.items()
        }

    def _fill(self) -> None:
        while self._waiting and len(self._due) < self._at_once:
            member = self._waiting.pop()
            self.states[member] = "running"
            self._due[member] = self.now_s + self.pace(member)
            self.members[member].begin(self.now_s, f"n{member % 1250}")

    def _finish_epoch(self, member: int) -> None:
        one, pace = self.members[member], self.pace(member)
        self._due[member] = self.now_s + pace
        if member in self._failing and one.epoch == 2:
            one.end(self.now_s, "failed", "node lost")
            self._stop(member, "failed")
            return
        one.finish_epoch(self.now_s, pace * 0.9)
        if one.epoch > self.ensemble.tables["problem"]["epochs"]:
            one.end(self.now_s)
            self._stop(member, "ended")

    def _stop(self, member: int, state: str) -> None:
        self.states[member] = state
        del self._due[member]
