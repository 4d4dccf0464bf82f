"""Who is lost, decided from signs of life alone; what becomes of real ranks that are killed, stopped, hang or fail."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from file_mailbox import communicator
from hypothesis import given
from hypothesis import strategies as st
from monitored_ranks import TIMEOUT

from hpcai500.comm.liveness import (
    COMPUTING,
    EVALUATING,
    GRACE_SECONDS,
    LAST_WORDS_SECONDS,
    READING,
    STARTING,
    TOGETHER,
    WAITING,
    WRITING,
    Beat,
    LossDetector,
    Lost,
    Monitor,
    Stops,
    bound_seconds,
    heartbeat_seconds,
)

# ----------------------------------------------------------------------------------------------------
# The detector, on a clock that the test controls.


PATIENCE = 60.0
NODES = {0: "n1", 1: "n1", 2: "n2", 3: "n2"}


class Job:
    """Four ranks that send a beat each second, and the detector that receives them."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.detector = LossDetector(NODES, PATIENCE, self.now)
        self.beats = {rank: Beat(0, COMPUTING, 0.0) for rank in NODES}
        self.silent: set[int] = set()

    def is_at(self, phase: str, *ranks: int, allowance: float = 0.0) -> None:
        for rank in ranks:
            self.beats[rank] = Beat(self.beats[rank].progress + 1, phase, allowance)

    def gets_on(self, *ranks: int) -> None:
        for rank in ranks:
            beat = self.beats[rank]
            self.is_at(beat.phase, rank, allowance=beat.allowance_seconds)

    def lost(self, seconds: float = 0.0) -> Lost:
        """The verdict that there is, or comes within this time."""
        lost = self.detector.look(self.now) or self.run(seconds)
        assert lost is not None
        return lost

    def run(self, seconds: float, moving: tuple[int, ...] = ()) -> Lost | None:
        """Let time pass; returns the verdict as soon as there is one."""
        end = self.now + seconds
        while self.now < end:
            self.now += 1
            self.gets_on(*moving)
            for rank, beat in self.beats.items():
                if rank not in self.silent:
                    self.detector.beat(rank, beat, self.now)
            if lost := self.detector.look(self.now):
                return lost
        return None


def test_ranks_that_get_on_are_left_alone_for_ever() -> None:
    assert Job().run(1000, moving=(0, 1, 2, 3)) is None


def test_a_silent_rank_is_lost_after_the_timeout_and_not_before() -> None:
    job = Job()
    job.silent = {2}
    assert job.run(PATIENCE, moving=(0, 1, 3)) is None
    lost = job.lost(2)
    assert (lost.rank, lost.host, lost.seconds) == (2, "n2", PATIENCE + 1)
    assert lost.message == (
        "rank 2 on host n2: no sign of life for 61 s (its host or network failed, or it was stopped): "
        "check that host; go on with --resume"
    )


def test_a_closed_connection_is_a_loss_at_once_and_a_goodbye_before_it_is_not() -> None:
    job = Job()
    job.detector.left(1)
    job.detector.closed(1, job.now)
    assert job.detector.look(job.now) is None
    job.silent = {1}
    assert job.run(5 * PATIENCE, moving=(0, 2, 3)) is None
    job.detector.closed(3, job.now)
    lost = job.lost()
    assert lost.message.startswith("rank 3 on host n2: its process ended unexpectedly (killed or crashed")


def test_the_first_decision_stands() -> None:
    job = Job()
    job.detector.failed(3, "the disk is full")
    job.detector.closed(3, job.now)
    job.detector.failed(1, "the sum failed")
    job.detector.closed(0, job.now)
    lost = job.lost()
    assert lost.message == "rank 3 on host n2: the disk is full"


def test_the_rank_that_others_wait_for_is_the_one_that_hangs() -> None:
    job = Job()
    job.is_at(READING, 1)
    job.is_at(WAITING, 0, 2, 3)
    assert job.run(PATIENCE) is None
    lost = job.lost(3)
    assert (lost.rank, lost.host) == (1, "n1")
    assert "no progress for 61 s in its phase `reading data`, while 3 others wait for it" in lost.reason


