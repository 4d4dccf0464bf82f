"""Checks as people and programs see them, and the log in which they are written as they come.

Whatever ends the ranks, what was found stays; what hung is named.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from hpcai500.system.checks import (
    DISK,
    GEMM,
    MEASURED,
    RANKS,
    READING,
    Check,
    CheckLog,
    Status,
    Told,
    concluded,
    document,
    in_order,
    lines,
    plan,
    read_log,
    verdict,
)

FINE = Check(RANKS, "pass", "2 ranks")
NARROW = Check("cores", "warn", "1 of 64 cores", "srun --cpus-per-task=N")
BROKEN = Check("data", "fail", "/scratch/x: not visible", "add --bind /scratch")
LOST = "rank 1 on host n2: its process ended unexpectedly"


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([], "pass"),
        (["pass", "skip"], "pass"),
        (["pass", "warn", "skip"], "warn"),
        (["warn", "fail", "pass"], "fail"),
    ],
)
def test_the_verdict_is_the_worst_and_what_is_skipped_hurts_nobody(statuses: list[Status], expected: str) -> None:
    assert verdict([Check(str(number), status, "") for number, status in enumerate(statuses)]) == expected


def test_people_see_columns_the_fix_below_and_the_verdict_last_and_programs_every_field() -> None:
    assert list(lines([FINE, NARROW, BROKEN])) == [
        "pass  ranks  2 ranks",
        "warn  cores  1 of 64 cores",
        "               fix: srun --cpus-per-task=N",
        "fail  data   /scratch/x: not visible",
        "               fix: add --bind /scratch",
        "verdict fail",
    ]
    found = json.loads(json.dumps(document([FINE, BROKEN])))
    assert found["verdict"] == "fail"
    assert found["checks"] == [
        {"name": "ranks", "status": "pass", "detail": "2 ranks", "fix": None},
        {"name": "data", "status": "fail", "detail": "/scratch/x: not visible", "fix": "add --bind /scratch"},
    ]
    assert (FINE.sentence, BROKEN.sentence) == ("2 ranks", "/scratch/x: not visible; add --bind /scratch")


# --- the log


def test_a_log_tells_what_ended_what_runs_and_the_first_reason_but_no_half_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert read_log(path) == Told()
    log = CheckLog(path, 60.0, lambda: None)
    log.begin(RANKS)
    log.found([FINE])
    log.begin(GEMM)
    log.close()
    with path.open("a") as stream:
        stream.write('{"check": {"na')
    assert read_log(path) == Told((FINE,), running=GEMM)
    path.write_text(path.read_text().rpartition("\n")[0] + "\n")
    log.broken("rank 1 is gone")
    log.broken("a connection was closed")
    assert read_log(path).reason == "rank 1 is gone"


def test_a_check_without_an_end_is_ended_and_told(tmp_path: Path) -> None:
    over = threading.Event()
    CheckLog(tmp_path / "log", 0.01, over.set).begin(GEMM)
    assert over.wait(30)
    assert read_log(tmp_path / "log") == Told(running=GEMM, reason="not finished within 0.01 s")


def test_a_check_that_ended_in_time_is_not_ended_by_its_limit(tmp_path: Path) -> None:
    over = threading.Event()
    log, before = CheckLog(tmp_path / "log", 60.0, over.set), set(threading.enumerate())
    log.begin(GEMM)
    (watch,) = set(threading.enumerate()) - before
    log.found([FINE])
    watch.join(60)
    assert not watch.is_alive()
    assert not over.is_set()


def test_other_ranks_write_nothing_and_limit_nothing(tmp_path: Path) -> None:
    log, before = CheckLog(None, 0.01, lambda: None), set(threading.enumerate())
    log.begin(GEMM)
    assert set(threading.enumerate()) <= before
    log.found([FINE])
    log.stopped("Ctrl-C")
    assert not list(tmp_path.iterdir())


# --- what is concluded when the ranks have ended


@pytest.mark.parametrize(
    ("told", "rest"),
    [
        pytest.param(
            Told((FINE,), GEMM, f"{LOST}; go on with --resume"),
            [("fail", LOST), ("skip", f"not measured: `{GEMM}` did not finish")],
            id="a lost rank fails the check that it was lost in",
        ),
        pytest.param(
            Told((FINE,), GEMM, "rank 1 on host n2: gone", "Ctrl-C"),
            [("fail", "stopped by Ctrl-C before it ended"), ("skip", "not measured: stopped by Ctrl-C")],
            id="what the user stopped is no verdict that all is well",
        ),
        pytest.param(
            Told((FINE, Check(GEMM, "warn", "slow"))), [("warn", "slow"), ("fail", "exit code 1")], id="the ranks' end"
        ),
    ],
)
def test_a_check_without_an_end_fails_and_what_was_found_stays(told: Told, rest: list[tuple[str, str]]) -> None:
    checks = concluded(told, (RANKS, GEMM, DISK), "exit code 1")
    assert [check.name for check in checks] == [RANKS, GEMM, DISK]
    assert checks[0] == FINE
    assert [(check.status, check.detail) for check in checks[1:]] == rest


def test_ranks_that_never_began_are_a_failure_of_the_first_check() -> None:
    checks = concluded(Told(), (RANKS, GEMM, DISK), "exit code 1 (see above)")
    assert [check.status for check in checks] == ["fail", "skip", "skip"]
    assert checks[0].detail == "exit code 1 (see above)"
    assert concluded(Told((FINE,)), (RANKS,), "exit code 1") == [FINE]


# --- what to measure


@pytest.mark.parametrize("name", ["temporary", "backend", "launcher", "accelerator"])
def test_nothing_is_measured_where_the_environment_is_broken(name: str) -> None:
    planned = plan([FINE, Check(name, "fail", "broken")])
    assert planned.names == ()
    assert {check.name for check in planned.skipped} == set(MEASURED)
    assert planned.skipped[0].detail == f"not measured: first fix `{name}`"


def test_a_data_set_that_is_not_there_costs_only_what_would_read_it() -> None:
    planned = plan([Check("data", "fail", "no such folder"), Check("out", "warn", "little")])
    assert planned.names == tuple(name for name in MEASURED if name != READING)
    assert [check.name for check in planned.skipped] == [READING]


def test_looked_at_comes_first_and_measured_in_its_usual_order() -> None:
    mixed = [Check(DISK, "pass", ""), Check("data", "pass", ""), Check(RANKS, "pass", ""), Check("out", "pass", "")]
    assert [check.name for check in in_order(mixed)] == ["data", "out", RANKS, DISK]
