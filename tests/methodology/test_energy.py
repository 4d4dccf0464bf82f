"""Energy: integrals of power that mathematics knows, and from the event `power` to efficiency."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from builders.events import EventLog
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.methodology.energy import (
    Sample,
    Window,
    compare_sources,
    integrate,
    power_of_run,
    unwrapped,
    usual_interval,
    why_unknown,
    window_of,
)

WINDOW = Window(1000.0, 1100.0)
# Some of UNIX time's digits are lost in a float: a quarter of a microsecond.
STARTS = st.sampled_from([0.0, 1000.0, 1.8e9])
Trace = Callable[[float], float]


def sampled(power: Trace, window: Window, interval: float, shifts: list[float] | None = None) -> list[Sample]:
    """Samples of `power` from before to after `window`, each shifted by less than half an interval."""
    count = math.ceil(window.seconds / interval) + 4
    times = [window.start_s + (number - 2) * interval for number in range(count + 1)]
    moved = [time + 0.4 * interval * (shifts[i % len(shifts)] if shifts else 0.0) for i, time in enumerate(times)]
    return [Sample(time, power(time)) for time in moved]


shift_lists = st.lists(st.floats(-1, 1), min_size=1, max_size=20)
intervals = st.floats(0.1, 1.0)


@given(STARTS, st.floats(1, 500), intervals, shift_lists, st.floats(0, 1e4))
def test_constant_power_times_time(
    start: float, seconds: float, interval: float, jitter: list[float], watts: float
) -> None:
    window = Window(start, start + seconds)
    energy = integrate(sampled(lambda _: watts, window, interval, jitter), window, interval)
    assert energy.joules == pytest.approx(watts * window.seconds, abs=1e-6)
    assert energy.mean_watts == pytest.approx(watts, abs=1e-6)
    assert (energy.gaps, energy.reason) == ((), None)


@given(STARTS, st.floats(1, 500), intervals, shift_lists, st.floats(0, 1000), st.floats(0, 50))
def test_a_ramp_is_exact_however_it_is_sampled(
    start: float, seconds: float, interval: float, jitter: list[float], base: float, slope: float
) -> None:
    window = Window(start, start + seconds)
    ramp = sampled(lambda time: 1e4 + base + slope * (time - start), window, interval, jitter)
    truth = (1e4 + base) * window.seconds + slope * window.seconds**2 / 2
    assert integrate(ramp, window, interval).joules == pytest.approx(truth, rel=1e-9)


@given(intervals, shift_lists, st.floats(4, 200), st.floats(0, 6.3))
def test_a_sine_is_within_the_bound_of_the_trapezoidal_rule(
    interval: float, jitter: list[float], period: float, phase: float
) -> None:
    omega, mean, amplitude = 2 * math.pi / period, 400.0, 300.0
    sine = sampled(lambda time: mean + amplitude * math.sin(omega * time + phase), WINDOW, interval, jitter)
    swing = (math.cos(omega * WINDOW.start_s + phase) - math.cos(omega * WINDOW.stop_s + phase)) * amplitude / omega
    longest = 1.8 * interval
    # Two parts more than in the window: interpolation at its edges errs no more than the rule does.
    bound = amplitude * omega**2 * longest**2 / 12 * (WINDOW.seconds + 2 * longest) * 2
    assert integrate(sine, WINDOW, interval).joules == pytest.approx(mean * WINDOW.seconds + swing, abs=bound)


@given(intervals, shift_lists, st.lists(st.floats(0, 1000), min_size=2, max_size=8))
def test_steps_are_off_by_half_an_interval_each_at_most(
    interval: float, jitter: list[float], levels: list[float]
) -> None:
    each = WINDOW.seconds / len(levels)

    def power(time: float) -> float:
        return levels[min(max(int((time - WINDOW.start_s) / each), 0), len(levels) - 1)]

    truth = math.fsum(level * each for level in levels)
    heights = math.fsum(abs(after - before) for before, after in pairwise(levels))
    energy = integrate(sampled(power, WINDOW, interval, jitter), WINDOW, interval)
    assert energy.joules == pytest.approx(truth, abs=heights * 1.8 * interval / 2 + 1e-6)


@given(st.randoms(use_true_random=False), intervals, shift_lists)
def test_order_and_repeated_rows_change_nothing(random: object, interval: float, jitter: list[float]) -> None:
    samples = sampled(lambda time: 300 + 200 * math.sin(time), WINDOW, interval, jitter)
    mixed = samples + samples[::3]
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert integrate(mixed, WINDOW, interval).joules == pytest.approx(integrate(samples, WINDOW, interval).joules)


def test_different_powers_at_one_moment_are_averaged() -> None:
    samples = [sample for time in range(11) for sample in (Sample(time, 100.0), Sample(time, 300.0))]
    assert integrate(samples, Window(0, 10), 1.0).joules == pytest.approx(2000)


@given(st.floats(1, 99), intervals, shift_lists)
def test_two_windows_that_touch_add_up(cut: float, interval: float, jitter: list[float]) -> None:
    samples = sampled(lambda time: 300 + 200 * math.sin(time / 3), WINDOW, interval, jitter)
    middle = WINDOW.start_s + cut
    parts = [
        integrate(samples, window, interval).joules or math.nan
        for window in (Window(WINDOW.start_s, middle), Window(middle, WINDOW.stop_s))
    ]
    assert sum(parts) == pytest.approx(integrate(samples, WINDOW, interval).joules, rel=1e-9)


def test_samples_outside_the_window_do_not_count_but_bound_its_edges() -> None:
    samples = [Sample(0, 0.0), Sample(1, 100.0), Sample(2, 200.0), Sample(3, 9e9)]
    energy = integrate(samples, Window(0.5, 1.5), 1.0)
    assert (energy.joules, energy.samples) == (pytest.approx(100.0), 1)


# --- what is missing


def with_a_hole(begin: float, end: float, interval: float = 0.5) -> list[Sample]:
    return [one for one in sampled(lambda _: 200.0, WINDOW, interval) if not begin < one.time_s < end]


def test_a_hole_of_less_than_three_seconds_is_a_line() -> None:
    energy = integrate(with_a_hole(1050, 1053), WINDOW, 0.5)
    assert (energy.joules, energy.gaps) == (pytest.approx(20_000), ())


def test_a_longer_hole_is_a_gap_and_below_one_percent_counts_as_the_rest() -> None:
    window = Window(1000, 1500)
    samples = [one for one in sampled(lambda _: 200.0, window, 0.5) if not 1050 < one.time_s < 1054]
    energy = integrate(samples, window, 0.5)
    assert energy.gaps == ((50.0, 54.0),)
    assert energy.joules == pytest.approx(100_000)


@given(st.floats(1, 60), st.floats(4, 40))
def test_gaps_over_one_percent_make_energy_unknown(begin: float, length: float) -> None:
    energy = integrate(with_a_hole(1000 + begin, 1000 + begin + length), WINDOW, 0.5)
    assert energy.joules is None
    assert energy.mean_watts is None
    ((hole_from, hole_to),) = energy.gaps
    assert hole_to - hole_from == pytest.approx(length, abs=1.001)
    assert energy.reason == f"power is unknown for {hole_to - hole_from:.1f} s of 100.0 s"


def test_a_slow_meter_may_have_holes_of_three_of_its_intervals() -> None:
    samples = [Sample(1000 + 5 * number, 200.0) for number in range(21) if number not in (7, 8)]
    assert integrate(samples, WINDOW, 5.0).gaps == ()
    assert integrate(samples, WINDOW, 1.0).joules is None


@pytest.mark.parametrize(("keep", "gap"), [(lambda t: t >= 1020, (0.0, 20.0)), (lambda t: t <= 1060, (60.0, 100.0))])
def test_a_source_that_began_late_or_ended_early_leaves_a_gap(
    keep: Callable[[float], bool], gap: tuple[float, float]
) -> None:
    samples = [one for one in sampled(lambda _: 200.0, WINDOW, 0.5) if keep(one.time_s)]
    energy = integrate(samples, WINDOW, 0.5)
    assert (energy.joules, energy.gaps) == (None, (gap,))


@pytest.mark.parametrize("samples", [[], [Sample(5, 100.0)], [Sample(1050.0)], [Sample(1050.0, None, 0.0)]])
def test_nothing_near_the_window_is_nothing_known(samples: list[Sample]) -> None:
    energy = integrate(samples, WINDOW, 1.0)
    assert (energy.joules, energy.gaps) == (None, ((0.0, 100.0),))


def test_two_holes_beside_each_other_are_one_gap() -> None:
    samples = [Sample(1000, 1.0), Sample(1010, 1.0), Sample(1020, 1.0), *(Sample(t, 1.0) for t in range(1021, 1101))]
    assert integrate(samples, WINDOW, 1.0).gaps == ((0.0, 20.0),)


# --- counters


def counted(power: float, times: list[float], start: float = 0.0) -> list[Sample]:
    return [Sample(time, None, start + power * (time - times[0])) for time in times]


@given(st.floats(1, 1000), intervals, shift_lists)
def test_a_count_of_energy_gives_its_difference(watts: float, interval: float, jitter: list[float]) -> None:
    times = [sample.time_s for sample in sampled(lambda _: 0.0, WINDOW, interval, jitter)]
    energy = integrate(counted(watts, times), WINDOW, interval)
    assert energy.joules == pytest.approx(watts * WINDOW.seconds)


def test_a_counter_misses_nothing_in_a_hole() -> None:
    times = [999.0, 1001.0, 1080.0, 1101.0]
    energy = integrate(counted(250.0, times), WINDOW, 0.5)
    assert (energy.joules, energy.gaps) == (pytest.approx(25_000), ())


def test_a_count_goes_before_powers_of_the_same_source() -> None:
    samples = [Sample(sample.time_s, 1.0, sample.joules) for sample in counted(250.0, [999.0, 1050.0, 1101.0])]
    assert integrate(samples, WINDOW, 0.5).joules == pytest.approx(25_000)


def test_a_new_count_leaves_a_gap_between_itself_and_the_one_before() -> None:
    samples = counted(250.0, [999.0, 1000.0, 1040.0]) + counted(250.0, [1045.0, 1101.0])
    energy = integrate(samples, WINDOW, 0.5)
    assert (energy.joules, energy.gaps) == (None, ((40.0, 45.0),))


def test_a_counter_that_stands_still_measures_nothing() -> None:
    samples = [Sample(time, None, 0.0) for time in range(999, 1102)]
    assert integrate(samples, WINDOW, 1.0).joules is None


def test_a_count_that_falls_is_not_believed() -> None:
    samples = [Sample(999, None, 50.0), Sample(1050, None, 20.0), Sample(1101, None, 400.0)]
    assert integrate(samples, WINDOW, 1.0).joules is None


@given(st.integers(1, 10**9), st.data())
def test_a_counter_that_turned_over_once_is_unwrapped(size: int, data: st.DataObject) -> None:
    before, used = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size - 1))
    assert unwrapped(before, (before + used) % size, size) == used


def test_a_counter_that_never_turns_over_and_is_lower_was_reset() -> None:
    assert unwrapped(10, 9, None) is None
    assert unwrapped(10, 12, None) == 2


# --- MLPerf's rule


@pytest.mark.parametrize(
    ("samples", "seconds", "enough"),
    [(60, 59.0, True), (59, 59.0, False), (59, 20.0, False), (100, 100.4, True), (99, 100.4, False)],
)
def test_fewer_samples_than_mlperf_asks_for_are_told_and_the_energy_still_is(
    samples: int, seconds: float, enough: bool
) -> None:
    step = seconds / samples
    energy = integrate([Sample((i + 0.5) * step, 100.0) for i in range(samples)], Window(0, seconds), step)
    assert energy.joules == pytest.approx(100 * seconds)
    assert (energy.note is None) == enough


def test_the_usual_interval_is_the_median() -> None:
    assert usual_interval([Sample(time, 1.0) for time in (0, 1, 2, 3, 50, 50)]) == 1
    assert usual_interval([Sample(0, 1.0)]) is None


# --- From the event `power` to energy, watts and efficiency; and when they are unknown.


def node(host: str, joules: float | None = 9e6, **changes: Any) -> dict[str, Any]:
    told = {"host": host, "covers": [host], "source": "nvml", "scope": "device", "energy_joules": joules}
    return {**told, "reason": None if joules is not None else "power is unknown for 9.0 s of 10.0 s", **changes}


def run(*nodes: dict[str, Any], note: str | None = None, reason: str | None = None, quality: float = 0.763) -> Any:
    log = EventLog().initialise()
    log.add("run_start", {"world_size": 8, "nodes": 2, "hosts": ["n1", "n2"]})
    for number in range(1, 91):
        log.epoch(number, quality)
    return log.add("run_stop").add("power", {"nodes": list(nodes), "reason": reason, "note": note}).result()


def test_nodes_are_summed_and_watts_are_energy_by_time() -> None:
    result = run(node("n1"), node("n2", 4.5e6), note="short")
    assert (result.energy_joules, result.watts) == (pytest.approx(13.5e6), pytest.approx(1500))
    assert result.flops_per_watt == pytest.approx(result.flops / 1500)
    assert result.vflops_per_watt == pytest.approx(result.vflops / 1500)
    assert (result.power_source, result.power_scope, result.power_note) == ("nvml", "device", "short")
    assert result.rankable


def test_a_missed_target_lowers_the_valid_flops_per_watt_alone() -> None:
    result = run(node("n1"), node("n2"), quality=0.7)
    assert result.vflops_per_watt == pytest.approx(result.flops_per_watt * (0.7 / 0.763) ** 5)


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([node("n1")], "n2: no power was measured"),
        ([node("n1"), node("n2", None)], "n2: power is unknown for 9.0 s of 10.0 s"),
        ([node("n1"), node("n2", scope="node")], "scopes differ between nodes: device, node"),
    ],
)
def test_a_node_that_is_not_known_makes_the_total_unknown(nodes: list[dict[str, Any]], why: str) -> None:
    result = run(*nodes)
    assert (result.energy_joules, result.watts, result.flops_per_watt, result.vflops_per_watt) == (None,) * 4
    assert (result.power_note, result.power_source) == (why, "nvml")


def test_one_meter_may_feed_all_nodes() -> None:
    assert run(node("n1", covers=["n1", "n2"], source="csv", scope="pdu")).watts == pytest.approx(1000)
    assert why_unknown([node("n1")], ["n1", "n2", "n3"]) == "n2: no power was measured (and on 1 more)"


def test_a_run_that_was_not_measured_says_why() -> None:
    result = run(reason="not measured (--power none)")
    assert (result.energy_joules, result.power_source) == (None, None)
    assert result.power_note == "not measured (--power none)"


def test_the_window_is_the_time_of_the_run_with_what_a_restart_took() -> None:
    log = EventLog().initialise().start()
    begin = log.wall_s
    log.after(50).restart(100, epoch=1).after(30).add("run_stop").after(9).add("power", {})
    window = window_of(log.events)
    assert (window.start_s, window.seconds) == (pytest.approx(begin), pytest.approx(50 + 100 + 10 + 30))


# --- how finely a source measures


def test_the_resolution_is_the_smallest_step_and_the_usual_time_between_two_changes() -> None:
    # A controller of whole watts that measures every 5 s, read every second.
    samples = [Sample(float(second), 200.0 + 3 * (second // 5 % 2) + (second // 50)) for second in range(100)]
    assert integrate(samples, WINDOW, 1.0).resolution == (2.0, "W", 5.0)
    # A counter in steps of 0.5 J, of which each reading sees several; its fall is a new count, and no step.
    counted = [Sample(float(second), 10.0, joules) for second, joules in enumerate([0.0, 4.5, 8.0, 8.0, 0.0, 6.5])]
    assert integrate(counted, Window(0, 5), 1.0).resolution == (3.5, "J", 2.0)
    # Where nothing changes nothing is known.
    assert integrate([Sample(0, 5.0), Sample(1, 5.0)], Window(0, 1), 1.0).resolution == (None, "W", None)


@given(st.floats(0.01, 50), st.integers(4, 40), st.integers(10, 60))
def test_a_slow_source_is_told_with_the_part_of_the_energy_that_is_uncertain(
    step: float, period: int, changes: int
) -> None:
    window = Window(0.0, float(period * changes))
    samples = [Sample(float(s), 100.0 + step * (s // period % 2)) for s in range(period * changes + 1)]
    energy = integrate(samples, window, 1.0)
    assert energy.resolution.update_seconds == period
    assert f"every {period} s: {1 / changes:.1%} of the energy" in str(energy.note)


@given(
    st.lists(st.tuples(st.floats(0, 95), st.floats(0.1, 5)), max_size=4),
    st.floats(1, 1000),
    st.floats(-5, 5),
)
def test_whatever_is_missing_the_gaps_say_so_and_the_energy_is_near_or_unknown(
    holes: list[tuple[float, float]], base: float, slope: float
) -> None:
    """Of a ramp, of which any parts are missing."""

    def truth(time: float) -> float:
        return 500.0 + base + slope * (time - WINDOW.start_s)

    everything = sampled(truth, WINDOW, 0.5)
    kept = [
        one for one in everything
        if not any(begin < one.time_s - WINDOW.start_s < begin + length for begin, length in holes)
    ]  # fmt: skip
    energy = integrate(kept, WINDOW, 0.5)
    unknown = sum(stop - start for start, stop in energy.gaps)
    assert all(0 <= start < stop <= 100 for start, stop in energy.gaps)
    # A hole that is no gap is at most three seconds.
    assert all(stop - start > 3 for start, stop in energy.gaps if start > 0 and stop < 100)
    assert (energy.joules is None) == (unknown > 1.0 + 1e-6) or unknown == pytest.approx(1.0, abs=1e-5)
    if energy.joules is not None and not energy.gaps:
        assert energy.joules == pytest.approx((500.0 + base) * 100 + slope * 100**2 / 2, rel=1e-9)


@given(st.floats(1, 1000), st.lists(st.floats(0, 95), max_size=5), st.floats(0.5, 30))
def test_a_counter_loses_nothing_in_any_hole(watts: float, begins: list[float], length: float) -> None:
    samples = [
        Sample(WINDOW.start_s + at / 2, None, watts * at / 2 + 1)
        for at in range(-4, 206)
        if at in (-4, 205) or not any(begin < at / 2 < begin + length for begin in begins)
    ]
    energy = integrate(samples, WINDOW, 0.5)
    assert (energy.joules, energy.gaps) == (pytest.approx(100 * watts), ())


# --- two sources of one run


def entry(
    source: str, scope: str, watts: float | None, *hosts: str, parts: str | None = "accelerators"
) -> dict[str, Any]:
    return {"source": source, "scope": scope, "parts": parts, "mean_watts": watts, "covers": list(hosts or ("n1",))}


@pytest.mark.parametrize(
    ("other", "finding"),
    [
        (880.0, "n1: ipmi gives 880.0 W, 12.0% less than redfish (1000.0 W)"),
        (920.0, None),
        (1000.0, None),
        (1080.0, None),
        (1120.0, "n1: ipmi gives 1120.0 W, 12.0% more than redfish (1000.0 W)"),
    ],
)
def test_a_difference_of_over_a_tenth_of_the_same_is_a_finding(other: float, finding: str | None) -> None:
    (found,) = compare_sources([entry("redfish", "node", 1000.0)], [entry("ipmi", "node", other)])
    assert (found["relation"], found["ratio"], found["finding"]) == ("same", other / 1000, finding)
    assert (found["source"], found["other"], found["hosts"]) == ("redfish", "ipmi", ["n1"])


@pytest.mark.parametrize(("devices", "is_wrong"), [(700.0, False), (1000.0, False), (1001.0, True)])
def test_devices_above_their_node_are_impossible_whichever_counts(devices: float, is_wrong: bool) -> None:
    part, whole = entry("nvml", "device", devices), entry("redfish", "node", 1000.0)
    for first, other, relation in ((part, whole, "whole"), (whole, part, "part")):
        (found,) = compare_sources([first], [other])
        assert found["relation"] == relation
        assert bool(found["finding"]) == is_wrong
        if is_wrong:
            assert "nvml gives 1001.0 W for a part of what redfish measures with 1000.0 W" in found["finding"]


def test_a_meter_of_all_nodes_is_compared_with_their_sum() -> None:
    nodes = [entry("ipmi", "node", 400.0, "n1"), entry("ipmi", "node", 500.0, "n2")]
    (found,) = compare_sources(nodes, [entry("csv", "pdu", 850.0, "n1", "n2")])
    assert (found["hosts"], found["watts"], found["relation"]) == (["n1", "n2"], 900.0, "whole")
    assert "ipmi gives 900.0 W for a part of what csv measures with 850.0 W" in found["finding"]
    # Without one of them, their sum is unknown.
    (found,) = compare_sources(nodes[:1], [entry("csv", "pdu", 850.0, "n1", "n2")])
    assert (found["ratio"], found["finding"], found["reason"]) == (None, None, "the power by ipmi is unknown")


def test_each_node_is_compared_with_itself() -> None:
    nodes = [entry("nvml", "device", watts, host) for host, watts in (("n1", 100.0), ("n2", 100.0))]
    others = [entry("dcgm", "device", watts, host) for host, watts in (("n1", 101.0), ("n2", 150.0))]
    one, other = compare_sources(nodes, others)
    assert (one["hosts"], one["finding"]) == (["n1"], None)
    assert other["finding"] == "n2: dcgm gives 150.0 W, 50.0% more than nvml (100.0 W)"


@pytest.mark.parametrize(
    ("first", "other", "reason"),
    [
        (entry("nvml", "device", 9.0), entry("rapl", "device", 1.0, parts="processors"), "measure different parts"),
        (entry("csv", "device", 9.0, parts=None), entry("hwmon", "device", 1.0, parts=None), "different parts"),
        (entry("nvml", "device", 9.0), entry("dcgm", "device", None), "the power by dcgm is unknown"),
        (entry("nvml", "device", 0.0), entry("dcgm", "device", 5.0), "nvml gives 0 W"),
    ],
)
def test_what_cannot_be_compared_says_why(first: dict[str, Any], other: dict[str, Any], reason: str) -> None:
    (found,) = compare_sources([first], [other])
    assert (found["ratio"], found["finding"]) == (None, None)
    assert reason in found["reason"]


def test_a_finding_is_in_the_results_note() -> None:
    nodes = [entry("redfish", "node", 1000.0) | {"host": "n1", "energy_joules": 5000.0, "reason": None}]
    comparisons = compare_sources(nodes, [entry("ipmi", "node", 880.0)])
    log = EventLog()
    log.add("run_start", {"hosts": ["n1"]})
    log.add("power", {"nodes": nodes, "comparisons": comparisons, "reason": None, "note": "few samples"})
    power = power_of_run(log.events, 5.0, 1e9, None)
    assert power["power_note"] == "n1: ipmi gives 880.0 W, 12.0% less than redfish (1000.0 W); few samples"
    # The first counts.
    assert (power["watts"], power["power_source"]) == (1000.0, "redfish")
