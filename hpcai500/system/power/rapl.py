"""The energy of processors and memory, from the counters that Linux shows (Running Average Power Limit)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcai500.errors import EnvironmentLacksError
from hpcai500.system.power.count import EnergyCount
from hpcai500.system.power.source import Reading, ReadingError, Scope, machine_seconds

POWERCAP = Path("/sys/class/powercap")
# No package draws more: a counter cannot turn over twice within the time that this takes to fill it.
_MOST_WATTS = 1000.0


@dataclass(frozen=True)
class Domain:
    """One counter.

    Attributes:
        name: `package-0`, or `package-0 dram`.
        file: its energy in microjoules.
        size_joules: at which it starts at 0 again.
    """

    name: str
    file: Path
    size_joules: float


class RaplSource:
    """Packages and their memory.

    A package's sub-domains (core, uncore) are parts of it and not counted again; its memory is beside it. The domain of
    the platform (psys) holds packages, and is left out too.

    Raises:
        EnvironmentLacksError: the kernel shows no counters, or this user may not read them.
    """

    name = "rapl"
    scope: Scope = "device"
    # The counters tick every millisecond; what they count between two looks is not lost.
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
                f"RAPL: {error.filename}: only root may read it: ask for `chmod a+r {powercap}/intel-rapl:*/energy_uj`"
            ) from error
        except (OSError, ValueError) as error:
            raise EnvironmentLacksError(f"RAPL: {error}") from error

    def read(self) -> Reading:
        """The energy that all have used since the first reading, and the mean power of each since the last."""
        try:
            return self._count.look(machine_seconds(), self._read())
        except (OSError, ValueError) as error:
            raise ReadingError(f"RAPL: {error}") from error

    def close(self) -> None:
        """Nothing is open."""

    def _read(self) -> dict[str, float]:
        return {domain.name: int(domain.file.read_text()) / 1e6 for domain in self._domains}


def find_domains(powercap: Path = POWERCAP) -> list[Domain]:
    """The counters below `powercap` that together count everything once.

    Raises:
        EnvironmentLacksError: there are none.
    """
    found = []
    # intel-rapl:0 is a zone of its own, intel-rapl:0:1 a part of it; AMD's processors are there by the same name.
    # intel-rapl-mmio:0 is another way to the same package.
    for zone in sorted(powercap.glob("intel-rapl:*"), key=lambda path: path.name):
        _, *numbers = zone.name.split(":")
        name = _zone_name(zone)
        if len(numbers) == 1 and name.startswith("package"):
            found.append(_domain(name, zone))
        elif len(numbers) == 2 and name == "dram":
            parent = _zone_name(zone.with_name(f"intel-rapl:{numbers[0]}"))
            found.append(_domain(f"{parent} dram", zone))
    if not found:
        raise EnvironmentLacksError(f"RAPL: {powercap} has no counters (no such processor, or a virtual machine)")
    return found


def _zone_name(zone: Path) -> str:
    """Empty where the kernel, or a container that hides it, does not say."""
    try:
        return (zone / "name").read_text().strip()
    except OSError:
        return ""


def _domain(name: str, zone: Path) -> Domain:
    try:
        size = int((zone / "max_energy_range_uj").read_text()) / 1e6
    except (OSError, ValueError) as error:
        raise EnvironmentLacksError(f"RAPL: {zone}: the range of the counter cannot be read: {error}") from error
    return Domain(name, zone / "energy_uj", size)
