"""How members stand, from what their scheduler says and what their logs tell: also where these are damaged."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fakes.slurm import START_S, MadeCluster, MadeMember, plan

from hpcai500.campaign.journal import turn_at
from hpcai500.ensemble.journal import Ensemble, append
from hpcai500.ensemble.local import starting_line
from hpcai500.ensemble.members import Failure, MemberStatus, Memory, begun_line, last_error, note_failure, read_failures
from hpcai500.ensemble.scheduler import MemberJob, State
from hpcai500.ensemble.status import Source, Status, next_line, read_status
from hpcai500.errors import ExitCode, RecordError
from hpcai500.system.process import owner_of

NOW = START_S + 100


def submitted(folder: Path, members: int = 3, scheduler: str = "slurm") -> Ensemble:
    told = {"scheduler": scheduler, "jobs": ["7"], "members": list(range(members)), "at_once": None, "exclude": []}
    return append(plan(folder / "e", members), "submit", told)


def look(ensemble: Ensemble, *jobs: MemberJob, memory: Memory | None = None, now_s: float = NOW) -> Status:
    return read_status(ensemble, {job.member: job for job in jobs}, memory or Memory(clock=lambda: now_s))


def alone(ensemble: Ensemble, now_s: float = NOW) -> Status:
    """By the records alone."""
    return read_status(ensemble, None, Memory(clock=lambda: now_s))


def running(ensemble: Ensemble, member: int = 0, epochs: int = 0, *, is_old: bool = False) -> MadeMember:
    one = MadeMember(ensemble, member, is_old=is_old)
    one.begin(START_S, "n7")
    for epoch in range(epochs):
        one.finish_epoch(START_S + 20 * (epoch + 1), 16.0, 0.1 * (epoch + 1))
    return one


def job(state: State, member: int = 0, reason: str = "") -> MemberJob:
    return MemberJob(member, state, f"7_{member}", ("n7",), 0, reason)


@pytest.mark.parametrize("is_old", [False, True])
def test_a_row_has_what_scheduler_and_record_tell(tmp_path: Path, is_old: bool) -> None:
    ensemble = submitted(tmp_path)
    running(ensemble, epochs=2, is_old=is_old)
    assert look(ensemble, MemberJob(0, "running", "7_0", ("n7", "n8"), 2)).rows[0] == MemberStatus(
        0, "running", ("n7", "n8"), "7_0", restarts=2, attempts=1, epoch=3, epochs_done=2, step=0, steps=100,
        quality=0.2, images_per_second=6400 / 16, pace_seconds=20.0, can_go_on=True, started_ms=int(START_S * 1000),
        last_ms=int(START_S * 1000) + 40_000, looked_s=NOW,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("state", "status", "expected"),
    [("waiting", "running", "waiting"), ("running", "running", "running"), ("running", "failed", "running"),
     ("running", "done", "done"), ("ended", "done", "done"), ("ended", "failed", "failed"),
     ("ended", "stopped", "stopped"), ("ended", "running", "lost"), ("failed", "failed", "failed"),
     ("failed", "stopped", "stopped"), ("failed", "running", "failed"), ("cancelled", "stopped", "cancelled"),
     ("unknown", "done", "done"), ("unknown", "running", "running")],
)  # fmt: skip
def test_scheduler_and_journal_together_say_how_a_member_stands(
    tmp_path: Path, state: State, status: str, expected: str
) -> None:
    ensemble = submitted(tmp_path)
    one = running(ensemble, epochs=1)
    if status != "running":
        one.end(NOW, status, "why")
    assert look(ensemble, job(state)).rows[0].state == expected


@pytest.mark.parametrize(
    ("state", "expected", "wrong"),
    [
        ("waiting", "waiting", None),
        ("running", "running", None),
        ("ended", "lost", "before the member started"),
        ("failed", "failed", "NODE_FAIL"),
        ("cancelled", "cancelled", "NODE_FAIL"),
        ("unknown", "waiting", None),
    ],
)
def test_of_a_member_without_a_record_the_scheduler_alone_tells(
    tmp_path: Path, state: State, expected: str, wrong: str | None
) -> None:
    row = look(submitted(tmp_path), job(state, reason="NODE_FAIL" if wrong else "")).rows[0]
    assert row.state == expected
    assert (wrong is None) == (row.wrong is None)
    assert wrong is None or wrong in str(row.wrong)


def test_why_a_member_waits_is_told_where_it_may_wait_for_ever(tmp_path: Path) -> None:
    ensemble = submitted(tmp_path)
    rows = look(ensemble, job("waiting", 0, "Priority"), job("waiting", 1, "launch failed requeued held")).rows
    assert [row.wrong for row in rows[:2]] == [None, "waits: launch failed requeued held"]


def test_what_diverged_is_lost_for_good_whatever_its_job_does(tmp_path: Path) -> None:
    ensemble = submitted(tmp_path)
    one = running(ensemble, epochs=1)
    one.events.add(NOW, ("diverged", {"epoch": 2, "step": 7, "rank": 0, "what": "the loss is nan"}))
    one.end(NOW, "failed", "the loss is nan")
    status = look(ensemble, job("failed"))
    assert (status.rows[0].state, status.rows[0].can_go_on) == ("diverged", False)
    assert status.rows[0].wrong == "diverged: the loss is nan at epoch 2, step 7"


def test_a_new_attempt_is_read_from_its_beginning_and_one_that_is_gone_on_with_is_no_contradiction(
    tmp_path: Path,
) -> None:
    ensemble, memory = submitted(tmp_path), Memory(clock=lambda: NOW)
    one = running(ensemble, epochs=3)
    assert look(ensemble, job("running"), memory=memory).rows[0].epochs_done == 3
    one.end(NOW, "failed", "node lost")
    one.begin(NOW)
    one.finish_epoch(NOW)
    row = look(ensemble, MemberJob(0, "running", "8_0", ("n9",), 1), memory=memory).rows[0]
    assert (row.attempts, row.epochs_done, row.wrong) == (2, 1, None)
    one.end(NOW, "stopped", "stopped by SIGTERM")
    assert look(ensemble, job("ended"), memory=memory).rows[0].state == "stopped"
    one.journal.add(NOW, ("attempt_resume", {"trial": 1, "attempt": 2, "command": [], "slurm_job_id": "8"}))
    one.finish_epoch(NOW)
    row = look(ensemble, job("running"), memory=memory).rows[0]
    assert (row.state, row.epochs_done, row.wrong) == ("running", 2, None)


def test_failures_of_its_own_are_told_with_their_host(tmp_path: Path) -> None:
    ensemble = submitted(tmp_path)
    one = running(ensemble)
    told = [{"time_ms": 1, "host": f"n{number}", "exit_code": 1, "restart": number} for number in (1, 2)]
    (one.folder / "failures.jsonl").write_text("".join(json.dumps(line) + "\n" for line in told) + '{"time_ms":')
    row = look(ensemble, MemberJob(0, "running", "7_0", ("n3",), 2)).rows[0]
    assert row.wrong == "failed 2 times, last on n2 (exit code 1)"


def test_records_alone_tell_where_there_is_no_scheduler(tmp_path: Path) -> None:
    ensemble = submitted(tmp_path, 5, "local")
    running(ensemble, 0, epochs=5).end(NOW)
    running(ensemble, 1, epochs=2)
    running(ensemble, 2, epochs=1).end(NOW, "stopped", "stopped by SIGTERM")
    running(ensemble, 3).end(NOW, "failed", "disk full")
    status = alone(ensemble)
    assert [row.state for row in status.rows] == ["done", "running", "stopped", "failed", "waiting"]
    assert [row.wrong for row in status.rows] == [None, None, "stopped by SIGTERM", "disk full", None]
    assert status.rows[1].hosts == ("n7",)
    assert status.is_going_on


def test_members_that_nobody_was_asked_to_run_do_not_go_on(tmp_path: Path) -> None:
    status = alone(plan(tmp_path / "e", 2))
    assert [(row.state, row.wrong, row.submitted) for row in status.rows] == [("waiting", None, False)] * 2
    assert not status.is_going_on


def test_after_a_cancel_those_that_had_not_begun_are_cancelled(tmp_path: Path) -> None:
    ensemble = append(submitted(tmp_path, 2), "cancel", {"jobs": ["7"]})
    running(ensemble, 0, epochs=5).end(NOW)
    assert [row.state for row in alone(ensemble).rows] == ["done", "cancelled"]


def killed() -> str:
    """The token of a process of this machine that is no more."""
    with subprocess.Popen(["sleep", "600"]) as process:
        token = owner_of(process.pid)
        process.kill()
    return token


def test_one_that_was_killed_on_this_machine_is_lost_and_not_shown_as_running(tmp_path: Path) -> None:
    ensemble = submitted(tmp_path, 3, "local")
    for member, owner in enumerate((killed(), owner_of(os.getpid()), "")):
        MadeMember(ensemble, member, owner=owner).begin(START_S)
    status = alone(ensemble)
    assert [row.state for row in status.rows] == ["lost", "running", "running"]
    assert "killed: no process on" in str(status.rows[0].wrong)
    # Also where its record tells why.
    path = ensemble.folder(0) / "trial-01" / "progress.json"
    told = json.loads(path.read_bytes())
    path.write_text(json.dumps({**told, "phase": "ended", "error": "stopped by SIGTERM"}))
    row = alone(ensemble).rows[0]
    assert row.state == "lost"
    assert "its journal has no end" in str(row.wrong)
    with turn_at(ensemble.folder(0), 0):
        # Another process is at it already.
        assert alone(ensemble).rows[0].state == "running"
    # With nobody else at work, nothing goes on.
    only = submitted(tmp_path / "only", 1, "local")
    MadeMember(only, 0, owner=killed()).begin(START_S)
    status = alone(only)
    assert (status.rows[0].state, status.is_going_on) == ("lost", False)


@pytest.mark.parametrize("damage", ["chain", "head", "gone", "folder", "plan", "campaign", "types", "outside"])
def test_what_is_damaged_is_wrong_in_its_row_and_nowhere_else(tmp_path: Path, damage: str) -> None:
    ensemble, memory = submitted(tmp_path, 2), Memory(clock=lambda: NOW)
    bad, good = (running(ensemble, member, epochs=1, is_old=True) for member in (0, 1))
    if damage in ("gone", "folder"):
        look(ensemble, job("running", 0), job("running", 1), memory=memory)
    words = _damage(bad, good, damage)
    state: State = "ended" if damage == "head" else "running"
    # One look reads the record, the next one the journal as well.
    for _ in range(2):
        status = look(ensemble, job(state, 0), MemberJob(1, "running", "7_1", ("n8",)), memory=memory)
        assert [row.state for row in status.rows] == ["lost", "running"]
        assert words in str(status.rows[0].wrong)
        assert status.rows[1].wrong is None
    assert status.exit_code == ExitCode.WRONG_ANSWER
    assert "\n".join(status.lines())
    assert json.dumps(status.document(), allow_nan=False)


def _damage(bad: MadeMember, good: MadeMember, damage: str) -> str:
    log = bad.events.path
    match damage:
        case "chain":
            log.write_bytes(log.read_bytes().replace(b'"step":0', b'"step":1', 1))
            words = "the chain is broken here"
        case "head":
            bad.stop(NOW, "done")
            bad.events.add(NOW, ("run_stop", {}))
            words = "not the record that the campaign's journal names"
        case "gone":
            log.unlink()
            words = "was there before, and is missing now"
        case "folder":
            shutil.rmtree(bad.folder)
            words = "was there before, and is missing now"
        case "plan":
            shutil.rmtree(bad.folder)
            bad.attempts, bad.journal = 0, type(bad.journal)(bad.journal.path)
            bad.begin(NOW, plan={"id": "another", "member": 0})
            words = "it names another plan"
        case "campaign":
            shutil.copy(good.events.path, log)
            words = "the record of another campaign"
        case "types":
            bad.events.add(NOW, ("eval_accuracy", {"epoch": "two", "metric": None}))
            words = "eval_accuracy: epoch: Input should be a valid integer"
        case _:
            bad.journal.add(NOW, ("attempt_start", {"trial": 1, "attempt": 2, "record": "../../../etc"}))
            words = "expected the name of a folder as record"
    return words


@pytest.mark.parametrize(
    "content",
    [b"", b"[1]", b'{"schema":"hpcai500-progress-9"}', b'{"epoch":0}', b'{"images_per_second":1e999}',
     b'{"owner":"' + b"x" * 2**20 + b'"}'],
    ids=["empty", "a list", "another schema", "a wrong value", "no number", "too long"],
)  # fmt: skip
def test_where_a_progress_is_damaged_the_log_tells(tmp_path: Path, content: bytes) -> None:
    ensemble = submitted(tmp_path, 1)
    path = running(ensemble).record / "progress.json"
    path.write_bytes(b"")
    whole = look(ensemble, job("running")).rows[0]
    path.write_bytes(content)
    row = look(ensemble, job("running")).rows[0]
    assert (row.state, row.wrong, row.epoch, row.step) == ("running", whole.wrong, whole.epoch, whole.step)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b'{"campaign":{"id":"another"}}', "the record of another campaign"), (None, "not a file")],
)
def test_a_progress_that_is_none_is_wrong_in_its_row(tmp_path: Path, content: bytes | None, words: str) -> None:
    ensemble = submitted(tmp_path, 1)
    path = running(ensemble).record / "progress.json"
    path.unlink()
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    row = look(ensemble, job("running")).rows[0]
    assert row.state == "lost"
    assert words in str(row.wrong)


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_the_record_of_an_attempt_that_has_ended_is_the_one_that_its_journal_vouches_for(
    tmp_path: Path, damage: str
) -> None:
    ensemble = submitted(tmp_path, 1)
    one = running(ensemble, epochs=5)
    one.end(NOW)
    assert look(ensemble, job("ended")).rows[0].state == "done"
    if damage == "changed":
        one.events.path.write_bytes(one.events.path.read_bytes()[:-2] + b"\n")
    else:
        one.events.path.unlink()
    assert look(ensemble, job("ended")).rows[0].state == "lost"


@pytest.mark.parametrize("line", [b"nothing", b"[1]", b'{"prev":1,"seq":0}', b"[" * 100_000, b"\xff\x00"])
def test_a_log_that_is_none_is_wrong_in_its_row(tmp_path: Path, line: bytes) -> None:
    ensemble = submitted(tmp_path, 1)
    running(ensemble, is_old=True).events.path.write_bytes(line + b"\n")
    row = look(ensemble, job("running")).rows[0]
    assert row.state == "lost"
    assert "not an event" in str(row.wrong)


def test_of_a_long_log_without_a_progress_only_the_end_is_read(tmp_path: Path) -> None:
    ensemble = submitted(tmp_path, 1)
    one = running(ensemble, is_old=True)
    one.events.add(NOW, *(("long", "x" * 1000) for _ in range(2000)))
    one.finish_epoch(NOW)
    status = look(ensemble, job("running"))
    assert (status.rows[0].state, status.rows[0].epoch, status.rows[0].steps) == ("running", 2, 100)
    assert status.polls[0].read_bytes < 2**20 + 10_000


def test_a_journal_too_long_to_be_one_is_wrong_in_its_row(tmp_path: Path) -> None:
    ensemble = submitted(tmp_path, 1)
    running(ensemble).journal.add(NOW, ("more", "x" * 2**20))
    assert "longer than 1 MiB" in str(look(ensemble, job("running")).rows[0].wrong)


def test_a_record_that_was_mended_is_read_again(tmp_path: Path) -> None:
    ensemble, memory = submitted(tmp_path, 1), Memory(clock=lambda: NOW)
    one = running(ensemble, epochs=1, is_old=True)
    content = one.events.path.read_bytes()
    one.events.path.write_bytes(content.replace(b'"step":0', b'"step":1', 1))
    assert look(ensemble, job("running"), memory=memory).rows[0].state == "lost"
    one.events.path.write_bytes(content)
    assert look(ensemble, job("running"), memory=memory).rows[0].state == "running"


@pytest.mark.parametrize("log", ["journal", "record"])
@pytest.mark.parametrize("time_ms", [-1, 10**400, 2**60])
def test_moments_that_are_none_are_wrong_in_their_row(tmp_path: Path, time_ms: int, log: str) -> None:
    ensemble = submitted(tmp_path, 1)
    one = running(ensemble, is_old=True)
    path = one.journal.path if log == "journal" else one.events.path
    *before, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*before, re.sub(rb'"time_ms":\d+', b'"time_ms":%d' % time_ms, last)]))
    status = look(ensemble, job("running"))
    assert (status.rows[0].state, list(status.lines(100)) != []) == ("lost", True)


def test_what_may_not_be_read_is_told_and_is_not_lost(tmp_path: Path) -> None:
    ensemble = submitted(tmp_path, 1)
    one = running(ensemble)
    # As little to be read by the superuser as by others.
    one.journal.path.unlink()
    one.journal.path.symlink_to(one.journal.path)
    status = look(ensemble, job("running"))
    assert status.rows[0].state == "running"
    assert "campaign.jsonl: cannot be read: Too many levels of symbolic links" in str(status.rows[0].wrong)
    assert status.exit_code == ExitCode.PASS


def test_silence_is_told_when_it_is_longer_than_epochs_take(tmp_path: Path) -> None:
    ensemble = submitted(tmp_path, 3)
    running(ensemble, 0, epochs=2)
    running(ensemble, 1)
    jobs = [job("running", 0), job("running", 1), job("waiting", 2)]
    assert look(ensemble, *jobs, now_s=START_S + 110).stuck == set()
    # Member 1 began at 0 s, member 0 told something at 40 s.
    assert look(ensemble, *jobs, now_s=START_S + 121).stuck == {1}
    assert look(ensemble, *jobs, now_s=START_S + 161).stuck == {0, 1}


def test_what_all_come_to_is_computed_over_those_that_run(tmp_path: Path) -> None:
    ensemble = submitted(tmp_path, 4)
    running(ensemble, 0, epochs=5).end(START_S + 100)
    running(ensemble, 1, epochs=3)
    running(ensemble, 2, epochs=1)
    status = look(
        ensemble, job("ended", 0), job("running", 1), job("running", 2), job("waiting", 3), now_s=START_S + 60
    )
    assert status.states["done"] == status.states["waiting"] == 1
    assert status.progress == pytest.approx((5 + 3 + 1 + 0) / 20)
    found = status.epoch_percentiles
    assert found
    assert (found.least, found.p50, found.greatest) == (1, 2, 3)
    # 2 and 4 epochs of 20 s left, of which none has passed and all of one; and 5 that wait; on two at once.
    assert status.eta_seconds == pytest.approx((2 * 20 + 4 * 20 - 20 + 5 * 20) / 2)
    document = status.document()
    assert document["states"]["running"] == 2
    assert [row["member"] for row in document["rows"]] == [0, 1, 2, 3]
    assert document["percentiles"]["quality_of_done"]["p50"] == pytest.approx(0.5)


def test_nothing_known_is_null_and_never_a_number(tmp_path: Path) -> None:
    document = alone(plan(tmp_path / "e", 1)).document()
    names = ("restarts", "epoch", "steps", "quality", "images_per_second", "started_ms", "age_seconds", "job")
    assert document["eta_seconds"] is None
    assert {document["rows"][0][name] for name in names} == {None}


def test_a_whole_ensemble_comes_to_its_end(tmp_path: Path) -> None:
    cluster = MadeCluster(plan(tmp_path / "e", 12), at_once=4, failing=[5])
    memory, codes = Memory(clock=cluster.clock), set()
    for _ in range(200):
        cluster.advance(10)
        status = read_status(cluster.ensemble, cluster.jobs(cluster.ensemble), memory)
        codes.add((status.is_going_on, status.exit_code))
    assert status.states == {**dict.fromkeys(status.states, 0), "done": 11, "failed": 1}
    assert status.rows[5].wrong == "node lost"
    assert codes == {(True, 0), (True, 2), (False, 2)}
    # All has ended and is known: nothing is opened any more.
    assert (status.polls[0].files, status.polls[0].members) == (0, 0)


# --- members that fail before or beside their attempts: what is written down, and what is shown of it


def run_by(ensemble: Ensemble, job: str = "process-7") -> Ensemble:
    members = list(ensemble.members)
    return append(ensemble, "submit", {"scheduler": "local", "jobs": [job], "members": members, "at_once": None})


def failed(ensemble: Ensemble, member: int, code: int = 69, job: str = "process-7", time_ms: int = 0) -> Path:
    folder = ensemble.folder(member)
    folder.mkdir(parents=True, exist_ok=True)
    note_failure(folder, Failure("n1", code, time_ms, job), 0)
    return folder


def test_one_that_another_process_runs_is_shown_running_when_who_waited_for_it_has_stopped(tmp_path: Path) -> None:
    ensemble = run_by(plan(tmp_path / "e", 1))
    MadeMember(ensemble, 0).begin(START_S)
    job = MemberJob(0, "unknown", "", (), 0, "waited for another process, which still runs it", is_elsewhere=True)
    status = read_status(ensemble, {0: job}, Memory(clock=lambda: START_S), Source("local"))
    assert (status.rows[0].state, status.rows[0].wrong) == ("running", job.reason)


@pytest.mark.parametrize(
    ("job", "time_ms", "state"),
    [("process-7", 0, "failed"), ("by hand", 2**52, "failed"), ("process-6", 0, "waiting")],
)
def test_only_failures_since_it_was_submitted_last_count(tmp_path: Path, job: str, time_ms: int, state: str) -> None:
    ensemble = run_by(plan(tmp_path / "e", 2))
    failed(ensemble, 0, job=job, time_ms=time_ms)
    assert [row.state for row in alone(ensemble).rows] == [state, "waiting"]


def test_a_failure_after_a_stop_is_what_is_told(tmp_path: Path) -> None:
    ensemble = run_by(plan(tmp_path / "e", 1))
    one = MadeMember(ensemble, 0)
    one.begin(START_S)
    one.end(START_S, "stopped", "stopped by SIGTERM at epoch 1, step 0; nothing is lost: go on with `hpcai500 ic …`")
    row = alone(ensemble).rows[0]
    assert (row.state, row.wrong) == ("stopped", "stopped by SIGTERM at epoch 1, step 0")
    failed(ensemble, 0, time_ms=int(START_S * 1000) + 10**9)
    row = alone(ensemble).rows[0]
    assert row.state == "failed"
    assert str(row.wrong).startswith("failed once, last on n1 (exit code 69); see members/00000/output.txt")


def test_one_that_is_tried_again_and_stages_still_is_running(tmp_path: Path) -> None:
    ensemble = run_by(plan(tmp_path / "e", 2))
    for member in ensemble.members:
        failed(ensemble, member, code=1)
    with turn_at(ensemble.folder(0), 0):
        assert [row.state for row in alone(ensemble).rows] == ["running", "failed"]


def test_the_last_error_of_its_output_says_why_one_ended_before_its_first_event(tmp_path: Path) -> None:
    ensemble = run_by(plan(tmp_path / "e", 1))
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
    ensemble = run_by(plan(tmp_path / "e", 1))
    ensemble.folder(0).mkdir(parents=True)
    (ensemble.folder(0) / "failures.jsonl").write_bytes(content)
    row = alone(ensemble).rows[0]
    assert row.state == "waiting"
    assert "failures.jsonl: a line is malformed: " in str(row.wrong)


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
    ensemble = run_by(plan(tmp_path / "e", 1))
    one = MadeMember(ensemble, 0)
    one.begin(START_S)
    one.end(START_S)
    ensemble = append(ensemble, "collect", {"status": "complete", "heads": {"0": one.events.previous}})
    assert alone(ensemble).rows[0].state == "done"
    shutil.rmtree(one.folder)
    status = alone(ensemble)
    assert (status.rows[0].state, status.exit_code) == ("lost", ExitCode.WRONG_ANSWER)
    assert "was collected, but is missing now" in str(status.rows[0].wrong)
    assert alone(run_by(ensemble, "process-9")).rows[0].state == "waiting"


def test_of_a_fresh_plan_the_summary_says_what_to_type_and_nothing_is_wrong(tmp_path: Path) -> None:
    ensemble = plan(tmp_path / "e", 2)
    text = "\n".join(read_status(ensemble, None, Memory()).lines())
    for words in (
        f"ensemble run {ensemble.path}",
        f"ensemble submit {ensemble.path}",
        "2 waiting (none submitted yet)",
    ):
        assert words in text
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
    ensemble = run_by(plan(Path("e"), 2))
    for member, end in enumerate(("failed", other)):
        one = MadeMember(ensemble, member)
        one.begin(START_S)
        if member == 0:
            one.events.add(START_S, ("diverged", {"epoch": 1, "step": 1, "rank": 0, "what": "the loss is nan"}))
        one.end(START_S, end, "why")
    assert words in str(next_line(alone(ensemble)))


def test_the_rate_says_which_it_is_and_the_middle_of_two_is_between_them(tmp_path: Path) -> None:
    ensemble = run_by(plan(tmp_path / "e", 2))
    for member, seconds in enumerate((10.0, 20.0)):
        one = MadeMember(ensemble, member)
        one.begin(START_S)
        one.finish_epoch(START_S + seconds, seconds)
    (line,) = [line for line in alone(ensemble).lines() if line.startswith("images/s")]
    assert line.endswith("median 480, 320 to 640 for all (each over its last epoch of training)")


def test_what_begins_is_told_before_the_first_look(tmp_path: Path) -> None:
    ensemble = plan(tmp_path / "e", 3)
    assert starting_line(ensemble, [0, 2]).startswith(f"starting 2 of 3 members of {ensemble.path}; ")
    assert starting_line(ensemble, [0, 1, 2]).endswith(f"{ensemble.path}/members/NNNNN/output.txt")
