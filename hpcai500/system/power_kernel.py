"""Sources of power that are files of the kernel: RAPL, Cray's pm_counters, hwmon."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from hpcai500.errors import EnvironmentLacksError
from hpcai500.system.power_reading import EnergyCount, Parts, Reading, ReadingError, Scope, machine_seconds

_MICRO = 1e-6


# ----------------------------------------------------------------------------------------------------
# The energy of processors and memory, from Linux's RAPL counters (Running Average Power Limit).


POWERCAP = Path("/sys/class/powercap")
# No package draws more; so a counter cannot wrap twice within the time in which this power fills it.
_MOST_WATTS = 1000.0


@dataclass(frozen=True)
class Domain:
    """One counter: `package-0` or `package-0 dram`, its file (microjoules), and the joules at which it wraps to 0.

    `cap` is the file of its long-term power limit in microwatts.
    """

    name: str
    file: Path
    size_joules: float
    cap: Path


class RaplSource:
    """The energy of packages and their memory.

    A package includes its sub-domains (core, uncore), so they are not added; its memory is separate. The domain of the
    platform (psys) includes the packages, so it is left out too.

    Raises:
        EnvironmentLacksError: the kernel shows no counters, or this user cannot read them.
    """

    name = "rapl"
    scope: Scope = "device"
    parts: Parts | None = "processors"
    # The counters are updated every millisecond; nothing is lost between two readings.
    interval_seconds = 0.5
    patience_seconds = 5.0

    def __init__(self, powercap: Path = POWERCAP) -> None:
        self._domains = find_domains(powercap)
        self.devices = tuple(domain.name for domain in self._domains)
        has_memory = any(name.endswith("dram") for name in self.devices)
        self.covers = "processors and memory" if has_memory else "processors without memory"
        sizes = {domain.name: domain.size_joules for domain in self._domains}
        self._count = EnergyCount(sizes, min(sizes.values()) / _MOST_WATTS)
        try:
            self._read()
        except PermissionError as error:
            raise EnvironmentLacksError(
                f"RAPL: {error.filename}: only root can read it: ask root for `chmod a+r "
                f"{powercap}/intel-rapl:*/energy_uj`"
            ) from error
        except (OSError, ValueError) as error:
            raise EnvironmentLacksError(f"RAPL: {error}") from error

    def read(self) -> Reading:
        """The energy of all domains since the first reading, and the mean power of each since the last."""
        try:
            return self._count.look(machine_seconds(), self._read())
        except (OSError, ValueError) as error:
            raise ReadingError(f"RAPL: {error}") from error

    def caps(self) -> dict[str, float]:
        """The long-term limit of each domain that has one; virtual machines and AMD's processors show none."""
        found = {}
        for domain in self._domains:
            try:
                found[domain.name] = int(domain.cap.read_text()) * _MICRO
            except (OSError, ValueError):
                continue
        return {name: watts for name, watts in found.items() if watts > 0}

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _read(self) -> dict[str, float]:
        return {domain.name: int(domain.file.read_text()) / 1e6 for domain in self._domains}


def find_domains(powercap: Path = POWERCAP) -> list[Domain]:
    """The counters below `powercap` that together cover all energy without overlap.

    Raises:
        EnvironmentLacksError: there are none.
    """
    found = []
    # intel-rapl:0 is a zone, intel-rapl:0:1 a part of it; AMD's processors have the same names. intel-rapl-mmio:0 is
    # another interface to the same package.
    for zone in sorted(powercap.glob("intel-rapl:*"), key=lambda path: path.name):
        _, *numbers = zone.name.split(":")
        name = _zone_name(zone)
        if len(numbers) == 1 and name.startswith("package"):
            found.append(_domain(name, zone))
        elif len(numbers) == 2 and name == "dram":
            parent = _zone_name(zone.with_name(f"intel-rapl:{numbers[0]}"))
            found.append(_domain(f"{parent} dram", zone))
    if not found:
        raise EnvironmentLacksError(
            f"RAPL: {powercap} has no counters (the processor has none, or this is a virtual machine)"
        )
    return found


def _zone_name(zone: Path) -> str:
    """The name; empty if the kernel does not say, or the container hides the file."""
    try:
        return (zone / "name").read_text().strip()
    except OSError:
        return ""


def _domain(name: str, zone: Path) -> Domain:
    try:
        size = int((zone / "max_energy_range_uj").read_text()) / 1e6
    except (OSError, ValueError) as error:
        raise EnvironmentLacksError(f"RAPL: {zone}: the range of the counter cannot be read: {error}") from error
    return Domain(name, zone / "energy_uj", size, zone / "constraint_0_power_limit_uw")


# ----------------------------------------------------------------------------------------------------
# The whole node's power and energy from the blade controller of a Cray (XC, EX): `123 W 1234567 us` in a file each.


