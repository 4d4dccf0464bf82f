"""Sources of power that ask the driver of accelerators: NVML for NVIDIA's, AMD SMI for AMD's."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, cast

from hpcai500.errors import EnvironmentLacksError
from hpcai500.system.devices import Nvml, ask_nvml, open_nvml
from hpcai500.system.power_kernel import HWMON, HwmonSource
from hpcai500.system.power_reading import EnergyCount, Parts, Reading, ReadingError, Scope, machine_seconds, used

# ----------------------------------------------------------------------------------------------------
# The power of NVIDIA's accelerators, from NVML.


class NvmlSource:
    """All accelerators of the node that the driver shows: power in mW, and energy in mJ if they count it.

    A cgroup hides accelerators of other jobs from NVML, `CUDA_VISIBLE_DEVICES` does not (see `keep`). Devices since
    Volta count their energy, so that nothing is missed between two samples.

    Raises:
        EnvironmentLacksError: no driver, no device, or a device that does not report its power.
    """

    name = "nvml"
    scope: Scope = "device"
    parts: Parts | None = "accelerators"
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
                raise EnvironmentLacksError(f"NVML: a device does not report its power ({error})") from error
            if not count:
                raise EnvironmentLacksError("NVML: no device")
            self._stack = stack.pop_all()
        self.devices = tuple(f"gpu{index}" for index in range(count))
        self.covers = f"{count} accelerator{'s' if count > 1 else ''}"
        self._count = EnergyCount(dict.fromkeys(self.devices)) if self._can_count() else None

    def keep(self, uuids: Collection[str]) -> None:
        known = [str(ask_nvml(self._nvml, "nvmlDeviceGetUUID", handle)) for handle in self._handles]
        kept = [index for index, uuid in enumerate(known) if uuid.removeprefix("GPU-").lower() in uuids]
        if len(kept) < len(uuids) or len(kept) == len(known):
            return
        self.covers = used(len(kept), len(known))
        self._handles = [self._handles[index] for index in kept]
        self.devices = tuple(self.devices[index] for index in kept)
        self._count = EnergyCount(dict.fromkeys(self.devices)) if self._count else None

    def read(self) -> Reading:
        """Power of each device, and the energy of all since the first reading."""
        try:
            watts = self._ask(self._nvml.nvmlDeviceGetPowerUsage)
            joules = self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption) if self._count else {}
        except self._nvml.NVMLError as error:
            raise ReadingError(f"NVML: {error}") from error
        counted = self._count.look(machine_seconds(), joules).joules if self._count else None
        return Reading(watts, counted)

    def caps(self) -> dict[str, float]:
        """The enforced limit: the lowest of all that apply."""
        limits = [ask_nvml(self._nvml, "nvmlDeviceGetEnforcedPowerLimit", handle) for handle in self._handles]
        return {name: limit / 1000 for name, limit in zip(self.devices, limits, strict=True) if limit}

    def close(self) -> None:
        self._stack.close()

    def _can_count(self) -> bool:
        try:
            self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        except self._nvml.NVMLError:
            return False
        return True

    def _ask(self, function: Any) -> dict[str, float]:
        """The value of each device; NVML returns thousandths of a unit."""
        return {name: function(handle) / 1000 for name, handle in zip(self.devices, self._handles, strict=True)}


# ----------------------------------------------------------------------------------------------------
# The power of AMD's accelerators, from AMD SMI's Python library, or from the files of the driver amdgpu.


class AmdSmi(Protocol):
    """The functions of the module amdsmi, or of a test's replacement.

    Attributes:
        AmdSmiException: raised by its functions.
    """

    AmdSmiException: type[Exception]

    def __getattr__(self, name: str) -> Any: ...


# Instinct MI300 and later have the current power, earlier ones and Radeon the average; `N/A` stands for the other.
_POWERS = ("current_socket_power", "average_socket_power")
# ROCm's releases name the count differently.
_COUNTERS = ("energy_accumulator", "power")
# The library states caps in microwatts, some releases in watts: no device has a cap below a tenth of a watt.
_LEAST_MICROWATTS = 1e5


class AmdSource:
    """All AMD accelerators of the node: power in W, and their energy accumulators, of about 15.3 microjoules a unit.

    A device without a power is left out if another has one: of the two halves of an MI250, the first reports both.

    Raises:
        EnvironmentLacksError: neither the library nor the driver's files report a power.
    """

    name = "amd"
    scope: Scope = "device"
    parts: Parts | None = "accelerators"
    interval_seconds = 0.5
    patience_seconds = 5.0

    def __init__(self, binding: AmdSmi | None = None, hwmon: Path = HWMON) -> None:
        self._files: HwmonSource | None = None
        self._library: AmdSmi | None = binding
        self._handles: dict[str, Any] = {}
        self._count: EnergyCount | None = None
        try:
            self._library = binding or cast("AmdSmi", importlib.import_module("amdsmi"))
        except (ImportError, OSError, KeyError):
            # The module loads its library when it is imported, which fails without ROCm.
            self._open_files(hwmon)
            return
        try:
            self._open_library(self._library)
        except self._library.AmdSmiException as error:
            raise EnvironmentLacksError(f"AMD SMI: {error}") from error

    def read(self) -> Reading:
        """Power of each device, and the energy of all since the first reading if all of them count it."""
        if self._files:
            return self._files.read()
        assert self._library is not None
        try:
            watts = {name: self._watts(handle) for name, handle in self._handles.items()}
            joules = {name: self._joules(handle) for name, handle in self._handles.items()} if self._count else {}
        except self._library.AmdSmiException as error:
            raise ReadingError(f"AMD SMI: {error}") from error
        if not self._count:
            return Reading(watts)
        known = {name: value for name, value in joules.items() if value is not None}
        if len(known) < len(joules):
            raise ReadingError("AMD SMI: a device no longer counts its energy")
        return Reading(watts, self._count.look(machine_seconds(), known).joules)

    def caps(self) -> Mapping[str, float]:
        if self._files:
            return self._files.caps()
        found = {name: self._cap(handle) for name, handle in self._handles.items()}
        return {name: watts for name, watts in found.items() if watts}

    def close(self) -> None:
        if not self._files and self._library:
            self._library.amdsmi_shut_down()

    def _open_files(self, hwmon: Path) -> None:
        try:
            self._files = HwmonSource(None, hwmon, ("amdgpu",))
        except EnvironmentLacksError as error:
            message = f"AMD: the module amdsmi cannot be imported, and {str(error).removeprefix('hwmon: ')}"
            raise EnvironmentLacksError(message) from error
        self.devices, self.covers = self._files.devices, _accelerators(len(self._files.devices))

    def _open_library(self, library: AmdSmi) -> None:
        library.amdsmi_init()
        with ExitStack() as stack:
            stack.callback(library.amdsmi_shut_down)
            found = {f"gpu{index}": handle for index, handle in enumerate(library.amdsmi_get_processor_handles())}
            self._handles = {name: handle for name, handle in found.items() if self._watts(handle) is not None}
            if not self._handles:
                raise EnvironmentLacksError("AMD SMI: no device reports its power" if found else "AMD SMI: no device")
            stack.pop_all()
        self.devices, self.covers = tuple(self._handles), _accelerators(len(self._handles))
        if all(self._joules(handle) is not None for handle in self._handles.values()):
            self._count = EnergyCount(dict.fromkeys(self.devices))

    def _watts(self, handle: Any) -> float | None:
        """Power of a device; None for one that does not report it, of which the library says N/A."""
        told = cast("AmdSmi", self._library).amdsmi_get_power_info(handle)
        return next((float(told[key]) for key in _POWERS if _is_number(told.get(key))), None)

    def _joules(self, handle: Any) -> float | None:
        library = cast("AmdSmi", self._library)
        try:
            told = library.amdsmi_get_energy_count(handle)
        except library.AmdSmiException:
            return None
        count = next((told[key] for key in _COUNTERS if _is_number(told.get(key))), None)
        # Microjoules a unit; a count of 0 is that of a device without a counter.
        unit = told.get("counter_resolution")
        return count * unit * 1e-6 if count and _is_number(unit) else None

    def _cap(self, handle: Any) -> float | None:
        library = cast("AmdSmi", self._library)
        try:
            cap = library.amdsmi_get_power_cap_info(handle).get("power_cap")
        except library.AmdSmiException:
            return None
        return (cap * 1e-6 if cap >= _LEAST_MICROWATTS else float(cap)) if _is_number(cap) else None


def _is_number(value: Any) -> bool:
    # The largest values of 32 and 64 bits stand for one that the device does not have.
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value != 2**32 - 1
    return is_number and 0 <= value < 2**64 - 1


def _accelerators(count: int) -> str:
    return f"{count} accelerator{'s' if count > 1 else ''}"
