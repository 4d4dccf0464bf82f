"""Which plug-ins are installed: their entry points, read without importing anything of theirs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

GROUP = "hpcai500.workloads"
# Commands and benchmarks of hpcai500 itself: no plug-in of such a name would ever be reached. A test compares.
TAKEN = frozenset(
    (
        *("ic", "ewa", "score", "rules", "report", "compare", "timeline", "export", "submit", "verify", "replicate"),
        *("accept", "rank", "scale", "profile", "system", "roofline", "doctor", "micro", "version", "data", "flops"),
        *("self-test", "campaign", "ensemble", "slurm"),
    )
)
# A name is a word of a command line and a part of file names.
_NAME = re.compile(r"[a-z][a-z0-9_-]*")


@dataclass(frozen=True)
class Found:
    """An entry point of a plug-in.

    Attributes:
        name: of the entry point, and so of the benchmark.
        package: the distribution that has it, as pip knows it.
        version: of the distribution.
        summary: what the distribution says of itself, in a line; may be empty.
        entry: what it names: `module:attribute`.
        problem: why nothing of it can be used, and what to do; None where nothing is known against it.
    """

    name: str
    package: str
    version: str
    summary: str
    entry: EntryPoint
    problem: str | None = None

    @property
    def title(self) -> str:
        """Package, version and entry point, for messages."""
        return f"plug-in {self.package} {self.version} (entry point {GROUP}: {self.name} = {self.entry.value})"


def installed_plugins() -> tuple[Found, ...]:
    """Every plug-in that is installed, by name; those that cannot be used too. Costs some milliseconds."""
    found = sorted((_found(entry) for entry in _entries()), key=lambda one: (one.name, one.package))
    return tuple(_with_problem(one, found) for one in found)


def find_plugin(name: str) -> Found | None:
    """The plug-in of the benchmark `name`, or None; of several with this name, the first, whose `problem` says so."""
    return None if name in TAKEN else next((one for one in installed_plugins() if one.name == name), None)


def _entries() -> Iterator[EntryPoint]:
    from importlib.metadata import distributions, entry_points  # noqa: PLC0415 - keeps commands fast that need none

    try:
        yield from entry_points(group=GROUP)
    except Exception:  # noqa: BLE001 - one package's broken file must not hide the others
        yield from (entry for one in distributions() for entry in _entries_of(one))


def _entries_of(distribution: Distribution) -> Iterable[EntryPoint]:
    try:
        return distribution.entry_points.select(group=GROUP)
    except Exception:  # noqa: BLE001 - as above
        return ()


def _found(entry: EntryPoint) -> Found:
    about: Mapping[str, str | list[str]] = entry.dist.metadata.json if entry.dist else {}
    package, version, summary = (str(about.get(key, "unknown")) for key in ("name", "version", "summary"))
    return Found(entry.name, package, version, summary, entry)


def _with_problem(one: Found, everyone: Iterable[Found]) -> Found:
    others = [other for other in everyone if other.name == one.name and other is not one]
    uninstall = f"pip uninstall {one.package}"
    if one.name in TAKEN:
        problem = f"hpcai500 has a command of this name itself: ask its authors for another one, or: {uninstall}"
    elif not _NAME.fullmatch(one.name):
        problem = f"a name is a letter, then letters, digits, - and _, all small: ask its authors, or: {uninstall}"
    elif others:
        names = " and ".join(f"{other.package} {other.version}" for other in others)
        problem = f"{names} brings a benchmark of this name too: keep one: {uninstall}"
    else:
        return one
    return replace(one, problem=problem)
