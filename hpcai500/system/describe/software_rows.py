"""Operating system, settings and software of a node and of the whole system, as rows that people read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcai500.system.container import short_image
from hpcai500.system.describe.text import UNKNOWN, binary, decimal, known, switched

Node = Mapping[str, Any]
Row = tuple[str, str]

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
        code = (plugin.get("code_sha256") or UNKNOWN)[:12]
        yield "plug-in", known(plugin.get("package"), plugin.get("version"), code)


def network_rows(node: Node) -> Iterator[Row]:
    """Part 5: connections between nodes, as seen from one."""
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
    """`200 Gb/s`; it says so where nobody knows."""
    return "speed not told" if bits_per_second is None else decimal(bits_per_second, "b/s")


def _setting(name: str, value: Any) -> str | None:
    if isinstance(value, bool):
        return switched(value)
    if name in _SWITCHES and value in ("0", "1"):
        return switched(value == "1")
    if isinstance(value, Mapping):  # values of processors: how many have which
        return (
            "/".join(value) if len(value) == 1 else ", ".join(f"{name} ({count} CPUs)" for name, count in value.items())
        )
    return None if value is None else str(value)


def _mitigations(found: Mapping[str, str] | None) -> str:
    """Which cost time; what does not concern this processor is left out."""
    if not found:
        return UNKNOWN
    active = [name for name, state in found.items() if state and state.startswith("Mitigation")]
    open_ = [name for name, state in found.items() if state and state.startswith("Vulnerable")]
    told = [f"{len(active)} active ({', '.join(active)})" if active else "none active"]
    return "; ".join([*told, *([f"vulnerable: {', '.join(open_)}"] if open_ else [])])
