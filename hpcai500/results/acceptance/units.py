"""Units that a contract may name: those of the metrics, and their multiples by name."""

from __future__ import annotations

from hpcai500.results.report.words import duration
from hpcai500.results.show import PREFIXES, scaled

_MULTIPLES = {prefix: factor for factor, prefix in PREFIXES}
# Unit of a metric -> every name that a contract may give instead, and how many of the metric's own it is.
_NAMES: dict[str, dict[str, float]] = {
    "FLOPS": {f"{prefix}FLOPS": factor for prefix, factor in _MULTIPLES.items()},
    "FLOPS/W": {f"{prefix}FLOPS/W": factor for prefix, factor in _MULTIPLES.items()},
    "bytes/s": {"B/s": 1.0, **{f"{prefix}B/s": factor for prefix, factor in _MULTIPLES.items()}},
    "J": {"kJ": 1e3, "MJ": 1e6, "GJ": 1e9, "kWh": 3.6e6, "MWh": 3.6e9},
    "W": {"kW": 1e3, "MW": 1e6},
    "s": {"min": 60.0, "h": 3600.0},
    "fraction": {"%": 0.01},
    "images/s": {},
    "samples/s": {},
}


def unit_names(base: str) -> list[str]:
    """Every name that a contract may give a unit by, the metric's own first."""
    return [base, *_NAMES[base]]


def unit_factor(name: str, base: str) -> float | None:
    """How many `base` one `name` is; None if it is no multiple of it."""
    return 1.0 if name == base else _NAMES[base].get(name)


def shown(value: float, base: str, unit: str | None = None) -> str:
    """`value`, which is in `base`, for people: in the `unit` of the contract, or scaled to what is easily read."""
    if unit is not None:
        factor = unit_factor(unit, base)
        assert factor is not None
        return f"{plain(value / factor)}{_behind(unit)}"
    if base == "fraction":
        return f"{plain(value * 100)} %"
    if base == "s":
        return duration(value)
    if base in ("images/s", "samples/s"):
        return f"{plain(value)} {base}"
    return scaled(value, "B/s" if base == "bytes/s" else base)


def plain(value: float) -> str:
    """Four digits, or all before the point: `58,900`, `1.472`."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:,.4g}"


def _behind(unit: str) -> str:
    return "" if unit == "fraction" else f" {unit}"
