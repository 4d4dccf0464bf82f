"""What compression sends and saves on a real link, against the topologies' count of bytes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hosts import Site, why_not
from site_ranks import run_ranks

from hpcai500.comm.communicator import Communicator
from hpcai500.comm.reducer import Reducer
from hpcai500.measure.host import read_counters
from hpcai500.recipe import load_recipe

pytestmark = pytest.mark.alone

RATE_MBIT = 200
# 33.6 MB of gradients in four buckets: packing them takes milliseconds, sending them more than a second.
TENSORS, ELEMENTS = 16, 2**19
BUCKET_BYTES = 2**23
STEPS = 4
# Headers and acknowledgements. An interface that cuts large packets into frames itself, as these do, counts the headers
# of the large ones only; counted frame by frame, they would be 66 of 1514 bytes.
MOST_OVERHEAD = 1.05
TOPOLOGIES = ("flat", "hierarchical", "torus", "parameter-server")
# With int8, what leaves a node differs from other types where all its ranks send directly to those of others.
ON_NODES = {
    **{name: [f"communication.topology={name}"] for name in TOPOLOGIES},
    "flat, int8": ["communication.compression=int8"],
}


@dataclass
class Exchange:
    """Updates with one compression, as one rank saw them; bytes are those of one update."""

    seconds: list[float]
    gradient_bytes: int
    counted_bytes: int
    counted_between_hosts: int
    interface_bytes: float


def exchanges(communicator: Communicator, choices: dict[str, list[str]]) -> dict[str, Exchange]:
    """Average gradients `STEPS` times by each of `choices` (name -> overrides), after one time to warm up."""
    return {name: _exchange(communicator, overrides) for name, overrides in choices.items()}


def _exchange(communicator: Communicator, overrides: list[str]) -> Exchange:
    settings = load_recipe("ic/smoke", overrides).communication
    parameters = [torch.nn.Parameter(torch.randn(ELEMENTS)) for _ in range(TENSORS)]
    reducer = Reducer(parameters, communicator, settings, bucket_bytes=BUCKET_BYTES)
    seconds: list[float] = []
    before = read_counters()
    for step in range(STEPS + 1):
        if step == 1:
            before = read_counters()
        communicator.barrier()
        start = time.perf_counter()
        reducer.begin(step)
        torch.stack([parameter.square().sum() for parameter in parameters]).sum().backward()
        reducer.finish([0.0])
        seconds.append(time.perf_counter() - start)
    communicator.barrier()
    sent: dict[str, Any] = dict(read_counters().since(before))
    found = Exchange(
        seconds[1:],
        reducer.gradient_bytes,
        reducer.sent_bytes,
        reducer.sent_between_nodes,
        sent["sent_bytes"]["eth0"] / STEPS,
    )
    reducer.close()
    return found


@pytest.fixture(scope="module")
def flat() -> list[dict[str, Exchange]]:
    """One rank on each of two hosts, each compression: what each rank saw."""
    if reason := why_not():
        pytest.skip(reason)
    with Site("h1", "h2") as site:
        site.shape(f"{RATE_MBIT}mbit")
        choices = {name: [f"communication.compression={name}"] for name in ("none", "fp16", "int8")}
        return run_ranks(site, ("h1", "h2"), exchanges, choices)


@pytest.fixture(scope="module")
def nodes() -> list[dict[str, Exchange]]:
    """Two ranks on each of two hosts, each of `ON_NODES`: what each rank saw. How fast does not matter."""
    if reason := why_not():
        pytest.skip(reason)
    with Site("h1", "h2") as site:
        return run_ranks(site, ("h1", "h1", "h2", "h2"), exchanges, ON_NODES)


@pytest.mark.parametrize(("compression", "ratio"), [("fp16", 2.0), ("int8", 3.9)])
def test_compression_is_faster_by_as_much_as_it_sends_less(
    flat: list[dict[str, Exchange]], compression: str, ratio: float, measured: Callable[[str, float, str], None]
) -> None:
    # The fastest of several updates: the link is never faster than it is shaped to, other programs only cost time.
    plain, packed = (
        min(max(both) for both in zip(*(rank[name].seconds for rank in flat), strict=True))
        for name in ("none", compression)
    )
    predicted = flat[0]["none"].counted_bytes / flat[0][compression].counted_bytes
    measured(
        f"{compression} at {RATE_MBIT} Mbit/s (the byte count says {predicted:.3f})", plain / packed, "times as fast"
    )
    assert predicted >= ratio
    assert plain / packed == pytest.approx(predicted, rel=0.15)


@pytest.mark.parametrize("compression", ["none", "fp16", "int8"])
def test_the_interface_sends_what_was_counted_and_headers(
    flat: list[dict[str, Exchange]], compression: str, measured: Callable[[str, float, str], None]
) -> None:
    for rank, found in enumerate(flat):
        seen = found[compression]
        overhead = seen.interface_bytes / seen.counted_between_hosts
        measured(f"{compression}, rank {rank}: sent by the interface", overhead, "of the count")
        assert 1.0 <= overhead < MOST_OVERHEAD
        assert seen.gradient_bytes == TENSORS * ELEMENTS * 4


@pytest.mark.parametrize("choice", ON_NODES)
def test_between_hosts_goes_what_each_topology_counts(
    nodes: list[dict[str, Exchange]], choice: str, measured: Callable[[str, float, str], None]
) -> None:
    """The sum over a host's ranks against its interface.

    To reduce to one rank, Gloo goes round a ring and then gathers the pieces, which is more than the count's b from
    each rank: up to a quarter more of a parameter server's whole traffic.
    """
    for host, ranks in (("h1", nodes[:2]), ("h2", nodes[2:])):
        counted = sum(rank[choice].counted_between_hosts for rank in ranks)
        # Both see the same interface, a moment apart.
        overhead = statistics.mean(rank[choice].interface_bytes for rank in ranks) / counted
        measured(f"{choice}, {host}: sent by the interface", overhead, "of the count")
        assert 1.0 <= overhead < (1.3 if choice == "parameter-server" else MOST_OVERHEAD)
