"""Gathers what goes into a submission: a campaign and its records, the sources, logs, and Slurm's accounting.

Files that are left out are listed with the reason.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcai500.campaign.journal import JOURNAL, RECIPE, Attempt, Campaign
from hpcai500.errors import EnvironmentLacksError, RecordError, UsageError
from hpcai500.methodology.passes import target_checkpoint
from hpcai500.record import iterate, read_record
from hpcai500.results.submission.claim import plain
from hpcai500.results.submission.manifest import (
    ACCOUNTING,
    CAMPAIGN,
    CODE,
    FILE_NAME,
    LOGS,
    RECORD_NAME,
    LeftOut,
    kind_of,
)
from hpcai500.run_progress import PROGRESS
from hpcai500.system.looking import run
from hpcai500.system.software import code_files

Content = Path | bytes
"""A file to be packed, or its content."""

_CHECKPOINTS = "checkpoints"
_FOLDERS = ("pictures", "power", "predictions", "trace")
_FOREIGN = "not a file of a record or a campaign"
SHARDED_CHECKPOINT = "the checkpoint of a sharded model is a folder of many files, which --replay cannot evaluate"
NOT_NEEDED = "only the last checkpoint of a finished run is needed, and the first at its target quality"


@dataclass
class Gathered:
    """Files by their path in the submission, and the files that were left out."""

    files: dict[str, Content] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)

    def leave(self, path: str, reason: str) -> None:
        self.left_out.append(LeftOut(path=plain(path), reason=plain(reason)))


def content_of(source: Content) -> bytes:
    return source if isinstance(source, bytes) else source.read_bytes()


def content_bytes(source: Content) -> int:
    return len(source) if isinstance(source, bytes) else source.stat().st_size


def gather_campaign(campaign: Campaign, *, with_checkpoints: bool) -> Gathered:
    """Gather recipe, journal and all records of `campaign`, including failed and stopped attempts."""
    found = Gathered()
    for name in (RECIPE, JOURNAL):
        found.files[f"{CAMPAIGN}/{name}"] = campaign.path / name
    attempts = {attempt.record: attempt for attempt in campaign.attempts}
    for entry in _listed(campaign.path):
        if entry.is_dir() and RECORD_NAME.fullmatch(entry.name):
            _gather_record(found, entry, attempts.get(entry.name), with_checkpoints=with_checkpoints)
        elif entry.name not in (RECIPE, JOURNAL):
            found.leave(f"{CAMPAIGN}/{entry.name}", _FOREIGN)
    return found


def gather_code(package: Path) -> dict[str, Content]:
    """Read the Python sources below `package`.

    They are read now, so that the hashed content is the packed content.
    """
    return {f"{CODE}/{path.relative_to(package).as_posix()}": path.read_bytes() for path in code_files(package)}


def gather_logs(logs: Sequence[Path]) -> dict[str, Content]:
    """Read logs given with --log as text in UTF-8; invalid bytes are replaced.

    Raises:
        UsageError: a log is missing or too large, or two have the same name.
    """
    found: dict[str, Content] = {}
    for log in logs:
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", log.name).lstrip(".-") or "log"
        path = f"{LOGS}/{name[:200]}"
        if path in found:
            raise UsageError(f"--log {log}: two logs are named {name}: rename one")
        try:
            content = log.read_bytes()
        except OSError as error:
            raise UsageError(f"--log {log}: cannot be read: {error.strerror}") from error
        _require_room(path, len(content), f"--log {log}")
        # Programs sometimes print invalid UTF-8; a packed log must be text.
        found[path] = content.decode("utf-8", errors="replace").replace("\0", "\ufffd").encode()
    return found


def _gather_record(found: Gathered, folder: Path, attempt: Attempt | None, *, with_checkpoints: bool) -> None:
    for entry in _listed(folder):
        path = f"{CAMPAIGN}/{folder.name}/{entry.name}"
        if entry.is_dir() and entry.name == _CHECKPOINTS:
            _gather_checkpoints(found, folder, attempt, with_checkpoints=with_checkpoints)
        elif entry.is_dir() and entry.name in _FOLDERS:
            for file in _listed(entry):
                _take(found, f"{path}/{file.name}", file)
        else:
            _take(found, path, entry)


def _take(found: Gathered, path: str, file: Path) -> None:
    kind = kind_of(path)
    if kind is None or not file.is_file():
        if file.name != PROGRESS:  # no score depends on it
            found.leave(path, _FOREIGN)
        return
    _require_room(path, file.stat().st_size, str(file))
    found.files[path] = file


def _require_room(path: str, size: int, name: str) -> None:
    kind = kind_of(path)
    if kind and kind.most_bytes is not None and size > kind.most_bytes:
        raise UsageError(f"{name}: {size} bytes; a submission allows at most {kind.most_bytes} for such a file")


def _gather_checkpoints(found: Gathered, record: Path, attempt: Attempt | None, *, with_checkpoints: bool) -> None:
    needed = _needed_checkpoints(record) if attempt and attempt.status == "done" else set()
    for file in _listed(record / _CHECKPOINTS):
        path = f"{CAMPAIGN}/{record.name}/{_CHECKPOINTS}/{file.name}"
        if file.name not in needed:
            found.leave(path, NOT_NEEDED)
        elif not with_checkpoints:
            found.leave(path, "--no-checkpoints")
        elif file.is_dir():
            found.leave(path, SHARDED_CHECKPOINT)
        elif file.is_file() and FILE_NAME.fullmatch(file.name):
            found.files[path] = file
    for name in sorted(needed):
        if not (record / _CHECKPOINTS / name).exists():
            found.leave(f"{CAMPAIGN}/{record.name}/{_CHECKPOINTS}/{name}", "its file is missing")


def _needed_checkpoints(record: Path) -> set[str]:
    """Names of the checkpoint files that a replay evaluates."""
    try:
        read = read_record(record)
        saved = [event["value"] for event in iterate(read.events, "checkpoint")]
        target = target_checkpoint(read.events, read.tables["problem"])
        names = [one["file"] for one in (target, *saved[-1:]) if one]
    except (RecordError, KeyError, TypeError):
        # The campaign's standing reports what is wrong with the record.
        return set()
    return {name for name in names if isinstance(name, str) and FILE_NAME.fullmatch(name)}


def _listed(folder: Path) -> Iterator[Path]:
    """Entries of `folder` by name, without dot files, which crashes and editors leave behind."""
    if not folder.is_dir():
        return iter(())
    return iter(sorted((path for path in folder.iterdir() if not path.name.startswith(".")), key=lambda one: one.name))


# ----------------------------------------------------------------------------------------------------
# Slurm's accounting of a campaign's jobs: independent evidence of when and where they ran.


# As named by `sacct --helpformat`; without users and accounts.
_FIELDS = ("JobIDRaw", "Submit", "Start", "End", "ElapsedRaw", "NNodes", "NodeList", "State", "ExitCode")
_TIMEOUT_SECONDS = 60.0
_JOB = re.compile(r"[0-9]{1,18}(?:[_+.][0-9]{1,9})?")
_UNKNOWN = ("", "Unknown", "None", "None assigned")


def add_accounting(gathered: Gathered, campaign: Campaign) -> None:
    """Add the accounting of each job that the journal names, or the reason why it is missing."""
    jobs = dict.fromkeys(job for attempt in campaign.attempts for job in attempt.slurm_jobs)
    for job in jobs:
        path = f"{ACCOUNTING}/{plain(str(job))}.json"
        try:
            gathered.files[path] = (json.dumps(ask_accounting(str(job)), indent=2) + "\n").encode()
        except EnvironmentLacksError as error:
            gathered.leave(path, plain(str(error)))


def ask_accounting(job: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Ask `sacct` for the accounting of `job`.

    Raises:
        EnvironmentLacksError: the accounting is not available here.
    """
    environment = os.environ if environment is None else environment
    program = shutil.which("sacct", path=environment.get("PATH"))
    if program is None:
        raise EnvironmentLacksError("sacct is missing: run `hpcai500 submit` on a node with Slurm's commands")
    if not _JOB.fullmatch(job):
        raise EnvironmentLacksError(f"not the ID of a Slurm job: {job[:40]!r}")
    # --duplicates gives all runs of a job that was requeued; TZ gives times in UTC.
    options = ["-j", job, "--duplicates", "--parsable2", "--noheader", f"--format={','.join(_FIELDS)}"]
    try:
        variables = {**environment, "TZ": "UTC", "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
        ended = run([program, *options], _TIMEOUT_SECONDS, variables)
    except TimeoutError as error:
        raise EnvironmentLacksError(f"sacct did not answer within {_TIMEOUT_SECONDS:g} s") from error
    except OSError as error:
        raise EnvironmentLacksError(f"{program} cannot be started: {error.strerror}") from error
    if ended.code != 0:
        message = ended.errors.strip().splitlines()[-1:] or [f"exit code {ended.code}"]
        raise EnvironmentLacksError(f"sacct: {message[0].removeprefix('sacct: ')[:200]}")
    return parse_accounting(ended.output, job)


def parse_accounting(text: str, job: str) -> dict[str, Any]:
    """Parse the output of `sacct --parsable2 --noheader` for `job`.

    Returns {job_id, submit, start, end, elapsed_seconds, nodes, node_list, state, exit_code, steps: [the same],
    earlier: [the same]}; `earlier` are the runs of a job before it was requeued. Times are UTC, None if unknown.

    Raises:
        EnvironmentLacksError: the output lacks this job.
    """
    rows = [_row(line.split("|")) for line in text.splitlines() if line.count("|") == len(_FIELDS) - 1]
    runs = [row for row in rows if row["job_id"] == job]
    if not runs:
        raise EnvironmentLacksError("sacct does not know this job")
    steps = [row for row in rows if row["job_id"].startswith(f"{job}.")]
    return {**runs[-1], "steps": steps, "earlier": runs[:-1]}


def _row(cells: Sequence[str]) -> dict[str, Any]:
    number, submit, start, end, elapsed, nodes, node_list, state, exit_code = (cell.strip() for cell in cells)
    return {
        "job_id": number,
        "submit": _time(submit),
        "start": _time(start),
        "end": _time(end),
        "elapsed_seconds": int(elapsed) if elapsed.isdecimal() else None,
        "nodes": int(nodes) if nodes.isdecimal() else None,
        "node_list": None if node_list in _UNKNOWN else node_list,
        "state": state or None,
        "exit_code": exit_code or None,
    }


def _time(text: str) -> str | None:
    """Return `2026-11-22T03:00:00Z`; None if unknown."""
    return None if text in _UNKNOWN else f"{text}Z"
