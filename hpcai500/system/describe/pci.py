"""The PCI Express link of a device: how wide and fast it is, and could be."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hpcai500.system.describe.files import read, read_number

# Bytes a second and lane in each direction, after encoding (8b/10b, then 128b/130b, then FLITs), by transfers a second.
_LANE_BYTES = {2.5: 250e6, 5.0: 500e6, 8.0: 8e9 / 8 * 128 / 130, 16.0: 16e9 / 8 * 128 / 130, 32.0: 32e9 / 8 * 128 / 130,
               64.0: 64e9 / 8 * 242 / 256}  # fmt: skip
PCI_DEVICES = Path("sys/bus/pci/devices")
_GENERATIONS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}


def pci_facts(root: Path, address: str | None) -> dict[str, Any]:
    """`pci` (address) and `pcie` (link) of the device at `address`, such as `0000:81:00.0`; None where it has none."""
    if address is None or not re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", address):
        return {"pci": None, "pcie": None}
    folder = root / PCI_DEVICES / address
    width, widest = read_number(folder / "current_link_width"), read_number(folder / "max_link_width")
    speed, fastest = (_transfers(read(folder / f"{name}_link_speed")) for name in ("current", "max"))
    known = any(value is not None for value in (width, widest, speed, fastest))
    link = {
        "width": width,
        "max_width": widest,
        "transfers_per_second": speed,
        "max_transfers_per_second": fastest,
        "bytes_per_second": link_bytes(fastest, width),
    }
    return {"pci": address, "pcie": link if known else None}


def numa_of(device: Path) -> int | None:
    """The NUMA node of the device whose folder this is; None where the firmware does not say (-1)."""
    node = read_number(device / "numa_node")
    return node if node is not None and node >= 0 else None


def link_bytes(transfers_per_second: float | None, width: int | None) -> float | None:
    """What a link of `width` lanes carries in one direction; speeds sink while a device idles, widths do not."""
    lane = _LANE_BYTES.get(transfers_per_second / 1e9) if transfers_per_second else None
    return lane * width if lane and width else None


def generation_bytes(generation: int | None, width: int | None) -> float | None:
    """The same by generation of PCI Express, as NVML tells it."""
    gigatransfers = _GENERATIONS.get(generation) if generation else None
    return link_bytes(gigatransfers * 1e9, width) if gigatransfers else None


def _transfers(text: str | None) -> float | None:
    """`16.0 GT/s PCIe`."""
    found = re.match(r"([\d.]+) GT/s", text or "")
    return float(found.group(1)) * 1e9 if found else None
