"""What the user wants power to be read from: `--power auto|none|nvml|rapl|ipmi|csv:FILE[,offset=S][,scope=…]`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast, get_args

from hpcai500.errors import UsageError
from hpcai500.system.power.source import Scope

Kind = Literal["auto", "none", "nvml", "rapl", "ipmi", "csv"]
# In a meter's file name, what stands for the host.
HOST = "%h"
_METER: Kind = "csv"
_OPTION = re.compile(r",(offset|scope)=([^,]*)$")
_USE = "expected auto, none, nvml, rapl, ipmi, or csv:FILE[,offset=SECONDS][,scope=pdu|node|device]"


@dataclass(frozen=True)
class Meter:
    """A file that a meter writes, with the columns time and watts.

    Attributes:
        pattern: its path, also one with `*`, `?` and `[…]` for several files; `%h` stands for the name of the host.
        offset_seconds: what is added to the meter's times to get those of this machine.
        scope: what it measures.
    """

    pattern: str
    offset_seconds: float = 0.0
    scope: Scope = "node"

    @property
    def is_one_for_all(self) -> bool:
        """Whether all nodes share it."""
        return HOST not in self.pattern

    def of(self, host: str) -> str:
        """The pattern on `host`."""
        return self.pattern.replace(HOST, host)


@dataclass(frozen=True)
class PowerChoice:
    """A kind of source; `meter` if it is a meter's file."""

    kind: Kind
    meter: Meter | None = None

    def __str__(self) -> str:
        """As on a command line."""
        if self.meter is None:
            return self.kind
        return f"csv:{self.meter.pattern},offset={self.meter.offset_seconds!r},scope={self.meter.scope}"

    def from_anywhere(self) -> PowerChoice:
        """The same for a process that may work in another folder."""
        if self.meter is None:
            return self
        return replace(self, meter=replace(self.meter, pattern=str(Path(self.meter.pattern).absolute())))


AUTO = PowerChoice("auto")


def parse_power(text: str) -> PowerChoice:
    """What `text` asks for.

    Raises:
        UsageError: it is none of the words above.
    """
    kind, colon, rest = text.partition(":")
    if kind == _METER and colon:
        return PowerChoice(_METER, _parse_meter(text, rest))
    if colon or kind == _METER or kind not in get_args(Kind):
        raise UsageError(f"--power {text}: {_USE}")
    return PowerChoice(cast("Kind", kind))


def _parse_meter(text: str, rest: str) -> Meter:
    options: dict[str, str] = {}
    # From the end: a file's name may hold commas.
    while found := _OPTION.search(rest):
        if found.group(1) in options:
            raise UsageError(f"--power {text}: {found.group(1)} is given twice")
        options[found.group(1)] = found.group(2)
        rest = rest[: found.start()]
    if unknown := re.search(r",(\w+)=[^,/]*$", rest):
        raise UsageError(f"--power {text}: {unknown.group(1)}: no such option of a meter; {_USE}")
    if not rest:
        raise UsageError(f"--power {text}: {_USE}")
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
