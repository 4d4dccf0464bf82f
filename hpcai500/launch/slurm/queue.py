"""Slurm's queue and accounting: commands run with a time limit, and their output is parsed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from hpcai500.errors import EnvironmentLacksError, RunError, UsageError
from hpcai500.hosts import expand_hosts
from hpcai500.system.looking import run

_PATIENCE_SECONDS = 120.0
# Prefixes of the user's own settings, which could filter the answers.
_FILTERS = ("SQUEUE_", "SACCT_")
# List all elements of an array, however many there are.
_ALL_NUMBERS = {"SLURM_BITSTR_LEN": "0", "LC_ALL": "C"}
_MOST_SHOWN = 400


def has(environment: Mapping[str, str], program: str) -> bool:
    return shutil.which(program, path=environment.get("PATH")) is not None


def call(environment: Mapping[str, str], program: str, *words: str) -> str:
    """What `program` printed on stdout.

    Raises:
        EnvironmentLacksError: there is no such program here.
        RunError: it failed (with its own message), or does not answer.
    """
    path = shutil.which(program, path=environment.get("PATH"))
    if path is None:
        raise EnvironmentLacksError(
            f"no {program} here: run this where Slurm's commands are: on a login node, not in the image"
        )
    kept = {name: value for name, value in environment.items() if not name.startswith(_FILTERS)}
    try:
        ended = run([path, *words], _PATIENCE_SECONDS, {**kept, **_ALL_NUMBERS})
    except TimeoutError as error:
        raise RunError(f"{program} did not answer within {_PATIENCE_SECONDS:g} s: try again later") from error
    except OSError as error:
        raise EnvironmentLacksError(f"{path} cannot be started: {error.strerror}") from error
    if ended.code != 0:
        lines = [line.removeprefix(f"{program}: ").removeprefix("error: ") for line in ended.errors.splitlines()]
        text = "; ".join(line.strip() for line in lines if line.strip())[:_MOST_SHOWN]
        raise RunError(f"{program}: {text or f'exit code {ended.code}'}")
    return ended.output


# ----------------------------------------------------------------------------------------------------
# Elements of job arrays, as squeue and sacct report them.


QueueState = Literal["waiting", "running", "ended", "failed", "cancelled", "unknown"]

_WORDS: Mapping[QueueState, str] = {
    "waiting": "PENDING REQUEUED REQUEUE_FED REQUEUE_HOLD SPECIAL_EXIT RESV_DEL_HOLD",
    "running": "CONFIGURING RUNNING COMPLETING RESIZING SIGNALING STAGE_OUT STOPPED SUSPENDED",
    "failed": "BOOT_FAIL DEADLINE FAILED LAUNCH_FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED RECONFIG_FAIL TIMEOUT",
    "cancelled": "CANCELLED REVOKED",
    "ended": "COMPLETED",
}
_STATES = {word: state for state, words in _WORDS.items() for word in words.split()}


@dataclass(frozen=True)
class Element:
    """One element of an array, or of another job.

    Attributes:
        job: number of the array or job.
        task: number of the element. None: the job is not an array, or this is the rest of a cancelled array.
        word: the state in Slurm's words.
        hosts: that it runs on, or ran on last.
        restarts: how often it was requeued and started again.
    """

    job: str
    task: int | None
    state: QueueState
    word: str
    hosts: tuple[str, ...] = ()
    restarts: int = 0
    reason: str = ""

    @property
    def name(self) -> str:
        """As scancel takes it."""
        return self.job if self.task is None else f"{self.job}_{self.task}"


Elements = Mapping[tuple[str, int | None], Element]


def queued(environment: Mapping[str, str], jobs: Sequence[str], names: Sequence[str], *words: str) -> Elements:
    """The elements in squeue of those of `jobs` that have one of `names`, because job numbers are reused.

    Raises:
        EnvironmentLacksError: there is no Slurm here.
        RunError: it does not answer, or in an unknown format.
    """
    ours = [f"--jobs={','.join(jobs)}", f"--name={','.join(names)}"]
    try:
        return read_queue(call(environment, "squeue", "--noheader", *ours, f"--Format={_QUEUE_FORMAT}", *words))
    except RunError as error:
        # Slurm forgets jobs some minutes after their end.
        if "Invalid job id" in str(error):
            return {}
        raise


def accounted(environment: Mapping[str, str], jobs: Sequence[str], names: Sequence[str], since: datetime) -> Elements:
    """As `queued`, from sacct, for jobs that ran after `since` (UTC)."""
    words = ["--allocations", "--duplicates", "--noheader", "--parsable2", f"--format={_ACCOUNT_FORMAT}"]
    ours = [f"--jobs={','.join(jobs)}", f"--name={','.join(names)}", f"--starttime={since:%Y-%m-%dT%H:%M:%S}"]
    return read_accounts(call({**environment, "TZ": "UTC"}, "sacct", *words, *ours))


# Without a width, a column of squeue is as wide as its content.
_QUEUE_FORMAT = "ArrayJobID:|,ArrayTaskID:|,State:|,NodeList:|,RestartCnt:|,Reason:|"
_ACCOUNT_FORMAT = "JobID,State,NodeList,ExitCode"
_STATE_AND_HOSTS = (
    r"(?P<word>[A-Z_]{2,30})\+?(?: by [^|]*)?\s*\|\s*(?P<hosts>[\w.,\[\]-]*|None assigned|\(null\)|n/a)\s*"
)
_QUEUE_LINE = re.compile(
    rf"\s*(?P<job>\d{{1,18}})\s*\|\s*(?P<tasks>[^|]*?)\s*\|\s*{_STATE_AND_HOSTS}\|\s*(?P<restarts>\d{{1,9}})\s*"
    r"\|\s*(?P<reason>.*?)\s*\|?",
    re.ASCII,
)
# An element, `1_3`, or those that wait, `1_[4-7,9%2]`; for a job that is not an array, the number alone.
_ACCOUNT_LINE = re.compile(
    rf"(?P<job>\d{{1,18}})(?:_\[?(?P<tasks>[^]|]*)\]?)?\|{_STATE_AND_HOSTS}\|(?P<code>[^|]*)", re.ASCII
)
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
_NO_HOSTS = ("", "None", "None assigned", "(null)", "n/a")
# Slurm's own bound of MaxArraySize.
_MOST_TASKS = 4_000_001
_SHOWN_CHARACTERS = 100


def read_queue(text: str) -> Elements:
    """The elements in the output of `squeue --noheader --Format=…`.

    Raises:
        RunError: the text has another format.
    """
    found = {}
    for cells, element in _read("squeue", _QUEUE_LINE, text):
        why = "" if cells["reason"] == "None" else cells["reason"]
        found[element.job, element.task] = replace(element, restarts=int(cells["restarts"]), reason=why)
    return found


def read_accounts(text: str) -> Elements:
    """The elements in the output of `sacct --allocations --duplicates --noheader --parsable2 --format=…`.

    sacct has a line for each run of a requeued job; they are one element here.

    Raises:
        RunError: the text has another format.
    """
    found: dict[tuple[str, int | None], Element] = {}
    for cells, element in _read("sacct", _ACCOUNT_LINE, text):
        name, code = (element.job, element.task), cells["code"]
        known = found.get(name)
        # A cancelled array lists its remaining elements once more, without a host.
        if known and known.hosts and not element.hosts:
            continue
        why = "" if code == "0:0" else f"exit code {code.removesuffix(':0')}"
        found[name] = replace(element, restarts=known.restarts + 1 if known else 0, reason=why)
    return found


def _read(program: str, pattern: re.Pattern[str], text: str) -> Iterator[tuple[re.Match[str], Element]]:
    """Each element, with its line; those that wait share a line, `0-4,7,10-20:2%10`."""
    for line in text.splitlines():
        cells = pattern.fullmatch(line)
        tasks = _tasks(cells["tasks"]) if cells else ()
        if cells is None or not tasks:
            raise RunError(
                f"{program}: this version of hpcai500 does not understand its output: {line[:_SHOWN_CHARACTERS]!r}"
            )
        word, nodes = cells["word"], cells["hosts"]
        try:
            hosts = () if nodes in _NO_HOSTS else tuple(expand_hosts(nodes))
        except UsageError as error:
            raise RunError(f"{program}: {error}") from error
        for task in tasks:
            yield cells, Element(cells["job"], task, _STATES.get(word, "unknown"), word, hosts)


def _tasks(text: str | None) -> Sequence[int | None]:
    """Numbers in `3`, `0-4,7%2`, `0-400:2`; `[None]` for a job that is not an array; empty for other text."""
    if text is None or text in ("", "N/A", "4294967294"):
        return [None]
    found: list[int | None] = []
    for part in text.partition("%")[0].split(","):
        match = _RANGE.fullmatch(part)
        numbers = range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1) or 1) if match else range(0)
        if not 0 < len(numbers) <= _MOST_TASKS:
            return []
        found += numbers
    return found
