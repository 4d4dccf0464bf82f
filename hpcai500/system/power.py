"""Power of this node: which source the user chose (`--power`), and which sources can be read here (docs/power.md).

`power_reading` has the interface of a source; `power_kernel`, `power_devices` and `power_remote` have the sources. To
add one, write a class there and add it to `SOURCES`, which the command line, the automatic choice, `doctor` and
verification use. `power_samples` takes and integrates samples.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast, get_args
from urllib.parse import urlsplit

from hpcai500.errors import EnvironmentLacksError, UsageError
from hpcai500.system.power_devices import AmdSource, NvmlSource
from hpcai500.system.power_kernel import HwmonSource, PmCountersSource, RaplSource
from hpcai500.system.power_reading import PowerSource, Reading, ReadingError, Scope, machine_seconds
from hpcai500.system.power_remote import LOCAL, PDU, DcgmSource, IpmiSource, RedfishSource

__all__ = [
    "AUTO",
    "METER",
    "SCOPES",
    "SOURCES",
    "Found",
    "Meter",
    "Opener",
    "PowerChoice",
    "PowerSource",
    "Reading",
    "ReadingError",
    "Scope",
    "automatic_names",
    "find_sources",
    "machine_seconds",
    "parse_power",
]

# ----------------------------------------------------------------------------------------------------
# The choice of the user: `--power auto|none|SOURCE[,SOURCE]…`, the first of which counts.


# In order of scope, the widest first: `--power auto` uses the first that is readable.
SOURCES: Mapping[str, type[PowerSource]] = {
    "pm_counters": PmCountersSource,
    "redfish": RedfishSource,
    "ipmi": IpmiSource,
    "nvml": NvmlSource,
    "amd": AmdSource,
    "dcgm": DcgmSource,
    "hwmon": HwmonSource,
    "rapl": RaplSource,
}
# Tried only when named: they need an address or a sensor's name, or repeat what the driver says.
_NAMED_ONLY = ("redfish", "dcgm", "hwmon")
_OF_ACCELERATORS = ("nvml", "amd")
# Opens a source, or raises EnvironmentLacksError.
Opener = Callable[[], PowerSource]
METER = "csv"
# Scopes that a source may have in a record. Of a meter, a sensor and a service, the site states it.
SCOPES: Mapping[str, tuple[Scope, ...]] = {name: (source.scope,) for name, source in SOURCES.items()} | {
    METER: get_args(Scope),
    "hwmon": ("device", "node"),
    "redfish": ("node", "pdu"),
}
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
    """`auto`, `none`, a name in `SOURCES`, or `csv`, to which a meter belongs.

    Attributes:
        place: what follows the name: an address or a sensor; %h in it is the name of the host.
        beside: sources that are sampled too, and compared with this one, which counts.
    """

    kind: str
    meter: Meter | None = None
    place: str | None = None
    beside: tuple[PowerChoice, ...] = ()

    def __str__(self) -> str:
        return ",".join([self._alone(), *map(str, self.beside)])

    def _alone(self) -> str:
        if self.meter is None:
            return self.kind if self.place is None else f"{self.kind}:{self.place}"
        return f"csv:{self.meter.pattern},offset={self.meter.offset_seconds!r},scope={self.meter.scope}"

    def from_anywhere(self) -> PowerChoice:
        """The same choice with absolute paths, for a process with another working directory."""
        beside = tuple(one.from_anywhere() for one in self.beside)
        if self.meter is None:
            return replace(self, beside=beside)
        absolute = str(Path(self.meter.pattern).absolute())
        return replace(self, meter=replace(self.meter, pattern=absolute), beside=beside)

    @property
    def is_one_for_all(self) -> bool:
        """Whether all nodes would ask one machine."""
        if self.meter:
            return self.meter.is_one_for_all
        if self.place is None or HOST in self.place or self.kind == HwmonSource.name:
            return False
        return urlsplit(self.place).hostname not in LOCAL

    @property
    def is_pdu(self) -> bool:
        """Whether it measures all that a power distribution unit supplies."""
        return self.meter.scope == "pdu" if self.meter else (self.place or "").endswith(PDU)

    def opener(self, host: str, how: Mapping[str, Opener]) -> Opener:
        """How the source is opened on `host`."""
        opener: Callable[..., PowerSource] = how[self.kind]
        return opener if self.place is None else partial(opener, self.place.replace(HOST, host))


AUTO = PowerChoice("auto")


def parse_power(text: str) -> PowerChoice:
    """The choice for `text`, the value of `--power`.

    Raises:
        UsageError: it is invalid.
    """
    # A comma begins another source only before the name of one: options and names of files contain commas, too.
    names = "|".join(map(re.escape, ("auto", "none", METER, *SOURCES)))
    first, *others = [_parse_one(text, one) for one in re.split(rf",(?=(?:{names})(?:[:,]|$))", text)]
    kinds = [one.kind for one in (first, *others)]
    if others and {"auto", "none"} & set(kinds):
        raise UsageError(f"--power {text}: auto and none stand alone; {_use()}")
    if len(set(kinds)) < len(kinds):
        raise UsageError(f"--power {text}: a source is given twice; {_use()}")
    return replace(first, beside=tuple(others))


def _parse_one(text: str, one: str) -> PowerChoice:
    kind, colon, rest = one.partition(":")
    if kind == METER and colon:
        return PowerChoice(METER, _parse_meter(text, rest))
    if kind in _PLACES and colon:
        _PLACES[kind](text, rest)
        return PowerChoice(kind, place=rest)
    if colon or kind not in ("auto", "none", *SOURCES):
        raise UsageError(f"--power {text}: {one!r} is no source; {_use()}")
    if kind == "redfish":
        raise UsageError(f"--power {text}: redfish needs the controller's address, for example redfish:https://bmc-%h")
    return PowerChoice(kind)


def _use() -> str:
    return (
        f"expected auto, none, or {', '.join(SOURCES)}, csv:FILE[,offset=SECONDS][,scope=pdu|node|device]; "
        "several with commas between them are compared"
    )


def _check_service(text: str, place: str) -> None:
    _check_address(text, place.removesuffix(PDU))


def _check_address(text: str, place: str) -> None:
    try:
        parts = urlsplit(place)
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_whole = False
    if not is_whole or not re.fullmatch(r"[!-+\--~]+", place) or parts.query or parts.fragment:
        raise UsageError(f"--power {text}: {place}: expected an address, for example https://bmc-%h")
    if "@" in parts.netloc:
        # Not shown: it may hold the password.
        raise UsageError(
            "--power: an address must not contain a user or password: set HPCAI500_REDFISH_USER and "
            "HPCAI500_REDFISH_PASSWORD, or use a netrc file (docs/power.md)"
        )


def _check_sensor(text: str, place: str) -> None:
    if not re.fullmatch(r"[\w.-]+(?:/[^,/]+)?(?:,scope=(?:node|device))?", place):
        raise UsageError(f"--power {text}: {place}: expected hwmon:CHIP[/SENSOR][,scope=node|device]")


# Sources whose name an address or a sensor may follow, and its check.
_PLACES: Mapping[str, Callable[[str, str], None]] = {
    "redfish": _check_service, "dcgm": _check_address, "hwmon": _check_sensor,
}  # fmt: skip


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
# Which sources can be read on this node, and why the others cannot.


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
    """Sources that `--power auto` tries; those of accelerators only if the run is `on_gpu`."""
    left_out = _NAMED_ONLY if on_gpu else (*_NAMED_ONLY, *_OF_ACCELERATORS)
    return tuple(name for name in SOURCES if name not in left_out)


def find_sources(names: Sequence[str], how: Mapping[str, Opener] = SOURCES) -> Found:
    """Open each of `names` that can be read here."""
    sources, missing = {}, {}
    for name in names:
        try:
            sources[name] = how[name]()
        except EnvironmentLacksError as error:
            missing[name] = str(error)
    return Found(sources, missing)
