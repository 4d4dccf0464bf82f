"""What communication cost: summaries of ranks, stages, bytes, stragglers, bandwidths and the link behind them."""

from __future__ import annotations

import json
import random
import statistics
from fractions import Fraction
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.errors import UsageError
from hpcai500.methodology.communication import (
    STAGES,
    Collective,
    RankSummary,
    RankTraffic,
    RingCost,
    StageTally,
    algorithm_bandwidth,
    bus_bandwidth,
    bus_factor,
    check_traffic,
    fit_error,
    fit_ring,
    merge,
    stage_table,
    stragglers,
    with_stragglers,
)

# --- Summaries of ranks become one value of the record, every number of it by hand.


def times(mean: float) -> dict[str, float]:
    return {"mean_seconds": mean, "median_seconds": mean / 2, "p95_seconds": 2 * mean}


def summary(rank: int, host: str = "n1", *, own: float = 0.8, wait: float = 2.0, **changes: Any) -> RankSummary:
    value: Any = {
        "rank": rank,
        "host": host,
        "steps": 10,
        "step_seconds": 10.0,
        "communication_wait_seconds": wait,
        "all_reduce_seconds": 4.0,
        "gradient_bytes": 4000,
        "sent_bytes": 1000,
        "all_reduces": 20,
        "medians": {
            "step_seconds": 1.0,
            "data_wait_seconds": 0.1,
            "compute_seconds": own - 0.1,
            "communication_wait_seconds": 0.2,
            "own_seconds": own,
        },
        "stages": {"negotiation": None, **{name: times(0.1 + rank) for name in STAGES[1:]}},
        "buckets": [
            {"bucket": 1, "gradient_bytes": 300.0, "sent_bytes": 75.0, "stages": {"all_reduce": 0.2 + rank}},
            {"bucket": 0, "gradient_bytes": 100.0, "sent_bytes": 25.0, "stages": {"all_reduce": 0.4}},
        ],
    }
    return value | changes


def test_fractions_are_means_over_ranks() -> None:
    value = merge([summary(0, wait=2.0), summary(1, wait=1.0)])
    assert value["overlap"] == pytest.approx((1 - 2 / 4 + 1 - 1 / 4) / 2)
    assert value["bytes_per_step"] == {"gradient": 400.0, "sent": 100.0}
    assert (value["steps"], value["all_reduces"]) == (10, 20)


def test_stages_and_buckets_are_means_over_ranks() -> None:
    value = merge([summary(0), summary(1)])
    assert value["stages"]["queuing"] == times(0.6)
    assert value["stages"]["negotiation"] is None
    assert value["buckets"] == [
        {"bucket": 0, "gradient_bytes": 100.0, "sent_bytes": 25.0, "stages": {"all_reduce": 0.4}},
        {"bucket": 1, "gradient_bytes": 300.0, "sent_bytes": 75.0, "stages": {"all_reduce": 0.7}},
    ]


def test_the_slow_rank_is_named_with_its_host() -> None:
    value = merge([summary(2, "n2", own=1.2), summary(0), summary(1)])
    assert value["stragglers"] == ["rank 2 on n2"]
    rows = value["ranks"]
    assert [(row["rank"], row["host"], row["straggler"]) for row in rows] == [
        (0, "n1", False), (1, "n1", False), (2, "n2", True),
    ]  # fmt: skip
    assert (rows[2]["own_seconds"], rows[2]["compute_seconds"], rows[2]["all_reduce_seconds"]) == (1.2, 1.1, 0.4)


def test_waiting_for_others_makes_no_straggler() -> None:
    assert merge([summary(0, wait=9.0), summary(1, wait=0.0)])["stragglers"] == []


def test_a_stage_with_more_to_do_holds_nobody_up_but_its_slower_replica_does() -> None:
    ranks = [summary(0, own=0.2), summary(1, own=0.9), summary(2, own=0.2), summary(3, own=0.91)]
    value = merge(ranks, stages=2)
    assert (value["stragglers"], value["overlap"]) == ([], None)
    slow = [*ranks[:3], summary(3, own=1.5)]
    assert merge(slow, stages=2)["stragglers"] == ["rank 3 on n1"]
    assert "rank 1 on n1" in merge(ranks)["stragglers"]


