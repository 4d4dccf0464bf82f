"""Slurm as the scheduler of an ensemble: submits its scripts, reads squeue and sacct, ends jobs with checkpoints."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hpcai500.ensemble.reading import Ensemble, read_ensemble
from hpcai500.ensemble.scheduler import MemberJob
from hpcai500.ensemble.slurm_commands import call, has
from hpcai500.ensemble.slurm_jobs import job_names, submissions
from hpcai500.ensemble.slurm_queue import (
    ACCOUNT_FORMAT,
    QUEUE_FORMAT,
    Element,
    by_element,
    read_accounts,
    read_queue,
)
from hpcai500.ensemble.slurm_submission import submission_of, write_submission
from hpcai500.errors import EnvironmentLacksError, RunError, error_kind
from hpcai500.launch.site import Site
from hpcai500.streams import say
from hpcai500.system.container import find_container

_BASH = "/bin/bash"
_POLL_SECONDS = 0.5
# Clocks of the host of the journal and of Slurm's accounting differ by less.
_CLOCKS = timedelta(hours=1)
# So that members with a short warning have time for a checkpoint.
_LEAST_PATIENCE_SECONDS = 60.0

Elements = Mapping[tuple[str, int | None], Element]


class SlurmScheduler:
    """Runs members as elements of job arrays.

    Args:
        site: what is asked of Slurm.
        environment: of this process.
        on_change: is told what happens meanwhile.
    """

    name = "slurm"

    def __init__(
        self, site: Site, environment: Mapping[str, str] | None = None, on_change: Callable[[str], None] = say
    ) -> None:
        self._site, self._say = site, on_change
        self._environment = os.environ if environment is None else environment
        self._has_accounts = True

    @property
    def can_submit(self) -> bool:
        """Whether jobs can be submitted from here: Slurm's commands are on the host, not in an image."""
        return find_container(self._environment) is None and has(self._environment, "sbatch")

    def submit(
        self, ensemble: Ensemble, members: Sequence[int], *, at_once: int | None = None, exclude: Sequence[str] = ()
    ) -> Sequence[str]:
        """Have `members` run; see `Scheduler.submit`. The journal names the jobs: the last one collects."""
        submission = submission_of(
            ensemble, self._site, members, at_once=at_once, exclude=exclude, environment=self._environment
        )
        return self.queue(ensemble, write_submission(submission))

    def queue(self, ensemble: Ensemble, script: Path) -> Sequence[str]:
        """Run a script that submits; returns the numbers of the arrays and of the job that collects.

        Raises:
            EnvironmentLacksError: there is no Slurm here.
            RunError: it refuses; nothing is left in the queue.
        """
        if not self.can_submit:
            raise EnvironmentLacksError(f"no sbatch here: type this on the host: bash {script}")
        before = len(submissions(ensemble))
        try:
            # Its stdout goes to stderr, because ours carries the result alone.
            ended = subprocess.run(
                [_BASH, script], stdin=subprocess.DEVNULL, stdout=sys.stderr, env=self._environment, check=False
            )
        except OSError as error:
            raise EnvironmentLacksError(f"{_BASH} cannot be started: {error.strerror}") from error
        if ended.returncode != 0:
            raise error_kind(ended.returncode)(f"{script}: nothing was submitted (see above)")
        told = submissions(read_ensemble(ensemble.path))[before:]
        return [] if not told else [*told[-1].arrays.values(), told[-1].collector]

    def jobs(self, ensemble: Ensemble) -> Mapping[int, MemberJob]:
        """How all members stand; see `Scheduler.jobs`. One call of squeue, and one of sacct where that leaves gaps."""
        # A member that was submitted more than once is where it was submitted last.
        last = {member: one for one in submissions(ensemble) for member in one.members}
        names = {member: one.element(member) for member, one in last.items()}
        arrays = list(dict.fromkeys(array for array, _ in names.values()))
        if not arrays:
            return {}
        queue = self._queue(ensemble, arrays, "--states=all")
        accounts = self._accounts(ensemble, arrays) if set(names.values()) - queue.keys() else {}
        jobs = {member: _member_job(member, names[member], queue, accounts) for member in sorted(names)}
        return {member: _as_cancelled(job) if last[member].is_cancelled else job for member, job in jobs.items()}

    def in_queue(self, ensemble: Ensemble) -> Sequence[str]:
        """Numbers of arrays of which something runs or waits, and of jobs that collect.

        Raises:
            EnvironmentLacksError: there is no such scheduler here.
            RunError: it does not answer.
        """
        return list(dict.fromkeys(element.job for element in self._left(ensemble).values()))

    def cancel(self, ensemble: Ensemble) -> Sequence[str]:
        """End all; see `Scheduler.cancel`. Returns when nothing is left in the queue.

        Who still runs after the time that the site's warning gives for a checkpoint is killed.
        """
        collectors = {one.collector for one in submissions(ensemble)}
        left = self._left(ensemble)
        ended = dict.fromkeys(map(_name, left.values()))
        asked: set[str] = set()
        limit = time.monotonic() + max(_LEAST_PATIENCE_SECONDS, self._site.slurm.warning_seconds)
        while left and time.monotonic() < limit:
            asked |= self._ask_to_end(left, collectors, asked)
            time.sleep(_POLL_SECONDS)
            left = self._left(ensemble)
            ended |= dict.fromkeys(map(_name, left.values()))
        if left:
            self._say(f"{len(left)} jobs have not stopped in time, and are killed: {_some(map(_name, left.values()))}")
            call(self._environment, "scancel", *map(_name, left.values()))
        return list(ended)

    def _ask_to_end(self, left: Elements, collectors: set[str], asked: set[str]) -> set[str]:
        """Take out of the queue what waits, and ask what runs to stop with a checkpoint; returns who was asked."""
        collecting = [name for name in map(_name, left.values()) if name in collectors]
        waiting = sorted({element.job for element in left.values() if element.state == "waiting"} - collectors)
        running = [
            _name(element)
            for element in left.values()
            # What is completing ends by itself.
            if element.word in ("RUNNING", "SUSPENDED") and element.job not in collectors
        ]
        new = [name for name in running if name not in asked]
        if collecting:
            call(self._environment, "scancel", *collecting)
        if waiting:
            call(self._environment, "scancel", "--state=PENDING", *waiting)
        if new:
            self._say(f"{len(new)} members are asked to stop with a checkpoint: {_some(new)}")
            try:
                # To the script alone, which tells the ranks: what Slurm sends to all processes kills them first.
                call(self._environment, "scancel", "--signal=TERM", "--batch", *new)
            except RunError:
                # Some have ended meanwhile; the others are asked again.
                return set()
        return set(new)

    def _left(self, ensemble: Ensemble) -> Elements:
        numbers = _numbers(ensemble)
        return self._queue(ensemble, numbers) if numbers else {}

    def _queue(self, ensemble: Ensemble, numbers: Sequence[str], *words: str) -> Elements:
        ours = [f"--jobs={','.join(numbers)}", f"--name={_names(ensemble)}"]
        command = ["--noheader", *ours, f"--Format={QUEUE_FORMAT}", *words]
        try:
            return by_element(read_queue(call(self._environment, "squeue", *command)))
        except RunError as error:
            # Jobs that ended minutes ago.
            if "Invalid job id" in str(error):
                return {}
            raise

    def _accounts(self, ensemble: Ensemble, numbers: Sequence[str]) -> Elements:
        if not self._has_accounts:
            return {}
        # Numbers of jobs come again when a cluster is set up anew.
        first_s = next(event["time_ms"] for event in ensemble.events if event["key"] == "submit") / 1000
        start = (datetime.fromtimestamp(first_s, UTC) - _CLOCKS).strftime("%Y-%m-%dT%H:%M:%S")
        command = ["--allocations", "--duplicates", "--noheader", "--parsable2", f"--format={ACCOUNT_FORMAT}"]
        try:
            text = call(
                {**self._environment, "TZ": "UTC"},
                "sacct",
                *command,
                f"--jobs={','.join(numbers)}",
                f"--name={_names(ensemble)}",
                f"--starttime={start}",
            )
        except (RunError, EnvironmentLacksError) as error:
            self._has_accounts = False
            self._say(f"accounting does not answer, so that squeue and the records alone tell: {error}")
            return {}
        return by_element(read_accounts(text))


