"""Measures collectives over messages of many sizes: in each node, between nodes, and over all ranks.

Every result is compared with whole numbers, which fp32 moves and adds exactly. Sizes and bandwidths are those of the
NCCL tests (doc/PERFORMANCE.md); `methodology.communication.bus_factor` has the factors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hpcai500.comm.communicator import Communicator
from hpcai500.comm.topologies import ranks_by_host
from hpcai500.errors import EnvironmentLacksError, UsageError
from hpcai500.measure.micro import MeasuringJob, available_bytes, device_name
from hpcai500.measure.timing import Effort, Timing, repeat, stopwatch
from hpcai500.methodology.communication import Collective, algorithm_bandwidth, bus_bandwidth, fit_error, fit_ring
from hpcai500.methodology.statistics import quartiles
from hpcai500.progress import Progress

# ----------------------------------------------------------------------------------------------------
# Exact numbers: what a rank sends, and what has to arrive.


# fp32 adds whole numbers below 2**24 exactly; 509 times 3 times 10,000 ranks stays below. Both periods are primes, so
# that parts of a message never begin at the same number, and no rank sends the number of another at the same place.
_SUMMED, _WEIGHTS = 509, 3
_MOVED, _BETWEEN_RANKS = 1_048_573, 100_003
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Numbers:
    """The numbers of a message: `weight` times 1, 2, ... `period`, over and over.

    Attributes:
        starts: for each of the message's equal parts, how many numbers of the period come before its first one.
    """

    period: int
    weight: int = 1
    starts: tuple[int, ...] = (0,)

    def fill(self, tensor: Tensor) -> None:
        """Write them into `tensor` (n,)."""
        for piece, numbers in self._pieces(tensor):
            torch.mul(numbers, self.weight, out=piece)

    def difference(self, tensor: Tensor, what: str) -> str | None:
        """What is wrong with `tensor` (n,), which must have them; None if nothing is. `what` names its elements."""
        count, first, place = 0, "", 0
        for piece, numbers in self._pieces(tensor):
            wrong = (piece != numbers * self.weight).nonzero()
            if len(wrong) and not count:
                one = int(wrong[0])
                expected = float(numbers[one] * self.weight)
                first = f"first element {place + one}: {float(piece[one])}, expected {expected}"
            count += len(wrong)
            place += len(piece)
        return f"{count} of {len(tensor)} {what}, {first}" if count else None

    def _pieces(self, tensor: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each piece of `tensor`, small enough to save memory, with its numbers before they are weighted."""
        cycle = _cycle(self.period, tensor.device)
        for part, start in zip(tensor.chunk(len(self.starts)), self.starts, strict=True):
            for begin in range(0, len(part), _CHUNK):
                piece = part[begin : begin + _CHUNK]
                first = (start + begin) % self.period
                yield piece, cycle[first : first + len(piece)]


@cache
def _cycle(period: int, device: torch.device) -> Tensor:
    """1, 2, ... `period`, over and over, for a piece that begins anywhere in it."""
    return (torch.arange(period + _CHUNK, device=device) % period + 1).float()


def summand(rank: int) -> Numbers:
    """What `rank` adds to a sum."""
    return Numbers(_SUMMED, rank % _WEIGHTS + 1)


def sum_of(ranks: int, start: int = 0) -> Numbers:
    """The sum of what `ranks` ranks add, from the element `start` on."""
    return Numbers(_SUMMED, sum(rank % _WEIGHTS + 1 for rank in range(ranks)), (start,))


def moved(ranks: Sequence[int], start: int = 0) -> Numbers:
    """What each of `ranks` sends where nothing is added, one after the other, each from its element `start` on."""
    return Numbers(_MOVED, starts=tuple(start + rank * _BETWEEN_RANKS for rank in ranks))


# ----------------------------------------------------------------------------------------------------
# Message sizes, and how long each is measured.


_ELEMENT = 4
_LEAST_BYTES, _MOST_BYTES, STEP = 8, 1 << 30, 4
# For each size: small messages take hardly any time, and large ones have stable times.
EFFORT = Effort(width=0.02, least=5, warm_up=2)