@given(st.lists(st.floats(0.1, 3), min_size=2, max_size=12), st.sampled_from([1, 2, 3]))
def test_stragglers_follow_from_the_medians_and_not_from_the_list_in_a_record(own: list[float], stages: int) -> None:
    value = merge([summary(rank, own=seconds) for rank, seconds in enumerate(own)], stages)
    forged = {**value, "stragglers": [], "ranks": [{**rank, "straggler": False} for rank in value["ranks"]]}
    assert with_stragglers(forged) == value


def test_too_few_steps_or_one_rank_tell_nothing_about_stragglers() -> None:
    assert merge([summary(0, own=5.0), summary(1, steps=4)])["stragglers"] is None
    assert merge([summary(0)])["stragglers"] is None


def test_what_was_not_measured_is_unknown() -> None:
    changes: dict[str, Any] = {
        "steps": 0, "step_seconds": 0.0, "all_reduce_seconds": 0.0, "medians": None, "buckets": [],
        "stages": dict.fromkeys(STAGES),
    }  # fmt: skip
    value = merge([summary(0, wait=0.0, **changes), summary(1)])
    assert (value["overlap"], value["stragglers"]) == (None, None)
    assert value["bytes_per_step"] == {"gradient": None, "sent": None}
    assert (value["ranks"][0]["step_seconds"], value["ranks"][1]["step_seconds"]) == (None, 1.0)


def test_more_waiting_than_all_reduces_hides_nothing() -> None:
    assert merge([summary(0, wait=5.0), summary(1, wait=5.0)])["overlap"] == 0.0


def test_the_value_is_plain_json() -> None:
    value = merge([summary(0), summary(1)])
    assert json.loads(json.dumps(value, allow_nan=False)) == value


# --- Stages, in a bounded space.


MEASURED = STAGES[1:]


def tally(*rows: tuple[float, ...], stages: tuple[str, ...] = MEASURED) -> StageTally:
    filled = StageTally(stages)
    for row in rows:
        filled.add(row)
    return filled


def test_the_stages_are_those_of_table_12_in_its_order() -> None:
    assert STAGES == (
        "negotiation", "wait_for_data", "wait_for_other_data", "queuing", "memcpy_in", "all_reduce", "memcpy_out",
    )  # fmt: skip


def test_a_table_by_hand() -> None:
    first = tally((1.0, 0.0, 0.0, 0.0, 5.0, 0.0), (3.0, 0.0, 0.0, 0.0, 7.0, 0.0))
    second = tally((8.0, 0.0, 0.0, 0.0, 9.0, 0.0))
    table = stage_table([first, second])
    assert table["wait_for_data"] == {"mean_seconds": 4.0, "median_seconds": 3.0, "p95_seconds": 8.0}
    assert table["all_reduce"] == {"mean_seconds": 7.0, "median_seconds": 7.0, "p95_seconds": 9.0}


def test_a_stage_that_nobody_measures_is_none_and_not_zero() -> None:
    table = stage_table([tally((1.0,) * 6)])
    assert [name for name, times in table.items() if times is None] == ["negotiation"]
    assert set(stage_table([]).values()) == {None}


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=100))
def test_quantiles_are_the_order_statistics_while_all_samples_fit(values: list[float]) -> None:
    times = stage_table([tally(*[(value,) for value in values], stages=("all_reduce",))])["all_reduce"]
    assert times is not None
    assert times["mean_seconds"] == pytest.approx(np.mean(values))
    assert times["median_seconds"] == np.quantile(values, 0.5, method="inverted_cdf")
    # 0.95 as a float is a little less than 95/100, and NumPy rounds its own way at the step.
    ordered = sorted(values)
    near = round(0.95 * len(values))
    assert times["p95_seconds"] in ordered[max(0, near - 1) : near + 1]


