"""Accelerators of a node and their connections: PCI Express, NVLink, NVML's data for each device, kernel modules.

A hung driver blocks every caller of NVML, so `describe_devices` calls it in a separate process. Rates are in bytes per
second and for one direction.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from hpcai500.errors import EnvironmentLacksError
from hpcai500.interpreter import module_command
from hpcai500.system.accelerator import find_traces
from hpcai500.system.looking import Absent, Host, Part, read, read_number

# ----------------------------------------------------------------------------------------------------
# The PCI Express link of a device: its current and its maximum width and speed.


# Bytes per second of one lane in one direction, after encoding (8b/10b, then 128b/130b, then FLITs), by GT/s.
_LANE_BYTES = {2.5: 250e6, 5.0: 500e6, 8.0: 8e9 / 8 * 128 / 130, 16.0: 16e9 / 8 * 128 / 130, 32.0: 32e9 / 8 * 128 / 130,
               64.0: 64e9 / 8 * 242 / 256}  # fmt: skip
PCI_DEVICES = Path("sys/bus/pci/devices")
_GENERATIONS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}


def pci_facts(root: Path, address: str | None) -> dict[str, Any]:
    """`pci` and `pcie` (the link) of the device at an address such as `0000:81:00.0`; None if unknown."""
    if address is None or not re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", address):
        return {"pci": None, "pcie": None}
    folder = root / PCI_DEVICES / address
    width, widest = read_number(folder / "current_link_width"), read_number(folder / "max_link_width")
    speed, fastest = (_transfers(read(folder / f"{name}_link_speed")) for name in ("current", "max"))
    known = any(value is not None for value in (width, widest, speed, fastest))
    link = {
        "width": width,
        "max_width": widest,
        "transfers_per_second": speed,
        "max_transfers_per_second": fastest,
        "bytes_per_second": link_bytes(fastest, width),
    }
    return {"pci": address, "pcie": link if known else None}


def numa_of(device: Path) -> int | None:
    """The NUMA node of the device in this folder of /sys; None if the firmware does not say (-1)."""
    node = read_number(device / "numa_node")
    return node if node is not None and node >= 0 else None


def link_bytes(transfers_per_second: float | None, width: int | None) -> float | None:
    """Capacity of `width` lanes. Pass the maximum speed: an idle device lowers its speed, but not its width."""
    lane = _LANE_BYTES.get(transfers_per_second / 1e9) if transfers_per_second else None
    return lane * width if lane and width else None


def generation_bytes(generation: int | None, width: int | None) -> float | None:
    """As `link_bytes`, by generation of PCI Express, which NVML reports."""
    gigatransfers = _GENERATIONS.get(generation) if generation else None
    return link_bytes(gigatransfers * 1e9, width) if gigatransfers else None


def _transfers(text: str | None) -> float | None:
    found = re.match(r"([\d.]+) GT/s", text or "")
    return float(found.group(1)) * 1e9 if found else None


# ----------------------------------------------------------------------------------------------------
# The GPUs that a process may use, by CUDA's numbers, from the kernel's files: no driver is called.


DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
_ORDER_VARIABLE = "CUDA_DEVICE_ORDER"
_GPUS = Path("proc/driver/nvidia/gpus")
_MIG = "proc/driver/nvidia/capabilities/gpu*/mig/gi*"


@dataclass(frozen=True)
class PciDevice:
    """A GPU or an adapter: address, such as `0000:07:00.0`, and NUMA node (None if the firmware does not say)."""

    pci: str
    numa_node: int | None


def gpus_of(root: Path = Path("/")) -> list[PciDevice]:
    """All of NVIDIA's GPUs that the driver has on this host, by address."""
    return [_gpu(root, folder.name.lower()) for folder in sorted((root / _GPUS).glob("*"), key=_by_address)]


