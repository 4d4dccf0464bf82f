"""The node as hwloc draws it: which devices hang at which NUMA node, and by how wide a link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

from hpcai500.system.describe.part import Absent, Host, Part
from hpcai500.system.describe.tools import anonymous

_COMMANDS = ("lstopo-no-graphics", "lstopo")
# Types of hwloc_obj_osdev_type_e that matter to a training node: block device, GPU, network, OpenFabrics, co-processor.
_KINDS = {"0": "block", "1": "gpu", "2": "network", "3": "infiniband", "5": "coprocessor"}
_GIGA = 1e9


def describe_topology(host: Host) -> Part:
    """`topology`: None without hwloc; the kernel's own words about NUMA and PCI devices are elsewhere."""
    for command in _COMMANDS:
        answer = host.ask([command, "--of", "xml"])
        if answer.text:
            return Part({"topology": parse_hwloc(answer.text)}, {"lstopo": anonymous(answer.text)})
    return Part({"topology": None}, absent=[Absent("hwloc's topology", "lstopo (hwloc)", answer.reason or "")])


def parse_hwloc(text: str) -> dict[str, Any]:
    """Counts and devices of `lstopo --of xml`, hwloc 2 or newer."""
    # It is the output of the system's own tool, and entities that it may declare are of its own file.
    root = ElementTree.fromstring(text)  # noqa: S314
    counts = Counter(one.get("type") for one in root.iter("object"))
    memories = [one for one in root.iter("object") if one.get("type") == "NUMANode"]
    # Where there is one NUMA node, all devices are at it, and hwloc draws them beside its package.
    only = _index(memories[0]) if len(memories) == 1 else None
    return {
        "packages": counts["Package"],
        "numa_nodes": counts["NUMANode"],
        "l3_caches": counts["L3Cache"],
        "cores": counts["Core"],
        "threads": counts["PU"],
        "devices": list(_devices(root, only, None)),
    }


def _devices(
    element: ElementTree.Element, numa: int | None, bus: ElementTree.Element | None
) -> Iterator[dict[str, Any]]:
    """Devices below `element`, which hangs at NUMA node `numa` and PCI device `bus`."""
    children = element.findall("object")
    memories = [child for child in children if child.get("type") == "NUMANode"]
    # Below an object of several NUMA nodes, a device is near none of them alone.
    numa = _index(memories[0]) if len(memories) == 1 else numa
    for child in children:
        kind = child.get("type")
        if kind == "OSDev" and (name := _KINDS.get(child.get("osdev_type", ""))):
            yield {
                "name": child.get("name"),
                "kind": name,
                "numa_node": numa,
                "pci": bus.get("pci_busid") if bus is not None else None,
                "link_bytes_per_second": _speed(bus),
            }
        yield from _devices(child, numa, child if kind == "PCIDev" else bus)


def _index(memory: ElementTree.Element) -> int | None:
    index = memory.get("os_index")
    return int(index) if index is not None else None


def _speed(bus: ElementTree.Element | None) -> float | None:
    """hwloc writes GB/s; 0 is unknown."""
    speed = float(bus.get("pci_link_speed", "0")) if bus is not None else 0.0
    return speed * _GIGA if speed else None