def test_of_many_all_reduces_the_mean_stays_exact_and_the_median_near() -> None:
    values = np.random.default_rng(3).exponential(size=20_000)
    times = stage_table([tally(*[(value,) for value in values], stages=("all_reduce",))])["all_reduce"]
    assert times is not None
    assert times["mean_seconds"] == pytest.approx(values.mean(), rel=1e-9)
    below = (values < times["median_seconds"]).mean()
    assert 0.35 < below < 0.65


def test_a_bucket_with_more_all_reduces_weighs_more() -> None:
    often, seldom = tally(*[(1.0,)] * 3000, stages=("queuing",)), tally(*[(9.0,)] * 500, stages=("queuing",))
    times = stage_table([often, seldom])["queuing"]
    assert times == {"mean_seconds": pytest.approx(7500 / 3500), "median_seconds": 1.0, "p95_seconds": 9.0}


# --- Who holds the others up: by a tenth, and beyond what chance does.


def stragglers_twin(own_seconds: list[float]) -> list[int]:
    """The rule as its docstring says it, rank by rank."""
    slow = []
    for rank, seconds in enumerate(own_seconds):
        others = own_seconds[:rank] + own_seconds[rank + 1 :]
        if not others:
            continue
        middle = statistics.median(others)
        deviation = statistics.median(abs(other - middle) for other in others)
        if seconds > 1.1 * middle and seconds > middle + 3 * 1.4826 * deviation:
            slow.append(rank)
    return slow


@given(st.lists(st.floats(0.001, 100), max_size=30))
def test_it_is_the_rule_as_stated(own_seconds: list[float]) -> None:
    assert stragglers(own_seconds) == stragglers_twin(own_seconds)


@pytest.mark.parametrize(
    ("own_seconds", "slow"),
    [
        ([], []),
        ([5.0], []),
        # Of two ranks, a tenth decides.
        ([1.0, 1.09], []),
        ([1.2, 1.0], [0]),
        # A slow node is found although it is half of the ranks.
        ([1.0, 1.01, 0.99, 1.02, 1.5, 1.52, 1.49, 1.51], [4, 5, 6, 7]),
        # Where all ranks spread widely, none stands out.
        ([1.0, 1.3, 0.8, 1.5, 1.1, 1.4, 0.9], []),
    ],
)
def test_who_is_much_slower_than_the_others_holds_them_up(own_seconds: list[float], slow: list[int]) -> None:
    assert stragglers(own_seconds) == slow


def test_like_ranks_with_noise_are_no_stragglers_and_one_that_is_slow_is() -> None:
    times = (1 + 0.02 * np.random.default_rng(1).standard_normal(256)).tolist()
    assert stragglers(times) == []
    times[77] *= 1.3
    assert stragglers(times) == [77]


# --- Counted bytes against network counters.


MIB = 2**20


def rank(
    host: str, sent: int, *, network: int = 0, loopback: int | None = 0, between: int | None = None, restarted: str = ""
) -> RankTraffic:
    counters = {
        "loopback_sent_bytes": loopback,
        "sent_bytes": {"eth0": network},
        "received_bytes": {"eth0": network},
        "restarted": [restarted] if restarted else [],
    }
    return {"host": host, "sent_bytes": sent, "between_hosts_bytes": between, "counters": counters}


def test_counters_of_a_host_count_once_however_many_ranks_read_them() -> None:
    ranks = [rank("a", MIB, network=MIB, loopback=MIB), rank("a", MIB, network=MIB, loopback=MIB)]
    ranks += [rank("b", MIB, network=MIB, loopback=MIB), rank("b", MIB, network=MIB, loopback=MIB)]
    found = check_traffic(ranks, "Gloo")
    assert (found["counted_bytes"], found["counter_bytes"], found["ratio"]) == (4 * MIB, 4 * MIB, 1.0)
    assert found["over"] == "loopback and network"