def visible_gpus(environment: Mapping[str, str], root: Path = Path("/")) -> list[PciDevice]:
    """NVIDIA's GPUs that this process may use, in CUDA's order; empty if there are none, or their order is unknown.

    With CUDA_DEVICE_ORDER=PCI_BUS_ID, CUDA numbers them by PCI address. By default (FASTEST_FIRST) the fastest comes
    first: equal ones are then in the order of their addresses, too, and the order of different models is unknown here.
    So it is with MIG, and where CUDA_VISIBLE_DEVICES has UUIDs.
    """
    found = {}
    for folder in (root / _GPUS).glob("*"):
        rows = (line.partition(":") for line in (read(folder / "information") or "").splitlines())
        facts = {name.strip(): value.strip() for name, _, value in rows}
        # The scheduler or the container may have left this process some of them only.
        if os.access(root / f"dev/nvidia{facts.get('Device Minor')}", os.R_OK | os.W_OK):
            found[folder.name.lower()] = facts.get("Model")
    is_mixed = len(set(found.values())) > 1 and environment.get(_ORDER_VARIABLE) != "PCI_BUS_ID"
    if is_mixed or any(root.glob(_MIG)):
        return []
    gpus = [gpu for gpu in gpus_of(root) if gpu.pci in found]
    named = environment.get(DEVICES_VARIABLE)
    return gpus if named is None else _named(gpus, named)


def _named(gpus: Sequence[PciDevice], named: str) -> list[PciDevice]:
    """Those of `gpus` that CUDA_VISIBLE_DEVICES=`named` shows: all before the first that does not exist."""
    found: list[PciDevice] = []
    for word in map(str.strip, named.split(",")):
        if word.startswith(("GPU", "MIG")):
            return []
        if not word.isdecimal() or int(word) >= len(gpus):
            break
        found.append(gpus[int(word)])
    # With a repeated number, CUDA shows none.
    return found if len(set(found)) == len(found) else []


def _gpu(root: Path, pci: str) -> PciDevice:
    return PciDevice(pci, numa_of(root / PCI_DEVICES / pci))


def _by_address(folder: Path) -> list[int]:
    return [int(part, 16) for part in re.split("[:.]", folder.name)]


# ----------------------------------------------------------------------------------------------------
# The accelerators of a node, from NVML in a separate process.


# Without the persistence daemon, a node of eight devices needs some seconds to wake them.
_PATIENCE_SECONDS = 20.0
# The only device file of Windows' subsystem for Linux.
_WSL = Path("dev/dxg")


def describe_devices(host: Host) -> Part:
    """`devices` (all of the node, even those that this process may not use), `device_links`, `device_software`."""
    unknown: dict[str, Any] = {"devices": None, "device_links": None, "device_software": None}
    traces = find_traces(host.root)
    if not traces.any and not (host.root / _WSL).exists():
        return Part({**unknown, "devices": []})
    answer = host.ask(module_command("system.probe", "nvml"), _PATIENCE_SECONDS)
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
    """The connection matrix as nvidia-smi prints it, with network adapters, for the record."""
    if not find_traces(host.root).any:
        return Part({})
    answer = host.ask(["nvidia-smi", "topo", "-m"], _PATIENCE_SECONDS)
    return Part({}, {"nvidia-smi topo -m": answer.text} if answer.text else {})


# ----------------------------------------------------------------------------------------------------
# NVML, NVIDIA's management library, through its Python binding (nvidia-ml-py, imported as pynvml).
#
# It runs in this process, so a hung driver blocks the caller; call it in another process if that matters.


class Nvml(Protocol):
    """The functions and constants of the module pynvml, or of a test's replacement.

    Attributes:
        NVMLError: raised by its functions if a device or driver cannot answer.
    """

    NVMLError: type[Exception]

    def __getattr__(self, name: str) -> Any: ...


def ask_nvml(nvml: Nvml, function: str, *arguments: Any) -> Any:
    """The result of `function`; None if this device, driver or binding does not support it."""
    try:
        return getattr(nvml, function)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


@contextmanager
def open_nvml(binding: Nvml | None = None) -> Iterator[Nvml]:
    """NVML, initialised while the context is open. Contexts may be nested: the library counts.

    `binding` is the module pynvml; None imports it.

    Raises:
        EnvironmentLacksError: no binding, no driver, or a driver that does not work; the message says which.
    """
    try:
        # Some 7,000 lines, so it is imported only when needed; that does not load NVML yet.
        nvml = binding or cast("Nvml", importlib.import_module("pynvml"))
    except ImportError as error:
        raise EnvironmentLacksError("NVML's binding is not installed: pip install nvidia-ml-py") from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise EnvironmentLacksError(f"NVML does not answer ({error}): see `nvidia-smi` on this host") from error
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


# ----------------------------------------------------------------------------------------------------
# NVLinks of devices, and the matrix of connections between devices, in the terms of `nvidia-smi topo -m`.


# NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: speed of each active link, in one direction.
_SPEED_FIELD = 90
_SWITCH = 2
_MEGA = 1e6
# nvmlGpuTopologyLevel_t. PIX: one PCIe switch; PXB: several; PHB: a host bridge; NODE: bridges of one NUMA node; SYS:
# across sockets.
_LEVELS = {0: "PSB", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


@dataclass(frozen=True)
class Links:
    """NVLinks of one device.

    Attributes:
        total: 0 for a device without NVLink.
        version: of the protocol, in NVML's numbering.
        link_bytes_per_second: of each link, in one direction.
        switched: number of links to a switch.
        peers: (PCI address as NVML writes it, number of links) of each directly connected device.
    """

    total: int
    active: int
    version: int | None = None
    link_bytes_per_second: float | None = None
    switched: int = 0
    peers: tuple[tuple[str, int], ...] = ()

    def document(self) -> dict[str, Any] | None:
        """For the record; None for a device without NVLink."""
        if not self.total:
            return None
        speed = self.link_bytes_per_second
        return {
            "links": self.total,
            "active": self.active,
            "version": self.version,
            "link_bytes_per_second": speed,
            "bytes_per_second": speed * self.active if speed else None,
            "to_switches": self.switched,
        }


def links_of(nvml: Nvml, handle: Any) -> Links:
    states = {
        link: state
        for link in range(nvml.NVML_NVLINK_MAX_LINKS)
        # None: there is no such link.
        if (state := ask_nvml(nvml, "nvmlDeviceGetNvLinkState", handle, link)) is not None
    }
    active = [link for link, state in states.items() if state]
    if not active:
        return Links(len(states), 0)
    kinds = [ask_nvml(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) for link in active]
    far = [ask_nvml(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link) for link in active]
    ends = Counter(_text(end.busId) for end, kind in zip(far, kinds, strict=True) if end and kind != _SWITCH)
    return Links(
        len(states),
        len(active),
        ask_nvml(nvml, "nvmlDeviceGetNvLinkVersion", handle, active[0]),
        _speed(nvml, handle),
        kinds.count(_SWITCH),
        tuple(sorted(ends.items())),
    )


def topology(nvml: Nvml, handles: Sequence[Any], links: Sequence[Links]) -> list[list[str | None]]:
    """The connection from each device (row) to each: `X` itself, `NV4` four NVLinks, else the path over PCIe."""
    addresses = [ask_nvml(nvml, "nvmlDeviceGetPciInfo", handle) for handle in handles]
    names = [_text(address.busId) if address else "" for address in addresses]

    def way(one: int, other: int) -> str | None:
        if one == other:
            return "X"
        direct = dict(links[one].peers).get(names[other], 0)
        count = direct or min(links[one].switched, links[other].switched)
        if count:
            return f"NV{count}"
        return _LEVELS.get(ask_nvml(nvml, "nvmlDeviceGetTopologyCommonAncestor", handles[one], handles[other]))

    return [[way(one, other) for other in range(len(handles))] for one in range(len(handles))]


def _speed(nvml: Nvml, handle: Any) -> float | None:
    values = ask_nvml(nvml, "nvmlDeviceGetFieldValues", handle, [_SPEED_FIELD])
    # Each value has its own return code; 0 is success.
    if not values or values[0].nvmlReturn != 0 or not values[0].value.uiVal:
        return None
    return float(values[0].value.uiVal) * _MEGA


def _text(bus: str | bytes) -> str:
    return (bus.decode() if isinstance(bus, bytes) else bus).lower()


# ----------------------------------------------------------------------------------------------------
# The data that NVML has for each device.


_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_MILLI = 1e-3

# Calls NVML's function of this name for one device; returns None if it is not supported.
Ask = Callable[..., Any]


def read_nvml(nvml: Nvml) -> dict[str, Any]:
    """Versions, devices and links; values that a device or driver does not report are None."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    links = [links_of(nvml, handle) for handle in handles]
    cuda = ask_nvml(nvml, "nvmlSystemGetCudaDriverVersion")
    return {
        "driver": ask_nvml(nvml, "nvmlSystemGetDriverVersion"),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        "nvml": ask_nvml(nvml, "nvmlSystemGetNVMLVersion"),
        "devices": [_device(nvml, index, handle, links[index]) for index, handle in enumerate(handles)],
        "links": topology(nvml, handles, links),
    }


def _device(nvml: Nvml, index: int, handle: Any, links: Links) -> dict[str, Any]:
    def ask(function: str, *arguments: Any) -> Any:
        return ask_nvml(nvml, function, handle, *arguments)

    memory, capability = ask("nvmlDeviceGetMemoryInfo"), ask("nvmlDeviceGetCudaComputeCapability")
    pci, mig, ecc = ask("nvmlDeviceGetPciInfo"), ask("nvmlDeviceGetMigMode"), ask("nvmlDeviceGetEccMode")
    return {
        "index": index,
        "name": ask("nvmlDeviceGetName"),
        "uuid": ask("nvmlDeviceGetUUID"),
        "pci": pci_address(pci.busId) if pci is not None else None,
        "compute_capability": ".".join(map(str, capability)) if capability else None,
        "cores": ask("nvmlDeviceGetNumGpuCores"),
        "memory_bytes": memory.total if memory is not None else None,
        "memory_bus_bits": ask("nvmlDeviceGetMemoryBusWidth"),
        "firmware": ask("nvmlDeviceGetVbiosVersion"),
        **_clocks(nvml, ask),
        **_power(ask),
        "persistence": _enabled(ask("nvmlDeviceGetPersistenceMode")),
        "ecc": _enabled(ecc[0]) if ecc else None,
        "mig": _enabled(mig[0]) if mig else None,
        "compute_mode": _COMPUTE_MODES.get(ask("nvmlDeviceGetComputeMode")),
        "pcie": _pcie(ask),
        "nvlink": links.document(),
    }


def _clocks(nvml: Nvml, ask: Ask) -> dict[str, float | None]:
    """In Hz: the maximum clocks, and the application clocks."""
    kinds = {"sm": nvml.NVML_CLOCK_SM, "memory": nvml.NVML_CLOCK_MEM}
    found = {f"max_{name}_hz": ask("nvmlDeviceGetMaxClockInfo", kind) for name, kind in kinds.items()}
    found |= {f"application_{name}_hz": ask("nvmlDeviceGetApplicationsClock", kind) for name, kind in kinds.items()}
    return {name: value * _MEGA if value is not None else None for name, value in found.items()}


def _power(ask: Ask) -> dict[str, float | None]:
    """In watts: the enforced limit, the default limit, and the range of possible limits."""
    low, high = ask("nvmlDeviceGetPowerManagementLimitConstraints") or (None, None)
    found = {
        "power_limit_watts": ask("nvmlDeviceGetEnforcedPowerLimit"),
        "default_power_limit_watts": ask("nvmlDeviceGetPowerManagementDefaultLimit"),
        "least_power_limit_watts": low,
        "most_power_limit_watts": high,
    }
    return {name: value * _MILLI if value is not None else None for name, value in found.items()}


def _pcie(ask: Ask) -> dict[str, Any]:
    generation, width = ask("nvmlDeviceGetMaxPcieLinkGeneration"), ask("nvmlDeviceGetCurrPcieLinkWidth")
    return {
        "generation": ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        "max_generation": generation,
        "width": width,
        "max_width": ask("nvmlDeviceGetMaxPcieLinkWidth"),
        "bytes_per_second": generation_bytes(generation, width),
    }


def pci_address(bus: str | bytes) -> str:
    """NVML's `00000000:81:00.0` as the kernel writes it: `0000:81:00.0`."""
    domain, _, rest = _text(bus).partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _enabled(value: int | None) -> bool | None:
    return None if value is None else bool(value)


# ----------------------------------------------------------------------------------------------------
# Kernel modules for devices and for fast paths between them.


# NVIDIA's driver, GPUDirect RDMA and GDRCopy, network adapters, copies between processes, file systems.
_MODULES = (
    "nvidia", "nvidia_uvm", "nvidia_peermem", "nv_peer_mem", "gdrdrv", "nvidia_fs", "mlx5_core", "mlx5_ib", "ib_core",
    "hfi1", "efa", "irdma", "bnxt_en", "ice", "i40e", "ixgbe", "ena", "cxi_ss1", "knem", "xpmem", "lustre", "nfs",
    "ceph", "mmfs26", "beegfs", "wekafsio",
)  # fmt: skip


def describe_drivers(host: Host) -> Part:
    """`driver`: version of NVIDIA's driver, and of each loaded module, or `loaded` if it has no version."""
    folder = host.root / "sys/module"
    modules = {name: read(folder / name / "version") or "loaded" for name in _MODULES if (folder / name).is_dir()}
    return Part({"driver": {"nvidia": find_traces(host.root).kernel_module, "modules": modules}})
