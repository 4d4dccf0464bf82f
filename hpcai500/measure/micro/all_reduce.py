"""All-reduces over messages of many sizes: within nodes, between nodes, and over all ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpcai500.comm.base import Communicator
from hpcai500.errors import EnvironmentLacksError, UsageError
from hpcai500.measure.micro.crew import Crew, device_name
from hpcai500.measure.micro.memory import available_bytes
from hpcai500.measure.micro.stopwatch import stopwatch
from hpcai500.measure.repetition import Effort, Timing, repeat
from hpcai500.methodology.all_reduce_model import algorithm_bandwidth, bus_bandwidth, fit_error, fit_ring
from hpcai500.progress import Progress

NODE, NETWORK, SYSTEM = "allreduce node", "allreduce network", "allreduce system"
_LEAST_BYTES, _MOST_BYTES, _STEP = 16, 512 << 20, 4
# Of whole numbers below 2**24, which fp32 adds exactly: this times 3 times 10,000 ranks is one.
_PERIOD, _WEIGHTS = 509, 3
# Of a message: what measures latency takes hardly any time, what measures bandwidth is stable.
_EFFORT = Effort(width=0.02, least=5, warm_up=2)

Partition = Sequence[Sequence[int]]


@dataclass(frozen=True)
class _Times:
    """What a rank tells the others of its repetitions: each one of them, from thousands of ranks, would be gigabytes.

    Attributes:
        ranks: of its group.
        fastest: seconds of the fastest repetition.
        median, interval, spread: as `Timing`.
        repetitions: how many.
    """

    ranks: int
    fastest: float
    median: float
    interval: tuple[float, float]
    spread: float
    repetitions: int

    @classmethod
    def of(cls, ranks: int, timing: Timing) -> _Times:
        seconds = timing.seconds
        return cls(ranks, min(seconds), timing.median, timing.interval, timing.spread, len(seconds))


def partitions(hosts: Sequence[str]) -> dict[str, Partition]:
    """Who sums with whom, by the measurement's name: each group's ranks, groups all at once.

    What would be the same measurement as another, or one of a single rank, is left out.
    """
    by_host: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        by_host.setdefault(host, []).append(rank)
    nodes = list(by_host.values())
    found: dict[str, Partition] = {}
    if any(len(node) > 1 for node in nodes):
        found[NODE] = nodes
    if len(nodes) > 1 and len(nodes) < len(hosts):
        found[NETWORK] = [[node[0] for node in nodes]]
    if len(hosts) > 1:
        found[SYSTEM] = [list(range(len(hosts)))]
    return found


def measure_all_reduce(crew: Crew, conversation: Communicator, seconds: float, bar: Progress) -> dict[str, Any]:
    """The document's entries, by name; empty for one rank.

    Args:
        crew: all ranks.
        conversation: over all of them, which groups are made of; nobody else's.
        seconds: of measuring all sizes of a group, about.
        bar: told after each group.

    Raises:
        WrongAnswerError: a sum is wrong.
        EnvironmentLacksError: there is no memory.
    """
    entries: dict[str, Any] = {}
    wanted = partitions(crew.world.hosts)
    for name, partition in wanted.items():
        # On one node, all ranks are its ranks: one measurement with two names.
        if name == SYSTEM and wanted.get(NODE) == partition:
            entries[SYSTEM] = entries[NODE]
        else:
            entries[name] = _measure(name, partition, crew, conversation, seconds)
        bar.advance()
    # Two nodes of one rank each: nothing is summed but between nodes.
    if SYSTEM in entries and NODE not in entries:
        entries[NETWORK] = entries[SYSTEM]
    return entries


def _measure(name: str, partition: Partition, crew: Crew, conversation: Communicator, seconds: float) -> dict[str, Any]:
    group = None
    for members in partition:
        mine = conversation.group(members) if len(members) > 1 else None
        group = mine or group
    try:
        table = [_row(times) for times in _sizes(name, crew, group, seconds)]
    finally:
        if group:
            group.close()
    ranks = max(len(members) for members in partition)
    return _entry(table, ranks, crew, group)


def _sizes(name: str, crew: Crew, group: Communicator | None, seconds: float) -> Iterator[tuple[int, list[_Times]]]:
    """Of each size that ends in time, the times of all ranks that are in a group.

    Raises:
        EnvironmentLacksError: there is no memory.
    """
    room = min(crew.gather(available_bytes(crew.device, crew.ranks_here) // 3))
    sizes = []
    size = _LEAST_BYTES
    while size <= min(_MOST_BYTES, room):
        sizes.append(size)
        size *= _STEP
    if not sizes:
        raise EnvironmentLacksError("allreduce: no memory is left on a host: end other programs")
    share = seconds / len(sizes)
    shortest = math.inf
    for size in sizes:
        timing = _time(name, size, crew, group, share)
        everyone = [one for one in crew.gather(_Times.of(group.size, timing) if group and timing else None) if one]
        yield size, everyone
        # By the fastest repetitions: a neighbour's work is not what grows with the message.
        slowest = max(one.fastest for one in everyone)
        shortest = min(shortest, slowest)
        # What the next one takes: latency again, and as many times the rest as it is larger.
        if (shortest + _STEP * (slowest - shortest)) * (_EFFORT.least + _EFFORT.warm_up) > seconds:
            return


def _time(name: str, size: int, crew: Crew, group: Communicator | None, seconds: float) -> Timing | None:
    """Time this rank's all-reduces of `size` bytes, after and before one that is looked at; None outside all groups."""
    crew.world.barrier()
    if group is None:
        crew.require(name, None)
        crew.require(name, None)
        return None
    pattern = torch.arange(size // 4, dtype=torch.float32, device=crew.device) % _PERIOD + 1
    message = torch.empty_like(pattern)
    crew.require(f"{name}, {size} bytes", _complaint(pattern, message, group))
    message.zero_()
    watch = stopwatch(crew.device)
    effort = Effort(_EFFORT.width, _EFFORT.least, seconds, _EFFORT.warm_up)
    # All of a group make as many, or some would wait for ever.
    timing = repeat(
        lambda: watch(lambda: group.all_reduce(message)), effort, agree=lambda wanted: max(group.gather_objects(wanted))
    )
    crew.require(f"{name}, {size} bytes", _complaint(pattern, message, group))
    return timing


def _complaint(pattern: Tensor, message: Tensor, group: Communicator) -> str | None:
    """Sum what differs from place to place and rank to rank, and look at all of it: whole numbers come out exactly."""
    torch.mul(pattern, group.rank % _WEIGHTS + 1, out=message)
    group.all_reduce(message)
    expected = pattern * sum(rank % _WEIGHTS + 1 for rank in range(group.size))
    wrong = (message != expected).nonzero()
    if not len(wrong):
        return None
    first = int(wrong[0])
    return (
        f"{len(wrong)} of {len(message)} sums by {group.library}, the first at {first}: {float(message[first])}, "
        f"expected {float(expected[first])}"
    )


def _row(found: tuple[int, list[_Times]]) -> dict[str, Any]:
    """Of a size: the slowest rank's median, by which all have their sum, and the bandwidths that follow."""
    size, everyone = found
    slowest = max(everyone, key=lambda one: one.median)
    low, high = slowest.interval
    return {
        "bytes": size,
        "seconds": slowest.median,
        "interval_seconds": [low, high],
        "spread": slowest.spread,
        "repetitions": slowest.repetitions,
        "ranks": slowest.ranks,
        "algorithm_bandwidth": algorithm_bandwidth(size, slowest.median),
        "bus_bandwidth": bus_bandwidth(size, slowest.median, slowest.ranks),
    }


def _entry(table: Sequence[dict[str, Any]], ranks: int, crew: Crew, group: Communicator | None) -> dict[str, Any]:
    best = max(table, key=lambda row: row["bus_bandwidth"])
    measured = [(row["bytes"], row["seconds"]) for row in table]
    link, error = _link(ranks, measured)
    libraries = {name for name in crew.gather(group.library if group else None) if name}
    return {
        "value": best["bus_bandwidth"],
        "unit": "bytes/s",
        "interval": [
            bus_bandwidth(best["bytes"], seconds, best["ranks"]) for seconds in best["interval_seconds"][::-1]
        ],
        "spread": best["spread"],
        "repetitions": best["repetitions"],
        "shape": f"{best['bytes']} bytes over {ranks} ranks",
        "call": ", ".join(sorted(libraries)),
        "accelerators": crew.world.size,
        "nodes": crew.nodes,
        "ranks": ranks,
        "device": device_name(crew.device),
        "precision": "fp32",
        "verified": True,
        "link": link,
        "link_error": error,
        "smallest_message_seconds": table[0]["seconds"],
        "table": list(table),
    }


def _link(ranks: int, measured: Sequence[tuple[int, float]]) -> tuple[dict[str, float] | None, float | None]:
    """Latency and bandwidth of the ring that explains the times; None where none does."""
    try:
        cost = fit_ring(ranks, measured)
    except UsageError:
        return None, None
    link = {"latency_seconds": cost.latency_seconds, "bytes_per_second": cost.bytes_per_second}
    return link, fit_error(cost, ranks, measured)