def test_of_two_that_do_not_move_the_one_that_stopped_first_is_named() -> None:
    job = Job()
    job.is_at(WAITING, 0)
    job.is_at(READING, 2)
    job.run(10, moving=(1, 3))
    job.is_at(WAITING, 3)
    lost = job.lost(PATIENCE + 20)
    assert lost.rank == 2


def test_a_slow_step_is_no_standstill_until_others_have_waited_as_long_as_the_timeout() -> None:
    job = Job()
    assert job.run(3 * PATIENCE) is None
    job.is_at(WAITING, 0, 1, 2)
    assert job.run(PATIENCE) is None
    job.is_at(WAITING, 3)
    assert job.run(1) is None
    job.is_at(COMPUTING, *NODES)
    assert job.run(PATIENCE) is None


def test_a_phase_that_was_announced_as_long_has_its_time() -> None:
    job = Job()
    job.is_at(EVALUATING, 0, allowance=500.0)
    job.is_at(WAITING, 1, 2, 3)
    assert job.run(500.0) is None
    job.gets_on(0)
    assert job.run(500.0) is None
    lost = job.lost(3)
    assert (lost.rank, lost.seconds) == (0, 501.0)


def test_an_allowance_below_the_timeout_does_not_shorten_it() -> None:
    job = Job()
    job.is_at(COMPUTING, 0, allowance=1.0)
    job.is_at(WAITING, 1, 2, 3)
    assert job.run(PATIENCE) is None


def test_ranks_that_all_wait_for_each_other_are_a_loss_without_a_culprit() -> None:
    job = Job()
    job.is_at(WAITING, *NODES)
    assert job.run(PATIENCE) is None
    lost = job.lost(3)
    assert lost.rank is None
    assert lost.message.startswith("all ranks have waited for each other for 61 s: the network")


def test_ranks_of_a_sharded_model_may_wait_in_a_pass_for_one_that_hangs_elsewhere() -> None:
    job = Job()
    job.is_at(READING, 1)
    job.is_at(TOGETHER, 0, 2, 3, allowance=600.0)
    lost = job.lost(PATIENCE + 3)
    assert (lost.rank, lost.seconds) == (1, PATIENCE + 1)


def test_a_long_pass_of_a_sharded_model_is_no_deadlock_until_its_time_is_over() -> None:
    job = Job()
    job.is_at(TOGETHER, *NODES, allowance=600.0)
    assert job.run(600.0) is None
    lost = job.lost(3)
    assert (lost.rank, lost.seconds) == (None, 601.0)


def test_sums_that_get_on_are_no_deadlock() -> None:
    job = Job()
    job.is_at(WAITING, *NODES)
    assert job.run(5 * PATIENCE, moving=(2,)) is None


