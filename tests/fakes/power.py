"""What stands in tests for what cannot be here: a powercap tree, a management controller, a driver, odd sources."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hpcai500.system.power import Reading, ReadingError, Scope
from hpcai500.system.power_reading import Parts

# As ipmitool 1.8.18 prints it.
IPMI_ANSWER = """
    Instantaneous power reading:                   {watts} Watts
    Minimum during sampling period:                  2 Watts
    Maximum during sampling period:                486 Watts
    Average power reading over sample period:      208 Watts
    IPMI timestamp:                           Thu Mar 14 10:20:30 2024
    Sampling period:                          00000001 Seconds.
    Power reading state is:                   {state}

"""


class SyntheticPowercap:
    """A folder with the layout of the kernel's /sys/class/powercap, whose counters the test moves."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "intel-rapl").mkdir(parents=True)

    def zone(self, zone: str, name: str, microjoules: int = 0, size: int = 262_143_328_850) -> Path:
        folder = self.root / zone
        folder.mkdir()
        (folder / "name").write_text(f"{name}\n")
        (folder / "max_energy_range_uj").write_text(f"{size}\n")
        (folder / "energy_uj").write_text(f"{microjoules}\n")
        return folder

    def set(self, zone: str, microjoules: int) -> None:
        (self.root / zone / "energy_uj").write_text(f"{microjoules}\n")


def fake_ipmitool(folder: Path, body: str) -> dict[str, str]:
    """An environment whose PATH leads to an ipmitool that runs `body` (bash)."""
    folder.mkdir(exist_ok=True)
    tool = folder / "ipmitool"
    tool.write_text(f"#!/bin/bash\n{body}\n")
    tool.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def answering_ipmitool(folder: Path, watts: int = 214, state: str = "activated") -> dict[str, str]:
    answer = IPMI_ANSWER.format(watts=watts, state=state)
    return fake_ipmitool(folder, f'[ "$*" = "dcmi power reading" ] || exit 9\ncat <<END{answer}END')


class ScriptedSource:
    """A source that answers what the test says, or fails, or hangs."""

    name = "scripted"
    scope: Scope = "node"
    parts: Parts | None = "node"
    covers = "nothing real"
    interval_seconds = 0.01
    patience_seconds = 0.05

    def __init__(self, *answers: Reading | str | Callable[[], Reading], devices: tuple[str, ...] = ()) -> None:
        self._answers: Iterator[Any] = iter(answers)
        self._last: Any = None
        self.devices = devices
        # Power caps at each look at them; the last stays.
        self.limits: list[dict[str, float]] = [{}]
        self.asked = 0
        self.closed = False
        self.asked_enough = threading.Event()
        self.enough = len(answers)

    def read(self) -> Reading:
        self._last = next(self._answers, self._last)
        self.asked += 1
        if self.asked >= self.enough:
            self.asked_enough.set()
        if isinstance(self._last, str):
            raise ReadingError(self._last)
        return self._last if isinstance(self._last, Reading) else self._last()

    def caps(self) -> dict[str, float]:
        return dict(self.limits.pop(0) if len(self.limits) > 1 else self.limits[0])

    def close(self) -> None:
        self.closed = True


class SyntheticPmCounters:
    """A folder with the layout of a Cray EX node's /sys/cray/pm_counters, whose controller the test moves."""

    def __init__(self, root: Path, accelerators: int = 4) -> None:
        self.root = root
        self.scans = 0
        root.mkdir()
        files = {
            "power": "1100 W", "energy": "91000000 J", "power_cap": "0 W", "cpu_power": "220 W", "cpu_energy": "1 J",
            "cpu_temp": "55 C", "memory_power": "80 W", "memory_energy": "1 J", "generation": "37",
            "startup": "1700000000000000", "raw_scan_hz": "10", "version": "2",
        }  # fmt: skip
        for number in range(accelerators):
            files |= {
                f"accel{number}_power": "190 W",
                f"accel{number}_energy": "1 J",
                f"accel{number}_power_cap": "560 W",
            }
        self.set(**files)

    def set(self, **values: str) -> None:
        """Write values as one scan of the controller does: with its time, and `freshness` one higher."""
        self.scans += 1
        for name, value in (values | {"freshness": str(1000 + self.scans)}).items():
            has_time = name not in ("freshness", "generation", "startup", "raw_scan_hz", "version")
            (self.root / name).write_text(
                f"{value} {1700000000000000 + 100000 * self.scans} us\n" if has_time else f"{value}\n"
            )


class SyntheticHwmon:
    """A folder with the layout of /sys/class/hwmon; `chip` adds one, whose files the test then changes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()

    def chip(self, name: str, **files: str | int) -> Path:
        folder = self.root / f"hwmon{len(list(self.root.iterdir()))}"
        folder.mkdir()
        for file, value in ({"name": name} | files).items():
            (folder / file).write_text(f"{value}\n")
        return folder


class MockAmdSmi:
    """The module amdsmi, as its reference describes it: each function takes a handle and returns a dictionary.

    Args:
        devices: what `amdsmi_get_power_info` says of each.
        counts: whether they count energy, in units of 15.259 microjoules.
    """

    class AmdSmiException(Exception):  # noqa: N818 - the library's own name
        """What the library raises where it cannot answer."""

    def __init__(self, devices: tuple[dict[str, Any], ...], *, counts: bool = True) -> None:
        self.devices = devices
        self.counts = [1_000_000 if counts else 0] * len(devices)
        self.cap = 750_000_000
        self.fails = False
        self.opened = 0

    def amdsmi_init(self) -> None:
        self.opened += 1

    def amdsmi_shut_down(self) -> None:
        self.opened -= 1

    def amdsmi_get_processor_handles(self) -> list[int]:
        return list(range(len(self.devices)))

    def amdsmi_get_power_info(self, handle: int) -> dict[str, Any]:
        if self.fails:
            raise self.AmdSmiException("device is busy")
        return {"gfx_voltage": "N/A", "power_limit": 750} | self.devices[handle]

    def amdsmi_get_energy_count(self, handle: int) -> dict[str, Any]:
        return {"energy_accumulator": self.counts[handle], "counter_resolution": 15.259, "timestamp": 1}

    def amdsmi_get_power_cap_info(self, handle: int) -> dict[str, Any]:
        return {"power_cap": self.cap, "max_power_cap": 750_000_000}
