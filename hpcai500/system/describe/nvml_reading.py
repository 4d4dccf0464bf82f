"""What NVML says of the devices of a node: pure questions to a module that is open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcai500.system.describe.nvml_links import Links, links_of, topology
from hpcai500.system.describe.pci import generation_bytes
from hpcai500.system.nvml import Nvml, ask_nvml

_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_MEGA = 1e6
_MILLI = 1e-3

# A question to one device, by the name of NVML's function; None where it does not answer.
Ask = Callable[..., Any]


def read_nvml(nvml: Nvml) -> dict[str, Any]:
    """Driver, devices and what lies between them; what a device or driver does not tell is None."""
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
    """In Hz: the highest, and what applications are held to."""
    kinds = {"sm": nvml.NVML_CLOCK_SM, "memory": nvml.NVML_CLOCK_MEM}
    found = {f"max_{name}_hz": ask("nvmlDeviceGetMaxClockInfo", kind) for name, kind in kinds.items()}
    found |= {f"application_{name}_hz": ask("nvmlDeviceGetApplicationsClock", kind) for name, kind in kinds.items()}
    return {name: value * _MEGA if value is not None else None for name, value in found.items()}


def _power(ask: Ask) -> dict[str, float | None]:
    """In watts: the limit that counts, the maker's own, and what it may be set to."""
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
    text = (bus.decode() if isinstance(bus, bytes) else bus).lower()
    domain, _, rest = text.partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _enabled(value: int | None) -> bool | None:
    return None if value is None else bool(value)
