"""What squeue and sacct print of job arrays, read: pending elements stand in one line, `0-4,7,10-20:2%10`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hpcai500.ensemble.scheduler import State
from hpcai500.errors import RunError, UsageError
from hpcai500.hostlist import expand_hosts

# For `squeue --Format`: without a width, a column is as wide as what it holds.
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
    """One element of an array, or a job that is none (task None: also what an array has left when it was cancelled).

    Attributes:
        job: number of the array.
        task: number of the element.
        state: ours.
        word: Slurm's word for it.
        hosts: that it runs on, or ran on last.
        restarts: how often it has come back from the queue.
        reason: why it waits, or how it ended.
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
        RunError: it is something else.
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

    What has come back from the queue has a line for each run; they are one element here.

    Raises:
        RunError: it is something else.
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
            # The elements that an array still had when it was cancelled are told once more, without a host.
            if known is not None and not hosts and known.hosts:
                element = replace(known)
            found[match[1], task] = element
    yield from found.values()


def by_element(elements: Iterable[Element]) -> Mapping[tuple[str, int | None], Element]:
    """Each by its job and task."""
    return {(element.job, element.task): element for element in elements}


def _tasks(program: str, text: str, line: str) -> Sequence[int | None]:
    """`3`, `0-4,7%2`, `0-400:2`; None for a job that is no array."""
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
