"""Amounts as people read them, in the text of `hpcai500 system`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

UNKNOWN = "unknown"


def binary(size: float | None) -> str:
    """`32 KiB`, `1.5 TiB`: memory and caches."""
    return _scaled(size, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def decimal(amount: float | None, unit: str) -> str:
    """`200 Gb/s`, `2.4 GHz`: rates, frequencies, disks."""
    return _scaled(amount, 1000, tuple(f"{prefix}{unit}" for prefix in ("", "k", "M", "G", "T", "P")))


def _scaled(amount: float | None, base: int, units: tuple[str, ...]) -> str:
    if amount is None:
        return UNKNOWN
    for unit in units[:-1]:
        # What would be shown as 1000 or more is of the next unit.
        if abs(amount) < min(base, 999.5):
            return f"{amount:.3g} {unit}"
        amount /= base
    return f"{amount:.3g} {units[-1]}"


def counted(things: Iterable[str]) -> list[str]:
    """`8 x NVIDIA H100`: like things together, in the order of the first of each."""
    return [f"{count} x {thing}" for thing, count in Counter(things).items()]


def known(*parts: str | None) -> str:
    """The parts that are known, with commas."""
    return ", ".join(part for part in parts if part and UNKNOWN not in part) or UNKNOWN


def switched(value: bool | None) -> str | None:
    """`on`, `off`; None is unknown."""
    return None if value is None else "on" if value else "off"
