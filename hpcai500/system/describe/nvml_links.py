"""NVLinks of devices, and the matrix of how each reaches each, in the words of `nvidia-smi topo -m`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcai500.system.nvml import Nvml, ask_nvml

# NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: of each active link, in one direction.
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
        total: that it has; 0 for a device without.
        active: that work.
        version: of the protocol, as NVML counts.
        link_bytes_per_second: of each, in one direction.
        switched: that lead to a switch.
        peers: how many lead to which device, by its PCI address as NVML writes it.
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
    """The NVLinks of a device."""
    states = {
        link: state
        for link in range(nvml.NVML_NVLINK_MAX_LINKS)
        # No such link, or none at all: no state.
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
    """Row by row how device reaches device: `X` itself, `NV4` by four NVLinks, else the way by PCIe and sockets."""
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
    # Each value has its own result; 0 is success.
    if not values or values[0].nvmlReturn != 0 or not values[0].value.uiVal:
        return None
    return float(values[0].value.uiVal) * _MEGA


def _text(bus: str | bytes) -> str:
    return (bus.decode() if isinstance(bus, bytes) else bus).lower()
