"""What a roofline says of a run, in sentences."""

from __future__ import annotations

from typing import Protocol

from hpcai500.methodology.roofline import Move, Roof, Workload, ridge_point
from hpcai500.results.show import PREFIXES

_DOUBLE = 2.0
_ROUNDING = 1e-9


class Bound(Protocol):
    """What binds a point before anything is moved."""

    @property
    def binding(self) -> str:
        """The ceiling that binds."""

    @property
    def attainable_flops(self) -> float:
        """What it allows."""


def precise(value: float, unit: str) -> str:
    """`25990000000000.0, "FLOPS"` -> `25.99 TFLOPS`: with the four digits that papers print."""
    factor, prefix = next(((f, p) for f, p in PREFIXES if abs(value) >= f), (1.0, ""))
    return f"{value / factor:.4g} {prefix}{unit}"


def flops_per_byte(coi: float) -> str:
    """A COI for people: `67.4 kFLOP/B`."""
    return precise(coi, "FLOP/B")


def point_sentence(name: str, workload: Workload, roof: Roof, flops: float) -> str:
    """What binds a run, and how near it comes."""
    coi, attainable = workload.coi, roof.attainable(workload.coi)
    allows = precise(attainable, "FLOPS")
    if roof.link is None or coi is None:
        limit = f"communicates nothing and is bound by computation: {roof.flops.name} allows {allows}"
    elif roof.kind(coi) == "communication":
        rate = precise(roof.link.rate, "B/s")
        limit = (
            f"is bound by communication: at a COI of {flops_per_byte(coi)} {roof.link.name} ({rate}) allows {allows}"
        )
    else:
        ridge = flops_per_byte(ridge_point(roof.flops.rate, roof.link.rate))
        limit = (
            f"is bound by computation: {roof.flops.name} allows {allows}, and its COI of {flops_per_byte(coi)} is "
            f"above the ridge point with {roof.link.name} ({ridge})"
        )
    share = flops / attainable
    doubt = ": more than its bound, so that a ceiling was measured too low or is another machine's" if share > 1 else ""
    return f"{name} {limit}; it attains {precise(flops, 'FLOPS')}, {share:.0%} of that{doubt}"


def move_sentence(move: Move, point: Bound) -> str:
    """What one change does: `fp16 compression doubles COI to X and lifts the bound from Y to Z; then W still binds`."""
    before, after = point.attainable_flops, move.attainable_flops
    changes = f"{move.change}{_of_coi(move)}"
    if after <= before * (1 + _ROUNDING):
        return f"{changes} lifts no bound: {move.binding} binds as before"
    still = "still binds" if move.binding == point.binding else "binds"
    bounds = f"from {precise(before, 'FLOPS')} to {precise(after, 'FLOPS')}"
    return f"{changes} lifts the bound {bounds}; then {move.binding} {still}"


def _of_coi(move: Move) -> str:
    if move.coi is None or move.coi_factor == 1:
        return ""
    if abs(move.coi_factor - _DOUBLE) < _ROUNDING:
        return f" doubles COI to {flops_per_byte(move.coi)} and"
    return f" multiplies COI by {move.coi_factor:.3g}, to {flops_per_byte(move.coi)}, and"
