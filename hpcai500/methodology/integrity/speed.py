"""Whether the devices of a run could have done what it tells in the time that it tells."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from hpcai500.methodology.integrity.passes import Pass
from hpcai500.methodology.integrity.values import Ceilings, ParallelEfficiency

# Winograd's F(4x4, 3x3) does a convolution of 144 multiplications with 36, of 16 outputs (Lavin and Gray 2015): 4 times
# fewer, less what its transforms cost; F(2x2, 3x3), which libraries use in training, 2.25 times fewer.
MOST_OF_CEILING = 2.25
_LEAST_EPOCHS = 5
_MUCH_FASTER = 0.8
_FASTER_SECONDS = 1.0
# A rehearsed step has its input in memory and no loop around it: a real one is hardly ever faster.
_REHEARSED = 0.5
_LEAST_STEP_SECONDS = 0.01


def training_rate(one: Pass, flops_per_sample: float) -> float:
    """Operations a second of an epoch's training, in the time that the clock has for it."""
    return _rate(one.trained * flops_per_sample, one.elapsed_seconds)


def evaluation_rate(one: Pass, forward_flops: float) -> float:
    """Operations a second of its evaluation; 0 where there was none."""
    samples = one.evaluation.samples if one.evaluation else 0
    return _rate(samples * forward_flops, one.evaluation_elapsed_seconds)


def ceiling(told: Sequence[Ceilings]) -> float | None:
    """The most that all ranks reach together, in the best of the run's processes."""
    return max((one.flops for one in told), default=None)


def ceiling_faults(told: Sequence[Ceilings], precision: str) -> Iterator[str]:
    """Where ceilings are not those of the run, or no sum."""
    for one in told:
        if one.precision != precision:
            yield f"ceilings were measured in {one.precision}, the run computes in {precision}"
        if not one.flops >= one.slowest_flops * one.ranks * (1 - 1e-9):
            yield f"{one.ranks} ranks of {one.slowest_flops:.4g} FLOPS at least are told to reach {one.flops:.4g}"


def fast_epochs(passes: Sequence[Pass]) -> Iterator[str]:
    """Epochs that were much faster than the usual one of the run."""
    if len(passes) < _LEAST_EPOCHS:
        return
    usual = statistics.median(one.elapsed_seconds / max(one.done.steps, 1) for one in passes)
    for one in passes:
        seconds, expected = one.elapsed_seconds, usual * one.done.steps
        if seconds < _MUCH_FASTER * expected and expected - seconds > _FASTER_SECONDS:
            yield f"epoch {one.done.epoch} took {seconds:.1f} s; the median of the run is {expected:.1f} s"


def fast_steps(passes: Sequence[Pass], rehearsed: Sequence[ParallelEfficiency]) -> Iterator[str]:
    """A run whose steps take less than half of what they took in the rehearsal before the clock."""
    steps = sum(one.done.steps for one in passes)
    if not rehearsed or not steps:
        return
    mean = sum(one.elapsed_seconds for one in passes) / steps
    before = rehearsed[-1].step_seconds
    if mean < _REHEARSED * before and before > _LEAST_STEP_SECONDS:
        yield f"a step took {mean:.4g} s on average; in the rehearsal, without reading data, {before:.4g} s"


def _rate(flops: float, seconds: float) -> float:
    return flops / seconds if seconds > 0 else (float("inf") if flops else 0.0)
