"""Topologies on four ranks in two hosts, joined by a link of known speed, against the flat all-reduce. Needs root.

The gradients of ResNet-50 (161 tensors) are averaged by one topology after the other, in turn; the ratio of each round
is taken, and the median of the ratios printed. Beside it stands what explains it: the bytes that the busiest host sends
to the other one, by the topology's count and by the interface's counter, and the time that they take at the link's
rate. The hosts are network namespaces of this machine, so what stays in a host costs processor time only.

    python benchmarks/topologies_two_hosts.py [--rate MBIT] [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "site")]

from hosts import Site, why_not  # noqa: E402 - the tests' hosts
from site_ranks import run_ranks  # noqa: E402

from hpcai500.comm.communicator import Communicator  # noqa: E402
from hpcai500.comm.reducer import Reducer  # noqa: E402
from hpcai500.measure.host import available_cores, read_counters  # noqa: E402
from hpcai500.recipe import load_recipe  # noqa: E402
from hpcai500.workloads.models.resnet import Bottleneck, ResNet  # noqa: E402

HOSTS = ("h1", "h1", "h2", "h2")
TOPOLOGIES = ("flat", "hierarchical", "torus", "parameter-server")
BUCKET_BYTES = 2**24


@dataclass
class Seen:
    """What one rank saw of one topology; bytes are those of one update."""

    seconds: list[float]
    counted_between_hosts: int
    interface_bytes: float


def average_in_turn(communicator: Communicator, rounds: int) -> dict[str, Seen]:
    """Each topology once a round, after a round to warm up."""
    torch.set_num_threads(1)
    parameters = list(resnet50().parameters())
    reducers = {}
    for topology in TOPOLOGIES:
        settings = load_recipe("ic/reference", [f"communication.topology={topology}"]).communication
        reducers[topology] = Reducer(parameters, communicator, settings, bucket_bytes=BUCKET_BYTES)
    found = {name: Seen([], reducer.sent_between_nodes, 0.0) for name, reducer in reducers.items()}
    for step in range(rounds + 1):
        for name, reducer in reducers.items():
            seconds, sent = _average(communicator, reducer, parameters, step)
            if step:
                found[name].seconds.append(seconds)
                found[name].interface_bytes += sent / rounds
    for reducer in reducers.values():
        reducer.close()
    return found


def _average(
    communicator: Communicator, reducer: Reducer, parameters: list[torch.nn.Parameter], step: int
) -> tuple[float, float]:
    communicator.barrier()
    before, start = read_counters(), time.perf_counter()
    reducer.begin(step)
    torch.stack([parameter.sum() for parameter in parameters]).sum().backward()
    reducer.finish([0.0])
    seconds = time.perf_counter() - start
    communicator.barrier()
    return seconds, read_counters().since(before)["sent_bytes"]["eth0"]


def resnet50() -> ResNet:
    """Bottleneck blocks 3, 4, 6, 3; 25.6 M weights."""
    return ResNet(Bottleneck, (3, 4, 6, 3), width=64, classes=1000)


def compare(ranks: list[dict[str, Seen]], rate_mbit: int) -> list[dict[str, Any]]:
    """One row a topology: seconds, ratio to flat, bytes (one update, the busiest host)."""
    slowest = {
        name: [max(times) for times in zip(*(rank[name].seconds for rank in ranks), strict=True)] for name in TOPOLOGIES
    }
    rows = []
    for name in TOPOLOGIES:
        hosts = {host: [rank for rank, of in zip(ranks, HOSTS, strict=True) if of == host] for host in HOSTS}
        counted = max(sum(rank[name].counted_between_hosts for rank in those) for those in hosts.values())
        # Ranks of a host read the same counter.
        sent = max(statistics.mean(rank[name].interface_bytes for rank in those) for those in hosts.values())
        rows.append(
            {
                "topology": name,
                "seconds": statistics.median(slowest[name]),
                "flat_over_it": statistics.median(
                    flat / this for flat, this in zip(slowest["flat"], slowest[name], strict=True)
                ),
                "counted_bytes_between_hosts": counted,
                "interface_bytes": sent,
                "link_seconds": sent * 8 / (rate_mbit * 1e6),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=500, help="of the link, Mbit/s (default 500)")
    parser.add_argument("--rounds", type=int, default=5, help="averages by each topology (default 5)")
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(f"topologies_two_hosts: {reason}")
    with Site("h1", "h2") as site:
        site.shape(f"{options.rate}mbit")
        ranks = run_ranks(site, HOSTS, average_in_turn, options.rounds, timeout=900)
    rows = compare(ranks, options.rate)
    print(f"ResNet-50's gradients, 4 ranks in 2 hosts, {options.rate} Mbit/s; bytes that a host sends to the other")
    print("                     time   flat/it   counted    sent   at the link's rate")
    for row in rows:
        counted, sent = (row[key] / 1e6 for key in ("counted_bytes_between_hosts", "interface_bytes"))
        print(
            f"  {row['topology']:<17} {row['seconds']:.2f} s   {row['flat_over_it']:.2f}   {counted:6.1f} MB"
            f"  {sent:6.1f} MB   {row['link_seconds']:.2f} s"
        )
    if options.json:
        machine = {"cores": available_cores(), "machine": platform.machine(), "torch": torch.__version__}
        document = {"machine": machine, "rate_mbit": options.rate, "rounds": options.rounds, "results": rows}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
