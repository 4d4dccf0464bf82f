"""Memory: how much, in which modules, and in huge pages. Modules by dmidecode or the kernel's EDAC driver."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcai500.system.capacity import memory_limit
from hpcai500.system.describe.files import bytes_of, folders, read, read_number
from hpcai500.system.describe.part import Absent, Host, Part
from hpcai500.system.describe.tools import anonymous

_TABLES = Path("sys/firmware/dmi/tables/DMI")
_MEBI = 2**20


def describe_memory(host: Host) -> Part:
    """`memory`: total, swap, the job's limit (None: all), huge pages, modules."""
    meminfo = parse_meminfo(read(host.root / "proc/meminfo") or "")
    modules, raw, reason = _modules(host)
    limit = memory_limit(host.root)
    values = {
        "total_bytes": meminfo.get("MemTotal"),
        "swap_bytes": meminfo.get("SwapTotal"),
        "limit_bytes": limit if limit and limit < (meminfo.get("MemTotal") or limit) else None,
        "huge_pages": huge_pages(host.root),
        "modules": modules,
    }
    absent = [] if modules else [Absent("memory modules", "dmidecode -t memory (as root)", reason)]
    return Part({"memory": values}, {"dmidecode": raw} if raw else {}, absent)


def parse_meminfo(text: str) -> dict[str, int]:
    """Rows of /proc/meminfo that have a unit, in bytes."""
    rows = (line.partition(":") for line in text.splitlines() if line.endswith(" kB"))
    return {name: size for name, _, value in rows if (size := bytes_of(value)) is not None}


def huge_pages(root: Path) -> dict[str, int]:
    """How many huge pages are set aside, by their size in bytes; of each size that this kernel has."""
    sizes = folders(root / "sys/kernel/mm/hugepages", "hugepages-*kB")
    counts = {
        bytes_of(folder.name.removeprefix("hugepages-")): read_number(folder / "nr_hugepages") for folder in sizes
    }
    return {str(size): count for size, count in counts.items() if size and count is not None}


def _modules(host: Host) -> tuple[list[dict[str, Any]] | None, str | None, str]:
    """Modules, dmidecode's output, and why there are none."""
    there = (host.root / _TABLES).exists()
    reason = "its tables may be read by root alone" if there else "this machine has no tables for it"
    if os.access(host.root / _TABLES, os.R_OK):
        answer = host.ask(["dmidecode", "-t", "memory"])
        if answer.text:
            return parse_dmidecode(answer.text), anonymous(answer.text), "it lists none"
        reason = answer.reason or ""
    return edac_modules(host.root), None, reason


def parse_dmidecode(text: str) -> list[dict[str, Any]]:
    """Like modules of `dmidecode -t memory`, counted; empty slots are none."""
    modules = []
    for block in text.split("\n\n"):
        if "\nMemory Device\n" not in f"\n{block}\n":
            continue
        fields = {
            name.strip(): value.strip() for name, _, value in (line.partition(":") for line in block.splitlines())
        }
        size = bytes_of(fields.get("Size", ""))
        if size:
            speed = fields.get("Configured Memory Speed") or fields.get("Configured Clock Speed") or fields.get("Speed")
            modules.append(
                {"bytes": size, "type": fields.get("Type"), "speed": speed, "manufacturer": fields.get("Manufacturer")}
            )
    return _counted(modules)


def edac_modules(root: Path) -> list[dict[str, Any]] | None:
    """The same of the kernel's EDAC driver, which any user may ask; it knows no speed. None without it."""
    modules = []
    for module in (root / "sys/devices/system/edac/mc").glob("mc[0-9]*/dimm[0-9]*"):
        size = read_number(module / "size")
        if size:
            kind = read(module / "dimm_mem_type")
            modules.append({"bytes": size * _MEBI, "type": kind, "speed": None, "manufacturer": None})
    return _counted(modules) or None


def _counted(modules: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    counts = Counter(tuple(module.items()) for module in modules)
    return [{"count": count, **dict(module)} for module, count in sorted(counts.items(), key=str)]
