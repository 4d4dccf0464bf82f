"""What Slurm's accounting says, as it says it, in plain JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpcai500.errors import EnvironmentLacksError
from hpcai500.results.submission.gather import ask_accounting, parse_accounting

# As sacct 22.05 prints it (--parsable2 --noheader --duplicates), of a job that went back to the queue once.
PRINTED = """\
4711|2026-11-20T10:00:00|2026-11-20T10:01:00|2026-11-20T12:01:00|7200|2|n[01-02]|PREEMPTED|0:0
4711.batch|2026-11-20T10:01:00|2026-11-20T10:01:00|2026-11-20T12:01:00|7200|1|n01|CANCELLED|0:15
4711|2026-11-20T12:01:00|2026-11-20T12:05:00|2026-11-20T13:05:00|3600|2|n[03-04]|COMPLETED|0:0
4711.batch|2026-11-20T12:05:00|2026-11-20T12:05:00|2026-11-20T13:05:00|3600|1|n03|COMPLETED|0:0
4711.0|2026-11-20T12:05:01|2026-11-20T12:05:01|2026-11-20T13:05:00|3599|2|n[03-04]|COMPLETED|0:0
"""


def test_a_job_is_told_with_its_steps_and_earlier_runs() -> None:
    told = parse_accounting(PRINTED, "4711")
    assert told["start"] == "2026-11-20T12:05:00Z"
    assert told["end"] == "2026-11-20T13:05:00Z"
    assert (told["elapsed_seconds"], told["nodes"], told["node_list"], told["state"]) == (
        3600,
        2,
        "n[03-04]",
        "COMPLETED",
    )
    assert [step["job_id"] for step in told["steps"]] == ["4711.batch", "4711.batch", "4711.0"]
    assert [run["state"] for run in told["earlier"]] == ["PREEMPTED"]
    assert json.loads(json.dumps(told)) == told


def test_what_slurm_does_not_know_yet_is_null() -> None:
    told = parse_accounting("12|2026-11-20T10:00:00|Unknown|Unknown|0|1|None assigned|PENDING|0:0\n", "12")
    assert (told["start"], told["end"], told["node_list"]) == (None, None, None)


def test_a_job_that_slurm_does_not_know_is_told() -> None:
    with pytest.raises(EnvironmentLacksError, match="no such job"):
        parse_accounting("", "12")


def stand_in(folder: Path, body: str) -> dict[str, str]:
    """Stands for a site's sacct: there is no accounting daemon here."""
    (folder / "sacct").write_text(f"#!/bin/sh\n{body}\n")
    (folder / "sacct").chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def test_sacct_is_asked_for_this_job_in_utc(tmp_path: Path) -> None:
    (tmp_path / "out").write_text(PRINTED)
    environment = stand_in(tmp_path, f'echo "$TZ $*" > {tmp_path}/asked; cat {tmp_path}/out')
    assert ask_accounting("4711", environment)["state"] == "COMPLETED"
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("UTC -j 4711 --duplicates --parsable2 --noheader --format=JobIDRaw,")
    assert "User" not in asked


def test_why_there_is_no_accounting_is_told_in_one_line(tmp_path: Path) -> None:
    environment = stand_in(tmp_path, "echo 'sacct: error: Slurm accounting storage is disabled' >&2; exit 1")
    with pytest.raises(EnvironmentLacksError, match="accounting storage is disabled"):
        ask_accounting("1", environment)
    with pytest.raises(EnvironmentLacksError, match="no sacct here"):
        ask_accounting("1", {"PATH": str(tmp_path / "none")})


@pytest.mark.parametrize("job", ["", "--help", "1; rm", "1 2", "../../1"])
def test_what_is_no_job_is_not_asked_for(tmp_path: Path, job: str) -> None:
    with pytest.raises(EnvironmentLacksError, match="no id of a Slurm job"):
        ask_accounting(job, stand_in(tmp_path, "exit 0"))
