"""The status of an ensemble as people read it: once, again and again, on any terminal, and by the command."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from builders.commands import HPCAI500
from fakes.slurm import START_S, MadeCluster, MadeMember, MadeSlurm, plan, submit_arrays

from hpcai500.cli import main
from hpcai500.ensemble.journal import Ensemble, append, read_ensemble
from hpcai500.ensemble.members import MOST_FILES, STATES, Memory
from hpcai500.ensemble.scheduler import MemberJob
from hpcai500.ensemble.slurm import SlurmScheduler
from hpcai500.ensemble.status import (
    LEGEND,
    Live,
    Screen,
    Source,
    Status,
    Watch,
    choose,
    duration,
    follow,
    headline,
    map_lines,
    next_line,
    percent,
    read_status,
    spread_bar,
    trouble,
)
from hpcai500.errors import EnvironmentLacksError, RecordError, RunError
from hpcai500.launch.slurm.site import Site
from hpcai500.progress import is_ascii
from hpcai500.text import progress_bar


@pytest.fixture(scope="module")
def going_on(tmp_path_factory: pytest.TempPathFactory) -> Status:
    """200 members, 40 at once, of which two have failed and one is silent."""
    cluster = MadeCluster(plan(tmp_path_factory.mktemp("text") / "e", 200), at_once=40, failing=[3, 5])
    memory = Memory(clock=cluster.clock)
    for number in range(34):
        cluster.advance(10)
        if number == 4:
            cluster.silence(7)
        status = read_status(cluster.ensemble, cluster.jobs(cluster.ensemble), memory, Source("slurm"))
    return status


def rows(lines: list[str]) -> list[str]:
    """Those of the table."""
    return [line for line in lines if re.match(rf" *\d+  ({'|'.join(STATES)}|silent) ", line)]


def test_the_summary_says_how_many_stand_how_how_fast_and_for_how_long_yet(going_on: Status) -> None:
    text = "\n".join(going_on.lines())
    assert "members    200 of 1 accelerator each: 154 waiting, 40 running, 4 done, 2 failed (1 silent)" in text
    assert "] 14 % of all epochs, about " in text
    assert "images/s together; " in text
    assert "epochs     of 5: " in text
    assert "quality    of those done: 0.5000" in text
    assert "scheduler  slurm\n" in text
    assert "looked at  " in text


def test_of_many_members_those_in_trouble_and_the_slowest_are_shown(going_on: Status) -> None:
    shown = choose(going_on, 10)
    assert [(row.member, row.state) for row in shown[:3]] == [(3, "failed"), (5, "failed"), (7, "running")]
    assert {row.state for row in shown[3:]} == {"running"}
    left = [row.epoch for row in shown[3:]]
    assert left == sorted(left, key=lambda epoch: epoch or 9)
    text = list(going_on.lines(rows=10))
    assert len(rows(text)) == 10
    assert text[-1] == "190 more members; all of them: --all, or --json"
    assert any(line.split()[:2] == ["7", "silent"] for line in text)


def test_where_most_are_in_trouble_the_slowest_are_shown_all_the_same(tmp_path: Path) -> None:
    ensemble = plan(tmp_path / "e", 100)
    jobs = {member: MemberJob(member, "failed" if member < 50 else "running") for member in ensemble.members}
    shown = choose(read_status(ensemble, jobs, Memory()), 20)
    assert [row.state for row in shown] == ["failed"] * 10 + ["running"] * 10


def test_all_rows_are_there_for_whoever_wants_them(going_on: Status) -> None:
    text = list(going_on.lines(rows=None))
    assert len(rows(text)) == 200
    assert "more members" not in text[-1]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140, 200])
def test_no_line_is_wider_than_the_terminal(going_on: Status, width: int) -> None:
    for whole in (True, False):
        lines = list(going_on.lines(width, whole=whole))
        assert max(map(len, lines)) <= width
        assert sum("member" in line and "state" in line and "epoch" in line for line in lines) == 1


def test_what_is_wrong_is_told_to_its_end_beneath_a_narrow_table(tmp_path: Path) -> None:
    ensemble = plan(tmp_path / "e", 2)
    reason = "its data set lacks the class n01440764, which the other members have seen: mend it"
    jobs = {0: MemberJob(0, "failed", "7_0", ("n1",), 0, reason), 1: MemberJob(1, "waiting", "7_1")}
    status = read_status(ensemble, jobs, Memory())
    assert reason in " ".join(" ".join(status.lines(72)).split())
    assert "member 0: " in "\n".join(status.lines(72))
    assert reason not in " ".join(" ".join(status.lines(72, whole=False)).split())
    assert any(line.endswith(reason) for line in status.lines())


def test_hostile_names_move_no_cursor_and_break_no_line(tmp_path: Path) -> None:
    ensemble = plan(tmp_path / "e\x1b[2J\n", 1)
    one = MadeMember(ensemble, 0)
    one.begin(START_S, "n1\x1b]0;title\x07")
    one.events.add(START_S, ("diverged", {"epoch": 1, "step": 0, "what": "a\nb\x9b31m\u202ec"}))
    one.end(START_S, "failed", "\x1b[8m")
    for job in (None, {0: MemberJob(0, "failed", "7\x08_0", ("n\x1b[1m\r",), 0, "\x1b[0m")}):
        status = read_status(ensemble, job, Memory(), Source("s\x1b", "p\x1b"))
        for line in [*status.lines(), *status.lines(60), headline(status), *(text for _, text in trouble(status))]:
            assert line.isprintable(), line


def test_the_map_has_a_letter_for_each_member_and_for_several_the_worst(going_on: Status) -> None:
    whole = list(map_lines(going_on.rows, going_on.stuck, 5, 105, None))
    letters = "".join(line.split()[1] for line in whole[: -len(LEGEND)])
    assert len(letters) == 200
    assert (letters[3], letters[5], letters[7], letters[199]) == ("F", "F", "!", ".")
    assert letters.count("#") == 4
    assert sum(letter.isdecimal() for letter in letters) == 39
    assert [line.split()[0] for line in whole[:2]] == ["0", "100"]
    short = list(map_lines(going_on.rows, going_on.stuck, 5, 25, 1))
    assert short[0].split()[1][0] == "F"
    assert "a letter stands for 10 members" in short[1]


def test_bars_show_how_much_and_where_and_letters_draw_them_where_the_terminal_lacks_bars(going_on: Status) -> None:
    assert progress_bar(0.5) == f"[{'#' * 15}{'-' * 15}]"
    assert progress_bar(7.0) == f"[{'#' * 30}]"
    assert spread_bar([1.0, 1.0, 2.0, 3.0], ascii_only=False, width=5) == "█ ▄ ▄"
    assert spread_bar([1.0, 1.0, 2.0, 3.0], ascii_only=True, width=5) == "@ = ="
    assert spread_bar([4.0], ascii_only=True, width=3) == " @ "
    assert not "\n".join(going_on.lines(ascii_only=False)).isascii()
    assert "\n".join(going_on.lines(ascii_only=True)).isascii()


def test_why_no_scheduler_tells_is_said_in_one_line(tmp_path: Path) -> None:
    ensemble = plan(tmp_path / "e", 1)
    status = read_status(ensemble, None, Memory(), Source("slurm", "squeue: Unable to contact slurm controller"))
    told = "scheduler  slurm: squeue: Unable to contact slurm controller; the states come from the records alone"
    assert told in list(status.lines())
    late = Source("slurm", "squeue did not answer", START_S)
    status = read_status(ensemble, {}, Memory(), late)
    assert "its last answer, of 2027-01-15 08:00:00 UTC, is shown" in "\n".join(status.lines())


@pytest.mark.parametrize(
    ("ends", "scheduler", "expected"),
    [
        (("done", "done"), "slurm", "hpcai500 ensemble collect"),
        (("done", "failed"), "slurm", "hpcai500 ensemble submit"),
        (("stopped", None), "local", "hpcai500 ensemble run"),
        (("stopped", None), None, "hpcai500 ensemble run"),
        (("stopped", "running"), "local", None),
        (("done", "collect"), "local", None),
    ],
)
def test_what_to_type_is_said_where_nothing_goes_on_by_itself(
    tmp_path: Path, ends: tuple[str, str | None], scheduler: str | None, expected: str | None
) -> None:
    ensemble = plan(tmp_path / "my e", 2)
    if "collect" in ends:
        ensemble = append(ensemble, "collect", {"status": "complete"})
    for member, end in enumerate(ends):
        if end is not None:
            one = MadeMember(ensemble, member)
            one.begin(START_S)
            if end != "running":
                one.end(START_S, "done" if end == "collect" else end, "why")
    jobs = {0: MemberJob(0, "ended"), 1: MemberJob(1, "failed" if ends[1] == "failed" else "ended")}
    source = Source(scheduler, None if scheduler == "slurm" else "nobody to ask")
    status = read_status(ensemble, jobs if scheduler == "slurm" else None, Memory(), source)
    found = next_line(status)
    assert found is None if expected is None else (found or "").startswith(f"{expected} '{tmp_path}/my e'")


def test_all_in_one_line(going_on: Status) -> None:
    assert headline(going_on).startswith(
        "4 of 200 done, 154 waiting, 40 running, 2 failed, 1 silent; 14 % of all epochs, "
    )
    assert [member for member, _ in trouble(going_on)] == [3, 5, 7]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.9, "59 s"), (61, "1 min 1 s"), (7300, "2 h 1 min"), (200_000, "2 days 7 h")],
)
def test_durations_are_words_and_less_than_all_is_never_a_hundred_percent(seconds: float, text: str) -> None:
    assert duration(seconds) == text
    assert (percent(0.999), percent(1.0), percent(0.29)) == ("99 %", "100 %", "29 %")


# --- looking again and again, on a terminal or elsewhere, with a scheduler or without


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


def watch_of(folder: Path, *answers: Mapping[int, MemberJob] | Exception) -> Watch:
    """Of the ensemble in `folder`, whose scheduler gives these answers."""
    asked = Asked(*answers)
    return Watch(folder / "e", {"slurm": lambda: asked})  # type: ignore[dict-item,return-value]


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

    with pytest.raises(KeyboardInterrupt):
        follow(watch_of(tmp_path, {0: MemberJob(0, "running")}), lambda status: None, 10.0, sleep)
    assert slept == [70.0]


def test_when_a_scheduler_stops_to_answer_its_last_answer_is_shown_and_dated(tmp_path: Path) -> None:
    submitted(tmp_path)
    first, last = {0: MemberJob(0, "running", "7_0")}, {0: MemberJob(0, "ended")}
    watch = watch_of(tmp_path, first, RunError("squeue: timed out"), last)
    assert watch.look().source == Source("slurm")
    late = watch.look()
    assert late.source.problem == "squeue: timed out"
    assert late.source.answered_s == pytest.approx(time.time(), abs=600)
    assert (late.rows[0].state, late.rows[0].job) == ("running", "7_0")
    assert watch.look().source.problem is None


def test_without_a_scheduler_the_records_tell_and_why_is_said(tmp_path: Path) -> None:
    ensemble = submitted(tmp_path)
    MadeMember(ensemble, 0).begin(START_S)
    status = watch_of(tmp_path, *[EnvironmentLacksError("no squeue here")] * 9).look_at_all()
    assert [row.state for row in status.rows] == ["running", "waiting"]
    assert status.source == Source("slurm", "no squeue here")
    assert Watch(submitted(tmp_path / "2", scheduler="local").path, {}).look().source.name == "local"
    assert Watch(plan(tmp_path / "3", 1).path, {}).look().source == Source()


def test_members_that_are_submitted_later_are_seen(tmp_path: Path) -> None:
    ensemble = plan(tmp_path / "e", 2)
    watch = watch_of(tmp_path, {0: MemberJob(0, "running")})
    assert not watch.look().rows[0].submitted
    append(ensemble, "submit", {"scheduler": "slurm", "jobs": ["7"], "members": [0]})
    assert watch.look().rows[0].state == "running"


def test_an_ensemble_that_is_gone_and_orders_that_are_none_are_told(tmp_path: Path) -> None:
    append(plan(tmp_path / "e", 1), "submit", {"scheduler": "slurm", "members": "all"})
    with pytest.raises(RecordError, match=r"ensemble.jsonl:2: submit is malformed"):
        Watch(tmp_path / "e", {}).look()
    other = submitted(tmp_path / "other")
    watch = Watch(other.path, {})
    (other.path / "ensemble.jsonl").unlink()
    with pytest.raises(RecordError, match=r"not an ensemble: ensemble.jsonl is missing"):
        watch.look()


NOW = "hpcai500: 2027-01-15 08:00:00 UTC: 0 of 1 done"
FAILED = ["hpcai500: member 0 failed: NODE_FAIL", f"{NOW}, 1 failed; 0 % of all epochs"]


@pytest.mark.parametrize(
    ("interval_seconds", "states", "first"),
    [
        (0.0, ["running", "running", "failed", "failed"], "running"),
        (3600.0, ["waiting", "running", "failed"], "waiting"),
    ],
    ids=["without an interval", "with an interval, unless there is trouble"],
)
def test_elsewhere_than_on_a_terminal_lines_tell_what_has_changed(
    tmp_path: Path, interval_seconds: float, states: list[str], first: str
) -> None:
    stream = io.StringIO()
    with Screen(stream, interval_seconds=interval_seconds) as screen:
        for state in states:
            screen.show(status_of_one(tmp_path, state))
    assert stream.getvalue().splitlines() == [f"{NOW}, 1 {first}; 0 % of all epochs", *FAILED]


def test_ten_thousand_that_fail_at_once_do_not_flood_the_log(tmp_path: Path) -> None:
    ensemble, stream = plan(tmp_path / "e", 500), io.StringIO()
    jobs = {member: MemberJob(member, "failed", "", ("n1",), 0, "why") for member in ensemble.members}
    with Screen(stream) as screen:
        screen.show(read_status(ensemble, jobs, Memory()))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 12
    assert "and 490 more members like these" in lines[10]


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


# --- `hpcai500 ensemble status` whole: with fakes of Slurm's commands at ten thousand members, and without any


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """`hpcai500 ensemble status e …` in this process, in the folder of the test: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, path: str = "/nowhere") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hpcai500", "ensemble", "status", "e", *arguments])
        monkeypatch.setenv("PATH", path)
        return (main(), *capfd.readouterr())

    return run


