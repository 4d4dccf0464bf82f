"""A system's description (system.json) as tables for people, and with MLPerf's field names.

The tables have the six parts of V2.0 section 5.3.3. Values that documents of older versions lack are unknown.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpcai500.methodology.nodes import NodeDifference
from hpcai500.system.container import short_image
from hpcai500.text import UNKNOWN, binary, counted, decimal, known, switched

# ----------------------------------------------------------------------------------------------------
# Parts 1 and 2: processors, memory and accelerators of a node, and their connections.


Node = Mapping[str, Any]
Row = tuple[str, str]


def processor_rows(node: Node) -> Iterator[Row]:
    """Part 1: CPUs and AI accelerators of a node, from its document in system.json."""
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
    """`16 x 32 GiB DDR4 3200 MT/s`; None if unknown."""
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
    """`PCIe 5 x16, 63 GB/s each way`, or `PCIe 5 x8 OF x16, …` if the link could be wider."""
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
    """`16`, or `8 OF x16` if it could be wider."""
    width, widest = link.get("width"), link.get("max_width")
    return f"{width or '?'}" + (f" OF x{widest}" if width and widest and width < widest else "")


def _at(numa: int | None) -> str | None:
    return None if numa is None else f"at NUMA node {numa}"


# ----------------------------------------------------------------------------------------------------
# Parts 3 to 6: operating system, settings, software and networks.


_SETTINGS = {
    "governor": "governor",
    "frequency_driver": "frequency driver",
    "boost": "boost",
    "smt": "SMT",
    "transparent_huge_pages": "transparent huge pages",
    "numa_balancing": "NUMA balancing",
    "swappiness": "swappiness",
    "zone_reclaim_mode": "zone reclaim",
    "clock_source": "clock",
    "iommu": "IOMMU",
    "congestion_control": "TCP",
    "tuned_profile": "tuned",
}
_SWITCHES = ("numa_balancing", "zone_reclaim_mode")
_LIBRARIES = {
    "cuda": "CUDA", "cudnn": "cuDNN", "cublas": "cuBLAS", "nccl": "NCCL", "dali": "DALI",
    "dali_operators": "our operators for DALI", "horovod": "Horovod",
    "numpy": "NumPy", "h5py": "h5py", "c_library": "",
}  # fmt: skip


def operating_system_rows(node: Node) -> Iterator[Row]:
    """Part 3: operating system of a node, its settings and its storage."""
    yield "operating system", node.get("operating_system") or UNKNOWN
    yield "kernel", node.get("kernel") or UNKNOWN
    settings = node.get("kernel_settings") or {}
    shown = [f"{words} {text}" for name, words in _SETTINGS.items() if (text := _setting(name, settings.get(name)))]
    yield "settings", known(*shown)
    yield "mitigations", _mitigations(settings.get("mitigations"))
    line = settings.get("command_line")
    yield "command line", UNKNOWN if line is None else " ".join(line) or "nothing that changes performance"
    limits = node.get("limits") or {}
    for name, words in (("locked_memory_bytes", "locked memory"), ("open_files", "open files")):
        soft = (limits.get(name) or {}).get("soft")
        if soft is not None:
            yield "limit", f"{words} {binary(soft) if name.endswith('bytes') and soft != 'unlimited' else soft}"
    yield "cores for this process", str(node.get("cores_available") or UNKNOWN)
    if isinstance(quota := node.get("cpu_quota_cores"), int | float):
        yield "CPU quota", f"the time of {quota:.3g} cores"
    for name, system in (node.get("file_systems") or {}).items():
        if system:
            yield f"{name} folder", file_system(system)
    for disk in node.get("disks") or []:
        kind = "rotates" if disk.get("rotates") else "does not rotate"
        yield f"disk {disk['name']}", known(decimal(disk["bytes"], "B"), disk.get("model"), kind)


def file_system(system: Mapping[str, Any]) -> str:
    """`/scratch: lustre, 2.1 PB (1.3 PB free), rw, flock`."""
    size = f"{decimal(system['total_bytes'], 'B')} ({decimal(system['free_bytes'], 'B')} free)"
    return f"{system['path']}: {known(system.get('type'), size, *(system.get('options') or [])[:6])}"


def software_rows(node: Node) -> Iterator[Row]:
    """Part 4: run-time software of a node."""
    software = node.get("software") or {}
    yield "framework", known(f"torch {software.get('torch') or UNKNOWN}", f"Python {node.get('python')}")
    libraries = (f"{words} {software[name]}".strip() for name, words in _LIBRARIES.items() if software.get(name))
    yield "libraries", known(*libraries)
    driver, devices = node.get("driver") or {}, node.get("device_software") or {}
    version = devices.get("driver") or driver.get("nvidia")
    yield (
        "driver",
        known(f"NVIDIA {version}" if version else "none", devices.get("cuda") and f"for CUDA {devices['cuda']}"),
    )
    if modules := driver.get("modules"):
        yield "kernel modules", ", ".join(f"{name} {value}" for name, value in modules.items())
    core = software.get("core") or {}
    yield "hpcai500", known(software.get("hpcai500"), f"core {software.get('core_isa')}", core.get("compiler"))
    container = node.get("container")
    yield "container", known(container["program"], container["image"]) if container else "none"
    yield from (node.get("environment") or {}).items()
    if before := node.get("preloaded"):
        yield "preloaded", ", ".join(before)


def system_rows(nodes: Sequence[Node], installation: Mapping[str, Any] | None) -> Iterator[Row]:
    """Part 6: run-time software of the system."""
    yield "nodes", str(len(nodes))
    found = installation or {}
    software, package, image = found.get("software") or {}, found.get("package") or {}, found.get("image")
    yield "MPI", software.get("mpi") or "none"
    yield "Horovod", software.get("horovod") or "none"
    yield "image", short_image(image) if image else "none"
    yield "code", known(package.get("revision"), (package.get("code_sha256") or UNKNOWN)[:12])
    for plugin in found.get("plugins") or []:
        yield "plug-in", plugin_words(plugin)


def plugin_words(plugin: Mapping[str, Any]) -> str:
    """`hpcai500-spirals, 0.1.0, b405e6600d0e`: package, version and the beginning of the hash of its code."""
    return known(plugin.get("package"), plugin.get("version"), (plugin.get("code_sha256") or UNKNOWN)[:12])


def network_rows(node: Node) -> Iterator[Row]:
    """Part 5: connections between nodes, from the view of one node."""
    interfaces = [one for one in node.get("network") or [] if one.get("state") != "down" or one.get("is_physical")]
    for one in interfaces:
        over = f"over {', '.join(one['over'])}" if one.get("over") else None
        mtu = one.get("mtu_bytes") and f"MTU {one['mtu_bytes']}"
        yield (
            one["name"],
            known(one["kind"], speed(one.get("bits_per_second")), one.get("state"), mtu, one.get("driver"), over),
        )
    for port in node.get("infiniband") or []:
        yield port["name"], known(
            port.get("link_layer"), speed(port.get("bits_per_second")), port.get("state"), port.get("adapter"),
            port.get("firmware") and f"firmware {port['firmware']}",
        )  # fmt: skip
    if not interfaces and not node.get("infiniband"):
        yield "network", "no interface"


def speed(bits_per_second: float | None) -> str:
    """`200 Gb/s`, or `speed not reported`."""
    return "speed not reported" if bits_per_second is None else decimal(bits_per_second, "b/s")


def _setting(name: str, value: Any) -> str | None:
    if isinstance(value, bool):
        return switched(value)
    if name in _SWITCHES and value in ("0", "1"):
        return switched(value == "1")
    if isinstance(value, Mapping):  # number of processors for each value
        return (
            "/".join(value) if len(value) == 1 else ", ".join(f"{name} ({count} CPUs)" for name, count in value.items())
        )
    return None if value is None else str(value)


def _mitigations(found: Mapping[str, str] | None) -> str:
    """Active mitigations, which cost time, and open vulnerabilities of this processor."""
    if not found:
        return UNKNOWN
    active = [name for name, state in found.items() if state and state.startswith("Mitigation")]
    open_ = [name for name, state in found.items() if state and state.startswith("Vulnerable")]
    texts = [f"{len(active)} active ({', '.join(active)})" if active else "none active"]
    return "; ".join([*texts, *([f"vulnerable: {', '.join(open_)}"] if open_ else [])])


# ----------------------------------------------------------------------------------------------------
# The whole description: the six parts, unknown values, and differences between nodes.


_TITLES = (
    "CPUs and AI accelerators of a node",
    "connections within a node",
    "operating system of a node",
    "run-time software of a node",
    "connections between nodes",
    "run-time software of the system",
)
_WIDTH = 22
_TEXT_WIDTH = 96


def system_lines(document: Mapping[str, Any], differences: Sequence[NodeDifference]) -> Iterator[str]:
    """The tables of a system.json, for a node without outlying fields if there is one."""
    nodes = document.get("nodes") or []
    if not nodes:
        yield "no node is described"
        return
    odd = {host for difference in differences for host in difference.outliers}
    node = next((one for one in nodes if str(one.get("host")) not in odd), nodes[0])
    yield f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}; this is {node.get('host')}"
    parts = (
        processor_rows(node),
        link_rows(node),
        operating_system_rows(node),
        software_rows(node),
        network_rows(node),
        system_rows(nodes, document.get("installation")),
    )
    for number, (title, rows) in enumerate(zip(_TITLES, parts, strict=True), start=1):
        yield ""
        yield f"{number}. {title}"
        yield from _table(rows)
    yield from _unknown(node.get("absent") or [], node.get("slow_seconds") or {})
    yield from difference_lines(differences, len(nodes))


def difference_lines(differences: Sequence[NodeDifference], nodes: int) -> Iterator[str]:
    """The differences between nodes; nothing for one node."""
    if nodes < 2:
        return
    yield ""
    if not differences:
        yield f"All {nodes} nodes are alike."
        return
    heavy = [one for one in differences if one.matters]
    light = [one for one in differences if not one.matters]
    if heavy:
        yield f"NODES DIFFER in {len(heavy)} field{'s' if len(heavy) > 1 else ''} that may change speed or results:"
        yield from (f"  !! {one.sentence()}" for one in heavy)
    if light:
        yield "Differences between nodes that seldom matter:"
        yield from (f"  {one.sentence()}" for one in light)


def _table(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    listed = list(rows)
    width = max([_WIDTH, *(len(name) for name, _ in listed)])
    before = None
    for name, text in listed:
        # A repeated name is shown once. Only long lines are wrapped, so a matrix keeps its spaces.
        for line in textwrap.wrap(text, _TEXT_WIDTH, break_on_hyphens=False) if len(text) > _TEXT_WIDTH else [text]:
            yield f"  {'' if name == before else name:{width}}  {line}".rstrip()
            before = name


def _unknown(absent: Sequence[Mapping[str, str]], slow: Mapping[str, float]) -> Iterator[str]:
    if absent:
        yield ""
        yield "Unknown, and what would report it"
        yield from _table((one["what"], f"{one['tool']}: {one['reason']}") for one in absent)
    for name, seconds in slow.items():
        yield f"SLOW: reading {name} took {seconds:.1f} s"


# ----------------------------------------------------------------------------------------------------
# The description with the field names of MLPerf training's `systems/*.json`; unknown values are empty strings.
#
# Only the names are MLPerf's: a result of HPC AI500 is not an MLPerf result, and cannot be compared with one.


def mlperf_description(document: Mapping[str, Any]) -> dict[str, str]:
    """The fields of a system.json, in MLPerf's order; if nodes differ, those of the first node."""
    nodes: Sequence[Node] = document.get("nodes") or [{}]
    node = nodes[0]
    described = {
        # Not known to the machine.
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
        # No tool shows UPI and xGMI.
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
        # A node cannot see how switches are wired.
        "host_networking_topology": "",
        "host_memory_configuration": memory_modules(node) or "",
    }


def networking(node: Node) -> str:
    """`8 x InfiniBand 400 Gb/s; 1 x ethernet 25 Gb/s`: adapters with a link."""
    ports = [
        f"{port.get('link_layer') or 'InfiniBand'} {decimal(port['bits_per_second'], 'b/s')}"
        for port in node.get("infiniband") or []
        if port.get("bits_per_second") and port.get("state") == "Active"
    ]
    # IP over InfiniBand and the Ethernet interface of an RDMA adapter use the same ports.
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
