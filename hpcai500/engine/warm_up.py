"""Warm-up before the clock starts: compile or capture, warm up, choose the bucket size, time the ranks.

Its steps are training steps on blank input; the model does not change. If a signal asks to stop, timing ends early, and
the run stops after its first real step.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcai500.comm.communicator import Communicator
from hpcai500.comm.reducer import BYTES_AN_ELEMENT, Reducer, trained
from hpcai500.engine.ranks import Ranks
from hpcai500.engine.updates import Updater
from hpcai500.layers import Communication
from hpcai500.methodology.statistics import LEAST_VALUES
from hpcai500.workloads.base import TrainingBatch

if TYPE_CHECKING:
    from hpcai500.engine.pipeline import StagedModel


# ----------------------------------------------------------------------------------------------------
# The bucket size, chosen by measuring ("grouping layers", V2.0 section 5.1.6).


_MIB = 2**20
_SIZES = (_MIB, 4 * _MIB, 16 * _MIB, 64 * _MIB)
_ROUNDS = 3
# The default of torch's DistributedDataParallel, good on most machines.
USUAL = 25 * _MIB
# Noise of a median of three rounds on a busy machine.
_SAME = 1.05


def bucket_candidates(parameters: Iterable[Tensor]) -> list[int]:
    """Bucket sizes (bytes of fp32 gradients) to measure: those of 1, 4, 16 and 64 MiB below the total, and the total.

    Raises:
        UsageError: no parameter is trained, or one is not float32.
    """
    everything = sum(parameter.numel() for parameter in trained(parameters)) * BYTES_AN_ELEMENT
    return [*(size for size in _SIZES if size < everything), everything]


def choose_bucket_bytes(
    candidates: Sequence[int], measure: Callable[[int], float], communicator: Communicator, *, rounds: int = _ROUNDS
) -> tuple[int, dict[int, float]]:
    """The fastest of `candidates` (bytes), and seconds by candidate; the same on all ranks.

    Of equally fast ones, the nearest to `USUAL` is chosen. Candidates are measured in turn, in `rounds` rounds, so that
    a disturbance of the machine affects all of them. The time of a candidate is that of the slowest rank in each round,
    and the median over rounds. `measure` does a few steps with a bucket size and returns their seconds; all ranks call
    it at the same time.

    Raises:
        RunError: a rank is gone.
    """
    slowest: dict[int, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for candidate in candidates:
            communicator.barrier()
            slowest[candidate].append(max(communicator.gather_objects(measure(candidate))))
    table = {candidate: statistics.median(seconds) for candidate, seconds in slowest.items()}
    # All ranks should have the same table; broadcasting the choice of rank 0 makes sure that they agree.
    found: tuple[int, dict[int, float]] = communicator.broadcast_object((_fastest(table), table))
    return found


def _fastest(table: dict[int, float]) -> int:
    """Of the sizes that are as fast as the fastest, within noise, the nearest to `USUAL`."""
    limit = min(table.values()) * _SAME
    fast = [size for size, seconds in table.items() if seconds <= limit]
    return min(fast, key=lambda size: abs(math.log(size / USUAL)))


# ----------------------------------------------------------------------------------------------------
# The warm-up.


# With longer steps the bucket size is not measured, and one pair of steps is timed.
_LONGEST_STEP_SECONDS = 5.0
_REPEATS = 3
# Steps without and with communication are timed alternately, in `_PAIRS` pairs. If those would take longer than
# `_PAIRS_SECONDS`, the fewest pairs that give an interval of the median are timed.
_PAIRS = 11
_PAIRS_SECONDS = 10.0


@dataclass(frozen=True)
class WarmUpTimes:
    """Results of the warm-up.

    Attributes:
        compile_seconds: of the first step, which compiles, captures and warms caches; 0 if it was not needed.
        bucket_bytes: measured, or the recipe's; None for one rank.
        tuning: median seconds of a step by bucket size; None if the size was not measured.
        alone_seconds: of a step without communication on the slowest rank, best of several; None for one rank.
        together_seconds: likewise of a step with communication.
        efficiencies: for each pair of such steps, the time without communication over the time with it.
    """

    compile_seconds: float
    bucket_bytes: int | None = None
    tuning: dict[int, float] | None = None
    alone_seconds: float | None = None
    together_seconds: float | None = None
    efficiencies: tuple[float, ...] = ()


class WarmUp:
    """Runs blank steps of a run's updater; `staged` is given if the model is cut into stages."""

    def __init__(
        self,
        updater: Updater,
        bare: nn.Module,
        ranks: Ranks,
        settings: Communication,
        staged: StagedModel | None = None,
    ) -> None:
        self._updater, self._ranks, self._settings = updater, ranks, settings
        self._bare = staged.stage if staged else bare
        self._replicas = staged.groups.replicas if staged else ranks.unwatched
        blank = TrainingBatch(np.empty(0, np.int64), 0, updater.workload.blank_payload())
        self._blanks: Iterator[TrainingBatch] = repeat(blank)
        self._is_stopping = False

    def alone(self) -> WarmUpTimes:
        """Do the first step, which compiles code and chooses a GPU's kernels."""
        with self._state_restored():
            return WarmUpTimes(self._first_seconds())

    def with_ranks(self) -> WarmUpTimes:
        """Do the first step, choose the bucket size, and time steps without and with communication.

        Leaves the updater with the reducer for training.

        Raises:
            RunError: another rank is lost.
        """
        with self._state_restored():
            found = WarmUpTimes(self._first_seconds())
            alone = self._slowest(min(self._seconds() for _ in range(_REPEATS)))
            found = self._choose(replace(found, alone_seconds=alone))
            bucket_bytes = found.bucket_bytes
            assert bucket_bytes is not None
            self._set_bucket_bytes(bucket_bytes)
            self._together_seconds()
            found = self._time_pairs(found)
            # The compression errors of blank gradients must not enter the first update.
            self._set_bucket_bytes(bucket_bytes)
            return found

    def with_stages(self) -> WarmUpTimes:
        """Do the first step of all stages; the bucket size is the recipe's, or `USUAL`.

        Stages have different gradients, so one measurement could not choose for all; and no stage can step alone.

        Raises:
            RunError: another rank is lost.
        """
        with self._state_restored():
            found = WarmUpTimes(self._seconds())
            if self._replicas.size == 1:
                return found
            found = replace(found, bucket_bytes=self._settings.bucket_bytes or USUAL)
            assert found.bucket_bytes is not None
            self._set_bucket_bytes(found.bucket_bytes)
            self._seconds()
            # The compression errors of blank gradients must not enter the first update.
            self._set_bucket_bytes(found.bucket_bytes)
            return found

    def with_shards(self) -> WarmUpTimes:
        """Do the first step of a sharded model, which cannot step without communication.

        Raises:
            RunError: another rank is lost.
        """
        with self._state_restored():
            return WarmUpTimes(self._seconds())

    def _time_pairs(self, found: WarmUpTimes) -> WarmUpTimes:
        """Time steps without and with communication in pairs, so that a disturbance of the machine affects both."""
        assert found.alone_seconds is not None
        pairs = _PAIRS if 2 * _PAIRS * found.alone_seconds <= _PAIRS_SECONDS else LEAST_VALUES
        if found.alone_seconds > _LONGEST_STEP_SECONDS:
            pairs = 1
        reducer, taken = self._updater.reducer, []
        for _ in range(pairs):
            for self._updater.reducer in (None, reducer):
                self._ranks.world.barrier()
                taken.append(self._together_seconds() if self._updater.reducer else self._seconds())
            if self._is_stopping:
                break
        slowest = np.max(self._ranks.world.gather_objects(taken), axis=0)
        alone, together = slowest[::2], slowest[1::2]
        return replace(
            found,
            alone_seconds=float(alone.min()),
            together_seconds=float(together.min()),
            efficiencies=tuple((alone / together).tolist()),
        )

    def _choose(self, found: WarmUpTimes) -> WarmUpTimes:
        if self._settings.bucket_bytes:
            return replace(found, bucket_bytes=self._settings.bucket_bytes)
        assert found.alone_seconds is not None
        if found.alone_seconds > _LONGEST_STEP_SECONDS:
            return replace(found, bucket_bytes=USUAL)

        def measure(bucket_bytes: int) -> float:
            if self._is_stopping:
                return 0.0
            self._set_bucket_bytes(bucket_bytes)
            return self._together_seconds()

        choice, table = choose_bucket_bytes(bucket_candidates(self._bare.parameters()), measure, self._ranks.world)
        if self._is_stopping:
            return replace(found, bucket_bytes=USUAL)
        return replace(found, bucket_bytes=choice, tuning=table)

    def _set_bucket_bytes(self, bucket_bytes: int) -> None:
        if self._updater.reducer is None:
            self._updater.reducer = Reducer(
                self._bare.parameters(),
                self._replicas,
                self._settings,
                bucket_bytes=bucket_bytes,
                threads=torch.get_num_threads(),
                passes_communicate=self._updater.passes_communicate,
            )
        self._updater.reducer.set_bucket_bytes(bucket_bytes)

    def _first_seconds(self) -> float:
        """Duration of graph capture and the first step on this rank, before any hook is set."""
        start = time.perf_counter()
        updater = self._updater
        if updater.graphs:
            payload = next(self._blanks).payload
            updater.graphs.capture(lambda: updater.workload.loss(self._bare, payload), updater.precision)
        self._seconds()
        return time.perf_counter() - start

    def _seconds(self) -> float:
        """Duration of one blank step on this rank, without the optimizer's step."""
        start = time.perf_counter()
        self._updater.gradients(0, self._blanks)
        _finish(next(self._bare.parameters()).device)
        return time.perf_counter() - start

    def _together_seconds(self) -> float:
        """Duration of a step with communication, in which all ranks agree whether to stop the run."""
        seconds = self._seconds()
        self._is_stopping = self._updater.stop.agreed is not None
        return seconds

    def _slowest(self, seconds: float) -> float:
        slowest: float = max(self._ranks.world.gather_objects(seconds))
        return slowest

    @contextmanager
    def _state_restored(self) -> Iterator[None]:
        before = {name: buffer.clone() for name, buffer in self._bare.named_buffers()}
        self._updater.model.train()
        try:
            yield
        finally:
            self._updater.optimizer.zero_grad(set_to_none=True)
            with torch.no_grad():
                for name, buffer in self._bare.named_buffers():
                    buffer.copy_(before[name])


def facts(found: WarmUpTimes) -> dict[str, Any]:
    """The value of the record's event `rehearsal`."""
    return {
        "bucket_bytes": found.bucket_bytes,
        "step_seconds_by_bucket_bytes": {str(size): seconds for size, seconds in (found.tuning or {}).items()},
    }


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
