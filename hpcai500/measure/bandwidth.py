"""Measures how fast data moves: all-reduces between ranks, copies in memory, samples from the input pipeline."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hpcai500 import _core
from hpcai500.comm.communicator import Communicator
from hpcai500.errors import EnvironmentLacksError, UsageError
from hpcai500.measure.micro import MeasuringJob, available_bytes, device_name, last_level_cache_bytes
from hpcai500.measure.timing import Effort, Timing, repeat, stopwatch
from hpcai500.methodology.communication import algorithm_bandwidth, bus_bandwidth, fit_error, fit_ring
from hpcai500.progress import Progress

# ----------------------------------------------------------------------------------------------------
# All-reduces over messages of many sizes: within nodes, between nodes, and over all ranks.


NODE, NETWORK, SYSTEM = "allreduce node", "allreduce network", "allreduce system"
_LEAST_BYTES, _MOST_BYTES, _STEP = 16, 512 << 20, 4
# fp32 adds whole numbers below 2**24 exactly; 509 times 3 times 10,000 ranks stays below.
_PERIOD, _WEIGHTS = 509, 3
# For each size: small messages take hardly any time, and large ones have stable times.
_EFFORT = Effort(width=0.02, least=5, warm_up=2)

Partition = Sequence[Sequence[int]]


@dataclass(frozen=True)
class _Times:
    """The summary of a rank's repetitions for the others: all of them, from thousands of ranks, would be gigabytes.

    Attributes:
        ranks: number in its group.
        fastest: seconds of the fastest repetition.
        median, interval, spread: as in `Timing`.
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
    """The groups of ranks that sum at the same time, by the measurement's name.

    A measurement that would equal another, or that has groups of single ranks only, is left out.
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


def measure_all_reduce(job: MeasuringJob, communicator: Communicator, seconds: float, bar: Progress) -> dict[str, Any]:
    """The document's entries, by name; empty for one rank.

    Groups are made of `communicator`, a communicator of all ranks that nothing else uses. All sizes of a measurement
    take about `seconds`; `bar` is advanced after each measurement.

    Raises:
        WrongAnswerError: a sum is wrong.
        EnvironmentLacksError: memory is short.
    """
    entries: dict[str, Any] = {}
    measured = partitions(job.world.hosts)
    for name, partition in measured.items():
        # On one node, both measurements are the same.
        if name == SYSTEM and measured.get(NODE) == partition:
            entries[SYSTEM] = entries[NODE]
        else:
            entries[name] = _measure(name, partition, job, communicator, seconds)
        bar.advance()
    # With one rank a node, all sums are between nodes.
    if SYSTEM in entries and NODE not in entries:
        entries[NETWORK] = entries[SYSTEM]
    return entries


def _measure(
    name: str, partition: Partition, job: MeasuringJob, communicator: Communicator, seconds: float
) -> dict[str, Any]:
    group = None
    for members in partition:
        mine = communicator.group(members) if len(members) > 1 else None
        group = mine or group
    try:
        table = [_row(times) for times in _sizes(name, job, group, seconds)]
    finally:
        if group:
            group.close()
    ranks = max(len(members) for members in partition)
    return _entry(table, ranks, job, group)


def _sizes(
    name: str, job: MeasuringJob, group: Communicator | None, seconds: float
) -> Iterator[tuple[int, list[_Times]]]:
    """For each size that can be measured in time, the times of all ranks that are in a group.

    Raises:
        EnvironmentLacksError: memory is short.
    """
    room = min(job.gather(available_bytes(job.device, job.ranks_here) // 3))
    sizes = []
    size = _LEAST_BYTES
    while size <= min(_MOST_BYTES, room):
        sizes.append(size)
        size *= _STEP
    if not sizes:
        raise EnvironmentLacksError("allreduce: no memory is left on a host; end other programs")
    share = seconds / len(sizes)
    shortest = math.inf
    for size in sizes:
        timing = _time(name, size, job, group, share)
        everyone = [one for one in job.gather(_Times.of(group.size, timing) if group and timing else None) if one]
        yield size, everyone
        # By the fastest repetitions, since other load does not grow with the message.
        slowest = max(one.fastest for one in everyone)
        shortest = min(shortest, slowest)
        # Prediction for the next size: the same latency, and the rest grows with the size.
        if (shortest + _STEP * (slowest - shortest)) * (_EFFORT.least + _EFFORT.warm_up) > seconds:
            return


def _time(name: str, size: int, job: MeasuringJob, group: Communicator | None, seconds: float) -> Timing | None:
    """Time this rank's all-reduces of `size` bytes, with a checked one before and after; None outside all groups."""
    job.world.barrier()
    if group is None:
        job.require(name, None)
        job.require(name, None)
        return None
    pattern = torch.arange(size // 4, dtype=torch.float32, device=job.device) % _PERIOD + 1
    message = torch.empty_like(pattern)
    job.require(f"{name}, {size} bytes", _sum_error(pattern, message, group))
    message.zero_()
    watch = stopwatch(job.device)
    effort = Effort(_EFFORT.width, _EFFORT.least, seconds, _EFFORT.warm_up)
    # All ranks of a group must repeat equally often, or some would wait for ever.
    timing = repeat(
        lambda: watch(lambda: group.all_reduce(message)), effort, agree=lambda needed: max(group.gather_objects(needed))
    )
    job.require(f"{name}, {size} bytes", _sum_error(pattern, message, group))
    return timing


def _sum_error(pattern: Tensor, message: Tensor, group: Communicator) -> str | None:
    """What is wrong with a sum of whole numbers that differ by element and rank; it must be exact in every element."""
    torch.mul(pattern, group.rank % _WEIGHTS + 1, out=message)
    group.all_reduce(message)
    expected = pattern * sum(rank % _WEIGHTS + 1 for rank in range(group.size))
    wrong = (message != expected).nonzero()
    if not len(wrong):
        return None
    first = int(wrong[0])
    return (
        f"{len(wrong)} of {len(message)} sums by {group.library}, first element {first}: {float(message[first])}, "
        f"expected {float(expected[first])}"
    )


def _row(found: tuple[int, list[_Times]]) -> dict[str, Any]:
    """The table's row of one size, by the median of the slowest rank: only then do all ranks have their sum."""
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


def _entry(
    table: Sequence[dict[str, Any]], ranks: int, job: MeasuringJob, group: Communicator | None
) -> dict[str, Any]:
    best = max(table, key=lambda row: row["bus_bandwidth"])
    measured = [(row["bytes"], row["seconds"]) for row in table]
    link, error = _link(ranks, measured)
    libraries = {name for name in job.gather(group.library if group else None) if name}
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


def _link(ranks: int, measured: Sequence[tuple[int, float]]) -> tuple[dict[str, float] | None, float | None]:
    """Latency and bandwidth of the ring that fits the times, and the error of the fit; None if no ring fits."""
    try:
        cost = fit_ring(ranks, measured)
    except UsageError:
        return None, None
    link = {"latency_seconds": cost.latency_seconds, "bytes_per_second": cost.bytes_per_second}
    return link, fit_error(cost, ranks, measured)


# ----------------------------------------------------------------------------------------------------
# Copies in memory: the core's non-temporal copy or torch's, whichever is faster.


# STREAM's rule: each array is at least four times as large as all last-level caches together.
_CACHES = 4
# For small or unknown caches: so large that page faults and starting threads and kernels take negligible time.
_LEAST_ARRAY_BYTES = 256 << 20
_LINE = 64
# A prime, so that the pattern does not repeat at the same place of a page, a line or a thread's part.
_COPY_PERIOD = 1_000_003


def copy_bytes(caches: int, available: int, ranks_here: int) -> int:
    """Bytes of each of a rank's two arrays: over all ranks of a host four times its caches, if memory allows."""
    size = max(_CACHES * caches // ranks_here, _LEAST_ARRAY_BYTES)
    return min(size, available // 2) // _LINE * _LINE


def measure_copy(job: MeasuringJob, seconds: float, bar: Progress) -> dict[str, Any]:
    """The document's entry: bytes read plus bytes written a second, of one node (as STREAM counts).

    Raises:
        WrongAnswerError: a copy differs from its source.
        EnvironmentLacksError: memory is short.
    """
    caches = last_level_cache_bytes() if job.device.type == "cpu" else 0
    size = min(job.gather(copy_bytes(caches, available_bytes(job.device, job.ranks_here), job.ranks_here)))
    if size == 0:
        raise EnvironmentLacksError("copy: no memory is left on this host; end other programs")
    effort = Effort(seconds=seconds, most_seconds=2 * seconds)
    source = _pattern(size, job.device)
    target = torch.zeros_like(source)
    watch = stopwatch(job.device)
    entries = []
    for name, copy in _ways(source, target, job).items():
        target.zero_()
        timing = job.time(lambda copy=copy: watch(copy), effort)  # type: ignore[misc]
        is_right = torch.equal(source, target)
        job.require(f"copy by {name}", None if is_right else "the copy differs from its source")
        entry = job.entry("bytes/s", 2 * size, timing, share=1 / job.nodes)
        entries.append({**entry, "shape": f"2 arrays of {size} bytes", "call": name, "precision": None})
    bar.advance()
    best = max(entries, key=lambda entry: entry["value"])
    tried = [{"shape": entry["shape"], "call": entry["call"], "value": entry["value"]} for entry in entries]
    return {**best, "verified": True, "last_level_cache_bytes": last_level_cache_bytes() or None, "tried": tried}


def _pattern(size: int, device: torch.device) -> Tensor:
    """Bytes that differ from place to place: whole numbers that start again after `_COPY_PERIOD`."""
    numbers = torch.arange(_COPY_PERIOD, dtype=torch.int32, device=device)
    return numbers.repeat(-(-size // 4 // _COPY_PERIOD))[: size // 4].view(torch.uint8)


def _ways(source: Tensor, target: Tensor, job: MeasuringJob) -> dict[str, Callable[[], object]]:
    ways: dict[str, Callable[[], object]] = {"torch copy_": lambda: target.copy_(source)}
    if job.device.type == "cpu":
        # torch aligns host memory to cache lines, as the core requires.
        from_array, to_array = source.numpy(), target.numpy()
        ways["stream_copy"] = lambda: _core.stream_copy(from_array, to_array, threads=torch.get_num_threads())
    return ways


# ----------------------------------------------------------------------------------------------------
# Input: samples a second that the input pipeline delivers to a consumer that takes them at once.


class Batch(Protocol):
    """The part of `workloads.base.TrainingBatch` that is used here."""

    @property
    def samples(self) -> np.ndarray[Any, np.dtype[np.int64]]: ...
    @property
    def payload(self) -> Any: ...


# `epoch(number)` begins an epoch and yields its batches.
Epochs = Callable[[int], Generator[Batch]]


class Draining:
    """Takes batches, epoch after epoch, in timed rounds of `batches`.

    Batches that are in the ring when an epoch begins were not made at the measured rate: the first `ring` batches of
    each epoch, and one more, are taken but not counted (docs/input.md).
    """

    def __init__(self, epochs: Epochs, ring: int, batches: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._epochs, self._ring, self._batches, self._clock = epochs, ring, batches, clock
        self._number = 0
        self._current: Iterator[Batch] = iter(())
        self.samples = 0

    def round(self) -> float:
        """Take the next round; returns its seconds, and leaves its number of samples in `samples`."""
        while True:
            begin, samples = self._clock(), 0
            for _ in range(self._batches):
                batch = next(self._current, None)
                if batch is None:
                    break
                samples += len(batch.samples)
            else:
                self.samples = samples
                return self._clock() - begin
            self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._number += 1
        self._current = self._epochs(self._number)
        for _ in range(self._ring + 1):
            if next(self._current, None) is None:
                raise EnvironmentLacksError("input: the data set is smaller than the input ring; use a larger one")


def measure_input(
    name: str,
    job: MeasuringJob,
    epochs: Epochs,
    ring: int,
    steps: int,
    seconds: float,
    bar: Progress,
    **more: Any,
) -> dict[str, Any]:
    """The document's entry `input NAME`.

    Args:
        name: `ic` or `ewa`, for messages.
        ring: number of batches in the input ring.
        steps: batches of an epoch.
        seconds: of measuring, about.
        bar: advanced once, at the end.
        more: further keys of the entry.

    Raises:
        EnvironmentLacksError: an epoch is too short.
        WrongAnswerError: images are not finite or blank, or differ when the same epoch is read again.
    """
    # A round is as long as the ring, so that one slow file disturbs one round and not two; in a short epoch it is as
    # long as the epoch allows.
    batches = min(ring, steps - ring - 1)
    if batches < 1:
        raise EnvironmentLacksError(
            f"input {name}: an epoch has {steps} batches, the input ring of {ring} needs at least {ring + 2}: give a "
            "larger data set (--data DIR), or lower accelerator.prefetch_batches or hyperparameters.batch_size"
        )
    job.require(f"input {name}", _input_error(epochs))
    drain = Draining(epochs, ring, batches)
    timing: Timing = job.time(drain.round, Effort(seconds=seconds, warm_up=1, most_seconds=5 * seconds))
    entry = job.entry("samples/s", drain.samples, timing)
    bar.advance()
    return {**entry, "verified": True, **more}


def _input_error(epochs: Epochs) -> str | None:
    """What is wrong with an epoch's first images, which must depend on seed, epoch and sample only."""
    first, again = (_first_images(epochs) for _ in range(2))
    if not torch.isfinite(first).all():
        return "images have values that are not finite"
    if first.min() == first.max():
        return "images are blank"
    return None if torch.equal(first, again) else "images differ when they are read a second time"


def _first_images(epochs: Epochs) -> Tensor:
    """The images of an epoch's first batch: the first part of its payload."""
    batches = epochs(1)
    images: Tensor = next(batches).payload[0]
    # Cloned, since they are a view of memory that the next batch overwrites.
    kept = images.clone()
    batches.close()
    return kept
