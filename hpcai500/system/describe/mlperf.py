"""The description with the field names of MLPerf training's `systems/*.json`; what is unknown is an empty string.

Only the names are MLPerf's: a result of HPC AI500 is none of theirs, and never compared with one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcai500.system.describe.hardware_rows import caches, memory_modules, nvlink, pcie
from hpcai500.system.describe.text import UNKNOWN, binary, counted, decimal

Node = Mapping[str, Any]


def mlperf_description(document: Mapping[str, Any]) -> dict[str, str]:
    """The fields, in MLPerf's order, of a system.json; of nodes that differ, those of the first."""
    nodes: Sequence[Node] = document.get("nodes") or [{}]
    node = nodes[0]
    described = {
        # Who submits what as what, no machine knows.
        **dict.fromkeys(("submitter", "division", "status", "system_name"), ""),
        "number_of_nodes": str(len(document.get("nodes") or [])),
        **_processors(node),
        **_host(node),
        **_accelerators(node),
        "cooling": "",
        "hw_notes": "",
        **_software(node, document.get("installation") or {}),
        "sw_notes": "",
    }
    return {name: "" if UNKNOWN in text else text for name, text in described.items()}


def _processors(node: Node) -> dict[str, str]:
    found = node.get("processor") or {}
    model = found.get("model") or (node.get("cpu") or {}).get("Model name")
    return {
        "host_processors_per_node": _number(found.get("sockets")),
        "host_processor_model_name": model or "",
        "host_processor_core_count": _number(found.get("cores_per_socket")),
        "host_processor_vcpu_count": _number(found.get("threads")),
        "host_processor_frequency": decimal(found.get("max_hz"), "Hz"),
        "host_processor_caches": caches(node),
        # UPI and xGMI are shown by no tool.
        "host_processor_interconnect": "",
    }


def _host(node: Node) -> dict[str, str]:
    total = (node.get("memory") or {}).get("total_bytes") or node.get("memory_bytes")
    systems = node.get("file_systems") or {}
    data = systems.get("data") or systems.get("out")
    return {
        "host_memory_capacity": binary(total),
        "host_storage_type": (data or {}).get("type") or "",
        "host_storage_capacity": decimal(data["total_bytes"], "B") if data else "",
        "host_networking": networking(node),
        # How switches are wired, no node sees.
        "host_networking_topology": "",
        "host_memory_configuration": memory_modules(node) or "",
    }


def networking(node: Node) -> str:
    """`8 x InfiniBand 400 Gb/s; 1 x ethernet 25 Gb/s`: adapters that work."""
    ports = [
        f"{port.get('link_layer') or 'InfiniBand'} {decimal(port['bits_per_second'], 'b/s')}"
        for port in node.get("infiniband") or []
        if port.get("bits_per_second") and port.get("state") == "Active"
    ]
    # IP over InfiniBand, and Ethernet of an adapter that does RDMA, are those ports once more.
    rdma = {port.get("pci") for port in node.get("infiniband") or [] if port.get("pci")}
    plain = [
        f"{one['kind']} {decimal(one['bits_per_second'], 'b/s')}"
        for one in node.get("network") or []
        if one.get("is_physical") and one.get("bits_per_second") and one.get("pci") not in rdma
    ]
    return "; ".join(counted([*ports, *plain]))


def _accelerators(node: Node) -> dict[str, str]:
    devices = node.get("devices") or node.get("accelerators") or []
    first: Mapping[str, Any] = devices[0] if devices else {}
    links = [[way for way in row if way] for row in node.get("device_links") or []]
    ways = {way for row in links for way in row if way != "X"}
    linked = bool(first.get("nvlink"))
    return {
        "accelerators_per_node": str(len(devices)) if node.get("devices") is not None or devices else "",
        "accelerator_model_name": "; ".join(dict.fromkeys(device.get("name") or UNKNOWN for device in devices)),
        "accelerator_host_interconnect": pcie(first) if first.get("pcie") else "",
        "accelerator_frequency": decimal(first.get("max_sm_hz"), "Hz"),
        "accelerator_on-chip_memories": "",
        "accelerator_memory_configuration": f"{first['memory_bus_bits']} bit" if first.get("memory_bus_bits") else "",
        "accelerator_memory_capacity": binary(first.get("memory_bytes")),
        "accelerator_interconnect": f"NVLink: {nvlink(first)}" if linked else "",
        "accelerator_interconnect_topology": ", ".join(sorted(ways)),
    }


def _software(node: Node, installation: Mapping[str, Any]) -> dict[str, str]:
    software = node.get("software") or {}
    driver = (node.get("device_software") or {}).get("driver") or (node.get("driver") or {}).get("nvidia")
    stack = {
        "CUDA": software.get("cuda"),
        "cuDNN": software.get("cudnn"),
        "NCCL": software.get("nccl"),
        "driver": driver,
        "Horovod": software.get("horovod"),
        "MPI": (installation.get("software") or {}).get("mpi"),
        "Python": node.get("python"),
        "hpcai500": software.get("hpcai500"),
    }
    return {
        "framework": f"PyTorch {software['torch']}" if software.get("torch") else "",
        "other_software_stack": ", ".join(f"{name} {version}" for name, version in stack.items() if version),
        "operating_system": node.get("operating_system") or "",
    }


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
