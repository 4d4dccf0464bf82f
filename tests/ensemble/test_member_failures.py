"""Members that fail before or beside their attempts: what is written down, and what is shown of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from made_members import START_S, MadeMember, plan
from test_local_run import planned

from hpcai500.campaign.journal import turn_at
from hpcai500.ensemble.journal import Ensemble, append
from hpcai500.ensemble.local import Jobs, RunOrder, run_ensemble, starting_line
from hpcai500.ensemble.members import Failure, Memory, begun_line, last_error, note_failure, read_failures
from hpcai500.ensemble.scheduler import MemberJob
from hpcai500.ensemble.status import Source, Status, Watch, next_line, read_status, trouble
from hpcai500.errors import ExitCode, RecordError

LATER_MS = int(START_S * 1000) + 10**9


def submitted(ensemble: Ensemble, job: str = "process-7") -> Ensemble:
    members = list(ensemble.members)
    return append(ensemble, "submit", {"scheduler": "local", "jobs": [job], "members": members, "at_once": None})


def failed(ensemble: Ensemble, member: int, code: int = 69, job: str = "process-7", time_ms: int = 0) -> Path:
    folder = ensemble.folder(member)
    folder.mkdir(parents=True, exist_ok=True)
    note_failure(folder, Failure("n1", code, time_ms, job), 0)
    return folder


def alone(ensemble: Ensemble) -> Status:
    return read_status(ensemble, None, Memory(clock=lambda: START_S + 100), Source("local"))


def test_a_member_whose_staging_fails_here_is_failed_for_whoever_looks_with_why(tmp_path: Path) -> None:
    ensemble = planned(tmp_path / "e", tmp_path / "nowhere", 1, stage=str(tmp_path / "node"))
    end = run_ensemble(RunOrder(ensemble.path))
    assert end.failed == [0]
    failure = read_failures(ensemble.folder(0))[0][-1]
    assert failure.exit_code in (ExitCode.USAGE, ExitCode.ENVIRONMENT)
    status = Watch(ensemble.path, {}).look_at_all()
    row = status.rows[0]
    assert (row.state, row.attempts, status.exit_code) == ("failed", 0, ExitCode.WRONG_ANSWER)
    assert f"last on {os.uname().nodename} (exit code {failure.exit_code})" in str(row.wrong)
    assert "see members/00000/output.txt" in str(row.wrong)
    assert str(last_error(ensemble.folder(0))) in str(row.wrong)
    assert "nowhere" in str(row.wrong)


def test_who_waits_for_another_process_says_so_and_was_not_stopped_by_ctrl_c(tmp_path: Path, images: Path) -> None:
    ensemble, told = planned(tmp_path / "e", images, 1), list[str]()
    ensemble.folder(0).mkdir(parents=True)

    def stop(now: Ensemble, jobs: Jobs) -> None:
        if jobs[0].is_elsewhere and not told:
            status = read_status(now, jobs, Memory(), Source("local"))
            told.extend(sentence for _, sentence in trouble(status))
            os.kill(os.getpid(), signal.SIGTERM)

    with turn_at(ensemble.folder(0), 0):
        end = run_ensemble(RunOrder(ensemble.path), stop)
    assert told == ["member 0: is being run by another process: waiting for its end"]
    assert end.stopped
    assert end.jobs[0].reason == "waited for another process, which goes on"
    assert read_failures(ensemble.folder(0)) == ((), None)


def test_one_that_another_process_runs_is_shown_running_when_who_waited_for_it_has_stopped(tmp_path: Path) -> None:
    ensemble = submitted(plan(tmp_path / "e", 1))
    MadeMember(ensemble, 0).begin(START_S)
    job = MemberJob(0, "unknown", "", (), 0, "waited for another process, which goes on", is_elsewhere=True)
    status = read_status(ensemble, {0: job}, Memory(clock=lambda: START_S), Source("local"))
    assert (status.rows[0].state, status.rows[0].wrong) == ("running", job.reason)


@pytest.mark.parametrize(
    ("job", "time_ms", "state"),
    [("process-7", 0, "failed"), ("by hand", 2**52, "failed"), ("process-6", 0, "waiting")],
)
def test_only_failures_since_it_was_submitted_last_count(tmp_path: Path, job: str, time_ms: int, state: str) -> None:
    ensemble = submitted(plan(tmp_path / "e", 2))
    failed(ensemble, 0, job=job, time_ms=time_ms)
    assert [row.state for row in alone(ensemble).rows] == [state, "waiting"]


def test_a_failure_after_a_stop_is_what_is_told(tmp_path: Path) -> None:
    ensemble = submitted(plan(tmp_path / "e", 1))
    one = MadeMember(ensemble, 0)
    one.begin(START_S)
    one.end(START_S, "stopped", "stopped by SIGTERM at epoch 1, step 0; nothing is lost: go on with `hpcai500 ic …`")
    row = alone(ensemble).rows[0]
    assert (row.state, row.wrong) == ("stopped", "stopped by SIGTERM at epoch 1, step 0")
    failed(ensemble, 0, time_ms=LATER_MS)
    row = alone(ensemble).rows[0]
    assert row.state == "failed"
    assert str(row.wrong).startswith("failed once by itself, last on n1 (exit code 69); see members/00000/output.txt")


def test_one_that_is_tried_again_and_stages_still_is_running(tmp_path: Path) -> None:
    ensemble = submitted(plan(tmp_path / "e", 2))
    for member in ensemble.members:
        failed(ensemble, member, code=1)
    with turn_at(ensemble.folder(0), 0):
        assert [row.state for row in alone(ensemble).rows] == ["running", "failed"]


def test_the_last_error_of_its_output_says_why_one_ended_before_its_first_event(tmp_path: Path) -> None:
    ensemble = submitted(plan(tmp_path / "e", 1))
    one = MadeMember(ensemble, 0)
    one.begin(START_S)
    one.stop(START_S, "failed", "it ended before its first event (exit code 1)")
    full = "/e/members/00000/trial-01: the record cannot be written: No space left on device"
    (one.folder / "output.txt").write_text(f"x\n[0] hpcai500: error: {full}\nand more\n")
    for jobs in (None, {0: MemberJob(0, "failed", "", ("vm",), 0, "exit code 1: see members/00000/output.txt")}):
        row = read_status(ensemble, jobs, Memory(clock=lambda: START_S), Source("local")).rows[0]
        assert row.state == "failed"
        assert "it ended before its first event" in str(row.wrong)
        assert full in str(row.wrong)


def test_an_error_of_an_earlier_job_is_not_taken_for_that_of_the_last(tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    output.write_text("hpcai500: error: old\n")
    assert last_error(tmp_path) == "old"
    output.write_text(output.read_text() + begun_line(0, "process-8", "n1", 1) + "killed\n")
    assert last_error(tmp_path) is None


@pytest.mark.parametrize("content", [b"\xff\n", b"[]\n3\n", b'{"host":"n1"}\n', b"[" * 9999 + b"\n"])
def test_what_is_no_failure_is_told_and_decides_nothing(tmp_path: Path, content: bytes) -> None:
    ensemble = submitted(plan(tmp_path / "e", 1))
    ensemble.folder(0).mkdir(parents=True)
    (ensemble.folder(0) / "failures.jsonl").write_bytes(content)
    row = alone(ensemble).rows[0]
    assert row.state == "waiting"
    assert "failures.jsonl: a line is none of a failed member: " in str(row.wrong)


@pytest.mark.parametrize("content", [None, b"", b'{"host":"n1","exit_code":6'])
def test_a_line_that_was_cut_off_is_no_failure(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "failures.jsonl").write_bytes(content)
    assert read_failures(tmp_path) == ((), None)


def test_failures_that_may_not_be_read_are_told(tmp_path: Path) -> None:
    for name in ("failures.jsonl", "output.txt"):
        (tmp_path / name).symlink_to(tmp_path / name)
    failures, problem = read_failures(tmp_path)
    assert failures == ()
    assert "failures.jsonl: cannot be read: Too many levels of symbolic links" in str(problem)
    with pytest.raises(RecordError, match=r"output.txt: cannot be read: Too many levels of symbolic links"):
        last_error(tmp_path)


def test_of_long_files_only_the_end_is_read(tmp_path: Path) -> None:
    line = json.dumps({"time_ms": 1, "host": "n1", "exit_code": 1, "restart": 0, "job": "7"}) + "\n"
    (tmp_path / "failures.jsonl").write_text(line * 10_000 + line.replace('"n1"', '"n2"'))
    assert read_failures(tmp_path)[0][-1] == Failure("n2", 1, 1, "7")
    (tmp_path / "output.txt").write_text("hpcai500: error: far away\n" + "x\n" * 100_000)
    assert last_error(tmp_path) is None


def test_a_member_that_was_collected_and_is_gone_is_lost_until_it_is_submitted_again(tmp_path: Path) -> None:
    ensemble = submitted(plan(tmp_path / "e", 1))
    one = MadeMember(ensemble, 0)
    one.begin(START_S)
    one.end(START_S)
    ensemble = append(ensemble, "collect", {"status": "complete", "heads": {"0": one.events.previous}})
    assert alone(ensemble).rows[0].state == "done"
    shutil.rmtree(one.folder)
    status = alone(ensemble)
    assert (status.rows[0].state, status.exit_code) == ("lost", ExitCode.WRONG_ANSWER)
    assert "it was there when it was collected, and is gone" in str(status.rows[0].wrong)
    assert alone(submitted(ensemble, "process-9")).rows[0].state == "waiting"


def test_of_a_fresh_plan_the_summary_says_what_to_type_and_nothing_is_wrong(tmp_path: Path) -> None:
    ensemble = plan(tmp_path / "e", 2)
    status = read_status(ensemble, None, Memory())
    text = "\n".join(status.lines())
    assert f"hpcai500 ensemble run {ensemble.path}" in text
    assert f"hpcai500 ensemble submit {ensemble.path}" in text
    assert "2 waiting (none submitted yet)" in text
    assert "what is wrong" not in text
    assert "checkpoint" not in text


@pytest.mark.parametrize(
    ("other", "words"), [("done", "collect e --accept-incomplete: those that diverged are final"),
                         ("failed", "those that are not done are run; those that diverged are final")]
)  # fmt: skip
def test_nobody_is_told_to_run_again_what_diverged(
    tmp_path: Path, other: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ensemble = submitted(plan(Path("e"), 2))
    for member, end in enumerate(("failed", other)):
        one = MadeMember(ensemble, member)
        one.begin(START_S)
        if member == 0:
            one.events.add(START_S, ("diverged", {"epoch": 1, "step": 1, "rank": 0, "what": "the loss is nan"}))
        one.end(START_S, end, "why")
    assert words in str(next_line(alone(ensemble)))


def test_the_rate_says_which_it_is_and_the_middle_of_two_is_between_them(tmp_path: Path) -> None:
    ensemble = submitted(plan(tmp_path / "e", 2))
    for member, seconds in enumerate((10.0, 20.0)):
        one = MadeMember(ensemble, member)
        one.begin(START_S)
        one.finish_epoch(START_S + seconds, seconds)
    (line,) = [line for line in alone(ensemble).lines() if line.startswith("images/s")]
    assert line.endswith("median 480, 320 to 640 for all (each over its last epoch of training)")


def test_what_begins_is_told_before_the_first_look(tmp_path: Path) -> None:
    ensemble = plan(tmp_path / "e", 3)
    assert starting_line(ensemble, [0, 2]).startswith(f"starting 2 of 3 members of {ensemble.path}, ")
    assert starting_line(ensemble, [0, 1, 2]).endswith(f"{ensemble.path}/members/NNNNN/output.txt")
