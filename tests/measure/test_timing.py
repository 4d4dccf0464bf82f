"""How often something is repeated, and what its median is known to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.measure.timing import Effort, Timing, median_interval, repeat, stopwatch

seconds = st.floats(min_value=1e-6, max_value=1e3)


class Time:
    """A clock that only what is measured moves."""

    def __init__(self, durations: Callable[[int], float]) -> None:
        self.now, self.runs, self._durations = 0.0, 0, durations

    def run(self) -> float:
        taken = self._durations(self.runs)
        self.runs, self.now = self.runs + 1, self.now + taken
        return taken

    def clock(self) -> float:
        return self.now


@given(st.lists(seconds, min_size=1))
def test_the_interval_holds_the_median_and_its_ends_are_measured_values(values: list[float]) -> None:
    low, high = median_interval(values)
    assert low <= statistics.median(values) <= high
    assert low in values
    assert high in values


@pytest.mark.parametrize("count", [6, 7, 8, 9, 10, 20, 21, 50, 99, 100, 1001])
def test_the_interval_covers_the_true_median_95_times_in_100(count: int) -> None:
    low, high = median_interval(range(count))
    # The k-th smallest of n is below the true median, and the l-th above, as n throws of a coin have it: exactly.
    covered = sum(math.comb(count, heads) for heads in range(int(low) + 1, int(high) + 1)) / 2**count
    assert covered >= 0.95


@given(st.lists(seconds, min_size=2), st.floats(min_value=1e-3, max_value=1e3))
def test_spread_has_no_unit_and_the_median_does(values: list[float], scale: float) -> None:
    one, other = Timing(tuple(values)), Timing(tuple(value * scale for value in values))
    assert other.median == pytest.approx(one.median * scale)
    assert other.spread == pytest.approx(one.spread, rel=1e-9, abs=1e-9)


def test_what_never_varies_is_measured_no_more_often_than_asked_for() -> None:
    time = Time(lambda run: 0.25)
    timing = repeat(time.run, Effort(least=5, warm_up=3, seconds=100), time.clock)
    assert timing.seconds == (0.25,) * 5
    assert time.runs == 8


def test_warm_up_is_not_counted() -> None:
    time = Time(lambda run: 9.0 if run < 2 else 1.0)
    assert set(repeat(time.run, Effort(warm_up=2), time.clock).seconds) == {1.0}


def test_noise_is_measured_until_its_interval_is_tight() -> None:
    time = Time(lambda run: 1.0 + 0.1 * ((run * 7919) % 101) / 101)
    timing = repeat(time.run, Effort(width=0.01, seconds=1e6), time.clock)
    low, high = timing.interval
    assert (high - low) / 2 <= 0.01 * timing.median
    assert len(timing.seconds) > 20


@given(st.floats(min_value=0.01, max_value=3.0))
def test_time_that_is_up_ends_it_tight_or_not(each: float) -> None:
    time = Time(lambda run: each * (1 + run % 2))
    repeat(time.run, Effort(width=0.0, least=3, seconds=10.0, warm_up=0), time.clock)
    # A repetition that was begun is ended, and those asked for at least are made.
    assert time.now <= max(10.0 + 4 * each, 3 * 2 * each)


def test_all_ranks_repeat_as_often_as_the_one_that_varies_most() -> None:
    wishes: list[int] = []

    def others_want_more(wanted: int) -> int:
        wishes.append(wanted)
        return max(wanted, 4) if len(wishes) < 5 else 0

    time = Time(lambda run: 1.0)
    timing = repeat(time.run, Effort(least=7, warm_up=0, seconds=1e6), time.clock, others_want_more)
    assert wishes[0] == 7
    assert wishes[1:] == [0] * 4
    assert len(timing.seconds) == 7 + 3 * 4


# --- calls on a device, of which there is none here


class Device:
    """A stream and the host that launches on it, in seconds; it stands in for `torch.cuda`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, launch_seconds: float) -> None:
        self.now = self.busy_until = self.slept = 0.0
        self.launch_seconds = launch_seconds
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.reached = device.run(0.0, 1e-6)

            def query(self) -> bool:
                return self.reached <= device.now

            def synchronize(self) -> None:
                device.now = max(device.now, self.reached)

            def elapsed_time(self, later: Event) -> float:
                return (later.reached - self.reached) * 1e3

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "_sleep", self.sleep)

    def run(self, seconds: float, launch_seconds: float | None = None) -> float:
        self.now += self.launch_seconds if launch_seconds is None else launch_seconds
        self.busy_until = max(self.busy_until, self.now) + seconds
        return self.busy_until

    def sleep(self, cycles: int) -> None:
        self.slept += cycles / 2e9
        self.run(cycles / 2e9, 5e-6)


GPU = torch.device("cuda")


@pytest.mark.parametrize("launch_seconds", [10e-6, 25e-6, 400e-6])
def test_time_on_a_device_does_not_include_the_launch(monkeypatch: pytest.MonkeyPatch, launch_seconds: float) -> None:
    device, watch = Device(monkeypatch, launch_seconds), stopwatch(GPU)
    assert [watch(lambda: device.run(60e-6)) for _ in range(3)] == pytest.approx([60e-6] * 3)


def test_a_slow_launch_is_left_out_from_the_next_calls_on(monkeypatch: pytest.MonkeyPatch) -> None:
    device, watch = Device(monkeypatch, 1.5e-3), stopwatch(GPU)
    assert watch(lambda: device.run(60e-6)) > 0.5e-3
    assert watch(lambda: device.run(60e-6)) == pytest.approx(60e-6)
    # A call that waits for the device itself cannot be launched ahead: the lead does not grow for ever.
    device.launch_seconds = 1.0
    before = device.slept
    assert [watch(lambda: device.run(0.5)) > 1 for _ in range(10)] == [True] * 10
    assert device.slept - before <= 40e-3


def test_ranks_that_wait_for_each_other_are_not_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, 10e-6)
    assert stopwatch(GPU, is_alone=False)(lambda: device.run(60e-6)) == pytest.approx(70e-6)
    assert device.slept == 0
