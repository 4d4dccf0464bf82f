"""The bucket size, chosen by measuring before the clock starts ("grouping layers", V2.0 section 5.1.6)."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from hpcai500.comm.base import Communicator
from hpcai500.comm.buckets import BYTES_AN_ELEMENT, trained

_MIB = 2**20
_SIZES = (_MIB, 4 * _MIB, 16 * _MIB, 64 * _MIB)
_ROUNDS = 3
# What other libraries settled on (torch's DistributedDataParallel): good on most machines.
USUAL = 25 * _MIB
# Medians of three rounds on a busy machine differ by as much without a reason.
_SAME = 1.05


def bucket_candidates(parameters: Iterable[Tensor]) -> list[int]:
    """Bucket sizes (bytes of fp32 gradients) worth measuring: 1, 4, 16 and 64 MiB where less than all, and all in one.

    Raises:
        UsageError: no parameter is trained, or one is not float32.
    """
    everything = sum(parameter.numel() for parameter in trained(parameters)) * BYTES_AN_ELEMENT
    return [*(size for size in _SIZES if size < everything), everything]


def choose_bucket_bytes(
    candidates: Sequence[int], measure: Callable[[int], float], communicator: Communicator, *, rounds: int = _ROUNDS
) -> tuple[int, dict[int, float]]:
    """The fastest of `candidates`, of equally fast ones the most usual; the same on all ranks.

    Candidates are measured in turn, `rounds` times over, so that whatever else the machine does meets all alike; what
    counts is the slowest rank of each round, and the median over rounds.

    Args:
        candidates: bucket sizes in bytes.
        measure: does a few steps with a bucket size and returns their seconds; called by all ranks at the same time.
        communicator: all ranks.
        rounds: measurements of each candidate.

    Returns:
        The choice, and seconds by candidate.

    Raises:
        RunError: a rank is gone.
    """
    slowest: dict[int, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for candidate in candidates:
            communicator.barrier()
            slowest[candidate].append(max(communicator.gather_objects(measure(candidate))))
    table = {candidate: statistics.median(seconds) for candidate, seconds in slowest.items()}
    # All have the same table, as far as libraries deliver what they are given; what follows must agree for certain.
    found: tuple[int, dict[int, float]] = communicator.broadcast_object((_fastest(table), table))
    return found


def _fastest(table: dict[int, float]) -> int:
    """Of the sizes that are as fast as the fastest, as far as a few steps can tell, the most usual one."""
    limit = min(table.values()) * _SAME
    fast = [size for size, seconds in table.items() if seconds <= limit]
    return min(fast, key=lambda size: abs(math.log(size / USUAL)))
