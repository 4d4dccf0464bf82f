"""Sources of this node's power: NVML, RAPL, IPMI or a meter's file, and which of them can be read (docs/power.md).

To add a source, write a class here and add it to `SOURCES`, which the command line, the automatic choice, `doctor` and
verification use. `power_samples` takes and integrates its samples.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args

from hpcai500.errors import EnvironmentLacksError, RunError, UsageError
from hpcai500.methodology.energy import unwrapped
from hpcai500.system.devices import Nvml, open_nvml
from hpcai500.system.looking import run

# ----------------------------------------------------------------------------------------------------
# The interface of a source.


# What is measured: devices of a node (accelerators, processors), the whole node, or all that a power distribution unit
# (PDU) supplies.
Scope = Literal["device", "node", "pdu"]


class ReadingError(RunError):
    """A source gave no reading this time; the next one may succeed."""


@dataclass(frozen=True)
class Reading:
    """A reading of a source.

    Attributes:
        watts: power of each device, by name; None while unknown. The name "" stands for the node itself.
        joules: energy of all devices since the count began; 0 begins a new count. None if the source has no counter.
    """

    watts: Mapping[str, float | None] = field(default_factory=dict)
    joules: float | None = None

    @property
    def total_watts(self) -> float | None:
        """Power of all devices together; None if one is unknown."""
        known = [value for value in self.watts.values() if value is not None]
        return sum(known) if known and len(known) == len(self.watts) else None


class PowerSource(Protocol):
    """Reads the power of this node, or of its devices.

    Attributes:
        name: its key in `SOURCES`.
        scope: the same on every node, which verification relies on.
        covers: what is measured, for people.
        devices: names of the measured parts, if any; the keys of `Reading.watts`.
        interval_seconds: between two readings; 1 s at most.
        patience_seconds: time limit of a reading.
    """

    name: str
    scope: Scope
    covers: str
    devices: tuple[str, ...]
    interval_seconds: float
    patience_seconds: float

    def read(self) -> Reading:
        """Take a reading.

        Raises:
            ReadingError: no answer this time.
        """

    def close(self) -> None:
        """Close whatever was opened."""


def machine_seconds() -> float:
    """CLOCK_BOOTTIME, the clock of a record's events: it never jumps and includes time in suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# ----------------------------------------------------------------------------------------------------
# The choice of the user: `--power auto|none|nvml|rapl|ipmi|csv:FILE[,offset=S][,scope=…]`.


METER = "csv"
# Placeholder of the host's name in a meter's file name.
HOST = "%h"
_OPTION = re.compile(r",(offset|scope)=([^,]*)$")


@dataclass(frozen=True)
class Meter:
    """A file that a meter writes, with the columns time and watts.

    Attributes:
        pattern: its path; `*`, `?` and `[…]` may match several files, and `%h` stands for the name of the host.
        offset_seconds: added to the meter's times to convert them to those of this machine.
    """

    pattern: str
    offset_seconds: float = 0.0
    scope: Scope = "node"

    @property
    def is_one_for_all(self) -> bool:
        """Whether all nodes share it."""
        return HOST not in self.pattern

    def of(self, host: str) -> str:
        return self.pattern.replace(HOST, host)


@dataclass(frozen=True)
class PowerChoice:
    """`auto`, `none`, a name in `SOURCES`, or `csv`, to which a meter belongs."""

    kind: str
    meter: Meter | None = None

    def __str__(self) -> str:
        if self.meter is None:
            return self.kind
        return f"csv:{self.meter.pattern},offset={self.meter.offset_seconds!r},scope={self.meter.scope}"

    def from_anywhere(self) -> PowerChoice:
        """The same choice with an absolute path, for a process with another working directory."""
        if self.meter is None:
            return self
        return replace(self, meter=replace(self.meter, pattern=str(Path(self.meter.pattern).absolute())))


AUTO = PowerChoice("auto")


def parse_power(text: str) -> PowerChoice:
    """The choice for `text`, the value of `--power`.

    Raises:
        UsageError: it is invalid.
    """
    kind, colon, rest = text.partition(":")
    if kind == METER and colon:
        return PowerChoice(METER, _parse_meter(text, rest))
    if colon or kind not in ("auto", "none", *SOURCES):
        raise UsageError(f"--power {text}: {_use()}")
    return PowerChoice(kind)


def _use() -> str:
    return f"expected auto, none, {', '.join(SOURCES)}, or csv:FILE[,offset=SECONDS][,scope=pdu|node|device]"


