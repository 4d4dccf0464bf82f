"""Runs of a campaign, by jobs that are acted: which are begun, gone on with and begun anew, what its journal tells.

And what doctor tells of a job that Ctrl-C ended.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import pytest
from fakes.launcher import (
    ActedLauncher,
    diverges,
    finishes,
    is_interrupted_at_once,
    is_killed,
    is_killed_at_its_start,
    is_stopped,
    loses_a_rank,
    loses_its_data,
)

from hpcai500.campaign.attempts import settle
from hpcai500.campaign.journal import NO_EVENTS, Campaign, create_campaign, read_campaign, turn_at
from hpcai500.campaign.standing import standing
from hpcai500.errors import RecordError, UsageError
from hpcai500.job_options import PreflightOptions, read_options
from hpcai500.launch.examination import Findings, Patient, examine_command
from hpcai500.launch.processes import run_to_end
from hpcai500.launch.runs import Request, latest_unfinished, run_benchmark, run_campaign
from hpcai500.layers import Recipe
from hpcai500.recipe import load_recipe, rulebook
from hpcai500.restarts import Restarts
from hpcai500.stopping import Stopped
from hpcai500.system.checks import RANKS, VERSIONS, Check, CheckLog

SHORT = ("problem.epochs=2", "hyperparameters.warmup_epochs=1", "accelerator.device=cpu")

Plan = Callable[[int], Path]


@pytest.fixture
def planned(images: Path, tmp_path: Path) -> Plan:
    def plan(trials: int) -> Path:
        create_campaign(tmp_path / "runs" / "c", load_recipe("ic/smoke", SHORT), trials, images)
        return tmp_path / "runs" / "c"

    return plan


def planned_beside(folder: Path) -> Path:
    campaign = read_campaign(folder)
    create_campaign(folder.parent / "d", load_recipe("ic/smoke", SHORT), 1, Path(campaign.start["data"]))
    return folder.parent / "d"


def ran(folder: Path, launcher: ActedLauncher, only: int | None = None) -> list[tuple[str, int]]:
    return [(run.record.name, run.exit_code) for run in run_campaign(folder, launcher, only=only)]


def told(folder: Path) -> list[tuple[str, str]]:
    return [(one.record, one.status) for one in read_campaign(folder).attempts]


def reasons(folder: Path) -> list[str]:
    """What is against the attempts; not that a smoke run is none of the edition's."""
    found = standing(read_campaign(folder))
    of_results = tuple(reason for result in found.results for reason in result.reasons)
    return [one for one in found.reasons if "finished run" not in one and not one.endswith(of_results)]


def unbound(campaign: Campaign) -> list[str]:
    return [reason for reason in standing(campaign).reasons if "journal" in reason or "names" in reason]


class DeafLauncher(ActedLauncher):
    """Its jobs end well, and a signal comes when they no longer listen."""

    def run(
        self,
        recipe: Recipe,
        arguments: Sequence[str | Path],
        module: str = "train",
        patience: object = None,
        restarts: Restarts | None = None,
    ) -> int:
        code = super().run(recipe, arguments)
        return code or run_to_end(["sh", "-c", "trap '' TERM; kill -TERM $PPID; sleep 0.2"])


