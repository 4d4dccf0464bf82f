"""Slurm as the scheduler of an ensemble: members run as elements of job arrays, and a job after them collects.

Before anything is queued, plan, site and recipe are checked against each other. The job that collects submits missing
members again, once. Jobs that are cancelled stop with checkpoints.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import tomli_w

from hpcai500.ensemble.journal import Ensemble, parse_members, read_ensemble
from hpcai500.ensemble.local import MOST_FAILURES, is_done
from hpcai500.ensemble.members import Failure, read_failures
from hpcai500.ensemble.scheduler import MemberJob
from hpcai500.ensemble.slurm_scripts import (
    FOLDER,
    MEMBER,
    MOST_NODES,
    MOST_ON_A_HOST,
    OF_THE_NODE,
    SITE,
    SUBMIT,
    Submission,
    first_members,
    first_of,
    job_names,
    scripts,
)
from hpcai500.errors import DataError, EnvironmentLacksError, ExitCode, RecordError, RunError, UsageError, error_kind
from hpcai500.files import write_atomically
from hpcai500.hosts import expand_hosts
from hpcai500.launch.slurm.queue import Element, Elements, accounted, call, has, queued
from hpcai500.launch.slurm.script import check_site, with_image
from hpcai500.launch.slurm.site import NO_CONTAINER, Site, load_site
from hpcai500.record import iterate, read_record
from hpcai500.streams import say
from hpcai500.system.container import find_container

# ----------------------------------------------------------------------------------------------------
# What was submitted, from the ensemble's journal.


@dataclass(frozen=True)
class Submitted:
    """What one `submit` put into the queue.

    Attributes:
        arrays: number of each array, by the member whose element number is, or would be, 0.
        at_once: most members that run at the same time.
        exclude: hosts that must not be used.
        after: the collecting job that submitted it; None: the user did.
    """

    arrays: Mapping[int, str]
    collector: str
    members: tuple[int, ...]
    at_once: int | None
    exclude: tuple[str, ...]
    after: str | None
    is_cancelled: bool

    def element(self, member: int) -> tuple[str, int]:
        """Number of a member's array, and of its element in it."""
        first = first_of(member)
        return self.arrays[first], member - first


def submissions(ensemble: Ensemble) -> list[Submitted]:
    """All that was ever submitted to Slurm, in order.

    Raises:
        RecordError: an event is malformed.
    """
    cancels = [event["seq"] for event in ensemble.events if event["key"] == "cancel"]
    submits = [
        event for event in ensemble.events if event["key"] == "submit" and event["value"]["scheduler"] == "slurm"
    ]
    try:
        return [_submitted(event["value"], event["seq"] < max(cancels, default=-1)) for event in submits]
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{ensemble.path}: an event submit is malformed: {error}") from error


def _submitted(value: Mapping[str, Any], is_cancelled: bool) -> Submitted:
    *arrays, collector = map(str, value["jobs"])
    members = tuple(map(int, value["members"]))
    return Submitted(
        arrays=dict(zip(first_members(members), arrays, strict=True)),
        collector=collector,
        members=members,
        at_once=value["at_once"],
        exclude=tuple(map(str, value["exclude"])),
        after=value.get("after"),
        is_cancelled=is_cancelled,
    )


# ----------------------------------------------------------------------------------------------------
# What the collecting job needs to know: which missing members may be run again, and which hosts to avoid.


@dataclass(frozen=True)
class Again:
    """What is left to do after all elements have ended; at most `at_once` members run at the same time, as before."""

    members: Sequence[int] = ()
    at_once: int | None = None
    exclude: Sequence[str] = ()


def again_after(ensemble: Ensemble, collector: str) -> Again:
    """What may be run again after the job `collector`: once, and only if it belongs to the last submission.

    Raises:
        RecordError: a member's files cannot be read.
    """
    submitted = submissions(ensemble)
    if not submitted:
        return Again()
    last = submitted[-1]
    if last.is_cancelled or last.collector != collector or last.after:
        return Again()
    failed = {member: failures(ensemble.folder(member), last.arrays.values()) for member in last.members}
    missing = [member for member in last.members if not is_done(ensemble, member) and not _is_given_up(failed[member])]
    if not missing:
        return Again()
    bad = _bad_hosts(ensemble, [failure for member in last.members for failure in failed[member]])
    return Again(missing, last.at_once, list(dict.fromkeys([*last.exclude, *bad])))