def _parse_meter(text: str, rest: str) -> Meter:
    options: dict[str, str] = {}
    # From the end, because a file's name may contain commas.
    while found := _OPTION.search(rest):
        if found.group(1) in options:
            raise UsageError(f"--power {text}: {found.group(1)} is given twice")
        options[found.group(1)] = found.group(2)
        rest = rest[: found.start()]
    if unknown := re.search(r",(\w+)=[^,/]*$", rest):
        raise UsageError(f"--power {text}: {unknown.group(1)}: no such option of a meter; {_use()}")
    if not rest:
        raise UsageError(f"--power {text}: {_use()}")
    scope = options.get("scope", "node")
    if scope not in get_args(Scope):
        raise UsageError(f"--power {text}: scope: expected {', '.join(get_args(Scope))}, got {scope}")
    return Meter(rest, _seconds(text, options.get("offset", "0")), cast("Scope", scope))


def _seconds(text: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"--power {text}: offset: expected seconds, for example -3.5, got {number}")
    return value


# ----------------------------------------------------------------------------------------------------
# The sum of several energy counters, which may wrap around.


class EnergyCount:
    """Adds up the energy of counters since the first look at them.

    Args:
        sizes: joules at which each counter, by device, wraps to 0; None for one that never does.
        longest_pause_seconds: after a longer pause a counter may have wrapped more than once, so the count restarts.
    """

    def __init__(self, sizes: Mapping[str, float | None], longest_pause_seconds: float = math.inf) -> None:
        self._sizes = sizes
        self._longest_pause_seconds = longest_pause_seconds
        self._before: tuple[float, Mapping[str, float]] | None = None
        self._joules = 0.0

    def look(self, now_s: float, joules: Mapping[str, float]) -> Reading:
        """Add the counters' values at the time `now_s`.

        The power of each device is the mean since the last call. At the first call it is unknown, and the count is 0.
        """
        before, self._before = self._before, (now_s, joules)
        used = self._used(before, now_s, joules)
        if used is None or before is None:
            self._joules = 0.0
            return Reading(dict.fromkeys(joules), 0.0)
        self._joules += math.fsum(used.values())
        seconds = now_s - before[0]
        return Reading({device: value / seconds for device, value in used.items()}, self._joules)

    def _used(
        self, before: tuple[float, Mapping[str, float]] | None, now_s: float, joules: Mapping[str, float]
    ) -> dict[str, float] | None:
        if before is None or not 0 < now_s - before[0] <= self._longest_pause_seconds:
            return None
        used = {name: unwrapped(before[1][name], value, self._sizes[name]) for name, value in joules.items()}
        known = {name: value for name, value in used.items() if value is not None}
        return known if len(known) == len(used) else None


# ----------------------------------------------------------------------------------------------------
# The whole node's power from its management controller (IPMI's DCMI extension, through ipmitool).


TOOL = "ipmitool"
_WATTS = re.compile(r"^\s*Instantaneous power reading:\s*(\d+)\s*Watts", re.MULTILINE)
_STATE = re.compile(r"^\s*Power reading state is:\s*(\S+)", re.MULTILINE)


class IpmiSource:
    """`ipmitool dcmi power reading`, each time in a new process, which is killed after `patience_seconds`.

    The tool is searched on the PATH of `environment`.

    Raises:
        EnvironmentLacksError: ipmitool is missing, or does not report the power.
    """

    name = "ipmi"
    scope: Scope = "node"
    covers = "the whole node"
    devices: tuple[str, ...] = ()
    # A controller measures at most once per second.
    interval_seconds = 1.0

    def __init__(self, environment: Mapping[str, str] = os.environ, patience_seconds: float = 5.0) -> None:
        self.patience_seconds = patience_seconds
        self._environment = environment
        tool = shutil.which(TOOL, path=environment.get("PATH", ""))
        if tool is None:
            raise EnvironmentLacksError(f"IPMI: {TOOL} is not installed")
        self._command = [tool, "dcmi", "power", "reading"]
        try:
            self.read()
        except ReadingError as error:
            raise EnvironmentLacksError(str(error)) from error

    def read(self) -> Reading:
        try:
            ended = run(self._command, self.patience_seconds, self._environment)
        except TimeoutError as error:
            raise ReadingError(f"IPMI: no answer within {self.patience_seconds:g} s") from error
        except OSError as error:
            raise ReadingError(f"IPMI: {TOOL} cannot be started: {error}") from error
        if ended.code != 0:
            said = (ended.errors.strip() or ended.output.strip()).splitlines() or [f"exit code {ended.code}"]
            raise ReadingError(f"IPMI: {said[0]}")
        return Reading({"": parse_reading(ended.output)})

    def close(self) -> None:
        """Do nothing: nothing is open."""


