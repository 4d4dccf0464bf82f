"""File systems of the folders that a run reads and writes, and the disks of the node."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcai500.files import nearest
from hpcai500.system.describe.files import chosen, folders, read, read_number
from hpcai500.system.describe.part import Absent, Host, Part
from hpcai500.system.mounts import Mount, mount_of, parse_mounts

_SECTOR_BYTES = 512
_VIRTUAL_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd")


def describe_storage(host: Host, places: Mapping[str, Path | None]) -> Part:
    """`file_systems` of `places` (None where a run has no such folder), and `disks`."""
    mounts = parse_mounts(read(host.root / "proc/self/mountinfo") or "")
    systems: dict[str, dict[str, Any] | None] = {}
    absent = []
    for name, path in places.items():
        try:
            systems[name] = file_system(path, mounts) if path else None
        except OSError as error:
            systems[name] = None
            absent.append(Absent(f"file system of {path}", "statvfs", error.strerror or str(error)))
    return Part({"file_systems": systems, "disks": disks(host.root)}, absent=absent)


def file_system(path: Path, mounts: list[Mount]) -> dict[str, Any]:
    """Type, size and options of what `path`, or the nearest folder above it, lies on."""
    folder = nearest(path).resolve()
    mount, size = mount_of(folder, mounts), os.statvfs(folder)
    return {
        "path": str(path.absolute()),
        "type": mount.type if mount else None,
        "mount_point": mount.point if mount else None,
        "source": mount.source if mount else None,
        "options": list(mount.options) if mount else None,
        "total_bytes": size.f_blocks * size.f_frsize,
        "free_bytes": size.f_bavail * size.f_frsize,
        "block_bytes": size.f_bsize,
    }


def disks(root: Path) -> list[dict[str, Any]]:
    """Block devices that are hardware."""
    found = []
    for folder in folders(root / "sys/block", "*"):
        sectors = read_number(folder / "size")
        if folder.name.startswith(_VIRTUAL_DISKS) or not sectors:
            continue
        found.append(
            {
                "name": folder.name,
                "model": read(folder / "device/model"),
                "bytes": sectors * _SECTOR_BYTES,
                "rotates": read(folder / "queue/rotational") == "1",
                "scheduler": chosen(read(folder / "queue/scheduler")),
                "read_ahead_bytes": (read_number(folder / "queue/read_ahead_kb") or 0) * 1024 or None,
            }
        )
    return found
