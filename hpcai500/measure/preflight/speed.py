"""Whether the matrix products of all ranks are right, and as fast as they should be."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hpcai500.machine import Machine
from hpcai500.measure.preflight.everyone import Answer, failures, listed, values
from hpcai500.measure.preflight.product import Product
from hpcai500.methodology.cost.rates import names_of
from hpcai500.system.checks import Check
from hpcai500.system.preflight import GEMM

# Of what the machine reached before, or of the median of all ranks.
ENOUGH = 0.9
# Half the speed is a wrong clock, a wrong power limit or a neighbour, and no run is worth it.
_TOO_LITTLE = 0.5
_CPU_FIX = "look for other processes on these hosts (`top`), their cores (`taskset -p $$`) and their clock (`cpupower`)"
_GPU_FIX = "`nvidia-smi -q -d PERFORMANCE,CLOCK,POWER` on these hosts says what slows them; leave them out until mended"


def judge_products(
    answers: Sequence[Answer[Product]], precision: str, expected_flops: float | None, *, on_cpu: bool
) -> Check:
    """Whether right, and fast.

    Args:
        answers: by rank.
        precision: of the recipe.
        expected_flops: of one rank, as the machine's description has it; without, ranks are held against each other.
        on_cpu: what computes.
    """
    fix = _CPU_FIX if on_cpu else _GPU_FIX
    if failed := failures(GEMM, answers, "cannot multiply matrices", fix):
        return failed
    found = values(answers)
    wrong = [(answer.name, product.wrong_rows) for answer, product in found if product.wrong_rows]
    if wrong:
        name, rows = wrong[0]
        return Check(
            GEMM,
            "fail",
            f"wrong numbers from {listed(name for name, _ in wrong)}: {rows} of {found[0][1].side} rows of a "
            f"product of whole numbers on {name}",
            "do not compute there: have memory and device tested (`hpcai500 self-test` on that host tells more)",
        )
    median = statistics.median(product.flops for _, product in found)
    told = f"right; {_flops(median)} a rank in {precision}"
    reference = median if expected_flops is None else expected_flops
    if expected_flops is None and len(found) == 1:
        return Check(GEMM, "pass", f"{told} (nothing to compare with: --machine, or more ranks)")
    what = "the median" if expected_flops is None else f"what the machine reaches ({_flops(reference)})"
    slow = [(answer, product) for answer, product in found if product.flops < ENOUGH * reference]
    if not slow:
        least = min(product.flops for _, product in found)
        return Check(GEMM, "pass", f"{told}, the slowest at {least / reference:.0%} of {what}")
    slow.sort(key=lambda it: it[1].flops)
    shown = listed(f"{answer.name} at {product.flops / reference:.0%}" for answer, product in slow)
    broken = expected_flops is not None and slow[0][1].flops < _TOO_LITTLE * reference
    return Check(GEMM, "fail" if broken else "warn", f"{told}, but {shown} of {what}", fix)


def expected_flops(machine: Machine, precision: str) -> float | None:
    """Measured matrix products of one accelerator of `machine`, or None."""
    level = machine.node or machine.system
    names = [f"gemm {name}" for name in names_of(precision)]
    ceilings = {name.lower(): value for name, value in level.ceilings.items()} if level else {}
    found = next((ceilings[name] for name in names if name in ceilings), None)
    return found / level.accelerators if found and level else None


def _flops(rate: float) -> str:
    for unit, size in (("PFLOPS", 1e15), ("TFLOPS", 1e12)):
        if rate >= size:
            return f"{rate / size:.3g} {unit}"
    return f"{rate / 1e9:.3g} GFLOPS"
