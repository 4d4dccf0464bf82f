"""Measures links: between every pair of hosts, between the devices of a host, and between host and device.

Pairs are measured in rounds, in each of which all pairs exchange messages at once, in both directions. What arrives is
compared with whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hpcai500.comm.communicator import Communicator
from hpcai500.comm.topologies import ranks_by_host
from hpcai500.measure.collectives import EFFORT, Times, message_sizes, moved, next_is_too_slow, room_for_messages
from hpcai500.measure.micro import MeasuringJob, device_name
from hpcai500.measure.timing import Timing, repeat, stopwatch
from hpcai500.methodology.communication import algorithm_bandwidth, bus_bandwidth
from hpcai500.methodology.links import Pair, Rate, compare_links, rounds_of_pairs, slow_link_sentences, total_rate
from hpcai500.progress import Progress
from hpcai500.text import count

# ----------------------------------------------------------------------------------------------------
# Who exchanges with whom.


_ELEMENT = 4


@dataclass(frozen=True)
class Ends:
    """The ends of links that are compared with each other: hosts, or the devices of one host.

    Attributes:
        names: of each end, for people.
        ranks: of each end; the k-th rank of an end exchanges with the k-th of the other.
    """

    names: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]


def ends_of_hosts(hosts: Sequence[str]) -> Ends:
    """Every host with as many of its ranks as the host with the fewest has, so that all links have equal ends."""
    found = ranks_by_host(hosts)
    width = min(map(len, found))
    return Ends(tuple(hosts[ranks[0]] for ranks in found), tuple(tuple(ranks[:width]) for ranks in found))


def ends_of_devices(hosts: Sequence[str]) -> list[Ends]:
    """For each host with two ranks or more, its ranks, each with its own device."""
    return [
        Ends(tuple(f"{hosts[rank]}:{place}" for place, rank in enumerate(ranks)), tuple((rank,) for rank in ranks))
        for ranks in ranks_by_host(hosts)
        if len(ranks) > 1
    ]


# ----------------------------------------------------------------------------------------------------
# Rounds of pairs.


# As many rounds have their full time; with more, each has less.
_FULL_ROUNDS = 8


def measure_pairs(
    name: str, groups: Sequence[Ends], job: MeasuringJob, communicator: Communicator, seconds: float
) -> Links:
    """Measure the links of every pair of ends of each of `groups`; all ranks call it together.

    In each round, pairs of all `groups` exchange at once; or, where the backend's pairs would wait for each other, one
    pair alone. `communicator` has all ranks, and nothing else uses it. All rounds together take about `seconds`, and
    each an eighth of that at most.

    Raises:
        WrongAnswerError: a message arrived with a wrong number.
        EnvironmentLacksError: memory is short.
    """
    schedules = [rounds_of_pairs(len(ends.ranks)) for ends in groups]
    instead = communicator.substitute("exchange", torch.empty(1, device=job.device))
    if instead:
        schedules = [[[pair] for pairs in schedule for pair in pairs] for schedule in schedules]
    turns = max(len(schedule) for schedule in schedules)
    # NCCL needs all ranks of a communicator for its first call.
    communicator.all_reduce(torch.zeros(1, device=job.device))
    sizes = message_sizes(room_for_messages(job))
    tables: dict[Pair, list[Row]] = {}
    rounds: dict[Pair, int] = {}
    for turn in range(turns):
        job.doing(f"{name}, round {turn + 1} of {turns}")
        meeting: dict[Pair, list[tuple[int, int]]] = {}
        first = 0
        for ends, schedule in zip(groups, schedules, strict=True):
            for low, high in schedule[turn] if turn < len(schedule) else ():
                meeting[first + low, first + high] = list(zip(ends.ranks[low], ends.ranks[high], strict=True))
            first += len(ends.names)
        rows = list(_round(name, meeting, sizes, job, communicator, seconds / max(turns, _FULL_ROUNDS)))
        # Later rounds need no sizes that this one lacks: links are compared at one that all have.
        sizes = sizes[: len(rows)]
        for pair in meeting:
            tables[pair], rounds[pair] = [row[pair] for row in rows], turn + 1
    return Links(tuple(name for ends in groups for name in ends.names), tables, rounds, communicator.library, instead)


def _round(
    name: str,
    meeting: Mapping[Pair, Sequence[tuple[int, int]]],
    sizes: Sequence[int],
    job: MeasuringJob,
    communicator: Communicator,
    seconds: float,
) -> Iterator[dict[Pair, Row]]:
    """The row of each pair, whose ranks are in `meeting`, for each size that can be measured in time."""
    peers = {rank: rank for rank in range(job.world.size)}
    for both in meeting.values():
        peers |= dict(both) | {high: low for low, high in both}
    shortest = math.inf
    for size in sizes:
        everyone = job.gather(_exchange(name, size, peers[job.world.rank], job, communicator, seconds / len(sizes)))
        yield {
            pair: _row(size * len(both), [everyone[rank] for two in both for rank in two])
            for pair, both in meeting.items()
        }
        slowest = max(times.fastest for rank, times in enumerate(everyone) if peers[rank] != rank)
        shortest = min(shortest, slowest)
        if next_is_too_slow(shortest, slowest, seconds):
            return


def _exchange(name: str, size: int, peer: int, job: MeasuringJob, communicator: Communicator, seconds: float) -> Times:
    """Time this rank's exchanges of `size` bytes with `peer`, with a checked one before and after."""
    rank = job.world.rank
    # A rank that rests takes part in calls of all ranks, with nothing to send.
    length = size // _ELEMENT if peer != rank else 0
    source, target = (torch.empty(length, device=job.device) for _ in range(2))
    moved([rank]).fill(source)

    def check() -> str | None:
        target.zero_()
        communicator.exchange(source, target, peer)
        return moved([peer]).difference(target, f"elements from rank {peer} by {communicator.library}")

    what = f"{name}, {size} bytes"
    job.world.barrier()
    job.require(what, check())
    watch = stopwatch(job.device, is_alone=False)
    effort = replace(EFFORT, seconds=seconds)
    # Equally often on all ranks: Horovod's exchanges are calls of all of them.
    timing = repeat(
        lambda: watch(lambda: communicator.exchange(source, target, peer)),
        effort,
        agree=lambda needed: max(job.gather(needed if peer != rank else 0)),
    )
    job.require(what, check())
    return Times.of(timing)


