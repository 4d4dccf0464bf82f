"""Ensembles on a real Slurm of two nodes, from submission to collection, and whatever comes between."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from ensembles import HPCAI500, SITE, OnSlurm, planned
from slurm import Slurm

from hpcai500.ensemble.journal import FAILURES
from hpcai500.ensemble.local import MOST_FAILURES
from hpcai500.ensemble.slurm_scripts import MOST_ON_A_HOST

ACCOUNTING_LAG_SECONDS = 30
# Long enough for something to happen in the middle.
LONG = "problem.epochs=30"
EXCLUSIVE = SITE.replace("exclusive = false", "exclusive = true")
# They stand in front of hpcai500 on PATH. A member that always fails, and a node that cannot run another one:
FAULTY = f"""#!/bin/bash
case "$* on $(hostname)" in
    *" member "*" --member 1 on "*) echo "member 1 always fails"; exit 1 ;;
    *" member "*" --member 2 on n1") echo "n1 lacks something"; exit 69 ;;
esac
exec {HPCAI500} "$@"
"""
# A member that fails the first time.
FAILS_ONCE = f"""#!/bin/bash
case "$*" in
    *" member "*" --member 0") if [[ ! -e $0.failed ]]; then touch "$0.failed"; exit 1; fi ;;
esac
exec {HPCAI500} "$@"
"""


def wrapped(on: OnSlurm, text: str) -> OnSlurm:
    """The same ensemble where `text` is the hpcai500 on PATH."""
    programs = on.folder.with_suffix(".programs")
    programs.mkdir()
    (programs / "hpcai500").write_text(text)
    (programs / "hpcai500").chmod(0o755)
    return OnSlurm(on.slurm, on.folder, programs)


def result_of(on: OnSlurm) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((on.folder / "result.json").read_text())
    return document


def submissions(on: OnSlurm) -> list[dict[str, Any]]:
    return [event["value"] for event in on.ensemble.events if event["key"] == "submit"]


def test_four_members_on_two_nodes_from_submission_to_collection_and_the_controller_is_restarted_in_the_middle(
    slurm: Slurm, images: Path, tmp_path: Path
) -> None:
    on = planned(slurm, images, tmp_path / "ensemble", 4, "problem.epochs=10")
    array, collector = on.submit("--at-once", "2", site=EXCLUSIVE)
    on.wait_until_they_train([0, 1])
    slurm.restart_controller()
    assert on.wait(collector) == "COMPLETED", on.everything
    histories = [on.history(member, "run_start", "run_resume", "run_stop") for member in range(4)]
    assert histories == [["run_start", "run_stop"]] * 4
    assert not list(on.folder.rglob(FAILURES))
    jobs = on.jobs()
    assert [job.restarts for job in jobs] == [0] * 4
    elements = [(member, "ended", f"{array}_{member}") for member in range(4)]
    assert [(job.member, job.state, job.job) for job in jobs] == elements
    assert {host for job in jobs for host in job.hosts} == {"n1", "n2"}
    told = {"scheduler": "slurm", "jobs": [array, collector], "members": [0, 1, 2, 3], "at_once": 2, "exclude": []}
    assert submissions(on) == [{**told, "after": None}]
    result = result_of(on)
    assert (result["members_done"], result["complete"]) == (4, True), on.collected
    output, code = on.call("status", on.folder)
    assert code == 0, output


def test_members_of_a_dead_node_go_on_elsewhere(slurm: Slurm, images: Path, tmp_path: Path) -> None:
    on = planned(slurm, images, tmp_path / "ensemble", 2, LONG)
    _, collector = on.submit(site=EXCLUSIVE)
    on.wait_until_they_train([0, 1])
    (lost,) = [member for member in (0, 1) if " on n2, restart 0\n" in on.said(member)]
    slurm.power_off("n2")
    try:
        assert on.wait(collector) == "COMPLETED", on.everything
    finally:
        slurm.power_on("n2")
    assert on.history(lost, "run_start", "run_resume", "run_stop") == ["run_start", "run_resume", "run_stop"]
    assert on.history(1 - lost, "run_start", "run_resume", "run_stop") == ["run_start", "run_stop"]
    job = on.jobs()[lost]
    assert (job.state, job.hosts, job.restarts) == ("ended", ("n1",), 1)
    limit = time.monotonic() + ACCOUNTING_LAG_SECONDS
    while on.jobs(from_accounts=True)[lost] != job:
        assert time.monotonic() < limit, on.jobs(from_accounts=True)[lost]
    # It was not the member that failed.
    assert on.failures(lost) == []
    assert result_of(on)["members_done"] == 2


def test_a_member_that_always_fails_is_given_up_and_one_that_a_node_cannot_run_goes_elsewhere(
    slurm: Slurm, images: Path, tmp_path: Path
) -> None:
    on = wrapped(planned(slurm, images, tmp_path / "ensemble", 3), FAULTY)
    _, collector = on.submit()
    assert on.wait(collector) == "FAILED", on.everything
    failures = on.failures(1)
    assert failures == [("n1", 1)] * MOST_ON_A_HOST + [("n2", 1)] * (MOST_FAILURES - MOST_ON_A_HOST), on.said(1)
    assert f"failed {MOST_FAILURES} times, last with exit code 1: given up" in on.said(1)
    assert (on.failures(2), on.jobs()[2].hosts) == ([("n1", 69)], ("n2",)), on.said(2)
    assert [job.state for job in on.jobs()] == ["ended", "failed", "ended"]
    # What was given up is not submitted again.
    assert len(submissions(on)) == 1
    result = result_of(on)
    assert (result["members_done"], result["complete"], result["rankable"]) == (2, False, False), on.collected
    collected = on.ensemble.events[-1]
    assert (collected["key"], collected["value"]["missing"]) == ("collect", [1])


def test_two_ensembles_at_once_and_the_missing_member_of_one_is_run_once_more(
    slurm: Slurm, images: Path, tmp_path: Path
) -> None:
    # A member of two nodes in the one, members that share a node in the other.
    one = planned(slurm, images, tmp_path / "one", 1, degree=2)
    other = wrapped(planned(slurm, images, tmp_path / "other", 2), FAILS_ONCE)
    _, first = one.submit()
    _, second = other.submit(site=SITE.replace("[slurm]", "[slurm]\nrequeue = false"))
    assert one.wait(first) == "COMPLETED", one.everything
    assert other.wait(second) == "COMPLETED", other.everything
    told, again = submissions(other)
    assert (again["members"], again["after"]) == ([0], second)
    assert other.wait(again["jobs"][-1]) == "COMPLETED", other.everything
    assert other.failures(0)[0][1] == 1
    assert [result_of(on)["members_done"] for on in (one, other)] == [1, 2]
    assert one.jobs()[0].hosts == ("n1", "n2")
    assert [job.job for job in other.jobs()] == [f"{again['jobs'][0]}_0", f"{told['jobs'][0]}_1"]


def test_a_cancelled_ensemble_stops_with_checkpoints_and_can_be_gone_on_with(
    slurm: Slurm, images: Path, tmp_path: Path
) -> None:
    on = planned(slurm, images, tmp_path / "ensemble", 3, "problem.epochs=1000")
    array, collector = on.submit("--at-once", "2")
    on.wait_until_they_train([0, 1])
    again, code = on.call("submit", on.folder)
    assert (code, f"still in the queue: {array}_" in again) == (64, True), again
    output, code = on.call("cancel", on.folder)
    assert code == 0, output
    assert slurm.states(array) | slurm.states(collector) <= {"CANCELLED", "FAILED"}, output
    for member in (0, 1):
        assert on.history(member, "interrupted") == ["interrupted"], on.said(member)
        assert on.failures(member) == []
    assert [job.state for job in on.jobs()] == ["cancelled"] * 3
    assert not (on.folder / "result.json").exists()
    assert [event["key"] for event in on.ensemble.events] == ["ensemble_start", "submit", "cancel"]
    output, code = on.call("cancel", on.folder)
    assert (code, "no job of this ensemble is in the queue" in output) == (0, True), output
    output, code = on.call("submit", on.folder, "--dry-run")
    assert (code, "#SBATCH --array=0-2\n" in (on.folder / "slurm" / "member.sh").read_text()) == (0, True), output
