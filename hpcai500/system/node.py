"""Describe this node in one document: hardware, firmware, kernel settings, storage, network, software.

The data comes from /proc, /sys and the usual tools, which run at the same time; none of them can block a job. Unknown
values are None, and `absent` names the tool that reports them.
"""

from __future__ import annotations

import json
import os
import re
import resource
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from hpcai500.files import nearest
from hpcai500.system.devices import capture_matrix, describe_devices, describe_drivers
from hpcai500.system.limits import memory_limit
from hpcai500.system.looking import (
    Absent,
    Host,
    Look,
    Part,
    anonymous,
    bounded,
    bytes_of,
    chosen,
    folders,
    read,
    read_number,
    together,
)
from hpcai500.system.mounts import Mount, mount_of, read_mounts
from hpcai500.system.network import describe_network
from hpcai500.system.software import describe_software, preloaded

# ----------------------------------------------------------------------------------------------------
# Processors, caches and NUMA nodes: from lscpu, and from /sys if lscpu is too old.


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
    """Fields of `lscpu -J` by name, including those that newer versions nest under headings."""
    return {entry["field"].rstrip(":"): entry["data"] for entry in _flatten(json.loads(text)["lscpu"])}


def _flatten(fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [found for entry in fields for found in (entry, *_flatten(entry.get("children", []))) if found.get("data")]


def summary(fields: dict[str, str], root: Path) -> dict[str, Any]:
    """lscpu's fields as numbers; frequencies in Hz."""
    sockets, cores, threads = (
        _whole(fields.get(name)) for name in ("Socket(s)", "Core(s) per socket", "Thread(s) per core")
    )
    microcode = re.search(r"^microcode\s*:\s*(\S+)", read(root / "proc/cpuinfo") or "", re.MULTILINE)
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
        "microcode": microcode.group(1) if microcode else None,
        "hypervisor": fields.get("Hypervisor vendor"),
    }


def parse_caches(text: str) -> list[dict[str, Any]]:
    """Caches of `lscpu -C -J`: size and number of each kind."""
    found = []
    for entry in json.loads(text)["caches"]:
        # null on ARM nodes whose kernel does not report sizes.
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
    """As `parse_caches`, from /sys; None if the kernel does not say."""
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
    """NUMA nodes with their processors, memory and distances; None if the kernel does not say."""
    found = []
    for folder in folders(root / "sys/devices/system/node", "node[0-9]*"):
        distances = read(folder / "distance")
        memory = re.search(r"MemTotal:\s*(\d+ kB)", read(folder / "meminfo") or "")
        found.append(
            {
                "node": int(folder.name.removeprefix("node")),
                "cpus": read(folder / "cpulist"),
                "memory_bytes": bytes_of(memory.group(1)) if memory else None,
                "distances": [int(word) for word in distances.split()] if distances else None,
            }
        )
    return found or None


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _hertz(megahertz: str | None) -> float | None:
    return float(megahertz) * 1e6 if megahertz and re.fullmatch(r"[\d.]+", megahertz) else None


# ----------------------------------------------------------------------------------------------------
# Memory: size, modules (from dmidecode or the kernel's EDAC driver) and huge pages.


_TABLES = Path("sys/firmware/dmi/tables/DMI")
_MEBI = 2**20


def describe_memory(host: Host) -> Part:
    """`memory`: total, swap, the job's limit (None: no limit), huge pages, modules."""
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
    """Number of reserved huge pages, by size in bytes, for every size that this kernel supports."""
    sizes = folders(root / "sys/kernel/mm/hugepages", "hugepages-*kB")
    counts = {
        bytes_of(folder.name.removeprefix("hugepages-")): read_number(folder / "nr_hugepages") for folder in sizes
    }
    return {str(size): count for size, count in counts.items() if size and count is not None}


def _modules(host: Host) -> tuple[list[dict[str, Any]] | None, str | None, str]:
    """The modules, dmidecode's output, and why the modules are unknown."""
    exists = (host.root / _TABLES).exists()
    reason = "only root can read its tables" if exists else "this machine has no tables for it"
    if os.access(host.root / _TABLES, os.R_OK):
        answer = host.ask(["dmidecode", "-t", "memory"])
        if answer.text:
            return parse_dmidecode(answer.text), anonymous(answer.text), "it lists none"
        reason = answer.reason or ""
    return edac_modules(host.root), None, reason


