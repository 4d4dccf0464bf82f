"""Ranks that are killed, stopped, hang or fail: every other one ends in time and knows which rank it was."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcai500.comm.liveness import GRACE_SECONDS, LAST_WORDS_SECONDS, Monitor, bound_seconds, heartbeat_seconds

TIMEOUT = 2.0
KILLED = "its process ended without a word (killed or crashed"
SILENT = "no sign of life for 2 s (its host or its link is gone, or it was stopped)"
HANGS = "no progress for 2 s in its phase `reading data`, while 2 others wait for it"
NONSENSE = "what its monitor says cannot be understood (beat.allowance: finite_number)"
WATCHES_NO_MORE = "the thread monitor of hpcai500, which watches the ranks, has ended by ArithmeticError: what nobody"

Report = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """What became of each rank of each scene."""
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).with_name("monitored_ranks.py")
    subprocess.run([sys.executable, script, folder], check=True, timeout=120)
    found: Report = json.loads((folder / "report.json").read_text())
    return found


@pytest.mark.parametrize(
    ("scene", "culprit", "reason", "silence"),
    [
        ("rank 1 is killed", 1, KILLED, 0.0),
        ("rank 0 is killed", 0, KILLED, 0.0),
        ("rank 2 is stopped", 2, SILENT, TIMEOUT),
        ("rank 0 is stopped", 0, SILENT, TIMEOUT),
        ("rank 1 hangs", 1, HANGS, TIMEOUT),
        ("rank 0 hangs", 0, HANGS, TIMEOUT),
        ("rank 1 hangs after a failed sum", 1, HANGS, TIMEOUT),
        (
            "rank 1 speaks nonsense",
            1,
            NONSENSE,
            0.0,
        ),
        ("rank 0 watches no more", 0, WATCHES_NO_MORE, 0.0),
        ("rank 2 watches no more", 2, WATCHES_NO_MORE, 0.0),
        ("rank 2 fails", 2, "year 1980 cannot be read: its disk is gone", 0.0),
        ("rank 0 fails", 0, "year 1980 cannot be read: its disk is gone", 0.0),
    ],
)
def test_every_other_rank_ends_in_time_with_rank_host_and_reason(
    report: Report, scene: str, culprit: int, reason: str, silence: float
) -> None:
    others = [rank for rank in range(3) if rank != culprit]
    for rank in others:
        ended = report[scene][rank]
        assert ended["code"] == 1
        assert f"rank {culprit} on host here: {reason}" in ended["error"]
        assert ended["lost"] in ended["error"]
        assert "last_words" not in ended
        # Silence begins with the last heartbeat before the event.
        assert silence - heartbeat_seconds(TIMEOUT) <= ended["seconds"] < bound_seconds(TIMEOUT) - TIMEOUT + silence


def test_a_rank_that_hangs_is_ended_too(report: Report) -> None:
    for rank in (0, 1):
        hung = report[f"rank {rank} hangs"][rank]
        assert hung["code"] == 1
        assert hung["last_words"] == hung["lost"]
        assert hung["seconds"] < bound_seconds(TIMEOUT)


def test_the_reason_of_a_rank_that_fails_is_its_own_and_not_that_of_the_monitor(report: Report) -> None:
    for rank in (0, 2):
        failed = report[f"rank {rank} fails"][rank]
        assert failed == {
            "code": 1,
            "seconds": failed["seconds"],
            "error": "year 1980 cannot be read:\nits disk is gone",
        }


def test_a_main_thread_that_never_comes_back_is_ended_after_its_last_words(report: Report) -> None:
    for rank in (0, 2):
        ended = report["sums never return"][rank]
        assert ended["code"] == 1
        assert ended["last_words"] == ended["lost"]
        assert f"rank 1 on host here: {KILLED}" in ended["lost"]
        assert GRACE_SECONDS <= ended["seconds"] < bound_seconds(TIMEOUT)


def test_a_process_in_which_no_python_runs_any_more_is_ended_by_the_kernel(report: Report) -> None:
    for rank in (0, 2):
        ended = report["the clean-up never returns"][rank]
        assert ended["code"] == -signal.SIGALRM
        assert ended["seconds"] < bound_seconds(TIMEOUT)


@pytest.mark.parametrize("scene", ["all end well", "a long evaluation", "a suspended job", "slow data"])
def test_ranks_that_say_goodbye_are_long_at_work_or_all_suspended_are_not_lost(report: Report, scene: str) -> None:
    for rank in range(3):
        ended = report[scene][rank]
        assert ended == {"code": 0, "seconds": ended["seconds"]}


@pytest.mark.parametrize("scene", ["dead data", "dead data, asked to stop", "dead data, one rank"])
def test_data_that_do_not_answer_end_ranks_of_which_nobody_waits_for_another(report: Report, scene: str) -> None:
    for rank in range(3):
        ended = report[scene][rank]
        assert ended["code"] == 1
        where = r"rank \d on host \S+: no progress for \d+ s in its phase `(reading data|starting)`"
        what = r"\S+/data: does not answer \(waited 0 s\): .* is dead; see whether what serves it runs.*"
        assert re.fullmatch(rf"{where}, and {what}, then go on with --resume", ended["lost"])


@pytest.mark.parametrize("timeout", [2.0, 10.0, 60.0])
def test_the_bound_is_what_its_docstring_says(timeout: float) -> None:
    assert bound_seconds(timeout) == timeout + 2 * heartbeat_seconds(timeout) + GRACE_SECONDS + LAST_WORDS_SECONDS


def test_one_rank_alone_has_nobody_to_watch(tmp_path: Path) -> None:
    from file_mailbox import communicator

    with Monitor(communicator(tmp_path, 0, ("here",)), TIMEOUT) as monitor:
        monitor.phase("computing")
        monitor.progress()
        monitor.failed("nobody to tell")
        assert monitor.wait_for_verdict() is None