def test_every_run_is_in_the_journal_before_it_begins(planned: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setattr("sys.argv", ["/usr/bin/hpcai500", "campaign", "run", "c"])
    folder = planned(2)
    launcher = ActedLauncher(finishes, finishes)
    assert ran(folder, launcher) == [("trial-01", 0), ("trial-02", 0)]
    assert launcher.checked == [2]
    campaign = read_campaign(folder)
    assert [event["key"] for event in campaign.events] == ["campaign_start", *["attempt_start", "attempt_stop"] * 2]
    assert campaign.attempts[0].commands == (("hpcai500", "campaign", "run", "c"),)
    assert campaign.attempts[0].slurm_jobs == ("17",)
    assert campaign.events[1]["value"]["launcher"] == "none"
    assert [job.set for job in launcher.jobs] == [["hyperparameters.seed=1"], ["hyperparameters.seed=2"]]
    assert launcher.jobs[1].campaign == {
        "id": campaign.identity, "trial": 2, "attempt": 1, "head": campaign.attempts[1].start_hash,
    }  # fmt: skip
    assert unbound(campaign) == []


def test_a_signal_that_comes_when_a_run_has_just_ended_stops_the_campaign_before_the_next(planned: Plan) -> None:
    folder = planned(2)
    outcomes = run_campaign(folder, DeafLauncher(finishes, finishes))
    assert next(outcomes).exit_code == 0
    with pytest.raises(Stopped, match="stopped by SIGTERM"):
        next(outcomes)
    assert told(folder) == [("trial-01", "done")]
    # It goes on as after any stop.
    assert ran(folder, ActedLauncher(finishes)) == [("trial-01", 0), ("trial-02", 0)]


def test_one_trial_alone_and_the_rest_later_and_nothing_twice(planned: Plan) -> None:
    folder = planned(3)
    assert ran(folder, ActedLauncher(finishes), only=2) == [("trial-02", 0)]
    everything = [("trial-01", 0), ("trial-02", 0), ("trial-03", 0)]
    assert ran(folder, ActedLauncher(finishes, finishes)) == everything
    assert ran(folder, launcher := ActedLauncher()) == everything
    assert launcher.jobs == []
    with pytest.raises(UsageError, match=r"--only 4: .* has the trials 1 to 3"):
        ran(folder, ActedLauncher(), only=4)


@pytest.mark.parametrize(
    ("fate", "status", "reason"),
    [
        (is_stopped, "stopped", "stopped by SIGTERM"),
        (is_killed, "stopped", "it was killed, or its machine went down: its record has no end"),
        (loses_a_rank, "failed", "rank 1 was lost (exit code 1)"),
    ],
)
def test_what_has_begun_to_train_is_gone_on_with(
    planned: Plan, fate: Callable[..., int], status: str, reason: str
) -> None:
    folder = planned(2)
    assert ran(folder, ActedLauncher(fate)) == [("trial-01", 1)]
    assert told(folder) == [("trial-01", status)]
    assert read_campaign(folder).attempts[0].reason == reason
    launcher = ActedLauncher(finishes, finishes)
    assert ran(folder, launcher) == [("trial-01", 0), ("trial-02", 0)]
    assert [(job.resume, job.campaign is None) for job in launcher.jobs] == [(True, True), (False, False)]
    assert told(folder) == [("trial-01", "done"), ("trial-02", "done")]
    campaign = read_campaign(folder)
    assert [event["key"] for event in campaign.events[1:5]] == [
        "attempt_start", "attempt_stop", "attempt_resume", "attempt_stop",
    ]  # fmt: skip
    assert reasons(folder) == []


@pytest.mark.parametrize(
    ("fate", "reason"),
    [
        (None, "it ended before its first event (exit code 69)"),
        (is_killed_at_its_start, "it was killed, or its machine went down: its record has no end (exit code 1)"),
        (loses_its_data, "a file cannot be read (exit code 64)"),
    ],
)
def test_what_ended_before_there_was_anything_to_go_on_with_is_kept_and_begun_anew(
    planned: Plan, fate: Callable[..., int] | None, reason: str
) -> None:
    folder = planned(1)
    ran(folder, ActedLauncher(fate))
    (before,) = read_campaign(folder).attempts
    assert (before.status, before.reason, before.head == NO_EVENTS) == ("failed", reason, fate is None)
    launcher = ActedLauncher(finishes)
    assert ran(folder, launcher) == [("trial-01-attempt-2", 0)]
    assert launcher.jobs[0].set == ["hyperparameters.seed=1"]
    assert told(folder) == [("trial-01", "failed"), ("trial-01-attempt-2", "done")]
    assert (folder / "trial-01").is_dir()
    assert reasons(folder) == []


def test_a_run_that_diverged_is_not_tried_again(planned: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    folder = planned(2)
    assert ran(folder, ActedLauncher(diverges)) == [("trial-01", 1)]
    assert ran(folder, launcher := ActedLauncher()) == [("trial-01", 1)]
    assert launcher.jobs == []
    assert "trial 1, attempt 1 diverged (the loss is nan at epoch 2, step 3): this is a result of the recipe" in (
        capsys.readouterr().err
    )
    assert ran(folder, ActedLauncher(finishes), only=2) == [("trial-02", 0)]
    assert any("diverged" in reason for reason in reasons(folder))


def test_ctrl_c_that_the_job_did_not_catch_is_told_in_the_journal(planned: Plan) -> None:
    folder = planned(1)
    with pytest.raises(KeyboardInterrupt):
        ran(folder, ActedLauncher(is_interrupted_at_once))
    assert told(folder) == [("trial-01", "stopped")]


def killed_with_the_command(folder: Path) -> None:
    """Leave the campaign as kill -9 of command and job leaves it: begun, and nobody there to tell the end."""
    ran(folder, ActedLauncher(is_killed))
    journal = folder / "campaign.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))
    assert told(folder) == [("trial-01", "running")]


def healed(folder: Path) -> Campaign:
    campaign = read_campaign(folder)
    return settle(campaign, rulebook(campaign.edition, campaign.benchmark))


def test_what_was_killed_with_its_command_is_found_out_by_the_next_one_or_by_whoever_looks(planned: Plan) -> None:
    killed_with_the_command(folder := planned(1))
    assert ran(folder, launcher := ActedLauncher(finishes)) == [("trial-01", 0)]
    assert launcher.jobs[0].resume
    events = read_campaign(folder).events
    assert [event["key"] for event in events[2:]] == ["attempt_stop", "attempt_resume", "attempt_stop"]
    assert (events[2]["value"]["status"], events[2]["value"]["exit_code"]) == ("stopped", None)
    assert reasons(folder) == []
    killed_with_the_command(other := planned_beside(folder))
    (attempt,) = healed(other).attempts
    assert (attempt.status, attempt.reason) == (
        "stopped", "it was killed, or its machine went down: its record has no end",
    )  # fmt: skip
    assert [one.status for one in healed(other).attempts] == ["stopped"]


def test_a_run_whose_folder_was_removed_while_nobody_looked_stays_without_a_head(planned: Plan) -> None:
    killed_with_the_command(folder := planned(1))
    shutil.rmtree(folder / "trial-01")
    (attempt,) = healed(folder).attempts
    assert (attempt.status, attempt.head, attempt.reason) == ("failed", None, "its folder is gone")
    gone = "trial 1, attempt 1: trial-01: its folder was missing when its end was written into the journal"
    assert any(reason.startswith(gone) for reason in reasons(folder))


def test_what_really_runs_is_left_alone(planned: Plan) -> None:
    killed_with_the_command(folder := planned(1))
    with (folder / "trial-01" / "events.jsonl").open("rb") as stream:
        # As the job holds it.
        fcntl.flock(stream.fileno(), fcntl.LOCK_EX)
        assert healed(folder).attempts[0].status == "running"
        with pytest.raises(RecordError, match="trial 1 is being run by another process: wait for it or stop it"):
            ran(folder, ActedLauncher(finishes))
        with pytest.raises(RecordError, match="no unfinished ic run to resume"):
            latest_unfinished(folder.parent, "ic")
    assert latest_unfinished(folder.parent, "ic") == folder


def test_two_commands_never_run_one_trial(planned: Plan) -> None:
    folder = planned(2)
    with turn_at(folder, 1):
        with pytest.raises(RecordError, match="trial 1 is being run by another process"):
            ran(folder, ActedLauncher(finishes))
        assert ran(folder, ActedLauncher(finishes), only=2) == [("trial-02", 0)]
    assert told(folder) == [("trial-02", "done")]


def test_a_folder_that_somebody_put_there_is_not_written_into(planned: Plan) -> None:
    folder = planned(1)
    (folder / "trial-01").mkdir()
    assert ran(folder, ActedLauncher(finishes)) == [("trial-01", 0)]
    (folder / "trial-01" / "DONE").unlink()
    other = planned_beside(folder)
    (other / "trial-01").mkdir()
    (other / "trial-01" / "notes").touch()
    with pytest.raises(RecordError, match="exists already, but is not in the campaign's journal"):
        ran(other, ActedLauncher(finishes))
    assert told(other) == []


def test_the_benchmark_s_own_command_makes_and_goes_on_with_a_campaign(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    request = Request("ic", "ic/smoke", images, None, SHORT, trials=2)
    runs = list(run_benchmark(request, ActedLauncher(finishes, is_stopped)))
    folder = runs[0].record.parent
    assert [(run.record.name, run.exit_code) for run in runs] == [("trial-01", 0), ("trial-02", 1)]
    again = list(run_benchmark(Request("ic", resume=True), launcher := ActedLauncher(finishes)))
    assert [(run.record, run.exit_code) for run in again] == [(folder / "trial-01", 0), (folder / "trial-02", 0)]
    assert launcher.jobs[0].resume
    assert reasons(folder) == []


def test_runs_that_start_together_do_not_meet(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    class Still(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Still:
            return cls(2026, 11, 23, 11, 5, 0, tzinfo=tz)

    monkeypatch.setattr("hpcai500.files.datetime", Still)
    alone = Request("ic", "ic/smoke", images, None, SHORT)
    campaign = replace(alone, trials=2)
    living = run_benchmark(alone, ActedLauncher(finishes))
    found = [next(living).record]
    found += [run.record for one in (alone, campaign) for run in run_benchmark(one, ActedLauncher(finishes, finishes))]
    first = "runs/ic-20261123-110500"
    assert list(map(str, found)) == [first, f"{first}-2", f"{first}-3/trial-01", f"{first}-3/trial-02"]
    # What refuses to start leaves nothing.
    with pytest.raises(UsageError):
        list(run_benchmark(replace(alone, benchmark="ewa"), ActedLauncher(finishes)))
    assert len(list(Path("runs").iterdir())) == 3


def test_a_stopped_run_that_is_resumed_by_its_record_goes_on_in_its_campaign(planned: Plan) -> None:
    folder = planned(2)
    ran(folder, ActedLauncher(is_stopped))
    runs = list(run_benchmark(Request("ic", out=folder / "trial-01", resume=True), launcher := ActedLauncher(finishes)))
    assert [(run.record.name, run.exit_code) for run in runs] == [("trial-01", 0)]
    assert launcher.jobs[0].resume
    assert [event["key"] for event in read_campaign(folder).events[1:]] == [
        "attempt_start", "attempt_stop", "attempt_resume", "attempt_stop",
    ]  # fmt: skip
    assert unbound(read_campaign(folder)) == []


def test_what_is_no_latest_attempt_or_of_another_benchmark_is_refused_by_name(planned: Plan) -> None:
    folder = planned(1)
    ran(folder, ActedLauncher(is_stopped))
    with pytest.raises(UsageError, match=r"trial-09: not the last attempt at a run of this campaign"):
        list(run_benchmark(Request("ic", out=folder / "trial-09", resume=True), ActedLauncher()))
    with pytest.raises(UsageError, match=f"runs of ic; run `hpcai500 ic --resume --out {folder}`"):
        list(run_benchmark(Request("ewa", out=folder, resume=True), ActedLauncher()))


def test_a_plan_of_which_no_run_was_begun_is_not_resumed(planned: Plan) -> None:
    stopped = planned(1)
    ran(stopped, ActedLauncher(is_stopped))
    newest = planned_beside(stopped)
    os.utime(newest, ns=(stopped.stat().st_mtime_ns + 10**9,) * 2)
    assert latest_unfinished(stopped.parent, "ic") == stopped
    ran(stopped, ActedLauncher(finishes))
    with pytest.raises(RecordError, match="no unfinished ic run to resume"):
        latest_unfinished(stopped.parent, "ic")


def test_what_failed_comes_after_what_was_stopped(planned: Plan) -> None:
    stopped = planned(1)
    ran(stopped, ActedLauncher(is_stopped))
    failed = planned_beside(stopped)
    ran(failed, ActedLauncher(loses_a_rank))
    assert latest_unfinished(stopped.parent, "ic") == stopped
    journal = json.loads((failed / "campaign.jsonl").read_bytes().splitlines()[-1])
    assert journal["value"]["status"] == "failed"
    ran(stopped, ActedLauncher(finishes))
    assert latest_unfinished(stopped.parent, "ic") == failed


# --- what `hpcai500 doctor` tells when Ctrl-C ends its job, however the job's process took it


class InterruptedLauncher(ActedLauncher):
    """Its job tells of the first checks, and ends by Ctrl-C's signal; does it `write` that too?"""

    def __init__(self, *, write: bool) -> None:
        super().__init__()
        self._write = write

    def run(
        self, recipe: Any, arguments: Sequence[str | Path], module: str = "train", patience: Any = None
    ) -> NoReturn:
        """The job."""
        log = CheckLog(read_options(PreflightOptions, [str(word) for word in arguments]).log, 60, lambda: None)
        log.begin(RANKS)
        log.found([Check(RANKS, "pass", "one")])
        log.begin(VERSIONS)
        if self._write:
            log.stopped("Ctrl-C")
        log.close()
        raise KeyboardInterrupt


@pytest.mark.parametrize("write", [True, False], ids=["written", "too early to be written"])
def test_what_was_found_before_ctrl_c_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: bool) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["hpcai500", "doctor"])
    findings: Findings = examine_command(Patient(), InterruptedLauncher(write=write))
    assert findings.stopped == "Ctrl-C"
    found = {check.name: check for check in findings.checks}
    assert found[RANKS].status == "pass"
    assert (found[VERSIONS].status, found[VERSIONS].detail) == ("fail", "stopped by Ctrl-C before it ended")
