"""Ensembles on a site's Slurm: planned, submitted, and what became of them."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builders.runs import TINY
from hosts import ROUTER
from slurm import Slurm

from hpcai500.ensemble.journal import Ensemble, read_ensemble
from hpcai500.ensemble.scheduler import MemberJob

HPCAI500 = Path(sys.executable).with_name("hpcai500")
SITE = """
[slurm]
time_limit = "10:00"
warning_seconds = 60
exclusive = false
[launcher]
interface = "eth0"
[container]
command = "none"
[environment]
OMP_NUM_THREADS = "1"
"""

_JOBS = """
import dataclasses, json, sys
from pathlib import Path
from hpcai500.ensemble.journal import read_ensemble
from hpcai500.ensemble.slurm import SlurmScheduler
from hpcai500.launch.slurm.site import Site
jobs = SlurmScheduler(Site()).jobs(read_ensemble(Path(sys.argv[1])))
print(json.dumps([dataclasses.asdict(job) for job in jobs.values()]))
"""


@dataclass(frozen=True)
class OnSlurm:
    """An ensemble in `folder`; `hpcai500` of `programs` is on PATH where it is submitted."""

    slurm: Slurm
    folder: Path
    programs: Path = HPCAI500.parent

    @property
    def ensemble(self) -> Ensemble:
        """As it is now."""
        return read_ensemble(self.folder)

    def call(self, *words: str | Path, programs: Path | None = None) -> tuple[str, int]:
        """Output and exit code of `hpcai500 ensemble WORDS` on the host where people log in."""
        path = f"{programs or self.programs}:{os.environ['PATH']}"
        environment = {**self.slurm.environment, "PATH": path}
        return self.slurm.site.attempt(ROUTER, [HPCAI500, "ensemble", *words], environment=environment)

    def submit(self, *words: str, site: str = SITE) -> tuple[str, str]:
        """Submit it; returns the numbers of the array and of the job that collects."""
        file = self.folder.with_suffix(".site.toml")
        file.write_text(site)
        output, code = self.call("submit", self.folder, "--site", file, *words)
        assert code == 0, output
        found = re.search(r"as job (\d+); job (\d+) collects", output)
        assert found, output
        return found[1], found[2]

    def said(self, member: int) -> str:
        """What a member and its job printed."""
        path = self.ensemble.folder(member) / "output.txt"
        return path.read_text() if path.exists() else ""

    @property
    def collected(self) -> str:
        """What the jobs that collect printed."""
        return "".join(file.read_text() for file in sorted((self.folder / "slurm").glob("collect-*.out")))

    @property
    def everything(self) -> str:
        """For messages of tests."""
        said = [f"member {member}:\n{self.said(member)[-3000:]}" for member in self.ensemble.members]
        return "\n".join([self.collected, *said])

    def history(self, member: int, *keys: str) -> list[str]:
        """Those of the events of a member's records, in order."""
        events = [event for log in self.logs(member) for event in map(json.loads, log.read_text().splitlines())]
        return [event["key"] for event in events if event["key"] in keys]

    def logs(self, member: int) -> list[Path]:
        """Logs of all records of a member."""
        return sorted(self.ensemble.folder(member).glob("trial-*/events.jsonl"))

    def failures(self, member: int) -> list[tuple[str, int]]:
        """Host and exit code of each failure of its own."""
        path = self.ensemble.folder(member) / "failures.jsonl"
        rows = map(json.loads, path.read_text().splitlines() if path.exists() else [])
        return [(row["host"], row["exit_code"]) for row in rows]

    def jobs(self, *, from_accounts: bool = False) -> Sequence[MemberJob]:
        """How its members stand, as the scheduler of the package reads it on the host where people log in.

        Args:
            from_accounts: as if the queue had forgotten the jobs, as it does minutes after their end.
        """
        command: list[str | Path] = [sys.executable, "-c", _JOBS, self.folder]
        variables = dict(self.slurm.environment)
        if from_accounts:
            variables["PATH"] = f"{_forgetful(self.folder.with_suffix('.forgetful'))}:{os.environ['PATH']}"
        rows = json.loads(self.slurm.site.run(ROUTER, command, environment=variables))
        return [MemberJob(**{**row, "hosts": tuple(row["hosts"])}) for row in rows]

    def wait_until_they_train(self, members: Sequence[int], timeout: float = 90) -> None:
        """Wait for a checkpoint of each of `members`."""
        limit = time.monotonic() + timeout
        while not all(list(self.ensemble.folder(member).glob("trial-*/checkpoints/epoch-*.pt")) for member in members):
            assert time.monotonic() < limit, self.everything
            time.sleep(0.1)

    def wait(self, job: str, timeout: float = 150) -> str:
        """Wait for the end of a job; returns its state."""
        limit = time.monotonic() + timeout
        while True:
            states = self.slurm.states(job)
            if states and not states & {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED"}:
                return ",".join(sorted(states))
            if time.monotonic() > limit:
                self.slurm.call("scancel", job)
                raise AssertionError(f"{job}: {states}\n{self.everything}")
            time.sleep(0.2)


def _forgetful(programs: Path) -> Path:
    """A folder with a stand-in for squeue that answers as the real one does for jobs that it has forgotten."""
    programs.mkdir(exist_ok=True)
    (programs / "squeue").write_text('#!/bin/sh\necho "slurm_load_jobs error: Invalid job id specified" >&2\nexit 1\n')
    (programs / "squeue").chmod(0o755)
    return programs


def planned(slurm: Slurm, images: Path, folder: Path, members: int, *settings: str, degree: int = 1) -> OnSlurm:
    """An ensemble of tiny members that train on `images`."""
    changes = [word for text in (*TINY, "accelerator.device=cpu", *settings) for word in ("--set", text)]
    shape = ["--members", str(members), "--degree", str(degree), "--node-accelerators", "1"]
    on = OnSlurm(slurm, folder)
    output, code = on.call("plan", folder, "--recipe", "ic/smoke", *shape, "--data", images, *changes)
    assert code == 0, output
    return on
