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

from hpcai500.comm.base import Communicator
from hpcai500.comm.reducer import Reducer
from hpcai500.measure.network import read_counters
from hpcai500.recipe import load_recipe

RATE_MBIT = 200
# 33.6 MB of gradients in four buckets: packing them takes milliseconds, sending them more than a second.
TENSORS, ELEMENTS = 16, 2**19
BUCKET_BYTES = 2**23
STEPS = 4
# Headers and acknowledgements. An interface that cuts large packets into frames itself, as these do, counts the headers
# of the large ones only; counted frame by frame, they would be 66 of 1514 bytes.
MOST_OVERHEAD = 1.05


@dataclass
class Exchange:
    """Updates with one compression, as one rank saw them; bytes are those of one update."""

    seconds: list[float]
    gradient_bytes: int
    counted_bytes: int
    counted_between_hosts: int
    interface_bytes: float


def exchange(communicator: Communicator, compressions: tuple[str, ...], topology: str) -> dict[str, Exchange]:
    """Average gradients `STEPS` times with each of `compressions`, after one time to warm up."""
    return {compression: _exchange(communicator, compression, topology) for compression in compressions}


def _exchange(communicator: Communicator, compression: str, topology: str) -> Exchange:
    choice = [f"communication.compression={compression}", f"communication.topology={topology}"]
    settings = load_recipe("ic/smoke", choice).communication
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
    """One rank on each of two hosts: what each rank saw."""
    if reason := why_not():
        pytest.skip(reason)
    with Site("h1", "h2") as site:
        site.shape(f"{RATE_MBIT}mbit")
        return run_ranks(site, ("h1", "h2"), exchange, ("none", "fp16", "int8"), "flat")


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


@pytest.mark.parametrize(
    ("topology", "most"), [("hierarchical", MOST_OVERHEAD), ("torus", MOST_OVERHEAD), ("parameter-server", 1.3)]
)
def test_between_hosts_goes_what_each_topology_counts(
    two_hosts: Site, topology: str, most: float, measured: Callable[[str, float, str], None]
) -> None:
    """Two ranks on each of two hosts: the sum over a host's ranks against its interface.

    To reduce to one rank, Gloo goes round a ring and then gathers the pieces, which is more than the count's b from
    each rank: up to a quarter more of a parameter server's whole traffic.
    """
    hosts = ("h1", "h1", "h2", "h2")
    found = run_ranks(two_hosts, hosts, exchange, ("none",), topology)
    for host, ranks in (("h1", found[:2]), ("h2", found[2:])):
        counted = sum(rank["none"].counted_between_hosts for rank in ranks)
        # Both see the same interface, a moment apart.
        overhead = statistics.mean(rank["none"].interface_bytes for rank in ranks) / counted
        measured(f"{topology}, {host}: sent by the interface", overhead, "of the count")
        assert 1.0 <= overhead < most
