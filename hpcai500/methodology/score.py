"""Valid FLOPS and its parts (V2.0 section 4.4.1)."""

from __future__ import annotations

import math

from hpcai500.errors import UsageError


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise UsageError(what)


def flops_rate(samples: int, flops_per_sample: float, seconds: float) -> float:
    """FLOPS = samples x FLOPs per sample / seconds (V2.0 section 7.2).

    Args:
        samples: samples trained on, each counted once an epoch; padding is not counted.
        flops_per_sample: floating-point operations of one training sample, forward and backward.
        seconds: from the first batch read to the end of the target epochs (V2.0 section 5.3.2).
    """
    _require(samples >= 0, f"samples: expected 0 or more, got {samples}")
    _require(flops_per_sample >= 0, f"flops_per_sample: expected 0 or more, got {flops_per_sample}")
    _require(seconds > 0 and math.isfinite(seconds), f"seconds: expected more than 0, got {seconds}")
    return samples * flops_per_sample / seconds


def penalty_coefficient(achieved_quality: float, target_quality: float, exponent: int) -> float:
    """(achieved quality / target quality)^n (V2.0, equation 2): below 1 for a missed target, above for a passed one."""
    _require(0 <= achieved_quality <= 1, f"achieved_quality: expected 0 to 1, got {achieved_quality}")
    _require(0 < target_quality <= 1, f"target_quality: expected more than 0, at most 1, got {target_quality}")
    _require(exponent >= 1, f"exponent: expected a positive integer, got {exponent}")
    return float((achieved_quality / target_quality) ** exponent)


def valid_flops(flops: float, coefficient: float) -> float:
    """VFLOPS = FLOPS x penalty coefficient (V2.0, equation 1)."""
    _require(
        flops >= 0 and coefficient >= 0, f"expected FLOPS and coefficient of 0 or more, got {flops}, {coefficient}"
    )
    return flops * coefficient


def per_watt(valid_flops_rate: float, mean_watts: float) -> float:
    """VFLOPS per watt = VFLOPS / mean watts of the run (V2.0 section 4.4.1)."""
    _require(mean_watts > 0, f"mean_watts: expected more than 0, got {mean_watts}")
    return valid_flops_rate / mean_watts