def parse_dmidecode(text: str) -> list[dict[str, Any]]:
    """Memory modules of `dmidecode -t memory`, equal ones counted; empty slots are left out."""
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
    """As `parse_dmidecode`, from the kernel's EDAC driver, which any user can read; no speeds. None without it."""
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


# ----------------------------------------------------------------------------------------------------
# The machine and its firmware, from files that any user can read.


# Serial numbers are in the same folder, but are not read.
_NAMES = ("sys_vendor", "product_name", "board_vendor", "board_name", "bios_vendor", "bios_version", "bios_date")


def describe_firmware(host: Host) -> Part:
    """`machine`: vendor, product, board and BIOS."""
    found = {name: read(host.root / "sys/class/dmi/id" / name) or None for name in _NAMES}
    # ARM nodes without SMBIOS have a device tree.
    tree = read(host.root / "proc/device-tree/model")
    found["product_name"] = found["product_name"] or (tree.strip("\0") if tree else None)
    if any(found.values()):
        return Part({"machine": found})
    return Part(
        {"machine": None}, absent=[Absent("vendor and model of the machine", "dmidecode -t system", "no SMBIOS")]
    )


# ----------------------------------------------------------------------------------------------------
# Kernel settings and process limits that affect the speed of training.


_CPUS = Path("sys/devices/system/cpu")
# One value for the whole node, by name in the record.
_FILES = {
    "intel_pstate": _CPUS / "intel_pstate/status",
    "amd_pstate": _CPUS / "amd_pstate/status",
    "smt": _CPUS / "smt/control",
    "isolated_cpus": _CPUS / "isolated",
    "tickless_cpus": _CPUS / "nohz_full",
    "idle_driver": _CPUS / "cpuidle/current_driver",
    "idle_governor": _CPUS / "cpuidle/current_governor_ro",
    "clock_source": Path("sys/devices/system/clocksource/clocksource0/current_clocksource"),
    "numa_balancing": Path("proc/sys/kernel/numa_balancing"),
    "autogroup": Path("proc/sys/kernel/sched_autogroup_enabled"),
    "nmi_watchdog": Path("proc/sys/kernel/nmi_watchdog"),
    "perf_event_paranoid": Path("proc/sys/kernel/perf_event_paranoid"),
    "swappiness": Path("proc/sys/vm/swappiness"),
    "zone_reclaim_mode": Path("proc/sys/vm/zone_reclaim_mode"),
    "overcommit_memory": Path("proc/sys/vm/overcommit_memory"),
    "dirty_ratio": Path("proc/sys/vm/dirty_ratio"),
    "dirty_background_ratio": Path("proc/sys/vm/dirty_background_ratio"),
    "congestion_control": Path("proc/sys/net/ipv4/tcp_congestion_control"),
    "tcp_receive_bytes": Path("proc/sys/net/ipv4/tcp_rmem"),
    "tcp_send_bytes": Path("proc/sys/net/ipv4/tcp_wmem"),
    "largest_receive_bytes": Path("proc/sys/net/core/rmem_max"),
    "largest_send_bytes": Path("proc/sys/net/core/wmem_max"),
    "tuned_profile": Path("etc/tuned/active_profile"),
}
# Files that list all choices and mark the current one: `always [madvise] never`.
_CHOICES = {
    "transparent_huge_pages": Path("sys/kernel/mm/transparent_hugepage/enabled"),
    "transparent_huge_pages_defrag": Path("sys/kernel/mm/transparent_hugepage/defrag"),
}
# One value for each processor: the record contains how often each value occurs.
_PER_CPU = {
    "governor": "scaling_governor",
    "frequency_driver": "scaling_driver",
    "energy_preference": "energy_performance_preference",
    "scaling_max_hz": "scaling_max_freq",
    "scaling_min_hz": "scaling_min_freq",
}
# Only parameters of the kernel's command line that affect performance are kept: the rest may contain addresses,
# identities or passwords.
_PARAMETERS = (
    "amd_iommu", "amd_pstate", "audit", "cgroup_disable", "clocksource", "cpuidle.", "cpufreq.", "default_hugepagesz",
    "hugepages", "hugepagesz", "idle", "intel_idle.", "intel_iommu", "intel_pstate", "iommu", "iommu.", "irqaffinity",
    "isolcpus", "kpti", "l1tf", "maxcpus", "mce", "mds", "mitigations", "nmi_watchdog", "noibrs", "nohz", "nohz_full",
    "nokaslr", "nopti", "nosmt", "nosoftlockup", "nospectre_v1", "nospectre_v2", "nowatchdog", "numa", "numa_balancing",
    "nvidia.", "nvidia-drm.", "pci", "pcie_aspm", "pcie_aspm.", "preempt", "processor.", "psi", "pti", "rcu_nocbs",
    "retbleed", "skew_tick", "spec_rstack_overflow", "spec_store_bypass_disable", "spectre_v2", "swiotlb",
    "systemd.unified_cgroup_hierarchy", "threadirqs", "transparent_hugepage", "tsc", "tsx", "tsx_async_abort",
)  # fmt: skip
_LIMITS = {
    "locked_memory_bytes": resource.RLIMIT_MEMLOCK,
    "open_files": resource.RLIMIT_NOFILE,
    "stack_bytes": resource.RLIMIT_STACK,
    "processes": resource.RLIMIT_NPROC,
    "address_space_bytes": resource.RLIMIT_AS,
    "core_file_bytes": resource.RLIMIT_CORE,
}
_KILO = 1000


