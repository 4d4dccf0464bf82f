"""Processors, caches and NUMA nodes: by lscpu, and by /sys where lscpu is too old for a part of it."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from hpcai500.system.describe.files import bytes_of, folders, read, read_number
from hpcai500.system.describe.part import Absent, Host, Part


def describe_processor(host: Host) -> Part:
    """`cpu` (lscpu's own fields), `processor`, `caches`, `numa`."""
    raw, absent = {}, []
    listing, cache_listing = host.ask(["lscpu", "-J"]), host.ask(["lscpu", "-C", "-J"])
    fields = parse_lscpu(listing.text) if listing.text else None
    if listing.text:
        raw["lscpu"] = listing.text
    else:
        absent.append(Absent("processors", "lscpu (util-linux)", listing.reason or ""))
    caches = parse_caches(cache_listing.text) if cache_listing.text else caches_of(host.root)
    if cache_listing.text:
        raw["lscpu caches"] = cache_listing.text
    if caches is None:
        absent.append(Absent("caches", "lscpu -C (util-linux 2.35 or newer)", cache_listing.reason or ""))
    values = {
        "cpu": fields,
        "processor": summary(fields, host.root) if fields else None,
        "caches": caches,
        "numa": numa_nodes(host.root),
    }
    return Part(values, raw, absent)


def parse_lscpu(text: str) -> dict[str, str]:
    """Fields of `lscpu -J` by name, also those that newer versions put under headings."""
    return {entry["field"].rstrip(":"): entry["data"] for entry in _flatten(json.loads(text)["lscpu"])}


def _flatten(fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [found for entry in fields for found in (entry, *_flatten(entry.get("children", []))) if found.get("data")]


def summary(fields: dict[str, str], root: Path) -> dict[str, Any]:
    """What lscpu says as numbers; frequencies in Hz."""
    sockets, cores, threads = (
        _whole(fields.get(name)) for name in ("Socket(s)", "Core(s) per socket", "Thread(s) per core")
    )
    return {
        "model": fields.get("Model name"),
        "vendor": fields.get("Vendor ID"),
        "architecture": fields.get("Architecture"),
        "sockets": sockets,
        "cores_per_socket": cores,
        "threads_per_core": threads,
        "cores": sockets * cores if sockets and cores else None,
        "threads": _whole(fields.get("CPU(s)")),
        "max_hz": _hertz(fields.get("CPU max MHz")),
        "min_hz": _hertz(fields.get("CPU min MHz")),
        "microcode": _microcode(read(root / "proc" / "cpuinfo")),
        "hypervisor": fields.get("Hypervisor vendor"),
    }


def parse_caches(text: str) -> list[dict[str, Any]]:
    """Caches of `lscpu -C -J`: size of each, and how many there are."""
    found = []
    for entry in json.loads(text)["caches"]:
        # null on ARM nodes whose kernel tells no sizes.
        one, together = (bytes_of(entry.get(name) or "") for name in ("one-size", "all-size"))
        found.append(
            {
                "name": entry["name"],
                "level": entry.get("level"),
                "type": entry.get("type"),
                "bytes": one,
                "instances": round(together / one) if one and together else None,
                "ways": entry.get("ways"),
                "line_bytes": entry.get("coherency-size"),
            }
        )
    return found


def caches_of(root: Path) -> list[dict[str, Any]] | None:
    """The same of /sys; None where the kernel does not say."""
    instances: Counter[tuple[int, str, int, int | None, int | None]] = Counter()
    seen = set()
    for cache in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cache/index[0-9]*"):
        level, kind = read_number(cache / "level"), read(cache / "type")
        size = bytes_of(read(cache / "size") or "")
        shared = (level, kind, read(cache / "shared_cpu_list"))
        if level is None or kind is None or size is None or shared in seen:
            continue
        seen.add(shared)
        ways, line = read_number(cache / "ways_of_associativity"), read_number(cache / "coherency_line_size")
        instances[level, kind, size, ways, line] += 1
    letters = {"Data": "d", "Instruction": "i"}
    names = ("level", "type", "bytes", "ways", "line_bytes")
    found = [
        {"name": f"L{key[0]}{letters.get(key[1], '')}", "instances": count, **dict(zip(names, key, strict=True))}
        for key, count in sorted(instances.items(), key=lambda one: one[0][:3])
    ]
    return found or None


def numa_nodes(root: Path) -> list[dict[str, Any]] | None:
    """NUMA nodes with their processors, memory and distances; None where the kernel does not say."""
    found = []
    for folder in folders(root / "sys/devices/system/node", "node[0-9]*"):
        distances = read(folder / "distance")
        found.append(
            {
                "node": int(folder.name.removeprefix("node")),
                "cpus": read(folder / "cpulist"),
                "memory_bytes": _node_memory(read(folder / "meminfo")),
                "distances": [int(word) for word in distances.split()] if distances else None,
            }
        )
    return found or None


def _node_memory(meminfo: str | None) -> int | None:
    found = re.search(r"MemTotal:\s*(\d+ kB)", meminfo or "")
    return bytes_of(found.group(1)) if found else None


def _microcode(cpuinfo: str | None) -> str | None:
    found = re.search(r"^microcode\s*:\s*(\S+)", cpuinfo or "", re.MULTILINE)
    return found.group(1) if found else None


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _hertz(megahertz: str | None) -> float | None:
    return float(megahertz) * 1e6 if megahertz and re.fullmatch(r"[\d.]+", megahertz) else None