def message_sizes(room: int) -> list[int]:
    """Bytes of messages, from 8 to 1 GiB in steps of 4, and 1 GiB itself, as far as `room` bytes allow."""
    sizes = []
    size = _LEAST_BYTES
    while size < _MOST_BYTES:
        sizes.append(size)
        size *= STEP
    return [size for size in [*sizes, _MOST_BYTES] if size <= room]


def room_for_messages(job: MeasuringJob) -> int:
    """The largest message that all ranks have memory for, with the two copies of it that some collectives need.

    Raises:
        EnvironmentLacksError: memory is short.
    """
    room = min(job.gather(available_bytes(job.device, job.ranks_here) // 3))
    if room < _LEAST_BYTES:
        raise EnvironmentLacksError("no memory is left on a host for messages; end other programs")
    return room


def next_is_too_slow(shortest: float, slowest: float, seconds: float) -> bool:
    """Whether the next size cannot be measured in `seconds`.

    By the fastest repetitions, of the smallest message and of the last, since other load does not grow with the
    message: the next has the same latency, and the rest grows with the size.
    """
    return (shortest + STEP * (slowest - shortest)) * (EFFORT.least + EFFORT.warm_up) > seconds


@dataclass(frozen=True)
class Times:
    """The summary of a rank's repetitions for the others: all of them, from thousands of ranks, would be gigabytes.

    Attributes:
        fastest: seconds of the fastest repetition.
        quartile: seconds that a quarter of the repetitions are below.
        median, interval, spread: as in `Timing`.
    """

    fastest: float
    quartile: float
    median: float
    interval: tuple[float, float]
    spread: float
    repetitions: int

    @classmethod
    def of(cls, timing: Timing) -> Times:
        seconds = timing.seconds
        return cls(min(seconds), quartiles(seconds)[0], timing.median, timing.interval, timing.spread, len(seconds))


# ----------------------------------------------------------------------------------------------------
# The collectives: their tensors for a message of some size, the call, and the check of its result.


@dataclass(frozen=True)
class Call:
    """One collective over messages of one size: `run` it, or `check` it: run it on new numbers, and what is wrong."""

    run: Callable[[], None]
    check: Callable[[], str | None]


@dataclass(frozen=True)
class Kind:
    """One collective.

    Attributes:
        name: for its bus factor and in messages.
        method: of `Communicator`.
        in_parts: whether its message has a part for each rank.
        waits: whether a call ends only after all ranks have begun it; if not, a barrier goes before each timed call.
    """

    name: Collective
    method: str
    prepare: Callable[[Communicator, int, torch.device], Call]
    in_parts: bool = True
    waits: bool = True

    def elements(self, size: int, ranks: int) -> int:
        """Elements of a message of `size` bytes, or a few more, so that each rank's part has as many."""
        parts = ranks if self.in_parts else 1
        return -(-size // (_ELEMENT * parts)) * parts

    def sizes(self, ranks: int, room: int) -> list[int]:
        """`message_sizes`; of those that the smallest parts make equal, the largest."""
        return list({self.elements(size, ranks): size for size in message_sizes(room)}.values())


def _all_reduce(group: Communicator, count: int, device: torch.device) -> Call:
    message = torch.zeros(count, device=device)

    def check() -> str | None:
        summand(group.rank).fill(message)
        group.all_reduce(message)
        wrong = sum_of(group.size).difference(message, f"sums by {group.library}")
        # Sums of sums of sums would overflow while the call is timed.
        message.zero_()
        return wrong

    return Call(lambda: group.all_reduce(message), check)


def _all_gather(group: Communicator, count: int, device: torch.device) -> Call:
    source, target = torch.empty(count // group.size, device=device), torch.empty(count, device=device)
    moved([group.rank]).fill(source)

    def check() -> str | None:
        target.zero_()
        group.all_gather(source, target)
        return moved(range(group.size)).difference(target, f"elements gathered by {group.library}")

    return Call(lambda: group.all_gather(source, target), check)


def _reduce_scatter(group: Communicator, count: int, device: torch.device) -> Call:
    source, target = torch.empty(count, device=device), torch.empty(count // group.size, device=device)
    summand(group.rank).fill(source)

    def check() -> str | None:
        target.zero_()
        group.reduce_scatter(source, target)
        return sum_of(group.size, group.rank * len(target)).difference(target, f"sums by {group.library}")

    return Call(lambda: group.reduce_scatter(source, target), check)


def _all_to_all(group: Communicator, count: int, device: torch.device) -> Call:
    source, target = torch.empty(count, device=device), torch.empty(count, device=device)
    moved([group.rank]).fill(source)
    start = group.rank * (count // group.size)

    def check() -> str | None:
        target.zero_()
        group.all_to_all(source, target)
        return moved(range(group.size), start).difference(target, f"elements moved by {group.library}")

    return Call(lambda: group.all_to_all(source, target), check)


def _broadcast(group: Communicator, count: int, device: torch.device) -> Call:
    message = torch.empty(count, device=device)

    def check() -> str | None:
        message.zero_()
        if group.rank == 0:
            moved([0]).fill(message)
        group.broadcast(message, 0)
        return moved([0]).difference(message, f"elements broadcast by {group.library}")

    return Call(lambda: group.broadcast(message, 0), check)


# By the word of the command line, which begins the names of its measurements: `allreduce node`.
COLLECTIVES = {
    "allreduce": Kind("all-reduce", "all_reduce", _all_reduce, in_parts=False),
    "allgather": Kind("all-gather", "all_gather", _all_gather),
    "reducescatter": Kind("reduce-scatter", "reduce_scatter", _reduce_scatter),
    "alltoall": Kind("all-to-all", "all_to_all", _all_to_all),
    # The root may be many calls ahead of the others.
    "broadcast": Kind("broadcast", "broadcast", _broadcast, in_parts=False, waits=False),
}


# ----------------------------------------------------------------------------------------------------
# Measuring one collective in all groups of ranks.


NODE, NETWORK, SYSTEM = "node", "network", "system"

Partition = Sequence[Sequence[int]]


def partitions(hosts: Sequence[str]) -> dict[str, Partition]:
    """The groups of ranks that communicate at the same time, by the last word of the measurement's name.

    A measurement that would equal another, or that has groups of single ranks only, is left out.
    """
    nodes = ranks_by_host(hosts)
    found: dict[str, Partition] = {}
    if any(len(node) > 1 for node in nodes):
        found[NODE] = nodes
    if len(nodes) > 1 and len(nodes) < len(hosts):
        found[NETWORK] = [[node[0] for node in nodes]]
    if len(hosts) > 1:
        found[SYSTEM] = [list(range(len(hosts)))]
    return found


def measure_collective(
    word: str, job: MeasuringJob, communicator: Communicator, seconds: float, bar: Progress
) -> dict[str, Any]:
    """The document's entries of the collective `word`, by name: `allreduce node`, …; empty for one rank.

    Groups are made of `communicator`, a communicator of all ranks that nothing else uses. All sizes of a measurement
    take about `seconds`; `bar` is advanced after each measurement.

    Raises:
        WrongAnswerError: a result is wrong.
        EnvironmentLacksError: memory is short.
    """
    entries: dict[str, Any] = {}
    measured = partitions(job.world.hosts)
    for where, partition in measured.items():
        job.doing(f"{word} {where}")
        # On one node, both measurements are the same.
        if where == SYSTEM and measured.get(NODE) == partition:
            entries[SYSTEM] = entries[NODE]
        else:
            entries[where] = _measure(f"{word} {where}", COLLECTIVES[word], partition, job, communicator, seconds)
        bar.advance()
    # With one rank a node, everything is between nodes.
    if SYSTEM in entries and NODE not in entries:
        entries[NETWORK] = entries[SYSTEM]
    return {f"{word} {where}": entry for where, entry in entries.items()}


def _measure(
    name: str, kind: Kind, partition: Partition, job: MeasuringJob, communicator: Communicator, seconds: float
) -> dict[str, Any]:
    group = None
    for members in partition:
        mine = communicator.group(members) if len(members) > 1 else None
        group = mine or group
    ranks = max(len(members) for members in partition)
    try:
        table = list(_rows(name, kind, job, group, ranks, seconds))
        libraries = {name for name in job.gather(group.library if group else None) if name}
    finally:
        if group:
            group.close()
    return _entry(kind, table, ranks, job, ", ".join(sorted(libraries)))


def _rows(
    name: str, kind: Kind, job: MeasuringJob, group: Communicator | None, ranks: int, seconds: float
) -> Iterator[dict[str, Any]]:
    """The table's row of each size that can be measured in time."""
    sizes = kind.sizes(ranks, room_for_messages(job))
    shortest = math.inf
    for size in sizes:
        found = _time(name, kind, size, job, group, seconds / len(sizes))
        everyone = [one for one in job.gather(found) if one]
        yield _row(kind, everyone)
        slowest = max(one.times.fastest for one in everyone)
        shortest = min(shortest, slowest)
        if next_is_too_slow(shortest, slowest, seconds):
            return


@dataclass(frozen=True)
class _Found:
    """What a rank measured of one size: of its group's messages, and by which means."""

    size: int
    ranks: int
    times: Times
    instead: str | None


def _time(
    name: str, kind: Kind, size: int, job: MeasuringJob, group: Communicator | None, seconds: float
) -> _Found | None:
    """Time this rank's calls for messages of about `size` bytes, with a checked one before and after; None outside all
    groups."""
    job.world.barrier()
    if group is None:
        job.require(name, None)
        job.require(name, None)
        return None
    count = kind.elements(size, group.size)
    call = kind.prepare(group, count, job.device)
    what = f"{name}, {count * _ELEMENT} bytes"
    job.require(what, call.check())
    watch = stopwatch(job.device, is_alone=False)

    def run() -> float:
        if not kind.waits:
            group.barrier()
        return watch(call.run)

    effort = replace(EFFORT, seconds=seconds)
    # All ranks of a group must repeat equally often, or some would wait for ever.
    timing = repeat(run, effort, agree=lambda needed: max(group.gather_objects(needed)))
    job.require(what, call.check())
    instead = group.substitute(kind.method, torch.empty(1, device=job.device).expand(count))
    return _Found(count * _ELEMENT, group.size, Times.of(timing), instead)


def _row(kind: Kind, everyone: Sequence[_Found]) -> dict[str, Any]:
    """The table's row of one size, by the median of the slowest rank: only then do all ranks have their result."""
    slowest = max(everyone, key=lambda one: one.times.median)
    size, times = slowest.size, slowest.times
    return {
        "bytes": size,
        "seconds": times.median,
        "interval_seconds": list(times.interval),
        "spread": times.spread,
        "repetitions": times.repetitions,
        "ranks": slowest.ranks,
        "algorithm_bandwidth": algorithm_bandwidth(size, times.median),
        "bus_bandwidth": bus_bandwidth(size, times.median, slowest.ranks, kind.name),
        "instead": slowest.instead,
    }


def _entry(kind: Kind, table: Sequence[dict[str, Any]], ranks: int, job: MeasuringJob, call: str) -> dict[str, Any]:
    best = max(table, key=lambda row: row["bus_bandwidth"])
    link, error = _link(ranks, table) if kind.name == "all-reduce" else (None, None)
    return {
        "value": best["bus_bandwidth"],
        "unit": "bytes/s",
        "interval": [
            bus_bandwidth(best["bytes"], seconds, best["ranks"], kind.name)
            for seconds in best["interval_seconds"][::-1]
        ],
        "spread": best["spread"],
        "repetitions": best["repetitions"],
        "shape": f"{best['bytes']} bytes over {ranks} ranks",
        "call": call,
        "instead": best["instead"],
        "accelerators": job.world.size,
        "nodes": job.nodes,
        "ranks": ranks,
        "device": device_name(job.device),
        "precision": "fp32",
        "verified": True,
        "link": link,
        "link_error": error,
        "smallest_message_seconds": table[0]["seconds"],
        "table": list(table),
    }


def _link(ranks: int, table: Sequence[dict[str, Any]]) -> tuple[dict[str, float] | None, float | None]:
    """Latency and bandwidth of the ring that fits the times of all-reduces, and the fit's error; None if none fits."""
    measured = [(row["bytes"], row["seconds"]) for row in table]
    try:
        cost = fit_ring(ranks, measured)
    except UsageError:
        return None, None
    link = {"latency_seconds": cost.latency_seconds, "bytes_per_second": cost.bytes_per_second}
    return link, fit_error(cost, ranks, measured)
