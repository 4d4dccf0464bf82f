"""File systems of the folders that a run reads and writes, and the disks of the node."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcai500.files import nearest
from hpcai500.system.describe.files import chosen, folders, read, read_number
from hpcai500.system.describe.part import Absent, Host, Part

_SECTOR_BYTES = 512
# Options by which network file systems are told who mounts them; `<hidden>` by some, not by all.
_PRIVATE = re.compile(r"^(\w*(?:pass|secret|cred|key|token|user|domain)\w*)=.*$", re.IGNORECASE)
# Overlays of containers list every layer.
_LONGEST_OPTION = 200
_VIRTUAL_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd")


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo."""

    point: str
    type: str
    source: str
    options: tuple[str, ...]


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


def parse_mounts(text: str) -> list[Mount]:
    """All mounts of /proc/self/mountinfo, in the order in which they were made."""
    found = []
    for line in text.splitlines():
        # Optional fields end with a dash (proc(5)).
        before, _, after = line.partition(" - ")
        head, tail = before.split(), after.split(" ")
        if len(head) < 6 or len(tail) < 3:
            continue
        options = dict.fromkeys([*head[5].split(","), *tail[2].split(",")])
        # Before an @ stands who mounts it (sshfs, Ceph).
        source = re.sub(r"^[^/:@]+@", "", _plain(tail[1]))
        found.append(Mount(_plain(head[4]), tail[0], source, tuple(map(public, options))))
    return found


def mount_of(path: Path, mounts: list[Mount]) -> Mount | None:
    """The mount that `path`, absolute and free of links, lies in: of the longest, the last."""
    holding = [mount for mount in mounts if path.is_relative_to(mount.point)]
    return max(enumerate(holding), key=lambda one: (len(Path(one[1].point).parts), one[0]))[1] if holding else None


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


def public(option: str) -> str:
    """A mount's option without what may be secret in it."""
    return _PRIVATE.sub(r"\1=[left out]", option)[:_LONGEST_OPTION]


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


def _plain(text: str) -> str:
    r"""Names in mountinfo have spaces as `\040`."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), text)
