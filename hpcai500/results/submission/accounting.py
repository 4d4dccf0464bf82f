"""What Slurm's accounting says of the jobs of a campaign: a second witness of when and where they ran."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from hpcai500.errors import EnvironmentLacksError

# As `sacct --helpformat` names them; nothing of users and accounts.
_FIELDS = ("JobIDRaw", "Submit", "Start", "End", "ElapsedRaw", "NNodes", "NodeList", "State", "ExitCode")
_PATIENCE_SECONDS = 60.0
_JOB = re.compile(r"[0-9]{1,18}(?:[_+.][0-9]{1,9})?")
_UNKNOWN = ("", "Unknown", "None", "None assigned")


def ask_accounting(job: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The accounting of `job`, by `sacct`.

    Raises:
        EnvironmentLacksError: it is not to be had here; the reason.
    """
    environment = os.environ if environment is None else environment
    program = shutil.which("sacct", path=environment.get("PATH"))
    if program is None:
        raise EnvironmentLacksError("no sacct here: call `hpcai500 submit` where Slurm's commands are")
    if not _JOB.fullmatch(job):
        raise EnvironmentLacksError(f"no id of a Slurm job: {job[:40]!r}")
    # All runs of a job that went back to the queue; times in UTC.
    options = ["-j", job, "--duplicates", "--parsable2", "--noheader", f"--format={','.join(_FIELDS)}"]
    try:
        ended = subprocess.run(
            [program, *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env={**environment, "TZ": "UTC", "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"},
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentLacksError(f"sacct did not answer within {_PATIENCE_SECONDS:g} s") from error
    except OSError as error:
        raise EnvironmentLacksError(f"{program} cannot be started: {error.strerror}") from error
    if ended.returncode != 0:
        said = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
        raise EnvironmentLacksError(f"sacct: {said[0].removeprefix('sacct: ')[:200]}")
    return parse_accounting(ended.stdout, job)


def parse_accounting(text: str, job: str) -> dict[str, Any]:
    """What `sacct --parsable2 --noheader` printed of `job`, as the submission holds it.

    {job_id, submit, start, end, elapsed_seconds, nodes, node_list, state, exit_code, steps: [the same], earlier: [the
    same]}: `earlier` are the runs of a job that went back to the queue. Times are UTC, null where they are not known.

    Raises:
        EnvironmentLacksError: it tells nothing of this job.
    """
    rows = [_row(line.split("|")) for line in text.splitlines() if line.count("|") == len(_FIELDS) - 1]
    runs = [row for row in rows if row["job_id"] == job]
    if not runs:
        raise EnvironmentLacksError("sacct knows no such job")
    steps = [row for row in rows if row["job_id"].startswith(f"{job}.")]
    return {**runs[-1], "steps": steps, "earlier": runs[:-1]}


def accounting_bytes(document: Mapping[str, Any]) -> bytes:
    """The file of one job."""
    return (json.dumps(document, indent=2) + "\n").encode()


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
    """`2026-11-22T03:00:00Z`."""
    return None if text in _UNKNOWN else f"{text}Z"