def _row(size: int, times: Sequence[Times]) -> dict[str, Any]:
    """The row of `size` bytes one way, by the slowest of the ranks: only then has everything arrived."""
    slowest = max(times, key=lambda one: one.median)
    return {
        "bytes": size,
        "seconds": slowest.median,
        "interval_seconds": list(slowest.interval),
        "quartile_seconds": slowest.quartile,
        "spread": slowest.spread,
        "repetitions": slowest.repetitions,
        "algorithm_bandwidth": algorithm_bandwidth(size, slowest.median),
        "bus_bandwidth": bus_bandwidth(size, slowest.median, 2, "exchange"),
    }


# ----------------------------------------------------------------------------------------------------
# From rows to the document.


Row = Mapping[str, Any]


@dataclass(frozen=True)
class Links:
    """What was measured of links, which are compared at the largest size that all of them have.

    Attributes:
        names: of the ends, all groups one after the other, so that all links are compared with one median.
        tables: the rows of each link, one a size.
        rounds: in which each link was measured, from 1.
        call, instead: the library, and what runs instead of its own sends and receives.
    """

    names: tuple[str, ...]
    tables: Mapping[Pair, Sequence[Row]]
    rounds: Mapping[Pair, int]
    call: str
    instead: str | None

    @property
    def rows(self) -> dict[Pair, Row]:
        """The row at which links are compared."""
        last = min(len(table) for table in self.tables.values()) - 1
        return {pair: table[last] for pair, table in self.tables.items()}

    @property
    def rates(self) -> dict[Pair, Rate]:
        return {pair: _rate(row) for pair, row in self.rows.items()}

    def named(self, pair: Pair) -> list[str]:
        return [self.names[end] for end in pair]

    def entry(self, job: MeasuringJob, unit: str, rate: Rate, row: Row, shape: str) -> dict[str, Any]:
        """The keys that all measurements of links have; `row` is of the link that decides."""
        return {
            "value": rate.value,
            "unit": unit,
            "interval": [rate.low, rate.high],
            "spread": row["spread"],
            "repetitions": row["repetitions"],
            "shape": shape,
            "call": self.call,
            "instead": self.instead,
            "accelerators": job.world.size,
            "nodes": job.nodes,
            "device": device_name(job.device),
            "precision": "fp32",
            "verified": True,
        }

    def slowest(self, job: MeasuringJob, across: str) -> dict[str, Any]:
        """The entry of the slowest link, with all links beside it."""
        rates, rows = self.rates, self.rows
        found = compare_links(rates)
        row = rows[found.slowest]
        return {
            **self.entry(job, "bytes/s", rates[found.slowest], row, f"{row['bytes']} bytes each way, {across}"),
            "slowest_pair": self.named(found.slowest),
            "median": found.median,
            "slow": slow_link_sentences(self.names, rates),
            "rounds": max(self.rounds.values()),
            "ends": list(self.names),
            "pairs": [
                {
                    "ends": self.named(pair),
                    "round": self.rounds[pair],
                    "value": rate.value,
                    "interval": [rate.low, rate.high],
                    "share": rate.value / found.median,
                    "latency_seconds": self.tables[pair][0]["seconds"],
                    "table": list(self.tables[pair]),
                }
                for pair, rate in sorted(rates.items())
            ],
        }


