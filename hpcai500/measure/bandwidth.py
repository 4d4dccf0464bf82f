"""Measures how fast data moves within a node: copies in memory, samples from the input pipeline."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hpcai500 import _core
from hpcai500.errors import EnvironmentLacksError
from hpcai500.measure.micro import MeasuringJob, available_bytes, last_level_cache_bytes
from hpcai500.measure.timing import Effort, Timing, stopwatch
from hpcai500.progress import Progress

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
