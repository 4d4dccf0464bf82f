"""Slurm as the scheduler of an ensemble: submits its scripts, reads squeue and sacct, ends jobs with checkpoints.

Before anything is queued, plan, site and recipe are checked against each other. Members run as elements of job arrays;
a job behind the arrays collects, and may have missing members run again, once.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import tomli_w

from hpcai500.ensemble.journal import Ensemble, parse_members, read_ensemble
from hpcai500.ensemble.local import MOST_FAILURES, is_done
from hpcai500.ensemble.members import Failure, read_failures
from hpcai500.ensemble.scheduler import MemberJob, State
from hpcai500.ensemble.slurm_scripts import (
    FOLDER,
    MEMBER,
    MOST_NODES,
    MOST_ON_A_HOST,
    OF_THE_NODE,
    SITE,
    SUBMIT,
    Submission,
    job_names,
    scripts,
    standing,
    submissions,
)
from hpcai500.errors import DataError, EnvironmentLacksError, ExitCode, RecordError, RunError, UsageError, error_kind
from hpcai500.files import write_atomically
from hpcai500.hosts import expand_hosts
from hpcai500.launch.site import NO_CONTAINER, Site, load_site
from hpcai500.launch.slurm import check_site, with_image
from hpcai500.record import iterate, read_record
from hpcai500.streams import say
from hpcai500.system.container import find_container

# ----------------------------------------------------------------------------------------------------
# Slurm's commands: called with a bound on their time; what they print on stderr goes into our errors.


_PATIENCE_SECONDS = 120.0
# Prefixes of a user's own settings, which could filter the answers; and no bound on how many array elements are listed.
_FILTERS = ("SQUEUE_", "SACCT_")
_ALL_NUMBERS = {"SLURM_BITSTR_LEN": "0", "LC_ALL": "C"}


def call(environment: Mapping[str, str], program: str, *words: str) -> str:
    """What `program` printed on stdout.

    Raises:
        EnvironmentLacksError: there is no such program here.
        RunError: it failed, with its own words, or does not answer.
    """
    path = shutil.which(program, path=environment.get("PATH"))
    if path is None:
        raise EnvironmentLacksError(
            f"no {program} here: call this where Slurm's commands are: on a login node, not in the image"
        )
    kept = {name: value for name, value in environment.items() if not name.startswith(_FILTERS)}
    try:
        ended = subprocess.run(
            [path, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env={**kept, **_ALL_NUMBERS},
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RunError(f"{program} did not answer within {_PATIENCE_SECONDS:g} s: try again later") from error
    except OSError as error:
        raise EnvironmentLacksError(f"{path} cannot be started: {error.strerror}") from error
    if ended.returncode != 0:
        raise RunError(f"{program}: {_said(program, ended.stderr) or f'exit code {ended.returncode}'}")
    return ended.stdout


def has(environment: Mapping[str, str], program: str) -> bool:
    return shutil.which(program, path=environment.get("PATH")) is not None


def _said(program: str, text: str) -> str:
    lines: Sequence[str] = [line.removeprefix(f"{program}: ").removeprefix("error: ") for line in text.splitlines()]
    return "; ".join(line.strip() for line in lines if line.strip())[:400]


# ----------------------------------------------------------------------------------------------------
# What squeue and sacct print of job arrays, parsed. Pending elements stand in one line: `0-4,7,10-20:2%10`. Pure.


# For `squeue --Format`: without a width, a column is as wide as its content.
QUEUE_COLUMNS = ("ArrayJobID", "ArrayTaskID", "State", "NodeList", "RestartCnt", "Reason")
QUEUE_FORMAT = ",".join(f"{column}:|" for column in QUEUE_COLUMNS)
ACCOUNT_COLUMNS = ("JobID", "State", "NodeList", "ExitCode")
ACCOUNT_FORMAT = ",".join(ACCOUNT_COLUMNS)

_STATES: Mapping[str, State] = {
    **dict.fromkeys(("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"), "waiting"),
    **dict.fromkeys(("CONFIGURING", "RUNNING", "COMPLETING", "RESIZING", "SIGNALING"), "running"),
    **dict.fromkeys(("STAGE_OUT", "STOPPED", "SUSPENDED"), "running"),
    **dict.fromkeys(("BOOT_FAIL", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL"), "failed"),
    **dict.fromkeys(("OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "TIMEOUT"), "failed"),
    **dict.fromkeys(("CANCELLED", "REVOKED"), "cancelled"),
    "COMPLETED": "ended",
}  # fmt: skip
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")
_JOB = re.compile(r"(\d{1,18})(?:_(?:(\d{1,9})|\[([^\]]*)\]))?")
_NO_HOSTS = ("", "None", "None assigned", "(null)", "n/a")
_SHOWN_CHARACTERS = 100
# Slurm's own bound of MaxArraySize.
_MOST_TASKS = 4_000_001


@dataclass(frozen=True)
class Element:
    """One element of an array, or of another job.

    Attributes:
        job: number of the array or job.
        task: number of the element. None: the job is no array, or this stands for all that was left of a cancelled
            array.
        hosts: that it runs on, or ran on last.
        restarts: how often it has come back from the queue.
    """

    job: str
    task: int | None
    state: State
    word: str
    hosts: tuple[str, ...] = ()
    restarts: int = 0
    reason: str = ""


def read_queue(text: str) -> Iterator[Element]:
    """The elements in the output of `squeue --noheader --Format=QUEUE_FORMAT`.

    Raises:
        RunError: the text has another format.
    """
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|", len(QUEUE_COLUMNS) - 1)]
        if len(cells) != len(QUEUE_COLUMNS) or not (cells[0].isdecimal() and cells[4].isdecimal()):
            raise RunError(f"squeue: {_unexpected(line)}")
        job, tasks, word, nodes, restarts, reason = cells
        state, hosts, why = _state("squeue", word, line), _hosts("squeue", nodes, line), reason.removesuffix("|")
        for task in _tasks("squeue", tasks, line):
            yield Element(job, task, state, word, hosts, int(restarts), "" if why == "None" else why)


def read_accounts(text: str) -> Iterator[Element]:
    """The elements in the output of `sacct --allocations --duplicates --noheader --parsable2 --format=ACCOUNT_FORMAT`.

    sacct has a line for each run of a job that came back from the queue; they are one element here.

    Raises:
        RunError: the text has another format.
    """
    found: dict[tuple[str, int | None], Element] = {}
    for line in text.splitlines():
        cells = line.split("|")
        match = _JOB.fullmatch(cells[0])
        if len(cells) != len(ACCOUNT_COLUMNS) or match is None:
            raise RunError(f"sacct: {_unexpected(line)}")
        # `CANCELLED by 1000`.
        word = cells[1].partition(" ")[0].rstrip("+")
        state, hosts = _state("sacct", word, line), _hosts("sacct", cells[2], line)
        reason = "" if cells[3] == "0:0" else f"exit code {cells[3].removesuffix(':0')}"
        for task in _tasks("sacct", match[2] or match[3] or "N/A", line):
            known = found.get((match[1], task))
            element = Element(match[1], task, state, word, hosts, 0 if known is None else known.restarts + 1, reason)
            # A cancelled array lists its remaining elements once more, without a host.
            if known is not None and not hosts and known.hosts:
                element = replace(known)
            found[match[1], task] = element
    yield from found.values()


def by_element(elements: Iterable[Element]) -> Mapping[tuple[str, int | None], Element]:
    return {(element.job, element.task): element for element in elements}


def _tasks(program: str, text: str, line: str) -> Sequence[int | None]:
    """Numbers in `3`, `0-4,7%2`, `0-400:2`; `[None]` for a job that is no array."""
    if text in ("N/A", "", "4294967294"):
        return [None]
    found: list[int | None] = []
    for part in text.partition("%")[0].split(","):
        match = _RANGE.fullmatch(part)
        numbers = range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1) or 1) if match else range(0)
        if not 0 < len(numbers) <= _MOST_TASKS:
            raise RunError(f"{program}: {_unexpected(line)}")
        found += numbers
    return found


def _state(program: str, word: str, line: str) -> State:
    if not re.fullmatch(r"[A-Z_]{2,30}", word):
        raise RunError(f"{program}: {_unexpected(line)}")
    return _STATES.get(word, "unknown")


def _hosts(program: str, text: str, line: str) -> tuple[str, ...]:
    if text in _NO_HOSTS:
        return ()
    if not re.fullmatch(r"[\w.,\[\]-]+", text, re.ASCII):
        raise RunError(f"{program}: {_unexpected(line)}")
    try:
        return tuple(expand_hosts(text))
    except UsageError as error:
        raise RunError(f"{program}: {error}") from error


def _unexpected(line: str) -> str:
    return f"has answered something that this version of hpcai500 does not understand: {line[:_SHOWN_CHARACTERS]!r}"


# ----------------------------------------------------------------------------------------------------
# What the collecting job asks: which members are missing and may be run again, and which hosts to avoid.


@dataclass(frozen=True)
class Again:
    """What is left to do after all elements have ended; members run `at_once` side by side at most, as before."""

    members: Sequence[int] = ()
    at_once: int | None = None
    exclude: Sequence[str] = ()


def again_after(ensemble: Ensemble, collector: str) -> Again:
    """What may be run again behind the job `collector`: once, and only if it belongs to the last submission.

    Raises:
        RecordError: what a member has left cannot be read.
    """
    last = standing(ensemble)
    if last is None or last.collector != collector or last.after:
        return Again()
    missing = [member for member in last.members if not is_done(ensemble, member)]
    arrays = last.arrays.values()
    told = {member: failures(ensemble.folder(member), arrays) for member in last.members}
    members = [member for member in missing if not _is_given_up(told[member])]
    if not members:
        return Again()
    everyone = [failure for member in last.members for failure in told[member]]
    return Again(members, last.at_once, list(dict.fromkeys([*last.exclude, *_bad_hosts(ensemble, everyone)])))


def failures(folder: Path, jobs: Iterable[str]) -> list[Failure]:
    """The failures noted in a member's folder by one of `jobs`.

    Raises:
        RecordError: they cannot be read.
    """
    wanted = set(jobs)
    return [failure for failure in read_failures(folder) if failure.job in wanted]


def _is_given_up(told: Sequence[Failure]) -> bool:
    codes = [failure.exit_code for failure in told]
    of_nodes = sum(code in OF_THE_NODE for code in codes)
    return ExitCode.WRONG_ANSWER in codes or len(codes) >= MOST_FAILURES or of_nodes >= MOST_NODES


def _bad_hosts(ensemble: Ensemble, told: Sequence[Failure]) -> list[str]:
    """Hosts where members have failed too often, if enough other hosts are known to run a member."""
    counts = Counter(host for failure in told for host in failure.host.split(","))
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
        at_once: members side by side at most.
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
    """The submission of `request`; None where nothing is left to do.

    Raises:
        UsageError: site, plan, image or data cannot be used, or do not fit together.
    """
    site = site_of(ensemble, request)
    _check(ensemble, site, request)
    at_once, exclude = request.at_once, expand_hosts(request.exclude) if request.exclude else []
    if request.after:
        again = again_after(ensemble, request.after)
        members, at_once, exclude = list(again.members), again.at_once, list(again.exclude)
    else:
        wanted = parse_members(request.members, ensemble) if request.members else ensemble.members
        members = [member for member in wanted if not is_done(ensemble, member)]
    if not members:
        return None
    return submission_of(
        ensemble,
        site,
        members,
        at_once=at_once,
        exclude=exclude,
        after=request.after,
        rendered_by=request.rendered_by,
        environment=request.environment,
    )


def submission_of(
    ensemble: Ensemble,
    site: Site,
    members: Sequence[int],
    *,
    environment: Mapping[str, str],
    at_once: int | None = None,
    exclude: Sequence[str] = (),
    after: str | None = None,
    rendered_by: Sequence[str] = (),
) -> Submission:
    """What has to be submitted so that `members` run."""
    return Submission(
        folder=ensemble.path.absolute(),
        benchmark=str(ensemble.start["benchmark"]),
        identity=ensemble.identity,
        shape=ensemble.shape,
        data=ensemble.data,
        stage=ensemble.stage,
        site=site,
        members=sorted(members),
        at_once=at_once,
        exclude=exclude,
        after=after,
        in_queue=() if after else _arrays_of(ensemble, members),
        submits_inside=find_container(environment) is not None,
        rendered_by=rendered_by,
    )


def site_of(ensemble: Ensemble, request: SubmitRequest) -> Site:
    """The site of `request`.

    Raises:
        UsageError: its file cannot be used, or names no image.
    """
    before = ensemble.path / FOLDER / SITE
    named = request.site or (str(before) if before.is_file() else None)
    return with_image(load_site(named) if named else Site(), named, request.environment)


def last_site(ensemble: Ensemble) -> Site:
    """The site of the last submission; the defaults where its file is gone.

    Raises:
        UsageError: its file cannot be used.
    """
    before = ensemble.path / FOLDER / SITE
    return load_site(str(before)) if before.is_file() else Site()


def warnings_of(submission: Submission) -> list[str]:
    """What may disturb the measurement, but may be intended."""
    slurm, shape = submission.site.slurm, submission.shape
    if slurm.exclusive or shape.members_a_node > 1 or len(submission.members) < 2 or submission.at_once == 1:
        return []
    return [
        "exclusive = false under [slurm] of the site: a member takes whole nodes, but Slurm may put two members, or "
        "jobs of others, on one node, where they slow each other down; exclusive = true gives each its own nodes"
    ]


def write_submission(submission: Submission) -> Path:
    """Write its scripts in place of earlier ones; returns the one to be called on the host.

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
        raise RecordError(f"{folder}: cannot be written: {error.strerror}; mend it, then go on") from error
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
        raise UsageError(f"[node] gpus is {node.gpus} for {node.tasks} tasks: an ensemble needs as many for each task")
    if node.gpus and shape.members_a_node > 1 and node.gpu_request == "none":
        raise UsageError(
            'members that share a node must ask for their GPUs: gpu_request = "gres" or "gpus-per-node" under [node] '
            "of the site file, or plan members of whole nodes: --degree"
        )
    check_site(site, ensemble.recipe())
    if find_container(request.environment) is not None:
        # Inside an image, a path that is not bound here may exist on the host; the scripts check it there.
        return
    if site.container.command != NO_CONTAINER and not Path(site.container.image).exists():
        raise UsageError(f"[container] image: {site.container.image}: is not there; make it, or correct the site file")
    if not ensemble.data.is_dir():
        raise DataError(f"{ensemble.data}: the data of this plan is not there: mount it, or plan again with --data DIR")


