"""Which sources of power can be read on this node, and why the others cannot."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hpcai500.errors import EnvironmentLacksError
from hpcai500.system.power.ipmi import IpmiSource
from hpcai500.system.power.nvml import NvmlSource
from hpcai500.system.power.rapl import RaplSource
from hpcai500.system.power.source import PowerSource

Opener = Callable[[], PowerSource]
# The widest scope first.
NAMES = ("ipmi", "nvml", "rapl")


@dataclass(frozen=True)
class Found:
    """What `find_sources` found.

    Attributes:
        sources: those that tell a power, opened, by name, the widest scope first. Whoever takes one closes the others.
        missing: why each of the others does not.
    """

    sources: Mapping[str, PowerSource] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Why there is none."""
        return "; ".join(self.missing.values())

    def take(self, name: str | None) -> PowerSource | None:
        """The source `name`, if it is here; all others are closed."""
        for other, source in self.sources.items():
            if other != name:
                source.close()
        return self.sources.get(name) if name else None


def openers(environment: Mapping[str, str] = os.environ) -> dict[str, Opener]:
    """How each source is opened on this node, by name."""
    return {"ipmi": lambda: IpmiSource(environment), "nvml": NvmlSource, "rapl": RaplSource}


def automatic_names(*, on_gpu: bool) -> tuple[str, ...]:
    """What `--power auto` looks for: accelerators that a run does not use tell nothing of it."""
    return NAMES if on_gpu else tuple(name for name in NAMES if name != "nvml")


def find_sources(names: Sequence[str], how: Mapping[str, Opener]) -> Found:
    """Open each of `names` that can be read here."""
    sources, missing = {}, {}
    for name in names:
        try:
            sources[name] = how[name]()
        except EnvironmentLacksError as error:
            missing[name] = str(error)
    return Found(sources, missing)