@pytest.mark.parametrize(("end", "code"), [("done", 0), ("stopped", 0), ("failed", 2), ("running", 0)])
def test_the_exit_code_says_whether_something_is_lost(status: Command, tmp_path: Path, end: str, code: int) -> None:
    ensemble = plan(tmp_path / "e", 2)
    one = MadeMember(ensemble, 1)
    one.begin(START_S)
    if end != "running":
        one.end(START_S, end, "why")
    found, out, err = status()
    assert (found, err) == (code, "")
    assert f"1 {end}" in out
    assert "scheduler  none: nothing was submitted yet\n" in out


def test_json_is_one_document_with_all_members(status: Command, tmp_path: Path) -> None:
    plan(tmp_path / "e", 30)
    _, out, _ = status("--json")
    document = json.loads(out)
    assert document["schema"] == "hpcai500-ensemble-status-1"
    assert (len(document["rows"]), document["states"]["waiting"]) == (30, 30)


def test_where_slurm_is_not_the_records_tell_and_why_is_one_line(status: Command, tmp_path: Path) -> None:
    ensemble = submit_arrays(plan(tmp_path / "e", 2), 1)
    MadeMember(ensemble, 0).begin(START_S)
    code, out, _ = status()
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("scheduler")]
    assert line.startswith("scheduler  slurm: no squeue here: ")
    assert line.endswith("; the states come from the records alone")
    assert "1 waiting, 1 running" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--follow", "--json"], "--json prints one document"),
        (["--interval", "0"], "--interval"),
        (["--site", "nowhere.toml"], "nowhere.toml"),
        ([], "e: not an ensemble: ensemble.jsonl is missing; plan one: hpcai500 ensemble plan e"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(status: Command, tmp_path: Path, arguments: list[str], words: str) -> None:
    if arguments:
        submit_arrays(plan(tmp_path / "e", 1), 1)
    (tmp_path / "e").mkdir(exist_ok=True)
    code, _, err = status(*arguments)
    assert code == 64
    assert words in err


def test_ten_thousand_members_in_slurms_words(status: Command, tmp_path: Path) -> None:
    """Fake programs, the real `SlurmScheduler`: one question each a look, and so many files."""
    cluster = MadeCluster(
        plan(tmp_path / "e", 10_000), at_once=300, epoch_seconds=60.0, failing=[7], submit=submit_arrays
    )
    slurm = MadeSlurm(tmp_path / "bin")
    scheduler = SlurmScheduler(Site(), slurm.environment)
    watch = Watch(tmp_path / "e", {"slurm": lambda: scheduler}, Memory(clock=cluster.clock))
    for _ in range(12):
        cluster.advance(30)
        slurm.tell(cluster.states)
        seen = watch.look()
        # Accounting is asked for those whom the queue has forgotten: as soon as there are any.
        forgotten = any(state in ("ended", "failed") for state in cluster.states.values())
        assert [line.split()[0] for line in slurm.asked()] == ["squeue", *["sacct"] * forgotten]
        assert seen.polls[0].files <= MOST_FILES
    seen = watch.look_at_all()
    slurm.asked()
    expected = {member: "done" if state == "ended" else state for member, state in cluster.states.items()}
    assert {row.member: row.state for row in seen.rows} == expected
    assert seen.states["failed"] == 1
    assert seen.rows[7].wrong == "FAILED exit code 1; node lost"
    assert (seen.rows[7].hosts, seen.rows[7].job) == (("n0007",), "100_7")
    code, out, err = status("--json", path=slurm.environment["PATH"])
    assert code == 2
    # A slow machine says how far it has come.
    assert all(line.startswith("hpcai500: reading records: ") for line in err.splitlines())
    assert json.loads(out)["states"] == seen.states
    assert [line.split()[0] for line in slurm.asked()] == ["squeue", "sacct"]


def test_ctrl_c_ends_following_well(tmp_path: Path) -> None:
    ensemble, output = plan(tmp_path / "e", 2), tmp_path / "output"
    one = MadeMember(ensemble, 0)
    one.begin(time.time())
    with output.open("wb") as stream:
        command = [*HPCAI500, "ensemble", "status", str(ensemble.path), "--follow", "--interval", "1"]
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.PIPE)

    def until(said: Callable[[], bool]) -> None:
        limit = time.monotonic() + 300
        while not said():
            assert time.monotonic() < limit
            time.sleep(0.05)

    try:
        until(lambda: b"1 running" in output.read_bytes())
        one.finish_epoch(time.time())
        until(lambda: output.read_bytes().count(b"\n") > 1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert (process.returncode, errors) == (0, b"")
    assert b"10 % of all epochs" in output.read_bytes()