def failures(folder: Path, jobs: Iterable[str]) -> list[Failure]:
    """The failures noted in a member's folder by one of `jobs`.

    Raises:
        RecordError: they cannot be read.
    """
    names = set(jobs)
    found, problem = read_failures(folder)
    if problem:
        raise RecordError(problem)
    return [failure for failure in found if failure.job in names]


def _is_given_up(failed: Sequence[Failure]) -> bool:
    codes = [failure.exit_code for failure in failed]
    of_nodes = sum(code in OF_THE_NODE for code in codes)
    return ExitCode.WRONG_ANSWER in codes or len(codes) >= MOST_FAILURES or of_nodes >= MOST_NODES


def _bad_hosts(ensemble: Ensemble, failed: Sequence[Failure]) -> list[str]:
    """Hosts where members have failed too often, if enough other hosts are known to run a member."""
    counts = Counter(host for failure in failed for host in failure.host.split(","))
    bad = sorted(host for host, count in counts.items() if count >= MOST_ON_A_HOST)
    if not bad:
        return []
    known = set(counts) | {host for member in ensemble.members for host in _hosts_of_done(ensemble, member)}
    return bad if len(known - set(bad)) >= ensemble.shape.nodes_a_member else []


def _hosts_of_done(ensemble: Ensemble, member: int) -> Sequence[str]:
    campaign = ensemble.campaign(member)
    if campaign is None or not campaign.done():
        return ()
    events = read_record(campaign.record(campaign.done()[0])).events
    return [str(host) for event in iterate(events, "run_start") for host in event["value"].get("hosts", ())]


# ----------------------------------------------------------------------------------------------------
# From a request to the scripts of an ensemble.


@dataclass(frozen=True)
class SubmitRequest:
    """What the user asked for.

    Attributes:
        site: name or file; None: that of the last submission of this ensemble, or the defaults.
        members: as in `0-3,7`; None: all that are not done.
        at_once: most members that run at the same time.
        exclude: hosts that must not be used, in Slurm's notation.
        after: the collecting job that asks which members may be run again.
    """

    environment: Mapping[str, str]
    site: str | None = None
    members: str | None = None
    at_once: int | None = None
    exclude: str | None = None
    after: str | None = None
    rendered_by: Sequence[str] = ()


def plan_submission(ensemble: Ensemble, request: SubmitRequest) -> Submission | None:
    """The submission of `request`; None if nothing is left to do.

    Raises:
        UsageError: site, plan, image or data cannot be used, or do not fit together.
    """
    before = ensemble.path / FOLDER / SITE
    named = request.site or (str(before) if before.is_file() else None)
    site = with_image(load_site(named) if named else Site(), named, request.environment)
    if request.after:
        again = again_after(ensemble, request.after)
        members, at_once, exclude, earlier = again.members, again.at_once, again.exclude, []
    else:
        chosen = parse_members(request.members, ensemble) if request.members else ensemble.members
        members = sorted(member for member in chosen if not is_done(ensemble, member))
        at_once, exclude = request.at_once, expand_hosts(request.exclude) if request.exclude else []
        earlier = [one for one in submissions(ensemble) if not set(members).isdisjoint(one.members)]
    if not members:
        return None
    _check(ensemble, site, request)
    return Submission(
        ensemble,
        site,
        members,
        at_once=at_once,
        exclude=exclude,
        after=request.after,
        in_queue=[array for one in earlier for array in one.arrays.values()],
        submits_inside=find_container(request.environment) is not None,
        rendered_by=request.rendered_by,
    )


def last_site(ensemble: Ensemble) -> Site:
    """The site of the last submission; the defaults if its file is missing.

    Raises:
        UsageError: its file cannot be used.
    """
    before = ensemble.path / FOLDER / SITE
    return load_site(str(before)) if before.is_file() else Site()


def warnings_of(submission: Submission) -> list[str]:
    """What may disturb the measurement, but may be intended by the user."""
    slurm, shape = submission.site.slurm, submission.ensemble.shape
    if slurm.exclusive or shape.members_a_node > 1 or len(submission.members) < 2 or submission.at_once == 1:
        return []
    return [
        "exclusive = false under [slurm] of the site: a member takes whole nodes, but Slurm may put two members, or "
        "jobs of others, on one node, where they slow each other down; exclusive = true gives each its own nodes"
    ]


