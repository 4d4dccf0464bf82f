"""The power of NVIDIA's accelerators, from their management library."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from hpcai500.errors import EnvironmentLacksError
from hpcai500.system.nvml import Nvml, open_nvml
from hpcai500.system.power.count import EnergyCount
from hpcai500.system.power.source import Reading, ReadingError, Scope, machine_seconds


class NvmlSource:
    """All accelerators of the node that the driver shows: power in mW, and energy in mJ where they count it.

    A cgroup hides those of other jobs; `CUDA_VISIBLE_DEVICES` hides none from this library.

    Devices count their energy since Volta; a count misses nothing between two samples.

    Raises:
        EnvironmentLacksError: no driver, no device, or one that does not tell its power.
    """

    name = "nvml"
    scope: Scope = "device"
    interval_seconds = 0.5
    patience_seconds = 5.0

    def __init__(self, binding: Nvml | None = None) -> None:
        with ExitStack() as stack:
            self._nvml = stack.enter_context(open_nvml(binding))
            try:
                count = self._nvml.nvmlDeviceGetCount()
                self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
                for handle in self._handles:
                    self._nvml.nvmlDeviceGetPowerUsage(handle)
            except self._nvml.NVMLError as error:
                raise EnvironmentLacksError(f"NVML: a device does not tell its power ({error})") from error
            if not count:
                raise EnvironmentLacksError("NVML: no device")
            self._stack = stack.pop_all()
        self.devices = tuple(f"gpu{index}" for index in range(count))
        self.covers = f"{count} accelerator{'s' if count > 1 else ''}"
        self._count = EnergyCount(dict.fromkeys(self.devices)) if self._can_count() else None

    def read(self) -> Reading:
        """Power of each device, and the energy that all have used since the first reading."""
        try:
            watts = self._ask(self._nvml.nvmlDeviceGetPowerUsage)
            joules = self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption) if self._count else {}
        except self._nvml.NVMLError as error:
            raise ReadingError(f"NVML: {error}") from error
        counted = self._count.look(machine_seconds(), joules).joules if self._count else None
        return Reading(watts, counted)

    def close(self) -> None:
        """Let go of the library."""
        self._stack.close()

    def _can_count(self) -> bool:
        try:
            self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        except self._nvml.NVMLError:
            return False
        return True

    def _ask(self, question: Any) -> dict[str, float]:
        """The answer of each device, in thousandths of a unit."""
        return {name: question(handle) / 1000 for name, handle in zip(self.devices, self._handles, strict=True)}
