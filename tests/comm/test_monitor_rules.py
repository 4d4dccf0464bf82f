"""Who is lost, decided from signs of life alone, on a clock that the test turns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.comm.liveness import COMPUTING, EVALUATING, READING, WAITING, Beat, Judge, Lost, heartbeat_seconds

TIMEOUT = 60.0
HOSTS = {0: "n1", 1: "n1", 2: "n2", 3: "n2"}


class Job:
    """Four ranks that send a beat each second, as told, and the judge who hears them."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self.now = 1000.0
        self.judge = Judge(HOSTS, timeout, self.now)
        self.beats = {rank: Beat(0, COMPUTING, 0.0) for rank in HOSTS}
        self.silent: set[int] = set()

    def is_at(self, rank: int, phase: str, allowance: float = 0.0) -> None:
        self.beats[rank] = Beat(self.beats[rank].progress + 1, phase, allowance)

    def gets_on(self, *ranks: int) -> None:
        for rank in ranks:
            beat = self.beats[rank]
            self.beats[rank] = Beat(beat.progress + 1, beat.phase, beat.allowance_seconds)

    def run(self, seconds: float, moving: tuple[int, ...] = ()) -> Lost | None:
        """Let time pass; returns the verdict as soon as there is one."""
        end = self.now + seconds
        while self.now < end:
            self.now += 1
            self.gets_on(*moving)
            for rank, beat in self.beats.items():
                if rank not in self.silent:
                    self.judge.beat(rank, beat, self.now)
            if lost := self.judge.look(self.now):
                return lost
        return None


def test_ranks_that_get_on_are_left_alone_for_ever() -> None:
    assert Job().run(1000, moving=(0, 1, 2, 3)) is None


def test_a_silent_rank_is_lost_after_the_timeout_and_not_before() -> None:
    job = Job()
    job.silent = {2}
    assert job.run(TIMEOUT, moving=(0, 1, 3)) is None
    lost = job.run(2)
    assert lost is not None
    assert (lost.rank, lost.host, lost.seconds) == (2, "n2", TIMEOUT + 1)
    assert lost.message == (
        "rank 2 on host n2: no sign of life for 61 s (its host or its link is gone, or it was stopped): "
        "look at that host; go on with --resume"
    )


def test_a_closed_connection_is_a_loss_at_once_and_a_goodbye_before_it_is_not() -> None:
    job = Job()
    job.judge.left(1)
    job.judge.closed(1, job.now)
    assert job.judge.look(job.now) is None
    job.silent = {1}
    assert job.run(5 * TIMEOUT, moving=(0, 2, 3)) is None
    job.judge.closed(3, job.now)
    lost = job.judge.look(job.now)
    assert lost is not None
    assert lost.message.startswith("rank 3 on host n2: its process ended without a word (killed or crashed")


def test_the_first_decision_stands() -> None:
    job = Job()
    job.judge.failed(3, "the disk is full")
    job.judge.closed(3, job.now)
    job.judge.failed(1, "the sum failed")
    job.judge.closed(0, job.now)
    lost = job.judge.look(job.now)
    assert lost is not None
    assert lost.message == "rank 3 on host n2: the disk is full"


def test_the_rank_that_others_wait_for_is_the_one_that_hangs() -> None:
    job = Job()
    job.is_at(1, READING)
    for rank in (0, 2, 3):
        job.is_at(rank, WAITING)
    assert job.run(TIMEOUT) is None
    lost = job.run(3)
    assert lost is not None
    assert (lost.rank, lost.host) == (1, "n1")
    assert "no progress for 61 s in its phase `reading data`, while 3 others wait for it" in lost.reason


def test_of_two_that_do_not_move_the_one_that_stopped_first_is_named() -> None:
    job = Job()
    job.is_at(0, WAITING)
    job.is_at(2, READING)
    job.run(10, moving=(1, 3))
    job.is_at(3, WAITING)
    lost = job.run(TIMEOUT + 20)
    assert lost is not None
    assert lost.rank == 2


def test_a_slow_step_is_no_standstill_until_others_have_waited_as_long_as_the_timeout() -> None:
    job = Job()
    assert job.run(3 * TIMEOUT) is None
    for rank in (0, 1, 2):
        job.is_at(rank, WAITING)
    assert job.run(TIMEOUT) is None
    job.is_at(3, WAITING)
    assert job.run(1) is None
    for rank in HOSTS:
        job.is_at(rank, COMPUTING)
    assert job.run(TIMEOUT) is None