def write_submission(submission: Submission) -> Path:
    """Replace earlier scripts by those of `submission`; return the one to call on the host.

    Raises:
        RecordError: the folder cannot be written.
        UsageError: a path cannot be bound into a container.
    """
    folder = submission.folder / FOLDER
    files = scripts(submission)
    try:
        folder.mkdir(exist_ok=True)
        for old in [*folder.glob(MEMBER.replace(".", "*.")), folder / SUBMIT]:
            old.unlink(missing_ok=True)
        site = submission.site.model_dump(mode="json")
        write_atomically(folder / SITE, tomli_w.dumps(site).encode())
        for name, text in files.items():
            write_atomically(folder / name, text.encode())
    except OSError as error:
        raise RecordError(f"{folder}: cannot be written: {error.strerror}; fix that, then submit again") from error
    return folder / SUBMIT


def _check(ensemble: Ensemble, site: Site, request: SubmitRequest) -> None:
    """Refuse now what would fail on all nodes after hours in the queue."""
    shape, node = ensemble.shape, site.node
    if node.tasks != shape.per_node:
        raise UsageError(
            f"the plan has nodes of {shape.per_node} accelerators, the site nodes of {node.tasks} ([node] tasks): set "
            f"tasks = {shape.per_node} in the site file, or plan with --node-accelerators {node.tasks}"
        )
    if node.gpus % node.tasks:
        raise UsageError(f"[node] gpus is {node.gpus}, no multiple of tasks, {node.tasks}: give each task equally many")
    if node.gpus and shape.members_a_node > 1 and node.gpu_request == "none":
        raise UsageError(
            'members that share a node must request their GPUs: set gpu_request = "gres" or "gpus-per-node" under '
            "[node] of the site file, or plan members of whole nodes (--degree)"
        )
    check_site(site, ensemble.recipe())
    if find_container(request.environment) is not None:
        # Inside an image, a path that is not bound here may exist on the host: the scripts check it there.
        return
    if site.container.command != NO_CONTAINER and not Path(site.container.image).exists():
        raise UsageError(f"[container] image: {site.container.image}: no such image; build it, or fix the site file")
    if not ensemble.data.is_dir():
        raise DataError(f"{ensemble.data}: the plan's data is not there: mount it, or plan again with --data DIR")


# ----------------------------------------------------------------------------------------------------
# The scheduler itself.


_BASH = "/bin/bash"
_POLL_SECONDS = 0.5
# Most that the clocks of the journal's host and of Slurm's accounting may differ.
_CLOCKS = timedelta(hours=1)
# Minimum time that members get for a checkpoint, however short the site's warning is.
_LEAST_PATIENCE_SECONDS = 60.0


