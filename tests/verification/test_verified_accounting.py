"""Slurm's accounting against the runs that say that they ran in its jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from opened import changed, evidence, honest
from written_campaign import edit_record, values

from hpcai500.results.submission.archive import Submission
from hpcai500.results.verification.dates import check_accounting, names_of_list, short_names
from hpcai500.results.verification.finding import Finding

Job = dict[str, Any]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Submission:
    """One trial of three epochs."""
    return honest(tmp_path_factory.mktemp("honest"), trials=1)


def _accounted(opened: Path, change: Callable[[Job], object] = lambda job: None) -> None:
    """The accounting of the job in which trial 1 ran, as honest Slurm would have it, changed."""
    lines = (opened / "campaign/trial-01/events.jsonl").read_text().splitlines()
    start, end = (json.loads(line)["time_ms"] // 1000 + shift for line, shift in ((lines[0], -20), (lines[-1], 5)))
    job: Job = {
        "job_id": "1001", "submit": _text(start - 60), "start": _text(start), "end": _text(end),
        "elapsed_seconds": end - start, "nodes": 2, "node_list": "node-[1-2]", "state": "COMPLETED",
        "exit_code": "0:0", "steps": [], "earlier": [],
    }  # fmt: skip
    change(job)
    (opened / "accounting").mkdir()
    (opened / "accounting/1001.json").write_text(json.dumps(job))


def _text(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _found(base: Submission, folder: Path, change: Callable[[Path], object]) -> list[Finding]:
    return list(check_accounting(changed(base, folder, change)))


def test_jobs_that_hold_their_runs_are_noted(base: Submission, tmp_path: Path) -> None:
    found = _found(base, tmp_path, _accounted)
    assert [finding.severity for finding in found] == ["note"]
    assert "times and nodes of 1 runs lie within" in found[0].evidence


def test_accounting_that_is_not_here_is_for_people(base: Submission, tmp_path: Path) -> None:
    found = _found(base, tmp_path, lambda opened: None)
    assert [finding.severity for finding in found] == ["warning"]
    assert "Slurm jobs 1001" in found[0].evidence


@pytest.mark.parametrize(
    ("change", "severity", "told"),
    [
        (lambda job: job.update(job_id="7"), "fail", "tells of the job 7"),
        (lambda job: job.update(start="2024-01-01T00:00:00Z", end="2024-01-01T01:00:00Z"), "fail", "none of its Slurm"),
        (lambda job: job.update(elapsed_seconds=10), "fail", "in Slurm jobs of 10 s together"),
        (lambda job: job.update(elapsed_seconds=10**6), "fail", "1000000 s elapsed between"),
        (lambda job: job.update(nodes=1), "fail", "ran on 2 nodes, its Slurm job had 1"),
        (lambda job: job.update(node_list="node-[2-3]"), "fail", "ran on node-1, which its Slurm job did not have"),
        (lambda job: job.update(node_list=None), "warning", "names no nodes"),
        (lambda job: job.update(state="FAILED"), "warning", "ended as FAILED"),
        (lambda job: job.update(state="CANCELLED by 1000"), "warning", "ended as CANCELLED"),
        (lambda job: job.update(start=None), "warning", "does not tell when"),
        (lambda job: job.update(elapsed_seconds=job["elapsed_seconds"] - 65), "warning", "was suspended"),
    ],
)
def test_a_job_that_does_not_hold_its_run_is_seen(
    base: Submission, tmp_path: Path, change: Callable[[Job], object], severity: str, told: str
) -> None:
    found = _found(base, tmp_path, lambda opened: _accounted(opened, change))
    assert told in evidence(found, "accounting", severity)


def test_a_job_that_came_back_from_the_queue_has_earlier_runs(base: Submission, tmp_path: Path) -> None:
    def again(job: Job) -> None:
        job["earlier"] = [dict(job)]
        job.update(start="2030-01-01T00:00:00Z", end="2030-01-01T00:01:00Z", elapsed_seconds=60)

    found = _found(base, tmp_path, lambda opened: _accounted(opened, again))
    assert [finding.severity for finding in found] == ["note"]


@pytest.mark.parametrize(("number", "severity"), [("1001", "note"), ("2002", "fail")])
def test_the_number_that_the_run_saw_is_compared(base: Submission, tmp_path: Path, number: str, severity: str) -> None:
    def see(events: list[dict[str, Any]]) -> None:
        values(events, "system")[0]["nodes"][0]["environment"] = {"SLURM_JOB_ID": number}

    def change(opened: Path) -> None:
        _accounted(opened)
        edit_record(opened / "campaign/trial-01", see)

    assert severity in {finding.severity for finding in _found(base, tmp_path, change)}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[01-03,7],login", ["n01", "n02", "n03", "n7", "login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[1-1000000][1-1000000]", None),
        ("n[1-999999999]", None),
        ("n[3-1]", None),
        ("n[1", None),
        ("n1;rm", None),
        ("", None),
        (",", None),
    ],
)
def test_lists_of_hosts_are_expanded_where_that_takes_little(text: str, names: list[str] | None) -> None:
    assert names_of_list(text) == names


def test_a_host_is_its_first_label() -> None:
    assert short_names(["n1.cluster", "n2"]) == {"n1", "n2"}