def _names(ensemble: Ensemble) -> str:
    return ",".join(job_names(ensemble.start["benchmark"], ensemble.identity))


def _numbers(ensemble: Ensemble) -> list[str]:
    """Of all jobs that were ever submitted."""
    return [number for one in submissions(ensemble) for number in (*one.arrays.values(), one.collector)]


def _member_job(member: int, name: tuple[str, int], queue: Elements, accounts: Elements) -> MemberJob:
    array, task = name
    # What an array had left when it was cancelled may be told as one, without numbers.
    element = queue.get(name) or accounts.get(name) or queue.get((array, None)) or accounts.get((array, None))
    if element is None:
        return MemberJob(member, "unknown", f"{array}_{task}")
    why = element.reason if element.state != "failed" else f"{element.word} {element.reason}".strip()
    return MemberJob(member, element.state, f"{array}_{task}", element.hosts, element.restarts, why)


def _as_cancelled(job: MemberJob) -> MemberJob:
    """What was asked to stop with a checkpoint ends with an exit code, which Slurm takes for a failure."""
    return replace(job, state="cancelled", reason="") if job.state == "failed" else job


def _name(element: Element) -> str:
    return element.job if element.task is None else f"{element.job}_{element.task}"


def _some(names: Sequence[str] | map[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:8]) + (" …" if len(listed) > 8 else "")
