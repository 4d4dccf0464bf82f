"""The status of an ensemble as people read it: all of a few members, what matters of many, on any terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from made_members import START_S, MadeCluster, MadeMember, plan

from hpcai500.ensemble.journal import append
from hpcai500.ensemble.members import STATES, MemberStatus, Memory
from hpcai500.ensemble.scheduler import MemberJob
from hpcai500.ensemble.status import (
    LEGEND,
    Source,
    Status,
    choose,
    duration,
    headline,
    map_lines,
    next_line,
    percent,
    progress_bar,
    read_status,
    spread_bar,
    trouble,
)


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


def test_where_most_are_in_trouble_the_slowest_are_shown_all_the_same() -> None:
    states = ["failed"] * 50 + ["running"] * 50
    found = Rows([MemberStatus(member, state) for member, state in enumerate(states)])  # type: ignore[arg-type]
    shown = choose(found, 20)  # type: ignore[arg-type]
    assert [row.state for row in shown] == ["failed"] * 10 + ["running"] * 10


class Rows:
    """As much of a status as the choice of rows looks at."""

    stuck = frozenset[int]()
    epochs, now_s, usual_pace = 5, START_S, None

    def __init__(self, found: list[MemberStatus]) -> None:
        self.rows = found


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


def test_bars_show_how_much_and_where() -> None:
    assert progress_bar(0.5) == f"[{'#' * 15}{'-' * 15}]"
    assert progress_bar(7.0) == f"[{'#' * 30}]"
    assert spread_bar([1.0, 1.0, 2.0, 3.0], ascii_only=False, width=5) == "█ ▄ ▄"
    assert spread_bar([1.0, 1.0, 2.0, 3.0], ascii_only=True, width=5) == "@ = ="
    assert spread_bar([4.0], ascii_only=True, width=3) == " @ "


def test_where_the_terminal_lacks_bars_letters_draw_them(going_on: Status) -> None:
    assert not "\n".join(going_on.lines(ascii_only=False)).isascii()
    assert "\n".join(going_on.lines(ascii_only=True)).isascii()


def test_why_no_scheduler_tells_is_said_in_one_line(tmp_path: Path) -> None:
    ensemble = plan(tmp_path / "e", 1)
    status = read_status(ensemble, None, Memory(), Source("slurm", "squeue: Unable to contact slurm controller"))
    told = "scheduler  slurm: squeue: Unable to contact slurm controller; who runs is told by the records alone"
    assert told in list(status.lines())
    late = Source("slurm", "squeue did not answer", START_S)
    status = read_status(ensemble, {}, Memory(), late)
    assert "shown is its answer of 2027-01-15 08:00:00 UTC" in "\n".join(status.lines())


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
def test_durations_are_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_less_than_all_is_never_a_hundred_percent() -> None:
    assert (percent(0.999), percent(1.0), percent(0.29)) == ("99 %", "100 %", "29 %")