def _rate(row: Row) -> Rate:
    low, high = row["interval_seconds"]
    return Rate(row["bus_bandwidth"], row["bytes"] / high, row["bytes"] / low, row["bytes"] / row["quartile_seconds"])


# ----------------------------------------------------------------------------------------------------
# Links between hosts.


def measure_hosts(job: MeasuringJob, communicator: Communicator, seconds: float, bar: Progress) -> dict[str, Any]:
    """The document's entries of the links between hosts; none for a single host, which is said.

    All of them together take eight times `seconds` at most, and a round takes `seconds`.

    Raises:
        WrongAnswerError: a message arrived with a wrong number.
        EnvironmentLacksError: memory is short.
    """
    if job.nodes < 2:
        job.say("pairs: skipped: all ranks are on one host; start them on several with a launcher")
        bar.advance()
        return {}
    ends = ends_of_hosts(job.world.hosts)
    links = measure_pairs("pairs", [ends], job, communicator, _FULL_ROUNDS * seconds)
    bar.advance()
    across = f"{count(len(ends.ranks[0]), 'rank')} of each host"
    return host_entries(links, job, across)


def host_entries(links: Links, job: MeasuringJob, across: str) -> dict[str, Any]:
    """The entries of `links` between hosts; `across` says which ranks exchanged."""
    entries = {"pairs slowest": links.slowest(job, across)}
    rates, rows = links.rates, links.rows
    found = compare_links(rates)
    row = rows[found.slowest]
    # A single link is its own median, which says nothing.
    if len(rates) > 1:
        share = rates[found.slowest].share_of(found.median)
        entries["pairs share"] = links.entry(job, "fraction", share, row, f"slowest of {len(rates)} links / median")
    late = max(links.tables, key=lambda pair: links.tables[pair][0]["seconds"])
    first = links.tables[late][0]
    low, high = first["interval_seconds"]
    latency = Rate(first["seconds"], low, high, first["quartile_seconds"])
    entries["pairs latency"] = {
        **links.entry(job, "s", latency, first, f"{first['bytes']} bytes each way, {across}"),
        "slowest_pair": links.named(late),
    }
    # Of pairs that were measured alone, no sum is known.
    if links.instead:
        return entries
    turns = sorted(set(links.rounds.values()))
    totals = [total_rate(rates[pair] for pair, its in links.rounds.items() if its == turn) for turn in turns]
    least = min(totals, key=lambda rate: rate.value)
    shape = f"the slowest of {count(len(turns), 'round')}, {row['bytes']} bytes each way"
    entries["pairs bisection"] = links.entry(job, "bytes/s", least, row, shape)
    return entries


