"""Summaries of ranks become one value of the record, every number of it by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpcai500.methodology.communication import STAGES, RankSummary, merge


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
    assert value["communication_fraction"] == pytest.approx((0.2 + 0.1) / 2)
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


def test_too_few_steps_or_one_rank_tell_nothing_about_stragglers() -> None:
    assert merge([summary(0, own=5.0), summary(1, steps=4)])["stragglers"] is None
    assert merge([summary(0)])["stragglers"] is None


def test_what_was_not_measured_is_unknown() -> None:
    changes: dict[str, Any] = {
        "steps": 0, "step_seconds": 0.0, "all_reduce_seconds": 0.0, "medians": None, "buckets": [],
        "stages": dict.fromkeys(STAGES),
    }  # fmt: skip
    value = merge([summary(0, wait=0.0, **changes), summary(1)])
    assert (value["communication_fraction"], value["overlap"], value["stragglers"]) == (None, None, None)
    assert value["bytes_per_step"] == {"gradient": None, "sent": None}
    assert (value["ranks"][0]["step_seconds"], value["ranks"][1]["step_seconds"]) == (None, 1.0)


def test_more_waiting_than_all_reduces_hides_nothing() -> None:
    assert merge([summary(0, wait=5.0), summary(1, wait=5.0)])["overlap"] == 0.0


def test_the_value_is_plain_json() -> None:
    value = merge([summary(0), summary(1)])
    assert json.loads(json.dumps(value, allow_nan=False)) == value