def _arrays_of(ensemble: Ensemble, members: Sequence[int]) -> list[str]:
    wanted = set(members)
    told = [one for one in submissions(ensemble) if wanted.intersection(one.members)]
    return [array for one in told for array in one.arrays.values()]


# ----------------------------------------------------------------------------------------------------
# The scheduler itself.


_BASH = "/bin/bash"
_POLL_SECONDS = 0.5
# Bound on the difference between the clocks of the journal's host and of Slurm's accounting.
_CLOCKS = timedelta(hours=1)
# Least time that members get for a checkpoint, however short the site's warning is.
_LEAST_PATIENCE_SECONDS = 60.0

Elements = Mapping[tuple[str, int | None], Element]


class SlurmScheduler:
    """Runs members as elements of job arrays; `on_change` is told what happens meanwhile."""

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
        """Have `members` run; see `Scheduler.submit`. Returns the arrays' jobs and, last, the job that collects."""
        submission = submission_of(
            ensemble, self._site, members, at_once=at_once, exclude=exclude, environment=self._environment
        )
        return self.queue(ensemble, write_submission(submission))

    def queue(self, ensemble: Ensemble, script: Path) -> Sequence[str]:
        """Run a script that submits; returns the numbers of the arrays and of the job that collects.

        Raises:
            EnvironmentLacksError: there is no Slurm here.
            HpcAi500Error: the script failed, by its exit code; nothing is left in the queue.
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
        """How all members stand; see `Scheduler.jobs`. One call of squeue, and one of sacct if that leaves gaps."""
        # What counts of a member is where it was submitted last.
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
        """Numbers of the arrays that still have elements in the queue, and of the jobs that collect.

        Raises:
            EnvironmentLacksError: there is no Slurm here.
            RunError: it does not answer.
        """
        return list(dict.fromkeys(element.job for element in self._left(ensemble).values()))

    def cancel(self, ensemble: Ensemble) -> Sequence[str]:
        """End all jobs; see `Scheduler.cancel`. Returns when nothing is left in the queue.

        Jobs that still run after the time that the site's warning gives for a checkpoint are killed.
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
        """Cancel what waits, and ask what runs to stop with a checkpoint; returns the names of those asked now."""
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
                # Only to the batch script, which tells the ranks: a signal from Slurm to all processes would kill them
                # first.
                call(self._environment, "scancel", "--signal=TERM", "--batch", *new)
            except RunError:
                # Some have ended meanwhile: the others are asked again.
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
            # Slurm forgets jobs some minutes after their end.
            if "Invalid job id" in str(error):
                return {}
            raise

    def _accounts(self, ensemble: Ensemble, numbers: Sequence[str]) -> Elements:
        if not self._has_accounts:
            return {}
        # Job numbers start again when a cluster is set up anew, so older jobs are left out.
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
    """Numbers of all jobs that were ever submitted."""
    return [number for one in submissions(ensemble) for number in (*one.arrays.values(), one.collector)]


def _member_job(member: int, name: tuple[str, int], queue: Elements, accounts: Elements) -> MemberJob:
    array, task = name
    # The rest of a cancelled array may be listed as one, without numbers.
    element = queue.get(name) or accounts.get(name) or queue.get((array, None)) or accounts.get((array, None))
    if element is None:
        return MemberJob(member, "unknown", f"{array}_{task}")
    why = element.reason if element.state != "failed" else f"{element.word} {element.reason}".strip()
    return MemberJob(member, element.state, f"{array}_{task}", element.hosts, element.restarts, why)


def _as_cancelled(job: MemberJob) -> MemberJob:
    """A member that stops with a checkpoint ends with an exit code, which Slurm takes for a failure."""
    return replace(job, state="cancelled", reason="") if job.state == "failed" else job


def _name(element: Element) -> str:
    return element.job if element.task is None else f"{element.job}_{element.task}"


def _some(names: Sequence[str] | map[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:8]) + (" …" if len(listed) > 8 else "")