PM_COUNTERS = Path("/sys/cray/pm_counters")
_VALUE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:(W|J)\b.*)?")
# The controller writes ten times a second; a counter that stood still for so long is no reading.
_STALE_SECONDS = 2.0
_ATTEMPTS = 5


class PmCountersSource:
    """Power and energy of the node, and power of its processors, memory and accelerators, which are parts of it.

    All files belong to one scan of the controller if `freshness` is the same before and after. If it stands still, the
    controller has stopped, and the other files keep their last values.

    Raises:
        EnvironmentLacksError: this is no Cray, or the files cannot be read.
    """

    name = "pm_counters"
    scope: Scope = "node"
    parts: Parts | None = "node"
    covers = "the whole node"
    interval_seconds = 0.5
    patience_seconds = 5.0

    def __init__(self, folder: Path = PM_COUNTERS) -> None:
        self._folder = folder
        if not folder.is_dir():
            raise EnvironmentLacksError(f"pm_counters: {folder} does not exist (this node is not a Cray's)")
        # One controller has `accel_power`, another `accel0_power` and so on, or both.
        names = [path.name.removesuffix("_power") for path in sorted(folder.glob("accel[0-9]*_power"))] or ["accel"]
        self.devices = tuple(one for one in ("cpu", "memory", *names) if (folder / f"{one}_power").exists())
        self._count = EnergyCount({"": None})
        self._fresh: tuple[str, float] | None = None
        self._startup: str | None = None
        try:
            self.read()
        except ReadingError as error:
            raise EnvironmentLacksError(str(error)) from error

    def read(self) -> Reading:
        """Power of the node and its parts at one scan, and the energy of the node since the first reading."""
        for _ in range(_ATTEMPTS):
            before = self._text("freshness")
            watts = {name: self._number(f"{name}_power", "W") for name in self.devices}
            power, joules, startup = self._number("power", "W"), self._number("energy", "J"), self._text("startup")
            if self._text("freshness") == before:
                break
        else:
            raise ReadingError(f"pm_counters: {self._folder}/freshness changed during each of {_ATTEMPTS} readings")
        now = machine_seconds()
        if self._fresh is None or self._fresh[0] != before:
            self._fresh = before, now
        elif now - self._fresh[1] > _STALE_SECONDS:
            raise ReadingError(
                f"pm_counters: {self._folder}/freshness has been {before} for {now - self._fresh[1]:.0f} s: "
                "the controller does not measure"
            )
        if startup != self._startup:
            # The controller started again, and counts from another value.
            self._startup, self._count = startup, EnergyCount({"": None})
        return Reading(watts, self._count.look(now, {"": joules}).joules, power)

    def caps(self) -> dict[str, float]:
        """The cap of the node, which includes those of accelerators; 0 is none."""
        files = {"": "power_cap"} | {name: f"{name}_power_cap" for name in self.devices}
        found = {name: self._number(file, "W") for name, file in files.items() if (self._folder / file).exists()}
        return {name: watts for name, watts in found.items() if watts > 0}

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _text(self, file: str) -> str:
        return _read(self._folder / file, "pm_counters").strip()

    def _number(self, file: str, unit: str) -> float:
        text = self._text(file)
        found = _VALUE.fullmatch(text)
        if found is None or found.group(2) not in (None, unit):
            raise ReadingError(f"pm_counters: {self._folder / file}: expected a number of {unit}, got {text[:40]!r}")
        return float(found.group(1))


def _read(file: Path, source: str) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ReadingError(f"{source}: {file}: {error.strerror}") from error


# ----------------------------------------------------------------------------------------------------
# Sensors of the kernel's hardware monitoring: microwatts in power*_average or power*_input, microjoules in
# energy*_input.


HWMON = Path("/sys/class/hwmon")
# Drivers of accelerators. Their first channel is the whole card or socket; others are parts of it.
_ACCELERATORS = ("amdgpu", "i915", "xe")


@dataclass(frozen=True)
class Sensor:
    """One channel of a chip.

    Attributes:
        name: `amdgpu0 power1 PPT`: driver, number of the chip, channel, label.
        watts, joules, cap: its files; None for one that it lacks.
    """

    name: str
    watts: Path | None
    joules: Path | None
    cap: Path | None


