"""The order of submissions: a list for each edition, benchmark and level.

Levels nest: what the hardware level allows, the system level allows too, and the free level allows all of it (V2.0
section 3.1). So a submission stands in the list of its own level and of each wider one, and nobody has to change
something needlessly to be compared there. Its rank is that in the list of its own level, unless another is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from hpcai500.results.ranking.disputes import Kept, Shown, settled, shown_as
from hpcai500.results.ranking.entries import LEVELS, Entry, Level, Unranked, benchmark_order, judged
from hpcai500.results.ranking.examined import Examined


@dataclass(frozen=True)
class Ranked:
    """An entry with its place in each list that it stands in, and who else claims its runs, a sentence each."""

    entry: Entry
    ranks: Mapping[Level, int]
    claimed_by: tuple[str, ...] = ()

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
    """All groups, the files without a place, and all that the site has shown, now or before."""

    groups: Sequence[Group]
    unranked: Sequence[Unranked]
    shown: Sequence[Shown] = ()


def rank(files: Iterable[Examined], shown: Sequence[Shown] = (), listed: frozenset[str] | None = None) -> Ranking:
    """The ranking of `files`, in whatever order they come.

    Args:
        files: all of them.
        shown: what the site has shown until now.
        listed: fingerprints of the keys in the list of signers, whether they are valid now or not. What another key
            has shown is forgotten. None: there is no list.
    """
    verdicts = [judged(one) for one in files]
    rejected = [one for one in verdicts if isinstance(one, Unranked)]
    before = [one for one in shown if listed is None or one.signer in listed]
    kept, without = settled([one for one in verdicts if isinstance(one, Entry)], before)
    groups = [
        Group(benchmark, edition, _ranked(list(members)))
        for ((_, benchmark), edition), members in groupby(sorted(kept, key=_group), key=_group)
    ]
    now = [shown_as(one.entry) for one in kept]
    known = {one.key for one in now}
    return Ranking(
        groups,
        sorted([*rejected, *without], key=lambda one: str(one.examined.file)),
        [*now, *(one for one in before if one.key not in known)],
    )


def _group(kept: Kept) -> tuple[tuple[int, str], str]:
    return benchmark_order(kept.entry.benchmark), kept.entry.edition


def _ranked(members: Sequence[Kept]) -> list[Ranked]:
    """By VFLOPS. Equals share a rank, and the next one counts all before it: 1, 1, 3."""
    ordered = sorted(members, key=lambda one: _order(one.entry))
    places: list[dict[Level, int]] = [{} for _ in ordered]
    for level in LEVELS:
        standing = [index for index, one in enumerate(ordered) if LEVELS.index(one.entry.level) <= LEVELS.index(level)]
        for place, index in enumerate(standing, 1):
            before = standing[place - 2] if place > 1 else None
            tied = before is not None and ordered[before].entry.vflops == ordered[index].entry.vflops
            places[index][level] = places[before][level] if tied and before is not None else place
    return [Ranked(one.entry, ranks, one.claimed_by) for one, ranks in zip(ordered, places, strict=True)]


def _order(entry: Entry) -> tuple[float, float, str, str]:
    """VFLOPS decide. Among equals, who was at the quality first stands above; names only settle the order of lines."""
    seconds = entry.mean("time_to_quality_seconds")
    return -entry.vflops, float("inf") if seconds is None else seconds, entry.system, str(entry.examined.file)
