"""How fast the network interfaces of this host say that they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_CLASSES = Path("/sys/class")
_BITS = 8
_MEGA = 1e6


def link_rates(classes: Path = _CLASSES) -> dict[str, float]:
    """Bytes a second of each interface that is up, one way; an adapter's port is `mlx5_0/1`, as in measure.network.

    What is made of others (bonds, bridges) is left out, and so is what does not know its speed (most virtual machines).
    """
    return dict([*_ethernet(classes / "net"), *_infiniband(classes / "infiniband")])


def _ethernet(devices: Path) -> Iterator[tuple[str, float]]:
    for device in sorted(devices.glob("*")):
        megabits, state = _read(device / "speed"), _read(device / "operstate")
        if state in ("up", "unknown") and re.fullmatch(r"[1-9]\d*", megabits) and not any(device.glob("lower_*")):
            yield device.name, int(megabits) * _MEGA / _BITS


def _infiniband(adapters: Path) -> Iterator[tuple[str, float]]:
    for port in sorted(adapters.glob("*/ports/*")):
        # `200 Gb/sec (4X HDR)`, `4: ACTIVE`
        rate, state = re.match(r"([\d.]+) Gb/sec", _read(port / "rate")), _read(port / "state")
        if rate and "ACTIVE" in state:
            yield f"{port.parents[1].name}/{port.name}", float(rate[1]) * 1e9 / _BITS


def _read(path: Path) -> str:
    """Empty where the kernel does not say: reading the speed of an interface that is down is an error."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