class SlurmScheduler:
    """Runs members as elements of job arrays; `on_change` gets progress messages."""

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

    def queue(self, ensemble: Ensemble, script: Path) -> Sequence[str]:
        """Run a script that submits; return the numbers of the arrays and of the job that collects.

        Raises:
            EnvironmentLacksError: there is no Slurm here.
            HpcAi500Error: the script failed, by its exit code; nothing is left in the queue.
        """
        if not self.can_submit:
            raise EnvironmentLacksError(f"no sbatch here: run this on the host: bash {script}")
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
        new = submissions(read_ensemble(ensemble.path))[before:]
        return [] if not new else [*new[-1].arrays.values(), new[-1].collector]

    def jobs(self, ensemble: Ensemble) -> Mapping[int, MemberJob]:
        """As `Scheduler.jobs`: one call of squeue, and one of sacct for members that it does not list."""
        # Only a member's last submission counts.
        last = {member: one for one in submissions(ensemble) for member in one.members}
        names = {member: one.element(member) for member, one in last.items()}
        arrays = list(dict.fromkeys(array for array, _ in names.values()))
        if not arrays:
            return {}
        queue = queued(self._environment, arrays, job_names(ensemble), "--states=all")
        accounts = self._accounts(ensemble, arrays) if set(names.values()) - queue.keys() else {}
        jobs = {member: _member_job(member, names[member], queue, accounts) for member in sorted(names)}
        return {
            # A member that stops with a checkpoint ends with an exit code, which Slurm takes for a failure.
            member: replace(job, state="cancelled", reason="")
            if job.state == "failed" and last[member].is_cancelled
            else job
            for member, job in jobs.items()
        }

    def in_queue(self, ensemble: Ensemble) -> Sequence[str]:
        """Numbers of the arrays that still have elements in the queue, and of the jobs that collect.

        Raises:
            EnvironmentLacksError: there is no Slurm here.
            RunError: it does not answer.
        """
        return list(dict.fromkeys(element.job for element in self._left(ensemble)))

    def cancel(self, ensemble: Ensemble) -> Sequence[str]:
        """End all jobs, running members with a checkpoint; return their names when nothing is left in the queue.

        Jobs that still run after the site's warning time are killed.

        Raises:
            EnvironmentLacksError: there is no Slurm here.
            RunError: it does not answer, or refuses.
        """
        collectors = {one.collector for one in submissions(ensemble)}
        left = self._left(ensemble)
        ended = dict.fromkeys(element.name for element in left)
        asked: set[str] = set()
        limit = time.monotonic() + max(_LEAST_PATIENCE_SECONDS, self._site.slurm.warning_seconds)
        while left and time.monotonic() < limit:
            asked.update(self._ask_to_end(left, collectors, asked))
            time.sleep(_POLL_SECONDS)
            left = self._left(ensemble)
            ended |= dict.fromkeys(element.name for element in left)
        if left:
            names = [element.name for element in left]
            self._say(f"{len(names)} jobs did not stop in time and are killed: {_some(names)}")
            call(self._environment, "scancel", *names)
        return list(ended)

    def _ask_to_end(self, left: Sequence[Element], collectors: set[str], asked: set[str]) -> Sequence[str]:
        """Cancel waiting jobs, and ask running ones to stop with a checkpoint; return the names of those asked now."""
        collecting = [element.name for element in left if element.job in collectors]
        members = [element for element in left if element.job not in collectors]
        waiting = sorted({element.job for element in members if element.state == "waiting"})
        # A job that is completing ends by itself.
        running = [element.name for element in members if element.word in ("RUNNING", "SUSPENDED")]
        new = [name for name in running if name not in asked]
        if collecting:
            call(self._environment, "scancel", *collecting)
        if waiting:
            call(self._environment, "scancel", "--state=PENDING", *waiting)
        if new:
            self._say(f"{len(new)} members are asked to stop with a checkpoint: {_some(new)}")
            try:
                # Only to the batch script, which passes it on to the ranks: a signal from Slurm to all processes would
                # kill them first.
                call(self._environment, "scancel", "--signal=TERM", "--batch", *new)
            except RunError:
                # Some have ended meanwhile; the others are asked again.
                return []
        return new

    def _left(self, ensemble: Ensemble) -> Sequence[Element]:
        """All jobs of this ensemble that are still in the queue."""
        jobs = [job for one in submissions(ensemble) for job in (*one.arrays.values(), one.collector)]
        return list(queued(self._environment, jobs, job_names(ensemble)).values()) if jobs else []

    def _accounts(self, ensemble: Ensemble, arrays: Sequence[str]) -> Elements:
        if not self._has_accounts:
            return {}
        # A newly installed cluster numbers its jobs from the start, so older jobs are left out.
        first_s = next(event["time_ms"] for event in ensemble.events if event["key"] == "submit") / 1000
        since = datetime.fromtimestamp(first_s, UTC) - _CLOCKS
        try:
            return accounted(self._environment, arrays, job_names(ensemble), since)
        except (RunError, EnvironmentLacksError) as error:
            self._has_accounts = False
            self._say(f"accounting does not answer, so the state comes from squeue and the records only: {error}")
            return {}


def _member_job(member: int, name: tuple[str, int], queue: Elements, accounts: Elements) -> MemberJob:
    array, task = name
    # The rest of a cancelled array may be listed as one entry, without numbers.
    element = queue.get(name) or accounts.get(name) or queue.get((array, None)) or accounts.get((array, None))
    if element is None:
        return MemberJob(member, "unknown", f"{array}_{task}")
    why = element.reason if element.state != "failed" else f"{element.word} {element.reason}".strip()
    return MemberJob(member, element.state, f"{array}_{task}", element.hosts, element.restarts, why)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
