"""A mock of the module pynvml: NVIDIA's driver cannot be here. Eight H100 behind NVSwitches, as NVML describes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class MockError(Exception):
    """What this mock raises where the real library would not answer."""


class MockNvml:
    """An HGX H100 with eight devices, opened and closed like the library.

    Args:
        devices: how many it has.
        switched: whether NVLinks lead to switches; else each pair of devices has four links.
        old: a driver that knows nothing of MIG, links and buses.
        broken: the driver does not even start.
    """

    NVMLError = MockError
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_NVLINK_MAX_LINKS = 18

    def __init__(self, devices: int = 8, *, switched: bool = True, old: bool = False, broken: bool = False) -> None:
        self.devices, self.switched, self.old, self.broken = devices, switched, old, broken
        self.opened = 0

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's own names
        if self.broken:
            raise MockError("Driver Not Loaded")
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.opened -= 1

    def __getattr__(self, name: str) -> Any:
        if not self.opened:
            raise MockError("Uninitialized")
        if self.old and any(word in name for word in ("Mig", "NvLink", "BusWidth", "NumGpuCores")):
            # A binding older than the question.
            raise AttributeError(name)
        return {**self._system(), **self._device(), **self._links()}[name]

    def _system(self) -> dict[str, Any]:
        return {
            "nvmlSystemGetCudaDriverVersion": lambda: 13000,
            "nvmlSystemGetDriverVersion": lambda: "580.65.06",
            "nvmlSystemGetNVMLVersion": lambda: "13.580.65.06",
            "nvmlDeviceGetCount": lambda: self.devices,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
        }

    def _device(self) -> dict[str, Any]:
        return {
            "nvmlDeviceGetName": lambda device: "NVIDIA H100 80GB HBM3",
            "nvmlDeviceGetUUID": lambda device: f"GPU-0000000{device}-0000-0000-0000-000000000000",
            "nvmlDeviceGetPciInfo": lambda device: SimpleNamespace(busId=self._bus(device)),
            "nvmlDeviceGetCudaComputeCapability": lambda device: (9, 0),
            "nvmlDeviceGetNumGpuCores": lambda device: 16896,
            "nvmlDeviceGetMemoryInfo": lambda device: SimpleNamespace(total=85520809984),
            "nvmlDeviceGetMemoryBusWidth": lambda device: 5120,
            "nvmlDeviceGetVbiosVersion": lambda device: "96.00.74.00.01",
            "nvmlDeviceGetMaxClockInfo": lambda device, kind: {1: 1980, 2: 2619}[kind],
            "nvmlDeviceGetApplicationsClock": self._refuse,
            "nvmlDeviceGetEnforcedPowerLimit": lambda device: 500000 if device == 3 else 700000,
            "nvmlDeviceGetPowerManagementDefaultLimit": lambda device: 700000,
            "nvmlDeviceGetPowerManagementLimitConstraints": lambda device: [200000, 700000],
            "nvmlDeviceGetPersistenceMode": lambda device: 1,
            "nvmlDeviceGetEccMode": lambda device: [1, 1],
            "nvmlDeviceGetMigMode": lambda device: [0, 0],
            "nvmlDeviceGetComputeMode": lambda device: 3,
            "nvmlDeviceGetMaxPcieLinkGeneration": lambda device: 5,
            "nvmlDeviceGetCurrPcieLinkGeneration": lambda device: 1,
            "nvmlDeviceGetCurrPcieLinkWidth": lambda device: 8 if device == 5 else 16,
            "nvmlDeviceGetMaxPcieLinkWidth": lambda device: 16,
            "nvmlDeviceGetTopologyCommonAncestor": lambda one, other: 40 if one // 4 == other // 4 else 50,
        }

    def _links(self) -> dict[str, Any]:
        return {
            "nvmlDeviceGetNvLinkState": self._state,
            "nvmlDeviceGetNvLinkVersion": lambda device, link: 7,
            "nvmlDeviceGetNvLinkRemoteDeviceType": lambda device, link: 2 if self.switched else 0,
            "nvmlDeviceGetNvLinkRemotePciInfo": lambda device, link: SimpleNamespace(busId=self._far_end(device, link)),
            "nvmlDeviceGetFieldValues": lambda device, fields: [
                SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=26562))
            ],
        }

    def _state(self, device: int, link: int) -> int:
        # The last link of device 6 is dead.
        most = 18 if self.switched else 4 * (self.devices - 1)
        if link >= most:
            raise MockError("Invalid Argument")
        return 0 if (device, link) == (6, 17) else 1

    def _far_end(self, device: int, link: int) -> bytes:
        others = [other for other in range(self.devices) if other != device]
        return self._bus(others[link // 4]) if not self.switched else b"00000000:01:00.0"

    def _bus(self, device: int) -> bytes:
        return f"00000000:{0x19 + 16 * device:02X}:00.0".encode()

    def _refuse(self, *arguments: Any) -> Any:
        raise MockError("Not Supported")


class MeteredNvml(MockNvml):
    """Devices whose power and energy the test sets.

    Args:
        watts: of each.
        counts: whether they count energy.
    """

    def __init__(self, watts: tuple[float, ...] = (300.0, 200.0), *, counts: bool = True) -> None:
        super().__init__(len(watts))
        self.watts, self.counts = list(watts), counts
        self.joules = [1000.0] * len(watts)
        self.fails = False

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        if self.fails:
            raise MockError("GPU is lost")
        return int(self.watts[handle] * 1000)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:  # noqa: N802
        if not self.counts:
            raise MockError("Not Supported")
        return int(self.joules[handle] * 1000)


class LinkedNvml(MockNvml):
    """One device, busy for 87 % of the time, whose NVLinks count what they carry.

    Args:
        links: counter in KiB of each active link, sent and received; None: the device has no links.
        fields: ids that it knows.
    """

    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 138, 139
    NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES = 202, 204

    def __init__(
        self, links: list[tuple[int, int]] | None, fields: tuple[int, ...] = (138, 139), *, broken: bool = False
    ) -> None:
        super().__init__(1, broken=broken)
        self._counters, self._fields = links, fields

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != "GPU-1":
            raise MockError("Not Found")
        return f"handle of {uuid}"

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        assert handle == "handle of GPU-1"
        return SimpleNamespace(gpu=87)

    def nvmlDeviceGetNvLinkState(self, handle: str, link: int) -> int:  # noqa: N802
        if self._counters is None or link > len(self._counters):
            raise MockError("Not Supported")
        # The last one is there and switched off.
        return int(link < len(self._counters))

    def nvmlDeviceGetFieldValues(self, handle: str, wanted: list[tuple[int, int]]) -> list[Any]:  # noqa: N802
        assert self._counters is not None
        return [
            SimpleNamespace(
                nvmlReturn=0 if field in self._fields else 3,
                value=SimpleNamespace(ullVal=self._counters[link][field in (139, 204)]),
            )
            for field, link in wanted
        ]