@pytest.mark.parametrize("library", ["Gloo", "Open MPI 4.1.4"])
def test_shared_memory_on_one_host_cannot_be_compared(library: str) -> None:
    found = check_traffic([rank("a", MIB, loopback=7), rank("a", MIB)], library)
    assert found["verdict"] == "not comparable: on one host, gradients are summed in shared memory"
    assert (found["counted_bytes"], found["ratio"]) == (None, None)


def test_one_rank_a_host_sends_everything_over_the_network_and_loopback_does_not_count() -> None:
    found = check_traffic([rank("a", MIB, network=MIB, loopback=9 * MIB), rank("b", MIB, network=MIB)], "NCCL 2.27")
    assert (found["over"], found["ratio"]) == ("network", 1.0)


def test_several_ranks_a_host_need_the_part_between_hosts() -> None:
    unknown = [rank("a", 3 * MIB, network=MIB), rank("a", 3 * MIB), rank("b", 3 * MIB, network=MIB)]
    assert "how many bytes stay within a host" in check_traffic(unknown, "Open MPI 4.1.4")["verdict"]
    known = [rank("a", 3 * MIB, network=MIB, between=MIB), rank("a", 3 * MIB, between=0)]
    known += [rank("b", 3 * MIB, network=MIB, between=MIB)]
    assert check_traffic(known, "Open MPI 4.1.4")["ratio"] == 1.0


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [(0.94, "the counters saw less"), (0.96, "the counters agree"), (1.05, "the counters agree"), (1.2, "saw more")],
)
def test_a_ratio_has_its_verdict(seen: float, verdict: str) -> None:
    found = check_traffic([rank("a", 100_000, network=round(seen * 100_000)), rank("b", 0)], "NCCL 2.27")
    assert verdict in found["verdict"]


def test_an_interface_that_came_up_anew_or_a_count_of_nothing_is_no_comparison() -> None:
    anew = [rank("a", MIB, network=MIB, restarted="eth1"), rank("b", MIB, network=MIB)]
    assert check_traffic(anew, "Gloo")["verdict"] == "not comparable: eth1 of a was restarted during the run"
    assert check_traffic([rank("a", 0), rank("b", 0)], "Gloo")["verdict"] == "not comparable: no bytes were counted"


# --- Bandwidths of an all-reduce by their definitions, and the link that explains its times.


ranks = st.integers(min_value=2, max_value=10_000)
sizes = [16 * 4**power for power in range(13)]
costs = st.builds(RingCost, st.floats(min_value=1e-7, max_value=1e-2), st.floats(min_value=1e6, max_value=1e12))


def test_bandwidths_are_those_of_the_nccl_tests() -> None:
    # 8 ranks, 1 GB in 10 ms: its documentation's factor for an all-reduce is 2 (n - 1) / n.
    assert algorithm_bandwidth(1e9, 0.01) == 1e11
    assert bus_bandwidth(1e9, 0.01, 8) == pytest.approx(1.75e11)
    # (n - 1) / n of an all-gather, a reduce-scatter and an all-to-all; 1 of a broadcast and of a send.
    assert bus_bandwidth(1e9, 0.01, 8, "all-gather") == pytest.approx(8.75e10)
    assert bus_bandwidth(1e9, 0.01, 8, "reduce-scatter") == pytest.approx(8.75e10)
    assert bus_bandwidth(1e9, 0.01, 8, "all-to-all") == pytest.approx(8.75e10)
    assert bus_bandwidth(1e9, 0.01, 8, "broadcast") == pytest.approx(1e11)
    assert bus_bandwidth(1e9, 0.01, 2, "exchange") == pytest.approx(1e11)


def sent_by_each_rank(collective: Collective, n: int) -> Fraction:
    """Of a message of n parts: the busiest rank's parts that leave it, or that come to it, in the best schedule.

    Counted part by part, as PERFORMANCE.md derives them: every part must leave the ranks that have it, and reach those
    that need it; a sum needs one transfer less than it has terms.
    """
    match collective:
        case "all-gather":
            needed = sum(1 for rank in range(n) for part in range(n) if part != rank)
        case "reduce-scatter":
            needed = sum(n - 1 for part in range(n))
        case "all-reduce":
            needed = sum(n - 1 for part in range(n)) + sum(1 for rank in range(n) for part in range(n) if part != rank)
        case "all-to-all":
            needed = sum(1 for sender in range(n) for receiver in range(n) if sender != receiver)
        case _:
            return Fraction(1)
    # Transfers of all ranks, shared evenly, in messages of n parts.
    return Fraction(needed, n) / n