class HwmonSource:
    """Sensors of one driver, added up.

    `place` is `CHIP`, or `CHIP/SENSOR`, a pattern for labels or channels, with `,scope=node` if the sensors measure the
    whole node: only the site knows what a sensor of a main board measures. None: all accelerators.

    Raises:
        EnvironmentLacksError: there is no such sensor, it cannot be read, or it is not clear which ones to add up.
    """

    name = "hwmon"
    scope: Scope = "device"
    parts: Parts | None = "accelerators"
    interval_seconds = 0.5
    patience_seconds = 5.0

    def __init__(self, place: str | None = None, folder: Path = HWMON, drivers: Sequence[str] = _ACCELERATORS) -> None:
        if place is None:
            self._sensors = find_sensors(folder, drivers)
            if not self._sensors:
                others = sorted({_chip_name(chip) for chip in folder.glob("hwmon*") if _channels(chip)})
                more = f"; name one of {', '.join(others)}: --power hwmon:NAME" if others else ""
                raise EnvironmentLacksError(f"{self.name}: {folder} has no sensor of {', '.join(drivers)}{more}")
        else:
            place, _, scope = place.partition(",scope=")
            self.scope = "node" if scope == "node" else "device"
            self.parts = "node" if scope == "node" else None
            self._sensors = _named_sensors(folder, place)
        self.devices = tuple(sensor.name for sensor in self._sensors)
        self.covers = ", ".join(self.devices[:4]) + (f" and {len(self.devices) - 4} more" if self.devices[4:] else "")
        counts = all(sensor.joules for sensor in self._sensors)
        self._count = EnergyCount(dict.fromkeys(self.devices)) if counts else None
        try:
            self.read()
        except ReadingError as error:
            raise EnvironmentLacksError(str(error)) from error

    def read(self) -> Reading:
        """Power of each sensor, and the energy of all since the first reading if all of them count it."""
        watts = {one.name: self._micro(one.watts) for one in self._sensors if one.watts}
        if not self._count:
            return Reading(watts)
        joules = {one.name: self._micro(one.joules) for one in self._sensors if one.joules}
        counted = self._count.look(machine_seconds(), joules)
        return Reading(watts if len(watts) == len(joules) else counted.watts, counted.joules)

    def caps(self) -> dict[str, float]:
        found = {one.name: self._micro(one.cap) for one in self._sensors if one.cap}
        return {name: watts for name, watts in found.items() if watts > 0}

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _micro(self, file: Path) -> float:
        text = _read(file, self.name).strip()
        if not re.fullmatch(r"\d{1,20}", text):
            raise ReadingError(f"{self.name}: {file}: expected a number, got {text[:40]!r}")
        return int(text) * _MICRO


def find_sensors(folder: Path, drivers: Sequence[str]) -> list[Sensor]:
    """The first channel with a sensor of each chip of `drivers` in `folder`."""
    return [found[0] for driver in drivers for chip in _chips(folder, driver) if (found := _sensors(*chip))]


def _named_sensors(folder: Path, place: str) -> list[Sensor]:
    driver, _, pattern = place.partition("/")
    found = [one for chip in _chips(folder, driver) for one in _sensors(*chip, pattern)]
    if not found:
        raise EnvironmentLacksError(f"hwmon: {folder} has no sensor {place} of power or energy")
    if not pattern and len(found) > len(_chips(folder, driver)):
        names = ", ".join(one.name for one in found[:4])
        raise EnvironmentLacksError(
            f"hwmon: {driver} has {len(found)} sensors ({names}…), which may include each other: name those to add up, "
            f"for example --power hwmon:{driver}/power1"
        )
    return found


def _chips(folder: Path, driver: str) -> list[tuple[str, Path]]:
    """(name, folder) of each chip of `driver`, in the order of their devices."""
    chips = [chip for chip in folder.glob("hwmon*") if _chip_name(chip) == driver]
    # The number of hwmonN changes from boot to boot, the device does not.
    chips.sort(key=lambda chip: (str((chip / "device").resolve()) if (chip / "device").exists() else "", chip.name))
    return [(f"{driver}{number}", chip) for number, chip in enumerate(chips)]


def _chip_name(chip: Path) -> str:
    try:
        return (chip / "name").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _channels(chip: Path) -> list[int]:
    """Numbers of the channels of power and energy."""
    names = [path.name for path in chip.glob("*_*")]
    found = [re.fullmatch(r"(?:power(\d+)_(?:average|input)|energy(\d+)_input)", name) for name in names]
    return sorted({int(one.group(1) or one.group(2)) for one in found if one})


def _sensors(name: str, chip: Path, pattern: str = "") -> list[Sensor]:
    def file(*names: str) -> Path | None:
        return next((chip / one for one in names if (chip / one).exists()), None)

    found = []
    for channel in _channels(chip):
        labels = {f"{kind}{channel}": _label(chip / f"{kind}{channel}_label") for kind in ("power", "energy")}
        wanted = [kind for kind, label in labels.items() if any(fnmatch(one, pattern or "*") for one in (kind, label))]
        # An average misses nothing between two readings; an instantaneous value may.
        watts = file(f"power{channel}_average", f"power{channel}_input") if f"power{channel}" in wanted else None
        joules = file(f"energy{channel}_input") if f"energy{channel}" in wanted else None
        if watts or joules:
            kind = f"power{channel}" if watts else f"energy{channel}"
            title = " ".join(filter(None, [name, kind, labels[kind]]))
            found.append(Sensor(title, watts, joules, file(f"power{channel}_cap")))
    return found


def _label(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()[:40]
    except OSError:
        return ""
