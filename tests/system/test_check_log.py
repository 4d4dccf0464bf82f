"""Findings that are written as they come: whatever ends the ranks, what was found stays; what hung is named."""

from __future__ import annotations

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
    Told,
    concluded,
    in_order,
    plan,
    read_log,
)

FINE = Check(RANKS, "pass", "2 ranks")
NAMES = (RANKS, GEMM, DISK)


def written(path: Path, limit_seconds: float = 60.0) -> CheckLog:
    return CheckLog(path, limit_seconds, lambda: None)


def test_a_log_that_is_not_there_yet_tells_nothing(tmp_path: Path) -> None:
    assert read_log(tmp_path / "log") == Told()


def test_what_ended_and_what_runs_are_told_apart(tmp_path: Path) -> None:
    log = written(tmp_path / "log")
    log.begin(RANKS)
    log.found([FINE])
    log.begin(GEMM)
    log.close()
    assert read_log(tmp_path / "log") == Told((FINE,), running=GEMM)


def test_half_a_line_is_not_read(tmp_path: Path) -> None:
    log = written(tmp_path / "log")
    log.begin(RANKS)
    log.close()
    with (tmp_path / "log").open("a") as stream:
        stream.write('{"check": {"na')
    assert read_log(tmp_path / "log") == Told(running=RANKS)


def test_the_first_reason_counts(tmp_path: Path) -> None:
    log = written(tmp_path / "log")
    log.begin(GEMM)
    log.broken("rank 1 is gone")
    log.broken("a connection was closed")
    log.close()
    assert read_log(tmp_path / "log").reason == "rank 1 is gone"


def test_a_check_without_an_end_is_ended_and_told(tmp_path: Path) -> None:
    over = threading.Event()
    log = CheckLog(tmp_path / "log", 0.01, over.set)
    log.begin(GEMM)
    assert over.wait(30)
    assert read_log(tmp_path / "log") == Told(running=GEMM, reason="no end within 0.01 s")


def test_a_check_that_ended_in_time_is_not_ended_by_its_limit(tmp_path: Path) -> None:
    over = threading.Event()
    log = CheckLog(tmp_path / "log", 0.05, over.set)
    log.begin(GEMM)
    log.found([FINE])
    assert not over.wait(0.2)


def test_other_ranks_write_nothing_and_limit_nothing(tmp_path: Path) -> None:
    over = threading.Event()
    log = CheckLog(None, 0.01, over.set)
    log.begin(GEMM)
    log.found([FINE])
    log.stopped("Ctrl-C")
    assert not over.wait(0.1)
    assert not list(tmp_path.iterdir())


def test_a_lost_rank_fails_the_check_that_it_was_lost_in_and_the_rest_is_skipped() -> None:
    lost = "rank 1 on host n2: its process ended without a word; go on with --resume"
    checks = concluded(Told((FINE,), GEMM, lost), NAMES, "its processes ended with exit code 1")
    assert [(check.name, check.status) for check in checks] == [(RANKS, "pass"), (GEMM, "fail"), (DISK, "skip")]
    assert checks[1].detail == "rank 1 on host n2: its process ended without a word"
    assert checks[2].detail == f"not measured: `{GEMM}` came to no end"


def test_ranks_that_never_began_are_a_failure_of_the_first_check() -> None:
    checks = concluded(Told(), NAMES, "its processes ended with exit code 1 (see above)")
    assert [check.status for check in checks] == ["fail", "skip", "skip"]
    assert checks[0].detail == "its processes ended with exit code 1 (see above)"


def test_what_the_user_stopped_is_no_verdict_that_all_is_well_whoever_was_lost_by_that() -> None:
    checks = concluded(Told((FINE,), GEMM, "rank 1 on host n2: gone", "Ctrl-C"), NAMES, "exit code 1")
    assert [(check.status, check.detail) for check in checks[1:]] == [
        ("fail", "stopped by Ctrl-C before it ended"),
        ("skip", "not measured: stopped by Ctrl-C"),
    ]


def test_all_checks_made_is_all_there_is_to_say() -> None:
    assert concluded(Told((FINE,)), (RANKS,), "its processes ended with exit code 1") == [FINE]


@pytest.mark.parametrize("name", ["temporary", "backend", "launcher", "accelerator"])
def test_nothing_is_measured_where_the_environment_is_broken(name: str) -> None:
    planned = plan([FINE, Check(name, "fail", "broken")])
    assert planned.names == ()
    assert {check.name for check in planned.skipped} == set(MEASURED)
    assert planned.skipped[0].detail == f"not measured: first mend what `{name}` says"


def test_a_data_set_that_is_not_there_costs_only_what_would_read_it() -> None:
    planned = plan([Check("data", "fail", "no such folder"), Check("out", "warn", "little")])
    assert planned.names == tuple(name for name in MEASURED if name != READING)
    assert [check.name for check in planned.skipped] == [READING]


def test_looked_at_comes_first_and_measured_in_its_usual_order() -> None:
    mixed = [Check(DISK, "pass", ""), Check("data", "pass", ""), Check(RANKS, "pass", ""), Check("out", "pass", "")]
    assert [check.name for check in in_order(mixed)] == ["data", "out", RANKS, DISK]
