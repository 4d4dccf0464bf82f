"""The order of submissions: a list for each edition, benchmark and level.

Levels nest: what the hardware level allows, the system level allows too, and the free level allows all of it (V2.0
section 3.1). So a submission stands in the list of its own level and of each wider one, and nobody has to change
something needlessly to be compared there. Its rank is that in the list of its own level, unless another is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from hpcai500.results.ranking.cleaning import shown
from hpcai500.results.ranking.entries import LEVELS, Entry, Level, Unranked, benchmark_order, judged
from hpcai500.results.ranking.examined import Examined

_MOST_PATH = 200


@dataclass(frozen=True)
class Ranked:
    """An entry with its place in each list that it stands in."""

    entry: Entry
    ranks: Mapping[Level, int]

    @property
    def rank(self) -> int:
        """Its place in the list of its own level."""
        return self.ranks[self.entry.level]


@dataclass(frozen=True)
class Group:
    """What is compared with each other: one benchmark under one edition. Entries with the most VFLOPS come first."""

    benchmark: str
    edition: str
    entries: Sequence[Ranked]

    def standing_in(self, level: Level) -> list[Ranked]:
        """Those that keep the rules of `level`, in order."""
        return [one for one in self.entries if level in one.ranks]


@dataclass(frozen=True)
class Ranking:
    """All groups, and the files without a place."""

    groups: Sequence[Group]
    unranked: Sequence[Unranked]


def rank(files: Iterable[Examined]) -> Ranking:
    """The ranking of `files`, in whatever order they come."""
    verdicts = [judged(one) for one in files]
    kept, doubles = _without_doubles([one for one in verdicts if isinstance(one, Entry)])
    unranked = [one for one in verdicts if isinstance(one, Unranked)] + doubles
    groups = [
        Group(benchmark, edition, _ranked(list(members)))
        for ((_, benchmark), edition), members in groupby(sorted(kept, key=_group), key=_group)
    ]
    return Ranking(groups, sorted(unranked, key=lambda one: str(one.examined.file)))


def _group(entry: Entry) -> tuple[tuple[int, str], str]:
    return benchmark_order(entry.benchmark), entry.edition


def _ranked(entries: Sequence[Entry]) -> list[Ranked]:
    """By VFLOPS. Equals share a rank, and the next one counts all before it: 1, 1, 3."""
    ordered = sorted(entries, key=_order)
    places: list[dict[Level, int]] = [{} for _ in ordered]
    for level in LEVELS:
        standing = [index for index, one in enumerate(ordered) if LEVELS.index(one.level) <= LEVELS.index(level)]
        for place, index in enumerate(standing, 1):
            before = standing[place - 2] if place > 1 else None
            tied = before is not None and ordered[before].vflops == ordered[index].vflops
            places[index][level] = places[before][level] if tied and before is not None else place
    return [Ranked(entry, ranks) for entry, ranks in zip(ordered, places, strict=True)]


def _order(entry: Entry) -> tuple[float, float, str, str]:
    """VFLOPS decide. Among equals, who was at the quality first stands above; names only settle the order of lines."""
    seconds = entry.mean("time_to_quality_seconds")
    return -entry.vflops, float("inf") if seconds is None else seconds, entry.system, str(entry.examined.file)


def _without_doubles(entries: Sequence[Entry]) -> tuple[list[Entry], list[Unranked]]:
    """One submission of each campaign: that which shows most attempts, and of those the earliest.

    A bundle that leaves attempts out so never replaces the first. Whose bundle it is, only `--signers` can tell.
    """
    kept: dict[str, Entry] = {}
    doubles = []
    for entry in sorted(entries, key=_precedence):
        other = kept.setdefault(entry.manifest.campaign, entry)
        if other is not entry:
            doubles.append(Unranked(entry.examined, "duplicate", _why_double(entry, other)))
    return list(kept.values()), doubles


def _precedence(entry: Entry) -> tuple[int, str, str]:
    return -entry.manifest.attempts, entry.manifest.created, str(entry.examined.file)


def _why_double(entry: Entry, other: Entry) -> str:
    said = f"the same campaign as {shown(other.examined.file.name, _MOST_PATH)}, which is ranked"
    if entry.manifest.attempts != other.manifest.attempts:
        said += f" because it shows {other.manifest.attempts} attempts, this one {entry.manifest.attempts}"
    if entry.organisation != other.organisation:
        said += f"; that one is of {other.organisation}, this one of {entry.organisation}"
    if entry.vflops != other.vflops:
        said += f"; the VFLOPS differ: {other.vflops:.6g} there, {entry.vflops:.6g} here"
    return said