class Alone:
    """A rank without others, which has updated its model once, in as many seconds as it is told."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.now, self.progress, self.phase = 1000.0, 0, COMPUTING
        self.detector = LossDetector({0: "n1"}, PATIENCE, self.now)
        self.run(seconds)
        self.is_at(READING)
        self.is_at(COMPUTING)

    def is_at(self, phase: str) -> None:
        self.progress, self.phase = self.progress + 1, phase
        self.run(1)

    def run(self, seconds: float) -> tuple[list[str], Lost | None]:
        """Let time pass; returns what is said meanwhile, and the verdict as soon as there is one."""
        said, end = [], self.now + seconds
        while self.now < end:
            self.now += 1
            self.detector.beat(0, Beat(self.progress, self.phase, 0.0), self.now)
            if lost := self.detector.look(self.now):
                return said, lost
            said += filter(None, [self.detector.standstill(self.now)])
        return said, None


def test_a_rank_alone_that_stands_still_is_reported_then_ended() -> None:
    job = Alone()
    said, lost = job.run(10 * PATIENCE + 2)
    assert said == ["no progress for 61 s in its phase `computing`"]
    assert lost is not None
    assert (lost.rank, lost.host, lost.seconds) == (0, "n1", 10 * PATIENCE + 1)
    assert lost.reason == (
        "no progress for 601 s in its phase `computing`: a library, a driver or a read hangs; go on with --resume"
    )


def test_a_standstill_that_ends_may_come_again() -> None:
    job = Alone()
    assert len(job.run(2 * PATIENCE)[0]) == 1
    job.is_at(READING)
    assert job.run(3 * PATIENCE) == ([], None)
    assert len(job.run(2 * PATIENCE)[0]) == 1


def test_slow_updates_are_no_standstill() -> None:
    """A step of ten minutes on one core is slow and regular."""
    job = Alone(600.0)
    assert job.run(1190) == ([], None)
    job.is_at(READING)
    said, lost = job.run(11_000)
    assert len(said) == 1
    assert lost is None


def test_a_measurement_which_announces_no_phase_may_take_a_day() -> None:
    job = Alone()
    job.is_at(STARTING)
    said, lost = job.run(86_400)
    assert said == [f"no progress for 601 s in its phase `{STARTING}`"]
    assert lost is None


@pytest.mark.parametrize("phase", [EVALUATING, WRITING])
def test_evaluating_and_writing_may_take_an_hour(phase: str) -> None:
    job = Alone()
    job.is_at(phase)
    assert job.run(590) == ([], None)
    said, lost = job.run(3000)
    assert said == [f"no progress for 601 s in its phase `{phase}`"]
    assert lost is None
    assert job.run(60)[1] is not None


def test_the_first_update_is_reported_early_and_may_take_an_hour() -> None:
    job = Alone()
    job.detector = LossDetector({0: "n1"}, PATIENCE, job.now)
    said, lost = job.run(3600)
    assert said == ["no progress for 61 s in its phase `computing`"]
    assert lost is None
    assert job.run(60)[1] is not None


def test_ranks_that_all_stand_still_while_none_waits_are_lost() -> None:
    job = Job()
    job.run(10, moving=tuple(NODES))
    assert job.run(10 * PATIENCE) is None
    lost = job.lost(60)
    assert lost.rank is None
    assert lost.reason.startswith("no progress for 601 s on any rank, although none waits for another: a library")


def test_a_rank_that_does_not_see_the_progress_of_others_decides_nothing_by_it() -> None:
    detector = LossDetector({0: "n1"}, PATIENCE, 0.0, sees_progress=False)
    for now in range(10_000):
        detector.beat(0, Beat(0, STARTING, 0.0), now)
        assert detector.look(now) is None
        assert detector.standstill(now) is None


def test_those_who_wait_for_one_that_has_left_are_told() -> None:
    job = Job()
    job.detector.left(3)
    job.is_at(WAITING, 0, 1, 2)
    lost = job.lost(PATIENCE + 3)
    assert lost.rank is None


def test_a_job_that_was_suspended_as_a_whole_goes_on() -> None:
    job = Job()
    job.is_at(COMPUTING, 0)
    job.is_at(WAITING, 1, 2, 3)
    job.run(30)
    job.now += 10 * PATIENCE
    job.silent = {2, 3}
    assert job.run(20) is None
    job.silent = set()
    job.is_at(COMPUTING, *NODES)
    assert job.run(PATIENCE) is None


def test_stops_are_long_gaps_in_which_the_main_thread_did_not_compute() -> None:
    clock, computed = iter([0.0, 1.0, 143.0, 144.0, 163.0, 175.0, 176.0]), iter([0.0, 1.0, 2.0, 2.5, 20.0, 20.1, 20.2])
    stops = Stops(lambda: next(clock), lambda: next(computed))
    # From 144 to 163 a library held Python's lock.
    assert [stops.look() for _ in range(6)] == [0.0, 142.0, 142.0, 142.0, 154.0, 154.0]


@pytest.mark.parametrize(("timeout", "seconds"), [(60.0, 1.0), (10.0, 1.0), (2.0, 0.2)])
def test_a_heartbeat_is_a_second_or_a_tenth_of_a_short_timeout(timeout: float, seconds: float) -> None:
    assert heartbeat_seconds(timeout) == pytest.approx(seconds)


@given(
    timeout=st.floats(5, 600),
    died=st.floats(0, 1000),
    victim=st.sampled_from(sorted(NODES)),
    jitter=st.lists(st.floats(0, 0.9), min_size=1, max_size=50),
)
def test_whoever_falls_silent_is_found_within_timeout_and_two_heartbeats(
    timeout: float, died: float, victim: int, jitter: list[float]
) -> None:
    interval, now, turn, heard = heartbeat_seconds(timeout), 0.0, 0, 0.0
    detector = LossDetector(NODES, timeout, now)
    while True:
        # Beats come late by up to an interval; the detector looks once in each.
        late = jitter[turn % len(jitter)] * interval
        for rank in NODES:
            if rank != victim or now + late < died:
                heard = now + late if rank == victim else heard
                detector.beat(rank, Beat(turn, COMPUTING, 0.0), now + late)
        now, turn = now + interval, turn + 1
        lost = detector.look(now)
        if lost:
            break
        assert now <= died + timeout + 2 * interval
    assert lost.rank == victim
    assert now - heard > timeout


@given(st.data())
def test_no_rank_that_waits_is_ever_blamed_for_a_standstill(data: st.DataObject) -> None:
    now = 0.0
    detector = LossDetector(NODES, 10.0, now)
    beats = {rank: Beat(0, COMPUTING, 0.0) for rank in NODES}
    for _ in range(data.draw(st.integers(1, 60))):
        now += 1
        for rank in NODES:
            if data.draw(st.booleans()):
                phase = data.draw(st.sampled_from([WAITING, COMPUTING, READING]))
                beats[rank] = Beat(beats[rank].progress + 1, phase, 0.0)
            detector.beat(rank, beats[rank], now)
        lost = detector.look(now)
        if lost is not None:
            assert lost.seconds > 10.0
            if lost.rank is None:
                assert all(beat.phase == WAITING for beat in beats.values())
            else:
                assert beats[lost.rank].phase != WAITING
                assert any(beat.phase == WAITING for beat in beats.values())
            return


# ----------------------------------------------------------------------------------------------------
# Real processes: every other rank ends and knows which rank it was.


KILLED = r"its process ended unexpectedly \(killed or crashed"
# Of the timeout of 2 s, or of more on a machine that is busy.
SILENT = r"no sign of life for ([2-9]|\d\d+) s \(its host or network failed, or it was stopped\)"
HANGS = r"no progress for ([2-9]|\d\d+) s in its phase `reading data`, while 2 others wait for it"
NONSENSE = r"its monitor sent an invalid message \(beat.allowance: finite_number\)"
WATCHES_NO_MORE = "the thread monitor of hpcai500, which watches the ranks, failed with ArithmeticError: what nobody"
FAILS = "year 1980 cannot be read: its disk is gone"
# The bound is of a machine that is not loaded; a rank that is never ended does not come back at all.
LONGEST = 60.0

Report = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """What became of each rank of each scene."""
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).with_name("monitored_ranks.py")
    subprocess.run([sys.executable, script, folder], check=True, timeout=300)
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
        ("rank 1 speaks nonsense", 1, NONSENSE, 0.0),
        ("rank 0 watches no more", 0, WATCHES_NO_MORE, 0.0),
        ("rank 2 watches no more", 2, WATCHES_NO_MORE, 0.0),
        ("rank 2 fails", 2, FAILS, 0.0),
        ("rank 0 fails", 0, FAILS, 0.0),
    ],
)
def test_every_other_rank_ends_with_rank_host_and_reason(
    report: Report, scene: str, culprit: int, reason: str, silence: float
) -> None:
    for rank in {0, 1, 2} - {culprit}:
        ended = report[scene][rank]
        assert ended["code"] == 1
        assert re.search(f"rank {culprit} on host here: {reason}", ended["error"])
        assert ended["lost"] in ended["error"]
        assert "last_words" not in ended
        # Silence begins with the last heartbeat before the event.
        assert silence - heartbeat_seconds(TIMEOUT) <= ended["seconds"] < LONGEST


def test_a_rank_that_hangs_is_ended_too(report: Report) -> None:
    for rank in (0, 1):
        hung = report[f"rank {rank} hangs"][rank]
        assert hung["code"] == 1
        assert hung["last_words"] == hung["lost"]
        assert hung["seconds"] < LONGEST


def test_the_reason_of_a_rank_that_fails_is_its_own_and_not_that_of_the_monitor(report: Report) -> None:
    for rank in (0, 2):
        failed = report[f"rank {rank} fails"][rank]
        error = "year 1980 cannot be read:\nits disk is gone"
        assert failed == {"code": 1, "seconds": failed["seconds"], "error": error}


def test_a_main_thread_that_never_comes_back_is_ended_after_its_last_words(report: Report) -> None:
    for rank in (0, 2):
        ended = report["sums never return"][rank]
        assert ended["code"] == 1
        assert ended["last_words"] == ended["lost"]
        assert re.match(f"rank 1 on host here: {KILLED}", ended["lost"])
        assert GRACE_SECONDS <= ended["seconds"] < LONGEST


def test_a_process_in_which_no_python_runs_any_more_is_ended_by_the_kernel(report: Report) -> None:
    for rank in (0, 2):
        ended = report["the clean-up never returns"][rank]
        assert ended["code"] == -signal.SIGALRM
        assert ended["seconds"] < LONGEST


@pytest.mark.parametrize("scene", ["all end well", "a long evaluation", "a suspended job", "slow data"])
def test_ranks_that_say_goodbye_are_long_at_work_or_all_suspended_are_not_lost(report: Report, scene: str) -> None:
    assert [{**ended, "seconds": 0} for ended in report[scene]] == [{"code": 0, "seconds": 0}] * 3


@pytest.mark.parametrize("scene", ["dead data", "dead data, asked to stop", "dead data, one rank"])
def test_data_that_do_not_answer_end_ranks_of_which_nobody_waits_for_another(report: Report, scene: str) -> None:
    where = r"rank \d on host \S+: no progress for \d+ s in its phase `(reading data|starting)`"
    what = r"\S+/data: does not respond \(waited 0 s\): .* is dead; check that its server is running.*"
    for ended in report[scene]:
        assert ended["code"] == 1
        assert re.fullmatch(rf"{where}, and {what}, then go on with --resume", ended["lost"])


def test_a_rank_alone_that_hangs_shows_its_stack_and_ends(report: Report) -> None:
    for ended in report["alone and hanging"]:
        assert ended["code"] == 1
        hangs = r"no progress for \d+ s in its phase `computing`"
        assert re.fullmatch(rf"rank 0 on host \S+: {hangs}: a library, a .*; go on with --resume", ended["lost"])
        lines = ended["stderr"].splitlines()
        # On a busy machine, the phases before may have been reported, too.
        (*_, at) = (number for number, line in enumerate(lines) if "the main thread is here" in line)
        said, *stack, last = lines[at:]
        assert re.fullmatch(f"hpcai500: {hangs}; the main thread is here, the innermost call last:", said)
        assert re.fullmatch(r"hpcai500:   monitored_ranks.py:\d+ hang_alone: hang\(scene, ranks._monitor\)", stack[-2])
        assert re.fullmatch(r"hpcai500:   monitored_ranks.py:\d+ hang: .*", stack[-1])
        assert len(stack) <= 8
        assert last == f"hpcai500: error: {ended['lost']}"


@pytest.mark.parametrize("timeout", [2.0, 10.0, 60.0])
def test_the_bound_is_what_its_docstring_says(timeout: float) -> None:
    assert bound_seconds(timeout) == timeout + 2 * heartbeat_seconds(timeout) + GRACE_SECONDS + LAST_WORDS_SECONDS


def test_one_rank_alone_has_nobody_to_watch(tmp_path: Path) -> None:
    with Monitor(communicator(tmp_path, 0, ("here",)), TIMEOUT) as monitor:
        monitor.phase("computing")
        monitor.progress()
        monitor.failed("nobody to tell")
        assert monitor.wait_for_verdict() is None
