"""The accelerators of a node and the ways between them, by NVML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hpcai500.interpreter import module_command
from hpcai500.system.describe.part import Absent, Host, Part
from hpcai500.system.describe.pci import PCI_DEVICES, numa_of
from hpcai500.system.driver import find_traces

# Without the persistence daemon, a node of eight devices needs some seconds to wake them.
_PATIENCE_SECONDS = 20.0
# Windows' subsystem for Linux shows devices by this one alone.
_WSL = Path("dev/dxg")


def describe_devices(host: Host) -> Part:
    """`devices` (those of the node, whichever this process may use), `device_links` and `device_software`."""
    unknown: dict[str, Any] = {"devices": None, "device_links": None, "device_software": None}
    traces = find_traces(host.root)
    if not traces.any and not (host.root / _WSL).exists():
        return Part({**unknown, "devices": []})
    answer = host.ask(module_command("system.describe.nvml_probe"), _PATIENCE_SECONDS)
    if answer.text is None:
        what = f"accelerators ({traces.words or _WSL})"
        return Part(unknown, absent=[Absent(what, "NVML (of NVIDIA's driver)", answer.reason or "")])
    found = json.loads(answer.text)
    for device in found["devices"]:
        device["numa_node"] = numa_of(host.root / PCI_DEVICES / device["pci"]) if device["pci"] else None
    values = {
        "devices": found["devices"],
        "device_links": found["links"] if len(found["devices"]) > 1 else None,
        "device_software": {name: found[name] for name in ("driver", "cuda", "nvml")},
    }
    return Part(values, {"nvml": json.dumps(found, indent=1)})


def capture_matrix(host: Host) -> Part:
    """The matrix as NVIDIA's own tool prints it, network adapters included, for the record."""
    if not find_traces(host.root).any:
        return Part({})
    answer = host.ask(["nvidia-smi", "topo", "-m"], _PATIENCE_SECONDS)
    return Part({}, {"nvidia-smi topo -m": answer.text} if answer.text else {})
