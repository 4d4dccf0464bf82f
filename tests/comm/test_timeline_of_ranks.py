"""Two real ranks, one of them slow: what their timeline says, against what is known about them."""

from __future__ import annotations

import json
import time
from itertools import repeat
from typing import Any

import pytest
import torch
from many_ranks import run_ranks
from torch import nn

from hpcai500.comm.communicator import Communicator
from hpcai500.comm.reducer import Reducer
from hpcai500.comm.timeline import StepSpan, Timeline, align_clocks, chrome_trace, rank_summary, rank_trace
from hpcai500.measure.host import read_counters
from hpcai500.methodology.communication import check_traffic, merge
from hpcai500.recipe import load_recipe

STEPS, TRACED, WIDTH, LAYERS = 12, 3, 384, 3
SLOW_SECONDS = 0.03


def train(communicator: Communicator) -> dict[str, Any]:
    """Some steps of a small model, of which rank 1 is slow; the event `communication`, and the trace."""
    settings = load_recipe("ic/smoke", ["communication.backend=torch", "hardware.accelerators_per_node=2"])
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    timeline, clocks = Timeline(TRACED), align_clocks(communicator)
    # As many buckets as layers.
    reducer = Reducer(
        model.parameters(),
        communicator,
        settings.communication,
        bucket_bytes=(WIDTH * WIDTH + WIDTH) * 4,
        sink=timeline,
    )
    before = read_counters()
    for step, images in enumerate(repeat(torch.randn(32, WIDTH), STEPS)):
        start = time.perf_counter()
        reducer.begin(step)
        loss = model(images).square().mean()
        if communicator.rank == 1:
            # By far slower also on a machine where everything is.
            time.sleep(SLOW_SECONDS + 4 * (time.perf_counter() - start))
        loss.backward()
        reducer.finish(())
        timeline.step(StepSpan(step, start, time.perf_counter() - start, 0.0, reducer.waited_seconds))
    rank, host = communicator.rank, communicator.hosts[communicator.rank]
    traffic = {
        "host": host,
        "sent_bytes": timeline.sent_bytes,
        "between_hosts_bytes": reducer.sent_between_nodes * STEPS,
        "counters": read_counters().since(before),
    }
    value = merge(communicator.gather_objects(rank_summary(timeline, rank, host)))
    value["network"] = check_traffic(communicator.gather_objects(traffic), communicator.library)
    traces = communicator.gather_objects(rank_trace(timeline, rank, host, communicator.size))
    reducer.close()
    return {"value": value, "trace": chrome_trace(traces, clocks).decode(), "offsets": clocks.offsets_seconds}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    first, second = run_ranks(train, 2)
    assert first == second, "ranks must agree on what is written down"
    return first


def test_every_all_reduce_is_in_the_table(found: dict[str, Any]) -> None:
    value = found["value"]
    assert (value["steps"], value["all_reduces"], len(value["buckets"])) == (STEPS, STEPS * LAYERS, LAYERS)
    times = {name: row["mean_seconds"] for name, row in value["stages"].items() if row is not None}
    assert list(value["stages"]) == ["negotiation", *times]
    assert all(seconds >= 0 for seconds in times.values())
    assert times["all_reduce"] > 0


def test_bytes_are_those_of_a_flat_ring_over_two(found: dict[str, Any]) -> None:
    gradients = LAYERS * (WIDTH * WIDTH + WIDTH) * 4
    assert found["value"]["bytes_per_step"] == {"gradient": gradients, "sent": gradients}


def test_the_loopback_interface_has_carried_what_was_counted(found: dict[str, Any]) -> None:
    network = found["value"]["network"]
    assert (network["over"], network["counted_bytes"]) == (
        "loopback",
        2 * STEPS * found["value"]["bytes_per_step"]["sent"],
    )
    # Whoever else uses this machine's loopback can only add to it.
    assert network["ratio"] > 0.95


def test_the_slow_rank_is_the_straggler_and_the_other_one_waits(found: dict[str, Any]) -> None:
    value = found["value"]
    fast, slow = value["ranks"]
    assert value["stragglers"] == [f"rank 1 on {slow['host']}"]
    assert slow["own_seconds"] > SLOW_SECONDS
    assert fast["communication_wait_seconds"] > slow["communication_wait_seconds"]
    assert 0 < value["communication_fraction"] < 1


def test_the_trace_shows_the_first_steps_of_both_on_one_clock(found: dict[str, Any]) -> None:
    assert found["offsets"] == (0.0, 0.0)
    slices = [event for event in json.loads(found["trace"])["traceEvents"] if event["ph"] == "X"]
    assert {event["args"]["step"] for event in slices} == set(range(TRACED))
    sums: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in slices:
        if event["name"] == "all reduce":
            key = event["args"]["step"], event["args"]["bucket"]
            sums.setdefault(key, []).append((event["ts"], event["ts"] + event["dur"]))
    assert len(sums) == TRACED * LAYERS
    for both in sums.values():
        # A sum ends nowhere before it has begun everywhere.
        assert len(both) == 2
        assert min(end for _, end in both) > max(begin for begin, _ in both)
