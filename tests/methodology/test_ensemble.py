"""The numbers of an ensemble: hand computations, the paper's own, and what must hold of any members."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.errors import UsageError
from hpcai500.methodology.ensemble import (
    MemberTimes,
    ensemble_numbers,
    epoch_rate,
    epochs_by_host,
    member_intervals,
    most_at_once,
    overlap_reasons,
    parallel_computation,
)

GFLOP = 1e9


def member(number: int, start: float = 0.0, seconds: float = 100.0, **facts: Any) -> MemberTimes:
    return MemberTimes(
        **{
            "member": number, "host": f"n{number}", "accelerators": 8, "epochs": 10, "images": 1000,
            "operations": 5e12, "training_seconds": 0.8 * seconds, "start": start,
            "intervals": ((0.0, seconds),), **facts,
        }
    )  # fmt: skip


members = st.lists(
    st.builds(
        lambda number, start, seconds, training, operations: member(
            number, start, seconds, training_seconds=training * seconds, operations=operations, images=int(operations)
        ),
        st.integers(0, 99), st.floats(1e6, 1e6 + 500), st.floats(1, 1000), st.floats(0, 1), st.floats(1, 1e18),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


def test_a_batch_of_512_images_of_23_gflop_is_the_papers_11776_gflop() -> None:
    apc = parallel_computation([512], 23 * GFLOP)
    assert apc == 11_776 * GFLOP
    # Section 2.2.1 goes on: 2.55 GFLOP for each node of Summit.
    assert apc / 4608 / GFLOP == pytest.approx(2.5556, abs=1e-4)


def test_members_multiply_the_parallel_computation() -> None:
    assert parallel_computation([512] * 8, 23 * GFLOP) == 8 * 11_776 * GFLOP


def test_a_hand_computed_ensemble_of_three() -> None:
    numbers = ensemble_numbers([member(0), member(1, 5.0, 120.0), member(2, 2.0, 110.0, host="slow")])
    # 3 x 0.5 TFLOP an epoch, by the 12 s that the slowest takes for one.
    assert numbers.epoch_seconds == 12.0
    assert numbers.flops == pytest.approx(1.5e12 / 12)
    assert numbers.images_per_second == pytest.approx(300 / 12)
    assert numbers.flops_of_members == pytest.approx(5e12 * (1 / 100 + 1 / 120 + 1 / 110))
    assert numbers.seconds == 125.0
    assert numbers.sustained_flops == pytest.approx(15e12 / 125)
    assert numbers.start_skew_seconds == 5.0
    assert numbers.overlap == pytest.approx(120 / 125)
    # 80 % of the time of 330 of the 3 x 125 seconds.
    assert numbers.utilisation == pytest.approx(0.8 * 330 / 375)
    assert (numbers.slowest.member, numbers.slowest.host, numbers.at_once) == (1, "n1", 3)
    assert numbers.slowest.slowdown == pytest.approx(120 / 105 - 1)
    assert not list(overlap_reasons(3, numbers.at_once, numbers.overlap))


def test_one_member_is_an_ensemble_of_its_own_rate() -> None:
    numbers = ensemble_numbers([member(0, 7.0)])
    assert numbers.flops == numbers.flops_of_members == numbers.sustained_flops == 5e10
    assert (numbers.overlap, numbers.start_skew_seconds, numbers.slowest.slowdown) == (1.0, 0.0, None)


def test_an_accelerator_of_a_large_member_counts_as_one_of_a_small() -> None:
    numbers = ensemble_numbers([member(0, accelerators=1, training_seconds=0.0), member(1, training_seconds=100.0)])
    assert numbers.utilisation == pytest.approx(8 / 9)


def test_members_in_waves_never_had_the_rate_of_equation_6() -> None:
    numbers = ensemble_numbers([member(0), member(1), member(2, 100.0), member(3, 101.0)])
    assert (numbers.at_once, numbers.sustained_flops) == (2, pytest.approx(numbers.flops / 2.01))
    (reason,) = overlap_reasons(4, numbers.at_once, numbers.overlap)
    assert "at most 2 of 4 did, so V3.0 Eq. 6 gives a rate that was never there" in reason


def test_a_skew_that_leaves_little_overlap_is_told() -> None:
    numbers = ensemble_numbers([member(0), member(1, 12.0)])
    (reason,) = overlap_reasons(2, numbers.at_once, numbers.overlap)
    assert "the slowest ran for 89% of the time from the first start to the last stop, and 90% is required" in reason


def test_a_member_that_was_down_while_another_ran_did_not_run_beside_it() -> None:
    broken = member(0, intervals=((0.0, 10.0), (60.0, 100.0)))
    assert broken.seconds == 100.0
    numbers = ensemble_numbers([broken, member(1, 10.0, 50.0)])
    assert numbers.at_once == 1
    assert list(overlap_reasons(2, numbers.at_once, numbers.overlap))
    # What it was down is in its time: the rate is not higher for it.
    assert numbers.flops == pytest.approx(1e12 / 10)


def test_a_restart_counts_as_time_and_not_as_work() -> None:
    def event(seq: int, key: str, seconds: float, wall: float | None = None, boot: str = "b") -> dict[str, Any]:
        value = {"boot_id": boot} if key == "init_start" else {}
        return {"seq": seq, "key": key, "time_ms": (wall or 5000 + seconds) * 1000, "clock_s": seconds, "value": value}

    events = [
        event(0, "init_start", 0), event(1, "run_start", 10), event(2, "epoch_stop", 30),
        event(3, "init_start", 70), event(4, "run_resume", 80), event(5, "run_stop", 100), event(6, "power", 140),
    ]  # fmt: skip
    assert member_intervals(events) == ((0.0, 20.0), (70.0, 90.0))
    # A wall clock that is put back by an hour during the run changes nothing.
    events[5] = event(5, "run_stop", 100, wall=1400)
    assert member_intervals(events) == ((0.0, 20.0), (70.0, 90.0))


@given(members)
def test_what_was_sustained_is_never_more_and_what_members_had_alone_never_less(found: list[MemberTimes]) -> None:
    numbers = ensemble_numbers(found)
    assert numbers.sustained_flops <= numbers.flops * (1 + 1e-9)
    assert numbers.flops <= numbers.flops_of_members * (1 + 1e-9)
    assert numbers.sustained_flops == pytest.approx(numbers.flops * numbers.overlap, rel=1e-6)
    assert 0 < numbers.overlap <= 1
    assert 0 <= numbers.utilisation <= 1
    assert 1 <= numbers.at_once <= len(found)


@given(members, st.floats(-1e5, 1e5))
def test_when_the_ensemble_ran_does_not_matter(found: list[MemberTimes], shift: float) -> None:
    moved = [replace(one, start=one.start + shift) for one in found]
    one, other = ensemble_numbers(found), ensemble_numbers(moved)
    assert other.flops == pytest.approx(one.flops, rel=1e-6)
    assert other.start_skew_seconds == pytest.approx(one.start_skew_seconds, abs=1e-6)


@given(members)
def test_the_order_of_members_does_not_matter(found: list[MemberTimes]) -> None:
    one, other = ensemble_numbers(found), ensemble_numbers(found[::-1])
    assert (one.flops, one.at_once, one.utilisation) == (other.flops, other.at_once, pytest.approx(other.utilisation))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), max_size=12))
def test_most_at_once_is_what_counting_at_every_start_gives(found: list[tuple[int, int]]) -> None:
    intervals = [(float(begin), float(begin + length)) for begin, length in found]
    counted = [sum(begin <= moment < end for begin, end in intervals) for moment, _ in intervals]
    assert most_at_once(intervals) == max(counted, default=0)


@pytest.mark.parametrize("seconds", [[], [0.0], [float("nan")], [1.0, 2.0]])
def test_a_rate_without_time_is_refused(seconds: list[float]) -> None:
    with pytest.raises(UsageError, match="expected work and times above 0 of each member"):
        epoch_rate([1.0] * bool(seconds), seconds)


def test_what_the_slowest_was_down_is_told_apart_from_what_it_ran() -> None:
    restarted = member(1, seconds=150.0, intervals=((0.0, 10.0), (59.0, 150.0)))
    slowest = ensemble_numbers([member(0), restarted, member(2)]).slowest
    assert (slowest.member, slowest.seconds, slowest.down_seconds) == (1, 150.0, 49.0)
    assert slowest.slowdown == pytest.approx(0.5)
    assert slowest.running_slowdown == pytest.approx(0.01)


def test_epochs_are_those_of_the_host_on_which_they_ended() -> None:
    def event(key: str, *hosts: str) -> dict[str, Any]:
        return {"key": key, "value": {"hosts": list(hosts)} if hosts else {}}

    stop = event("epoch_stop")
    first = [event("run_start", "n1", "n9"), stop]
    assert epochs_by_host([*first, event("run_resume", "n2"), stop, stop]) == {"n1": 1, "n2": 2}
    # Records of older versions name no hosts where they go on.
    assert epochs_by_host([*first, event("run_resume"), stop]) == {"n1": 2}