def kernel_settings(root: Path) -> dict[str, Any]:
    """Settings by name; None if this kernel lacks the setting or does not report it."""
    cpus = root / _CPUS
    return {
        **{name: read(root / path) or None for name, path in _FILES.items()},
        **{name: chosen(read(root / path)) for name, path in _CHOICES.items()},
        **{name: _each_cpu(cpus, name, file) for name, file in _PER_CPU.items()},
        "boost": boost(read(cpus / "cpufreq/boost"), read(cpus / "intel_pstate/no_turbo")),
        "mitigations": {path.name: read(path) for path in sorted((cpus / "vulnerabilities").glob("*"))} or None,
        "command_line": performance_parameters(read(root / "proc/cmdline")),
        "iommu": any((root / "sys/class/iommu").glob("*")),
    }


def boost(boost_file: str | None, no_turbo: str | None) -> bool | None:
    """Whether processors may run above their nominal frequency."""
    if no_turbo is not None:
        return no_turbo == "0"
    return boost_file == "1" if boost_file is not None else None


def performance_parameters(command_line: str | None) -> list[str] | None:
    """Parameters of the kernel's command line that affect performance; those after `--` are for the init process."""
    if command_line is None:
        return None
    words = command_line.partition(" -- ")[0].split()
    whole, beginnings = set(_PARAMETERS), tuple(name for name in _PARAMETERS if name.endswith("."))
    return [word for word in words if word.partition("=")[0] in whole or word.startswith(beginnings)]


def process_limits() -> dict[str, dict[str, int | str]]:
    """Soft and hard limits of this process, as `ulimit` shows them; `unlimited` if there is none."""
    return {
        name: {kind: _limit(value) for kind, value in zip(("soft", "hard"), resource.getrlimit(number), strict=True)}
        for name, number in _LIMITS.items()
    }


def _limit(value: int) -> int | str:
    return "unlimited" if value == resource.RLIM_INFINITY else value


def _each_cpu(cpus: Path, name: str, file: str) -> dict[str, int] | None:
    """Number of processors for each value; frequencies are converted from the kernel's kHz to Hz."""
    texts = (read(path) for path in cpus.glob(f"cpu[0-9]*/cpufreq/{file}"))
    is_frequency = name.endswith("_hz")
    counts = Counter(str(int(text) * _KILO) if is_frequency else text for text in texts if text)
    return dict(sorted(counts.items())) or None


# ----------------------------------------------------------------------------------------------------
# File systems of the folders that a run reads and writes, and the disks of the node.


_SECTOR_BYTES = 512
_VIRTUAL_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd")


def describe_storage(host: Host, places: Mapping[str, Path | None]) -> Part:
    """`file_systems` by the names in `places` (None if a run has no such folder), and `disks`."""
    mounts = read_mounts(host.root)
    systems: dict[str, dict[str, Any] | None] = {}
    absent = []
    for name, path in places.items():
        try:
            systems[name] = file_system(path, mounts) if path else None
        except OSError as error:
            systems[name] = None
            absent.append(Absent(f"file system of {path}", "statvfs", error.strerror or str(error)))
    return Part({"file_systems": systems, "disks": disks(host.root)}, absent=absent)


def file_system(path: Path, mounts: list[Mount]) -> dict[str, Any]:
    """Type, size and options of the file system of `path`, or of its nearest existing parent."""
    folder = nearest(path).resolve()
    mount, size = mount_of(folder, mounts), os.statvfs(folder)
    return {
        "path": str(path.absolute()),
        "type": mount.type if mount else None,
        "mount_point": mount.point if mount else None,
        "source": mount.source if mount else None,
        "options": list(mount.options) if mount else None,
        "total_bytes": size.f_blocks * size.f_frsize,
        "free_bytes": size.f_bavail * size.f_frsize,
        "block_bytes": size.f_bsize,
    }


