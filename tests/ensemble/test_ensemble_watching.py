"""Looking at an ensemble from outside: again and again, on a terminal or elsewhere, with a scheduler or without."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from made_members import START_S, MadeCluster, MadeMember, plan

from hpcai500.ensemble.journal import Ensemble, append, read_ensemble
from hpcai500.ensemble.members import Memory
from hpcai500.ensemble.scheduler import MemberJob
from hpcai500.ensemble.status import Live, Screen, Source, Status, Watch, follow, is_ascii, read_status
from hpcai500.errors import EnvironmentLacksError, RecordError, RunError

HPCAI500 = [sys.executable, "-c", "import sys; from hpcai500.cli import main; sys.exit(main())"]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Asked:
    """A fake scheduler: answers what it is told to, or raises it."""

    name = "slurm"

    def __init__(self, *answers: Mapping[int, MemberJob] | Exception) -> None:
        self.answers = list(answers)

    def jobs(self, ensemble: Ensemble) -> Mapping[int, MemberJob]:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def submitted(folder: Path, members: int = 2, scheduler: str = "slurm") -> Ensemble:
    told = {"scheduler": scheduler, "jobs": ["7"], "members": list(range(members)), "at_once": None, "exclude": []}
    return append(plan(folder / "e", members), "submit", told)


def status_of_one(folder: Path, state: str) -> Status:
    ensemble = plan(folder / "e", 1) if not (folder / "e").exists() else read_ensemble(folder / "e")
    job = MemberJob(0, state, "7_0", ("n1",), 0, "NODE_FAIL")  # type: ignore[arg-type]
    return read_status(ensemble, {0: job}, Memory(clock=lambda: START_S), Source("slurm"))


def test_one_who_watches_sees_all_to_their_end(tmp_path: Path) -> None:
    cluster = MadeCluster(plan(tmp_path / "e", 6), at_once=2)
    memory, shown = Memory(clock=cluster.clock), list[Status]()
    watch = Watch(tmp_path / "e", {"slurm": lambda: cluster}, memory)  # type: ignore[dict-item,return-value]
    end = follow(watch, shown.append, 10.0, sleep=cluster.advance)
    assert end.states["done"] == 6
    assert cluster.questions == len(shown)
    assert all(first.progress <= second.progress for first, second in pairwise(shown))


def test_a_scheduler_that_takes_long_is_left_alone_for_ten_times_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(tmp_path)
    moments = iter([0.0, 7.0])
    monkeypatch.setattr("hpcai500.ensemble.status.time.monotonic", lambda: next(moments))
    slept = list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        raise KeyboardInterrupt

    asked = Asked({0: MemberJob(0, "running")})
    with pytest.raises(KeyboardInterrupt):
        follow(Watch(tmp_path / "e", {"slurm": lambda: asked}), lambda status: None, 10.0, sleep)  # type: ignore[dict-item,return-value]
    assert slept == [70.0]


def test_when_a_scheduler_stops_to_answer_its_last_answer_is_shown_and_dated(tmp_path: Path) -> None:
    submitted(tmp_path)
    asked = Asked({0: MemberJob(0, "running", "7_0")}, RunError("squeue: timed out"), {0: MemberJob(0, "ended")})
    watch = Watch(tmp_path / "e", {"slurm": lambda: asked})  # type: ignore[dict-item,return-value]
    assert watch.look().source == Source("slurm")
    late = watch.look()
    assert late.source.problem == "squeue: timed out"
    assert late.source.answered_s == pytest.approx(time.time(), abs=60)
    assert (late.rows[0].state, late.rows[0].job) == ("running", "7_0")
    assert watch.look().source.problem is None


def test_without_a_scheduler_the_records_tell_and_why_is_said(tmp_path: Path) -> None:
    ensemble = submitted(tmp_path)
    MadeMember(ensemble, 0).begin(START_S)
    watch = Watch(tmp_path / "e", {"slurm": lambda: Asked(EnvironmentLacksError("no squeue here"))})  # type: ignore[dict-item,return-value]
    status = watch.look_at_all()
    assert [row.state for row in status.rows] == ["running", "waiting"]
    assert status.source == Source("slurm", "no squeue here")
    assert Watch(submitted(tmp_path / "2", scheduler="local").path, {}).look().source.name == "local"
    assert Watch(plan(tmp_path / "3", 1).path, {}).look().source == Source()


def test_members_that_are_submitted_later_are_seen(tmp_path: Path) -> None:
    ensemble = plan(tmp_path / "e", 2)
    watch = Watch(tmp_path / "e", {"slurm": lambda: Asked({0: MemberJob(0, "running")})})  # type: ignore[dict-item,return-value]
    assert not watch.look().rows[0].submitted
    append(ensemble, "submit", {"scheduler": "slurm", "jobs": ["7"], "members": [0]})
    assert watch.look().rows[0].state == "running"


def test_an_ensemble_that_is_gone_is_told(tmp_path: Path) -> None:
    watch = Watch(submitted(tmp_path).path, {})
    (tmp_path / "e" / "ensemble.jsonl").unlink()
    with pytest.raises(RecordError, match=r"not an ensemble: ensemble.jsonl is missing"):
        watch.look()


def test_orders_that_are_none_are_told(tmp_path: Path) -> None:
    append(plan(tmp_path / "e", 1), "submit", {"scheduler": "slurm", "members": "all"})
    with pytest.raises(RecordError, match=r"ensemble.jsonl:2: submit lacks something"):
        Watch(tmp_path / "e", {}).look()


def test_elsewhere_than_on_a_terminal_lines_tell_what_has_changed(tmp_path: Path) -> None:
    stream = io.StringIO()
    with Screen(stream, interval_seconds=0.0) as screen:
        for state in ("running", "running", "failed", "failed"):
            screen.show(status_of_one(tmp_path, state))
    assert stream.getvalue().splitlines() == [
        "hpcai500: 2027-01-15 08:00:00 UTC: 0 of 1 done, 1 running; 0 % of all epochs",
        "hpcai500: member 0 failed: NODE_FAIL",
        "hpcai500: 2027-01-15 08:00:00 UTC: 0 of 1 done, 1 failed; 0 % of all epochs",
    ]


def test_between_two_lines_there_is_an_interval_unless_there_is_trouble(tmp_path: Path) -> None:
    stream = io.StringIO()
    with Screen(stream, interval_seconds=3600.0) as screen:
        for state in ("waiting", "running", "failed"):
            screen.show(status_of_one(tmp_path, state))
    assert [line.rpartition("done, ")[2] for line in stream.getvalue().splitlines()] == [
        "1 waiting; 0 % of all epochs",
        "hpcai500: member 0 failed: NODE_FAIL",
        "1 failed; 0 % of all epochs",
    ]


def test_ten_thousand_that_fail_at_once_do_not_flood_the_log(tmp_path: Path) -> None:
    ensemble, stream = plan(tmp_path / "e", 500), io.StringIO()
    jobs = {member: MemberJob(member, "failed", "", ("n1",), 0, "why") for member in ensemble.members}
    with Screen(stream) as screen:
        screen.show(read_status(ensemble, jobs, Memory()))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 12
    assert "and so 490 more" in lines[10]


def test_a_terminal_shows_the_table_again_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "40")
    stream = Terminal()
    with Screen(stream) as screen:
        for state in ("waiting", "running"):
            screen.show(status_of_one(tmp_path, state))
    frames = stream.getvalue()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frames)
    assert text.count("ensemble   ") >= 2
    assert "1 waiting" in text
    assert "1 running" in text
    # The cursor goes up before the second frame, and comes back at the end.
    assert re.search(r"\x1b\[\d*A", frames)
    assert frames.rstrip().endswith("\x1b[?25h")


def test_whoever_runs_members_shows_them_and_how_they_ended(tmp_path: Path) -> None:
    ensemble, stream = plan(tmp_path / "e", 2), io.StringIO()
    with Live(ensemble, 1, stream) as live:
        live.update({0: MemberJob(0, "running"), 1: MemberJob(1, "waiting")})
        one = MadeMember(ensemble, 0)
        one.begin(START_S)
        one.end(START_S)
        # Several times a second: most of them look at nothing.
        for _ in range(50):
            live.update({0: MemberJob(0, "ended")})
    looks = live._memory.last
    assert looks
    assert looks.number == 2
    lines = stream.getvalue().splitlines()
    assert [line.partition("UTC: ")[2].partition(";")[0] for line in lines] == [
        "0 of 2 done, 1 waiting, 1 running",
        "1 of 2 done, 1 waiting",
    ]


def test_what_ends_the_one_who_runs_is_not_hidden_by_a_last_look(tmp_path: Path) -> None:
    live = Live(plan(tmp_path / "e", 1), 1, io.StringIO())
    with pytest.raises(RunError, match="mine"), live:
        raise RunError("mine")


@pytest.mark.parametrize(("encoding", "expected"), [("utf-8", False), ("ascii", True), ("latin-1", True), ("no", True)])
def test_what_a_stream_cannot_write_is_found_out_before(encoding: str, expected: bool) -> None:
    stream = Terminal()
    stream.encoding = encoding
    assert is_ascii(stream) is expected


def until(said: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not said():
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_ctrl_c_ends_following_well(tmp_path: Path) -> None:
    ensemble, output = submitted(tmp_path, scheduler="local"), tmp_path / "output"
    one = MadeMember(ensemble, 0)
    one.begin(time.time())
    with output.open("wb") as stream:
        command = [*HPCAI500, "ensemble", "status", str(ensemble.path), "--follow", "--interval", "1"]
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.PIPE)
    try:
        until(lambda: b"1 running" in output.read_bytes())
        one.finish_epoch(time.time())
        until(lambda: output.read_bytes().count(b"\n") > 1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, errors) == (0, b"")
    assert b"10 % of all epochs" in output.read_bytes()