def parse_reading(text: str) -> float:
    """Watts in the output of `ipmitool dcmi power reading`.

    Raises:
        ReadingError: there is no such line, or the controller does not measure.
    """
    found, state = _WATTS.search(text), _STATE.search(text)
    if found is None:
        raise ReadingError("IPMI: the answer has no line 'Instantaneous power reading'")
    if state and state.group(1) != "activated":
        raise ReadingError(f"IPMI: power reading is {state.group(1)}")
    # Controllers without a sensor answer 0.
    if int(found.group(1)) == 0:
        raise ReadingError("IPMI: the controller reads 0 W")
    return float(found.group(1))


# ----------------------------------------------------------------------------------------------------
# The power of NVIDIA's accelerators, from NVML.


class NvmlSource:
    """All accelerators of the node that the driver shows: power in mW, and energy in mJ if they count it.

    A cgroup hides accelerators of other jobs from NVML, `CUDA_VISIBLE_DEVICES` does not. Devices since Volta count
    their energy, so that nothing is missed between two samples.

    Raises:
        EnvironmentLacksError: no driver, no device, or a device that does not report its power.
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
                raise EnvironmentLacksError(f"NVML: a device does not report its power ({error})") from error
            if not count:
                raise EnvironmentLacksError("NVML: no device")
            self._stack = stack.pop_all()
        self.devices = tuple(f"gpu{index}" for index in range(count))
        self.covers = f"{count} accelerator{'s' if count > 1 else ''}"
        self._count = EnergyCount(dict.fromkeys(self.devices)) if self._can_count() else None

    def read(self) -> Reading:
        """Power of each device, and the energy of all since the first reading."""
        try:
            watts = self._ask(self._nvml.nvmlDeviceGetPowerUsage)
            joules = self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption) if self._count else {}
        except self._nvml.NVMLError as error:
            raise ReadingError(f"NVML: {error}") from error
        counted = self._count.look(machine_seconds(), joules).joules if self._count else None
        return Reading(watts, counted)

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
# The energy of processors and memory, from Linux's RAPL counters (Running Average Power Limit).


POWERCAP = Path("/sys/class/powercap")
# No package draws more; so a counter cannot wrap twice within the time in which this power fills it.
_MOST_WATTS = 1000.0


@dataclass(frozen=True)
class Domain:
    """One counter: `package-0` or `package-0 dram`, its file (microjoules), and the joules at which it wraps to 0."""

    name: str
    file: Path
    size_joules: float


class RaplSource:
    """The energy of packages and their memory.

    A package includes its sub-domains (core, uncore), so they are not added; its memory is separate. The domain of the
    platform (psys) includes the packages, so it is left out too.

    Raises:
        EnvironmentLacksError: the kernel shows no counters, or this user cannot read them.
    """

    name = "rapl"
    scope: Scope = "device"
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
    return Domain(name, zone / "energy_uj", size)


# ----------------------------------------------------------------------------------------------------
# Which sources can be read on this node, and why the others cannot.


# In order of scope, the widest first: `--power auto` uses the first that is readable.
SOURCES: Mapping[str, type[PowerSource]] = {"ipmi": IpmiSource, "nvml": NvmlSource, "rapl": RaplSource}
# Opens a source, or raises EnvironmentLacksError.
Opener = Callable[[], PowerSource]


@dataclass(frozen=True)
class Found:
    """The result of `find_sources`.

    Attributes:
        sources: opened sources by name, the widest scope first; `take` closes all but one.
        missing: why each of the others cannot be read.
    """

    sources: Mapping[str, PowerSource] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Why sources are missing, in one line."""
        return "; ".join(self.missing.values())

    def take(self, name: str | None) -> PowerSource | None:
        """The source `name` if it was found; closes all others."""
        for other, source in self.sources.items():
            if other != name:
                source.close()
        return self.sources.get(name) if name else None


def automatic_names(*, on_gpu: bool) -> tuple[str, ...]:
    """Sources that `--power auto` tries; without `on_gpu` the run does not use accelerators, so NVML is left out."""
    return tuple(name for name in SOURCES if on_gpu or name != NvmlSource.name)


def find_sources(names: Sequence[str], how: Mapping[str, Opener] = SOURCES) -> Found:
    """Open each of `names` that can be read here."""
    sources, missing = {}, {}
    for name in names:
        try:
            sources[name] = how[name]()
        except EnvironmentLacksError as error:
            missing[name] = str(error)
    return Found(sources, missing)
