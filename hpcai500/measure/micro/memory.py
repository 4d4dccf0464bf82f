"""How much memory a measurement may take, and how large the caches are that it must not fit into."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from hpcai500.system.capacity import memory_limit

_ROOT = Path("/")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "": 1}


def available_bytes(device: torch.device, ranks_here: int, root: Path = _ROOT) -> int:
    """Memory that this rank may take on `device`: half of what is free, shared with the other ranks of the host."""
    if device.type == "cuda":
        # What torch keeps for later is free.
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0]) // 2
    meminfo = (root / "proc/meminfo").read_text(encoding="ascii")
    found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    # Kernels older than 3.14 do not estimate it; what is free is less.
    found = found or re.search(r"^MemFree:\s+(\d+) kB", meminfo, re.MULTILINE)
    assert found, "a Linux kernel tells its free memory"
    free = int(found.group(1)) * 1024
    return min(free, memory_limit(root) or free) // 2 // ranks_here


def last_level_cache_bytes(root: Path = _ROOT) -> int:
    """The largest cache of the first processor, and of its twins: one for each that does not share it; 0 if unknown."""
    caches: dict[tuple[int, str], int] = {}
    for folder in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cache/index[0-9]*"):
        parts = [folder / name for name in ("level", "size", "shared_cpu_list", "type")]
        if not all(part.is_file() for part in parts):
            continue
        level, size, shared, kind = (part.read_text(encoding="ascii").strip() for part in parts)
        number = re.fullmatch(r"(\d+)([KMG]?)", size)
        if kind != "Instruction" and number:
            caches[int(level), shared] = int(number.group(1)) * _UNITS[number.group(2)]
    last = max((level for level, _ in caches), default=0)
    return sum(size for (level, _), size in caches.items() if level == last)
