"""No epoch and no evaluation was faster than the devices of the run can be."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from hpcai500.methodology.integrity.speed import (
    MOST_OF_CEILING,
    ceiling,
    ceiling_faults,
    evaluation_rate,
    fast_epochs,
    fast_steps,
    training_rate,
)
from hpcai500.methodology.integrity.values import Ceilings, Flops, ParallelEfficiency
from hpcai500.methodology.scaling import MOST_EFFICIENCY
from hpcai500.results.verification.finding import IMPLAUSIBLE, Finding
from hpcai500.results.verification.guard import fail, note, warning
from hpcai500.results.verification.records.run import Run, judged

_NAME, _USUAL = "speed", "usual-speed"


def check_speed(run: Run) -> Iterator[Finding]:
    """Rates of all epochs and evaluations with the ceilings that were measured in the run, and with each other."""
    told = run.log.values(Ceilings, "ceilings")
    yield from judged("ceilings", ceiling_faults(told, run.field("accelerator", "precision")), fail)
    if len(told) < len(run.log.companies):
        what = f"ceilings were measured before {len(told)} of {len(run.log.companies)} starts"
        yield fail("ceilings", what) if run.log.leaves_evidence else warning("ceilings", f"{what}: an older version")
    yield from _with_ceiling(run, ceiling(told))
    rehearsed = run.log.values(ParallelEfficiency, "parallel_efficiency")
    yield from judged(_USUAL, [*fast_epochs(run.epochs), *fast_steps(run.epochs, rehearsed)], warning)
    yield from judged(IMPLAUSIBLE, _too_efficient(rehearsed), warning)


def _too_efficient(rehearsed: Sequence[ParallelEfficiency]) -> Iterator[str]:
    """Many ranks that are faster, each for itself, than one alone: then that one was slowed."""
    for number, one in enumerate(rehearsed, 1):
        middle = statistics.median(one.efficiencies) if one.efficiencies else 0.0
        if middle > MOST_EFFICIENCY:
            what = f"parallel efficiency {middle:.3f} is above {MOST_EFFICIENCY:g}"
            yield f"start {number}: {what}: the one-rank step may have been slowed"


def _with_ceiling(run: Run, most: float | None) -> Iterator[Finding]:
    counted = run.log.values(Flops, "flops")[-1]
    rates = [(f"epoch {one.done.epoch}", training_rate(one, counted.per_sample)) for one in run.epochs]
    rates += [(f"evaluation {one.done.epoch}", evaluation_rate(one, counted.forward)) for one in run.epochs]
    if not most or not rates:
        return
    what, rate = max(rates, key=lambda pair: pair[1])
    ratio = rate / most
    evidence = f"{what}, the fastest, ran at {rate:.4g} FLOPS, {ratio:.3g} of the {most:.4g} measured in the same run"
    if not ratio <= MOST_OF_CEILING:
        yield fail(_NAME, f"{evidence}; no convolution exceeds {MOST_OF_CEILING}")
    elif ratio > 1:
        yield warning(_NAME, f"{evidence}; Winograd's convolutions reach up to {MOST_OF_CEILING} in fp32")
    else:
        yield note(_NAME, evidence)
