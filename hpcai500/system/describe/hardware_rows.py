"""Processors, memory, accelerators and what connects them within a node, as rows that people read.

Rows come from a node's document in system.json, also from one that an older version wrote: what is not there is
unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcai500.system.describe.text import UNKNOWN, binary, counted, decimal, known, switched

Node = Mapping[str, Any]
Row = tuple[str, str]


def processor_rows(node: Node) -> Iterator[Row]:
    """Part 1: CPUs and AI accelerators of a node."""
    machine = node.get("machine") or {}
    if machine:
        bios = machine.get("bios_version")
        yield "machine", known(machine.get("sys_vendor"), machine.get("product_name"), bios and f"BIOS {bios}")
    yield "processors", processors(node)
    yield "caches", caches(node)
    yield "NUMA nodes", _numa(node.get("numa"))
    yield "memory", memory(node)
    devices = node.get("devices")
    if devices is None:
        devices = node.get("accelerators") or []
    yield "accelerators", ", ".join(counted(device.get("name") or UNKNOWN for device in devices)) or "none"
    for text in counted(_device(device) for device in devices):
        yield "", text


def processors(node: Node) -> str:
    """`2 x AMD EPYC 7763 64-Core Processor, 64 cores each, 2 threads a core, up to 3.53 GHz`."""
    found = node.get("processor")
    if not found:
        model = (node.get("cpu") or {}).get("Model name")
        return model or UNKNOWN
    cores, threads, fastest = found.get("cores_per_socket"), found.get("threads_per_core"), found.get("max_hz")
    return known(
        f"{found.get('sockets') or '?'} x {found.get('model') or UNKNOWN}",
        cores and f"{cores} core{'s' if cores > 1 else ''} each",
        threads and f"{threads} thread{'s' if threads > 1 else ''} a core",
        fastest and f"up to {decimal(fastest, 'Hz')}",
        found.get("hypervisor") and f"virtual ({found['hypervisor']})",
    )


def caches(node: Node) -> str:
    """`L1d 32 KiB x 128, L3 32 MiB x 16`."""
    return ", ".join(
        f"{one['name']} {binary(one['bytes'])} x {one['instances']}" for one in node.get("caches") or [] if one["bytes"]
    ) or (UNKNOWN)


def memory(node: Node) -> str:
    """`503 GiB, 16 x 32 GiB DDR4 3200 MT/s`."""
    found = node.get("memory") or {"total_bytes": node.get("memory_bytes")}
    parts = [binary(found.get("total_bytes")), memory_modules(node)]
    if limit := found.get("limit_bytes"):
        parts.append(f"{binary(limit)} for this job")
    pages = {int(size): count for size, count in (found.get("huge_pages") or {}).items() if count}
    parts += [f"{count} huge pages of {binary(size)}" for size, count in pages.items()]
    if swap := found.get("swap_bytes"):
        parts.append(f"swap {binary(swap)}")
    return known(*parts)


def memory_modules(node: Node) -> str | None:
    """`16 x 32 GiB DDR4 3200 MT/s`; None where nobody told."""
    modules = (node.get("memory") or {}).get("modules") or []
    shown = [
        " ".join([f"{one['count']} x {binary(one['bytes'])}", *filter(None, (one.get("type"), one.get("speed")))])
        for one in modules
    ]
    return ", ".join(shown) or None


def link_rows(node: Node) -> Iterator[Row]:
    """Part 2: connections within a node."""
    devices = node.get("devices") or []
    if not devices:
        yield "accelerator links", "none"
    for text in counted(pcie(device) for device in devices):
        yield "PCI Express", text
    for text in counted(nvlink(device) for device in devices):
        yield "NVLink", text
    for place, indices in _by_numa(devices).items():
        yield "", f"accelerators {indices} at NUMA node {place}"
    yield from _matrix(node.get("device_links") or [])
    for adapter in [*(node.get("network") or []), *(node.get("infiniband") or [])]:
        if adapter.get("pcie"):
            yield f"{adapter['name']}", known(_lanes(adapter["pcie"]), _at(adapter.get("numa_node")))
    distances = [row["distances"] for row in node.get("numa") or [] if row.get("distances")]
    if len(distances) > 1:
        yield "NUMA distances", "; ".join(" ".join(map(str, row)) for row in distances)


def pcie(device: Mapping[str, Any]) -> str:
    """`PCIe 5 x16, 63 GB/s each way`; a link that is narrower than it could be says so."""
    link = device.get("pcie") or {}
    generation = link.get("max_generation")
    if not generation:
        return UNKNOWN
    return known(f"PCIe {generation} x{_width(link)}", f"{decimal(link.get('bytes_per_second'), 'B/s')} each way")


def nvlink(device: Mapping[str, Any]) -> str:
    """`18 of 18 links, 26.6 GB/s each, 478 GB/s together each way, by switches`."""
    link = device.get("nvlink")
    if not link:
        return "none"
    return known(
        f"{link['active']} of {link['links']} links",
        f"{decimal(link.get('link_bytes_per_second'), 'B/s')} each",
        f"{decimal(link.get('bytes_per_second'), 'B/s')} together each way",
        "by switches" if link.get("to_switches") else "device to device",
    )


def _device(device: Mapping[str, Any]) -> str:
    limit, usual = device.get("power_limit_watts"), device.get("default_power_limit_watts")
    lowered = f" (of {usual:g} W)" if limit and usual and limit != usual else ""
    return known(
        binary(device.get("memory_bytes")),
        f"SM up to {decimal(device.get('max_sm_hz'), 'Hz')}",
        f"memory up to {decimal(device.get('max_memory_hz'), 'Hz')}",
        f"power limit {limit:g} W{lowered}" if limit else None,
        *(f"{name} {switched(device.get(key)) or UNKNOWN}" for name, key in (("ECC", "ecc"), ("MIG", "mig"))),
        f"persistence {switched(device.get('persistence')) or UNKNOWN}",
        device.get("compute_mode") and f"compute mode {device['compute_mode']}",
    )


def _numa(nodes: Sequence[Mapping[str, Any]] | None) -> str:
    if not nodes:
        return UNKNOWN
    sizes = Counter(binary(node.get("memory_bytes")) for node in nodes)
    return f"{len(nodes)} ({', '.join(f'{count} x {size}' for size, count in sizes.items())})"


def _by_numa(devices: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    found: dict[int, list[str]] = {}
    for device in devices:
        if device.get("numa_node") is not None:
            found.setdefault(device["numa_node"], []).append(str(device["index"]))
    return {place: ", ".join(indices) for place, indices in sorted(found.items())}


def _matrix(matrix: Sequence[Sequence[str | None]]) -> Iterator[Row]:
    for index, row in enumerate(matrix):
        ways = " ".join(f"{way or '?':>5}" for way in row)
        yield ("matrix" if index == 0 else ""), f"{index}: {ways}"


def _lanes(link: Mapping[str, Any]) -> str:
    speed = link.get("max_transfers_per_second")
    return known(
        f"PCIe x{_width(link)}",
        speed and f"{speed / 1e9:g} GT/s",
        f"{decimal(link.get('bytes_per_second'), 'B/s')}",
    )


def _width(link: Mapping[str, Any]) -> str:
    """`16`; `8 OF x16` where it could be wider."""
    width, widest = link.get("width"), link.get("max_width")
    return f"{width or '?'}" + (f" OF x{widest}" if width and widest and width < widest else "")


def _at(numa: int | None) -> str | None:
    return None if numa is None else f"at NUMA node {numa}"