def disks(root: Path) -> list[dict[str, Any]]:
    """Physical block devices, with their size."""
    found = []
    for folder in folders(root / "sys/block", "*"):
        sectors = read_number(folder / "size")
        if folder.name.startswith(_VIRTUAL_DISKS) or not sectors:
            continue
        found.append(
            {
                "name": folder.name,
                "model": read(folder / "device/model"),
                "bytes": sectors * _SECTOR_BYTES,
                "rotates": read(folder / "queue/rotational") == "1",
                "scheduler": chosen(read(folder / "queue/scheduler")),
                "read_ahead_bytes": (read_number(folder / "queue/read_ahead_kb") or 0) * 1024 or None,
            }
        )
    return found


# ----------------------------------------------------------------------------------------------------
# The topology from hwloc: the NUMA node of each device, and the speed of its link.


_COMMANDS = ("lstopo-no-graphics", "lstopo")
# Types of hwloc_obj_osdev_type_e that matter for training: block device, GPU, network, OpenFabrics, co-processor.
_KINDS = {"0": "block", "1": "gpu", "2": "network", "3": "infiniband", "5": "coprocessor"}
_GIGA = 1e9


def describe_topology(host: Host) -> Part:
    """`topology`: None without hwloc."""
    for command in _COMMANDS:
        answer = host.ask([command, "--of", "xml"])
        if answer.text:
            return Part({"topology": parse_hwloc(answer.text)}, {"lstopo": anonymous(answer.text)})
    return Part({"topology": None}, absent=[Absent("hwloc's topology", "lstopo (hwloc)", answer.reason or "")])


def parse_hwloc(text: str) -> dict[str, Any]:
    """Counts and devices of `lstopo --of xml`, hwloc 2 or newer."""
    # The input is trusted: it is the output of a tool of the system.
    root = ElementTree.fromstring(text)  # noqa: S314
    counts = Counter(one.get("type") for one in root.iter("object"))
    memories = [one for one in root.iter("object") if one.get("type") == "NUMANode"]
    # A single NUMA node is a sibling of the devices in hwloc's tree, not a parent.
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
    """Devices below `element`, which belongs to NUMA node `numa` and PCI device `bus`."""
    children = element.findall("object")
    memories = [child for child in children if child.get("type") == "NUMANode"]
    # Below an object with several NUMA nodes, no single node is the nearest one.
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


# ----------------------------------------------------------------------------------------------------
# The document.


SCHEMA = "hpcai500-node-1"
# Longer than the time limit of any tool: what takes longer hangs in the kernel.
_PATIENCE_SECONDS = 25.0
# Readings that take longer are listed in the document, as a sign that something is wrong with the node.
_SLOW_SECONDS = 3.0
# Keys that a document always has, whichever reading fails: readers rely on them.
_ALWAYS: Mapping[str, Any] = {
    "host": None, "cpu": None, "processor": None, "caches": None, "numa": None, "topology": None, "memory": None,
    "machine": None, "devices": None, "device_links": None, "device_software": None, "driver": None, "network": None,
    "infiniband": None, "file_systems": None, "disks": None, "kernel_settings": None, "limits": None,
    "preloaded": None,
}  # fmt: skip

Places = Mapping[str, Path | None]


def describe_node(places: Places, host: Host | None = None) -> dict[str, Any]:
    """The document of this node; unknown values are None, and `absent` names the tool that reports them.

    `places` are folders whose file systems are described: `data`, `out`, `temporary`; None if a run has no such folder.
    """
    here = host or Host()
    # This never blocks, so it needs no time limit.
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
        "kernel": lambda: Part({"kernel_settings": kernel_settings(here.root), "limits": process_limits()}),
        "preloaded libraries": lambda: Part({"preloaded": preloaded()}),
    }
    return assembled(software, together(looks, _PATIENCE_SECONDS))


def assembled(software: Part, looks: Mapping[str, Look[Part]]) -> dict[str, Any]:
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
    """The devices, in the format of a framework's list; only a framework can say which of them the job may use."""
    return [
        {
            "name": device["name"],
            "memory_bytes": device["memory_bytes"],
            "multiprocessors": None,
            "uuid": device["uuid"],
        }
        for device in devices or []
    ]