def test_a_phase_that_was_announced_as_long_has_its_time() -> None:
    job = Job()
    job.is_at(0, EVALUATING, allowance=500.0)
    for rank in (1, 2, 3):
        job.is_at(rank, WAITING)
    assert job.run(500.0) is None
    job.gets_on(0)
    assert job.run(500.0) is None
    lost = job.run(3)
    assert lost is not None
    assert (lost.rank, lost.seconds) == (0, 501.0)


def test_an_allowance_below_the_timeout_does_not_shorten_it() -> None:
    job = Job()
    job.is_at(0, COMPUTING, allowance=1.0)
    for rank in (1, 2, 3):
        job.is_at(rank, WAITING)
    assert job.run(TIMEOUT) is None


def test_ranks_that_all_wait_for_each_other_are_a_loss_without_a_culprit() -> None:
    job = Job()
    for rank in HOSTS:
        job.is_at(rank, WAITING)
    assert job.run(TIMEOUT) is None
    lost = job.run(3)
    assert lost is not None
    assert lost.rank is None
    assert lost.message.startswith("all ranks have waited for each other's sums for 61 s: the network")


def test_sums_that_get_on_are_no_deadlock() -> None:
    job = Job()
    for rank in HOSTS:
        job.is_at(rank, WAITING)
    assert job.run(5 * TIMEOUT, moving=(2,)) is None


def test_those_who_wait_for_one_that_has_left_are_told() -> None:
    job = Job()
    job.judge.left(3)
    for rank in (0, 1, 2):
        job.is_at(rank, WAITING)
    lost = job.run(TIMEOUT + 3)
    assert lost is not None
    assert lost.rank is None


def test_a_job_that_was_suspended_as_a_whole_goes_on() -> None:
    job = Job()
    job.is_at(0, COMPUTING)
    for rank in (1, 2, 3):
        job.is_at(rank, WAITING)
    job.run(30)
    job.now += 10 * TIMEOUT
    job.silent = {2, 3}
    assert job.run(20) is None
    job.silent = set()
    for rank in HOSTS:
        job.is_at(rank, COMPUTING)
    assert job.run(TIMEOUT) is None


@pytest.mark.parametrize(("timeout", "seconds"), [(60.0, 1.0), (10.0, 1.0), (2.0, 0.2)])
def test_a_heartbeat_is_a_second_or_a_tenth_of_a_short_timeout(timeout: float, seconds: float) -> None:
    assert heartbeat_seconds(timeout) == pytest.approx(seconds)


@given(
    timeout=st.floats(5, 600),
    died=st.floats(0, 1000),
    victim=st.sampled_from(sorted(HOSTS)),
    jitter=st.lists(st.floats(0, 0.9), min_size=1, max_size=50),
)
def test_whoever_falls_silent_is_found_within_timeout_and_two_heartbeats(
    timeout: float, died: float, victim: int, jitter: list[float]
) -> None:
    interval, now, turn, heard = heartbeat_seconds(timeout), 0.0, 0, 0.0
    judge = Judge(HOSTS, timeout, now)
    while True:
        # Beats come late by up to an interval; the judge looks once in each.
        late = jitter[turn % len(jitter)] * interval
        for rank in HOSTS:
            if rank != victim or now + late < died:
                heard = now + late if rank == victim else heard
                judge.beat(rank, Beat(turn, COMPUTING, 0.0), now + late)
        now, turn = now + interval, turn + 1
        lost = judge.look(now)
        if lost:
            break
        assert now <= died + timeout + 2 * interval
    assert lost.rank == victim
    assert now - heard > timeout


@given(st.data())
def test_no_rank_that_waits_is_ever_blamed_for_a_standstill(data: st.DataObject) -> None:
    now = 0.0
    judge = Judge(HOSTS, 10.0, now)
    beats = {rank: Beat(0, COMPUTING, 0.0) for rank in HOSTS}
    for _ in range(data.draw(st.integers(1, 60))):
        now += 1
        for rank in HOSTS:
            if data.draw(st.booleans()):
                phase = data.draw(st.sampled_from([WAITING, COMPUTING, READING]))
                beats[rank] = Beat(beats[rank].progress + 1, phase, 0.0)
            judge.beat(rank, beats[rank], now)
        lost = judge.look(now)
        if lost is not None:
            assert lost.seconds > 10.0
            if lost.rank is None:
                assert all(beat.phase == WAITING for beat in beats.values())
            else:
                assert beats[lost.rank].phase != WAITING
                assert any(beat.phase == WAITING for beat in beats.values())
            return