# ----------------------------------------------------------------------------------------------------
# Links of devices: to their host, and to the other devices of the host.


def measure_devices(job: MeasuringJob, communicator: Communicator, seconds: float, bar: Progress) -> dict[str, Any]:
    """The document's entries of copies between host and device, and of links between devices; what is skipped is said.

    Raises:
        WrongAnswerError: a copy differs from its source.
        EnvironmentLacksError: memory is short.
    """
    if job.device.type != "cuda":
        job.say("device: skipped: copies from, to and between devices need CUDA, and this job measures the CPU")
        bar.advance()
        return {}
    entries = host_copies(job, seconds)
    if any(len(ranks) > 1 for ranks in ranks_by_host(job.world.hosts)):
        entries |= device_links(job, communicator, seconds)
    else:
        job.say("device to device: skipped: no host has two ranks; start one for each device with --procs N")
    bar.advance()
    return entries


def device_links(job: MeasuringJob, communicator: Communicator, seconds: float) -> dict[str, Any]:
    """The entry of the links between the devices of each host; there is a host with two ranks or more."""
    groups = ends_of_devices(job.world.hosts)
    links = measure_pairs("device to device", groups, job, communicator, _FULL_ROUNDS * seconds)
    return {"device to device": links.slowest(job, "device of one rank to that of another")}


def host_copies(job: MeasuringJob, seconds: float) -> dict[str, Any]:
    """The entries of copies from the host's memory to the device and back, by all ranks at once, mean over nodes."""
    sizes = message_sizes(room_for_messages(job))
    is_cuda = job.device.type == "cuda"
    on_host = torch.empty(sizes[-1] // _ELEMENT, pin_memory=is_cuda)
    on_device = torch.empty(sizes[-1] // _ELEMENT, device=job.device)
    found = {}
    for name, source, target in (("device from host", on_host, on_device), ("device to host", on_device, on_host)):
        job.doing(name)
        found[name] = _copies(name, source, target, sizes, job, seconds)
    return found


def _copies(
    name: str, source: Tensor, target: Tensor, sizes: Sequence[int], job: MeasuringJob, seconds: float
) -> dict[str, Any]:
    """The entry of copies of the first bytes of `source` to `target`, at the fastest of all sizes measured in time."""
    watch = stopwatch(job.device)
    table: list[dict[str, Any]] = []
    timings: list[Timing] = []
    shortest = math.inf
    for size in sizes:
        given, taken = source[: size // _ELEMENT], target[: size // _ELEMENT]
        what = f"{name}, {size} bytes"
        job.require(what, _copy_error(given, taken, job))
        effort = replace(EFFORT, seconds=seconds / len(sizes))
        timing = job.time(partial(watch, partial(taken.copy_, given, non_blocking=True)), effort)
        job.require(what, _copy_error(given, taken, job))
        everyone = job.gather(Times.of(timing))
        table.append(_row(size, everyone))
        timings.append(timing)
        slowest = max(times.fastest for times in everyone)
        shortest = min(shortest, slowest)
        if next_is_too_slow(shortest, slowest, seconds):
            break
    best = max(range(len(table)), key=lambda place: table[place]["algorithm_bandwidth"])
    return {
        **job.entry("bytes/s", sizes[best], timings[best], share=1 / job.nodes),
        "shape": f"{sizes[best]} bytes a rank, pinned host memory",
        "call": "torch copy_",
        "precision": None,
        "verified": True,
        "smallest_message_seconds": table[0]["seconds"],
        "sizes": table,
    }


def _copy_error(source: Tensor, target: Tensor, job: MeasuringJob) -> str | None:
    numbers = moved([job.world.rank])
    numbers.fill(source)
    target.zero_()
    target.copy_(source, non_blocking=True)
    if job.device.type == "cuda":
        torch.cuda.synchronize(job.device)
    return numbers.difference(target, "elements copied")
