"""Everything about this node, in one document: all looks at once, none of which can hold up a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hpcai500.system.describe.devices import capture_matrix, describe_devices
from hpcai500.system.describe.drivers import describe_drivers
from hpcai500.system.describe.environment import preloaded
from hpcai500.system.describe.firmware import describe_firmware
from hpcai500.system.describe.hwloc import describe_topology
from hpcai500.system.describe.kernel import describe_kernel
from hpcai500.system.describe.memory import describe_memory
from hpcai500.system.describe.network import describe_network
from hpcai500.system.describe.part import Host, Part
from hpcai500.system.describe.processor import describe_processor
from hpcai500.system.describe.software import describe_software
from hpcai500.system.describe.storage import describe_storage
from hpcai500.system.describe.together import Look, together
from hpcai500.system.describe.tools import bounded

SCHEMA = "hpcai500-node-1"
# Longer than any tool may take: who is late then hangs in the kernel.
_PATIENCE_SECONDS = 25.0
# A tool that takes so long is said: something is wrong with the node.
_SLOW_SECONDS = 3.0
# What a document has whoever fails: readers look for these without asking.
_ALWAYS: Mapping[str, Any] = {
    "host": None, "cpu": None, "processor": None, "caches": None, "numa": None, "topology": None, "memory": None,
    "machine": None, "devices": None, "device_links": None, "device_software": None, "driver": None, "network": None,
    "infiniband": None, "file_systems": None, "disks": None, "kernel_settings": None, "limits": None,
    "preloaded": None,
}  # fmt: skip

Places = Mapping[str, Path | None]


def describe_node(places: Places, host: Host | None = None) -> dict[str, Any]:
    """The document of this node; what is unknown is None, and `absent` says who would tell it.

    Args:
        places: folders whose file systems count: `data`, `out`, `temporary`; None where there is no such folder.
        host: where to look.
    """
    here = host or Host()
    # Plain lookups; should they fail, there is no node to speak of.
    software = describe_software(here)
    looks: dict[str, Callable[[], Part]] = {
        "processors": partial(describe_processor, here),
        "hwloc": partial(describe_topology, here),
        "memory": partial(describe_memory, here),
        "machine": partial(describe_firmware, here),
        "accelerators": partial(describe_devices, here),
        "accelerator matrix": partial(capture_matrix, here),
        "drivers": partial(describe_drivers, here),
        "network": partial(describe_network, here),
        "storage": partial(describe_storage, here, places),
        "kernel": partial(describe_kernel, here),
        "preloaded libraries": lambda: Part({"preloaded": preloaded()}),
    }
    return assembled(software, together(looks, _PATIENCE_SECONDS))


def assembled(software: Part, looks: Mapping[str, Look[Part]]) -> dict[str, Any]:
    """One document of all parts."""
    document: dict[str, Any] = {"schema": SCHEMA, **_ALWAYS, **software.values}
    absent, raw = [one.document() for one in software.absent], dict(software.raw)
    for name, look in looks.items():
        if look.found is None:
            absent.append({"what": name, "tool": "this node", "reason": look.reason or ""})
            continue
        document.update(look.found.values)
        absent += [one.document() for one in look.found.absent]
        raw |= look.found.raw
    slow = {name: round(look.seconds, 3) for name, look in looks.items() if look.seconds > _SLOW_SECONDS}
    return {
        **document,
        "accelerators": _accelerators(document["devices"]),
        "absent": absent,
        "slow_seconds": slow,
        "raw": {name: bounded(text) for name, text in raw.items()},
    }


def _accelerators(devices: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """The devices as a job without a framework knows them; which of them it may use, only the framework can say."""
    return [
        {
            "name": device["name"],
            "memory_bytes": device["memory_bytes"],
            "multiprocessors": None,
            "uuid": device["uuid"],
        }
        for device in devices or []
    ]