@given(st.integers(2, 40), st.sampled_from(get_args(Collective)))
def test_factors_are_the_transfers_that_no_algorithm_can_spare(n: int, collective: Collective) -> None:
    assert bus_factor(collective, n) == pytest.approx(float(sent_by_each_rank(collective, n)))


def test_one_rank_has_no_bandwidth() -> None:
    with pytest.raises(UsageError, match="expected two ranks or more, got 1"):
        bus_factor("broadcast", 1)


@given(st.floats(min_value=1, max_value=1e12), st.floats(min_value=1e-9, max_value=1e3), ranks)
def test_bus_bandwidth_is_the_algorithms_for_two_and_less_than_twice_it_for_any(size: float, s: float, n: int) -> None:
    assert bus_bandwidth(size, s, 2) == pytest.approx(algorithm_bandwidth(size, s))
    assert algorithm_bandwidth(size, s) <= bus_bandwidth(size, s, n) * (1 + 1e-12)
    assert bus_bandwidth(size, s, n) < 2 * algorithm_bandwidth(size, s)


@given(costs, ranks)
def test_a_long_message_has_the_links_rate_as_its_bus_bandwidth(cost: RingCost, n: int) -> None:
    size = 1e6 * n * max(1.0, cost.latency_seconds * cost.bytes_per_second)
    assert bus_bandwidth(size, cost.seconds(size, n), n) == pytest.approx(cost.bytes_per_second, rel=1e-5)


@given(costs, st.integers(min_value=2, max_value=512))
def test_times_of_a_ring_give_its_link_back(cost: RingCost, n: int) -> None:
    measured = [(size, cost.seconds(size, n)) for size in [0, *sizes, 10**15]]
    found = fit_ring(n, measured)
    assert found.latency_seconds == pytest.approx(cost.latency_seconds, rel=1e-6)
    assert found.bytes_per_second == pytest.approx(cost.bytes_per_second, rel=1e-6)
    assert fit_error(found, n, measured) < 1e-6


def test_noise_a_busy_neighbour_and_a_size_with_an_algorithm_of_its_own_do_not_bend_the_link() -> None:
    cost, noise = RingCost(5e-6, 1e10), random.Random(7)
    measured = [(size, cost.seconds(size, 4) * noise.uniform(0.95, 1.05)) for size in sizes]
    measured[3] = measured[3][0], measured[3][1] * 20
    measured[9] = measured[9][0], measured[9][1] / 5
    found = fit_ring(4, measured)
    assert found.latency_seconds == pytest.approx(5e-6, rel=0.1)
    assert found.bytes_per_second == pytest.approx(1e10, rel=0.1)


@given(st.lists(st.floats(min_value=1e-6, max_value=1e3), min_size=len(sizes), max_size=len(sizes)), ranks)
def test_whatever_is_measured_the_link_is_possible(times: list[float], n: int) -> None:
    try:
        found = fit_ring(n, list(zip(sizes, times, strict=True)))
    except UsageError:
        return
    assert found.latency_seconds >= 0
    assert found.bytes_per_second > 0


@pytest.mark.parametrize(
    ("n", "measured", "reason"),
    [
        (4, [(16, 1.0)], "two message sizes"),
        (4, [(16, 1.0), (16, 2.0)], "two message sizes"),
        (4, [(16, 1.0), (64, 0.0)], "positive time"),
        (1, [(16, 1.0), (64, 2.0)], "two ranks"),
        (4, [(0, 1.0), (0.0, 1.0), (1, 1e-9)], "does not grow"),
    ],
)
def test_what_cannot_be_fitted_is_said(n: int, measured: list[tuple[float, float]], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        fit_ring(n, measured)
