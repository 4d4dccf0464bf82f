"""The order of submissions: a list for each edition, benchmark and level.

Levels nest: what the hardware level allows, the system level allows too, and the free level allows all of it (V2.0
section 3.1). So a submission stands in the list of its own level and of each wider one, and nobody has to change
something needlessly to be compared there. Its rank is that in the list of its own level, unless another is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

from pydantic import Field, ValidationError

from hpcai500.errors import UsageError
from hpcai500.results.ranking.entries import (
    LEVELS,
    Entry,
    Examined,
    Level,
    Unranked,
    benchmark_order,
    benchmark_title,
    judged,
    shown,
)
from hpcai500.results.ranking.site_folder import content_before
from hpcai500.results.verification.copies import Part, RunFacts, Shared, shared_runs
from hpcai500.text import aligned, duration, quantity, share, short

# ----------------------------------------------------------------------------------------------------
# Runs that appear in several submissions: resubmitted by one signer, or claimed by two.
#
# Nothing in a file proves whose runs they are. So of several who claim the same runs nobody is ranked, unless a site
# has shown them before: then the first keeps the place. What a site has shown is kept beside its pages, as hashes.


RUNS = "runs.json"
_MOST_NAME = 80
_MOST_PATH = 200
_MOST_NAMED = 2


class Shown(Part):
    """A submission that has a place, and the facts that identify its runs (by their names in the campaign).

    `manifest_sha256` names the submission, `campaign` is the identity of its campaign, `signer` the fingerprint of the
    key; the names of system and organisation are cleaned.
    """

    manifest_sha256: str
    campaign: str
    system: str
    organisation: str
    signer: str
    runs: dict[str, RunFacts]

    @property
    def key(self) -> tuple[str, str]:
        """Manifest and signer: anyone can sign the manifest of another."""
        return self.manifest_sha256, self.signer


class _Document(Part):
    schema_: Literal["hpcai500-runs-1"] = Field(alias="schema")
    submissions: list[Shown]


@dataclass(frozen=True)
class Kept:
    """An entry that is ranked, and a sentence for each other that claims its runs."""

    entry: Entry
    claimed_by: tuple[str, ...] = ()


def read_shown(site: Path) -> tuple[Shown, ...]:
    """What the site in the folder `site` has shown; nothing where there is no site.

    Raises:
        UsageError: the file that keeps it cannot be read.
    """
    content = content_before(site, RUNS)
    if content is None:
        return ()
    try:
        return tuple(_Document.model_validate_json(content).submissions)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise UsageError(
            f"{site / RUNS}: damaged at {shown(where, _MOST_NAME)}: {first['msg']}; put back a copy of it, or give "
            "--html a new folder"
        ) from error


def shown_text(submissions: Sequence[Shown]) -> str:
    """`submissions` as the file that a site keeps."""
    document = _Document(schema="hpcai500-runs-1", submissions=list(submissions))
    return document.model_dump_json(by_alias=True) + "\n"


def shown_as(entry: Entry) -> Shown:
    """What a site keeps of `entry`."""
    return Shown(
        manifest_sha256=entry.facts.manifest_sha256,
        campaign=entry.manifest.campaign,
        system=entry.system,
        organisation=entry.organisation,
        signer=fingerprint(entry.verification.signer),
        runs=dict(entry.facts.runs),
    )


def fingerprint(signer: str | None) -> str:
    """The fingerprint of the key, without the name of its owner."""
    return (signer or "nobody").partition(" ")[0]


def settled(entries: Sequence[Entry], before: Sequence[Shown]) -> tuple[list[Kept], list[Unranked]]:
    """Those of `entries` that may be ranked, and the others with the reason, given what the site has shown `before`."""
    parties = _Parties(entries, before)
    kept: list[Kept] = []
    without: list[Unranked] = []
    places: list[int] = []
    for place in _by_precedence(entries):
        rivals = parties.rivals(place)
        stronger = [other for other in rivals if not parties.was_first(place, other) or parties.was_first(other, place)]
        if stronger:
            without.append(Unranked(entries[place].examined, "disputed", parties.dispute(place, stronger)))
            continue
        double = next((other for other in places if parties.told_twice(place, other)), None)
        if double is not None:
            without.append(Unranked(entries[place].examined, "duplicate", _why_double(entries[place], entries[double])))
            continue
        places.append(place)
        kept.append(Kept(entries[place], tuple(parties.claim(other, place) for other in rivals)))
    return kept, without


class _Parties:
    """Who shows which runs: first the entries of a ranking, then what was shown before and is not among them.

    Each is named by its place in that order.
    """

    def __init__(self, entries: Sequence[Entry], before: Sequence[Shown]) -> None:
        own = [shown_as(entry) for entry in entries]
        known = {one.key for one in own}
        self._before = {one.key for one in before}
        self._all = [*own, *(one for one in before if one.key not in known)]
        self._files = [shown(entry.examined.file.name, _MOST_NAME) for entry in entries]
        self._shared = shared_runs([one.runs for one in self._all])
        self._campaigns: dict[str, list[int]] = {}
        for place, one in enumerate(self._all):
            self._campaigns.setdefault(one.campaign, []).append(place)

    def rivals(self, place: int) -> list[int]:
        """Others that claim runs of this one, or its campaign, and are not the same submission told twice."""
        return [other for other in self._related(place) if not self.told_twice(place, other)]

    def told_twice(self, place: int, other: int) -> bool:
        """Whether one signer has submitted one campaign twice: corrected, with more runs, or without names.

        Two submissions of one campaign that each have runs which the other lacks come from two copies of it.
        """
        one, two = self._all[place], self._all[other]
        if one.signer != two.signer:
            return False
        if one.campaign == two.campaign:
            return self._are_in(place, other) or self._are_in(other, place)
        return place in self._shared[other] and self._are_in(place, other) and self._are_in(other, place)

    def was_first(self, place: int, rival: int) -> bool:
        """Whether the site has shown what `rival` claims, in this submission or in one that this one corrects."""
        corrected = [other for other in self._related(place) if self.told_twice(place, other)]
        return any(self._all[one].key in self._before and rival in self._related(one) for one in (place, *corrected))

    def dispute(self, place: int, rivals: Sequence[int]) -> str:
        said = [self._in_common(place, other, self._name(other)) for other in rivals[:_MOST_NAMED]]
        more = [f"and {len(rivals) - len(said)} more"] if len(rivals) > len(said) else []
        return f"{'; '.join([*said, *more])}; decide whose they are: leave a file out, or its key out of --signers"

    def claim(self, place: int, owner: int) -> str:
        """A sentence that `place` claims what is `owner`'s."""
        return f"{self._name(place)}: {self._in_common(place, owner, 'this submission')}"

    def _related(self, place: int) -> list[int]:
        same = [other for other in self._campaigns[self._all[place].campaign] if other != place]
        return sorted({*self._shared[place], *same})

    def _are_in(self, place: int, other: int) -> bool:
        common = self._common(place, other)
        return common.every if common else not self._all[place].runs

    def _common(self, place: int, other: int) -> Shared | None:
        return self._shared[place].get(other)

    def _in_common(self, place: int, other: int, name: str) -> str:
        common, one, two = self._common(place, other), self._all[place], self._all[other]
        # One signer with one campaign, of which the two submissions have different runs.
        copy = "the same campaign with other runs: " if (one.signer, one.campaign) == (two.signer, two.campaign) else ""
        if common is None:
            return f"{copy}its first line is that of {name}" if copy else f"the same campaign as {name}"
        runs = f"{len(common.runs)} of {len(one.runs)} runs are those of {name}"
        return f"{copy}{runs} (the same {', '.join(common.what)})"

    def _name(self, place: int) -> str:
        one = self._all[place]
        if place < len(self._files):
            name = self._files[place]
        else:
            name = f"{shown(one.system, _MOST_NAME)}, which the site has shown"
        return f"{name}, signed with {shown(one.signer, _MOST_NAME)}"


def _by_precedence(entries: Sequence[Entry]) -> list[int]:
    """Places of `entries`, those first that win where a campaign is told twice.

    More attempts win, so that leaving attempts out gains nothing; with as many, the newest is taken for a correction.
    """
    by_name = sorted(range(len(entries)), key=lambda place: str(entries[place].examined.file))
    return sorted(
        by_name, key=lambda place: (entries[place].manifest.attempts, entries[place].manifest.created), reverse=True
    )


def _why_double(entry: Entry, other: Entry) -> str:
    same = "campaign" if entry.manifest.campaign == other.manifest.campaign else "runs"
    said = f"the same {same} as {shown(other.examined.file.name, _MOST_PATH)}, which is ranked"
    if entry.manifest.attempts != other.manifest.attempts:
        said += f" because it shows {other.manifest.attempts} attempts, this one {entry.manifest.attempts}"
    elif entry.manifest.created != other.manifest.created:
        said += f" because it is newer ({shown(other.manifest.created, _MOST_NAME)})"
    if entry.organisation != other.organisation:
        said += f"; that one is of {other.organisation}, this one of {entry.organisation}"
    if entry.vflops != other.vflops:
        said += f"; the VFLOPS differ: {other.vflops:.6g} there, {entry.vflops:.6g} here"
    return said


# ----------------------------------------------------------------------------------------------------
# The order.


@dataclass(frozen=True)
class Ranked:
    """An entry with its place in each list that it stands in, and a sentence for each other that claims its runs."""

    entry: Entry
    ranks: Mapping[Level, int]
    claimed_by: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        """Its place in the list of its own level."""
        return self.ranks[self.entry.level]


@dataclass(frozen=True)
class Group:
    """One benchmark under one edition: what is compared with each other. Entries with the most VFLOPS come first."""

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
    """VFLOPS decide. Among equals, who reached the quality first stands above; names only settle the order of lines."""
    seconds = entry.mean("time_to_quality_seconds")
    return -entry.vflops, float("inf") if seconds is None else seconds, entry.system, str(entry.examined.file)


# ----------------------------------------------------------------------------------------------------
# The ranking as JSON: numbers never scaled, what is unknown null.


_MOST_PATH_IN_JSON = 1000


def ranking_document(ranking: Ranking, level: Level | None = None, benchmark: str | None = None) -> dict[str, Any]:
    """`{entries, unverified}`: an entry for each ranked submission, in order; with `benchmark`, of this one only.

    With `level`, only what stands in its lists, and `rank` is the place there; else `rank` is the place at the
    submission's own level.
    """
    return {
        "entries": [
            _entry_document(one, group, level or one.entry.level)
            for group in ranking.groups
            if benchmark in (None, group.benchmark)
            for one in (group.standing_in(level) if level else group.entries)
        ],
        "unverified": [_unranked_document(one) for one in ranking.unranked],
    }


def _entry_document(ranked: Ranked, group: Group, level: Level) -> dict[str, Any]:
    entry, facts, verification = ranked.entry, ranked.entry.facts, ranked.entry.verification
    summary = verification.metrics["vflops"]
    return {
        "rank": ranked.ranks[level],
        "list": level,
        "benchmark": group.benchmark,
        "edition": group.edition,
        "level": entry.level,
        "ranks": {name: ranked.ranks.get(name) for name in LEVELS},
        "system": entry.system,
        "organisation": entry.organisation,
        "accelerators": entry.accelerators,
        "framework": entry.framework,
        "date": entry.submitted.isoformat() if entry.submitted else None,
        "vflops": summary.mean,
        "vflops_variation": summary.variation,
        "vflops_per_watt": entry.mean("vflops_per_watt"),
        "flops": entry.mean("flops"),
        "seconds": entry.mean("seconds"),
        "time_to_quality_seconds": entry.mean("time_to_quality_seconds"),
        "quality": {
            "metric": entry.quality.metric,
            "achieved": entry.quality.achieved,
            "target": entry.quality.target,
        },
        "trials": entry.trials,
        "world_size": entry.world_size,
        "nodes": entry.nodes,
        "precision": facts.precision,
        "compression": facts.compression,
        "campaign": entry.manifest.campaign,
        "manifest_sha256": facts.manifest_sha256,
        "signer": verification.signer,
        "claimed_by": list(ranked.claimed_by),
        "warnings": sum(one.severity == "warning" for one in verification.findings),
        "file": shown(entry.examined.file, _MOST_PATH_IN_JSON),
    }


def _unranked_document(one: Unranked) -> dict[str, Any]:
    verification = one.examined.verification
    return {
        "file": shown(one.examined.file, _MOST_PATH_IN_JSON),
        "system": one.system,
        "status": one.status,
        "reason": one.reason,
        "verdict": verification.verdict if verification else None,
    }


# ----------------------------------------------------------------------------------------------------
# The ranking for a terminal.


_HEADER = ("rank", "system", "organisation", "VFLOPS", "variation", "per watt", "to quality", "quality")
_RIGHT = {0, 3, 4, 5, 6, 7}
_WIDTH = 120
_INDENT = " " * 8


def ranking_lines(ranking: Ranking, level: Level | None = None, benchmark: str | None = None) -> Iterator[str]:
    """Each list, then the files without a place; `level` and `benchmark` show their lists only."""
    groups = [group for group in ranking.groups if benchmark in (None, group.benchmark)]
    for group in groups:
        yield from _group_lines(group, (level,) if level else LEVELS)
    if not groups:
        yield "No submission is ranked."
        yield ""
    if ranking.unranked:
        yield "Not ranked"
        for one in ranking.unranked:
            yield f"  {one.status:12}  {shown(one.examined.file, _MOST_PATH)}"
            yield from wrap(one.reason, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)


def examined_line(examined: Examined) -> str:
    """One file for the progress log."""
    name, verification = shown(examined.file, _MOST_PATH), examined.verification
    if verification is None:
        return f"{name}: unverified: {examined.problem}"
    if verification.verdict == "refused":
        return f"{name}: refused"
    return f"{name}: verified, {'rankable' if verification.rankable else 'not rankable'}"


def _group_lines(group: Group, levels: Sequence[Level]) -> Iterator[str]:
    before: list[Ranked] = []
    for level in levels:
        standing = group.standing_in(level)
        if not standing:
            continue
        title = f"{benchmark_title(group.benchmark)}, edition {group.edition}, {level} level"
        if standing == before:
            yield f"{title}: the same list"
        else:
            yield title
            rows = [_row(one, level) for one in standing]
            head, *lines = aligned([_HEADER, *rows], right=_RIGHT)
            yield f"  {head}"
            for line, one in zip(lines, standing, strict=True):
                yield f"  {line}"
                yield f"{_INDENT}{_means(one.entry)}"
                # Doubts are findings that no honest run has shown so far.
                doubts = [f"{doubt.name}: {doubt.evidence}" for doubt in one.entry.verification.doubts]
                for told in (*doubts, *(f"also claimed by {claim}" for claim in one.claimed_by)):
                    yield from wrap(told, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
        yield ""
        before = standing


def _row(ranked: Ranked, level: Level) -> tuple[str, ...]:
    entry = ranked.entry
    seconds, quality = entry.mean("time_to_quality_seconds"), entry.quality
    return (
        str(ranked.ranks[level]),
        short(entry.system, 26),
        short(entry.organisation, 20),
        quantity(entry.vflops, "FLOPS"),
        share(entry.verification.metrics["vflops"].variation),
        quantity(entry.mean("vflops_per_watt"), "FLOPS/W"),
        "never" if seconds is None else duration(seconds),
        "unknown" if quality.achieved is None else f"{quality.metric} {quality.achieved:.4f}",
    )


def _means(entry: Entry) -> str:
    """Level, day, accelerators and framework: too long for columns."""
    by = f"{short(entry.accelerators, 50)}; {short(entry.framework, 30)}"
    return f"level {entry.level}; {date_text(entry)}; {by}"


def date_text(entry: Entry) -> str:
    """The day of submission."""
    return entry.submitted.isoformat() if entry.submitted else "unknown"


def unranked_title(one: Unranked) -> str:
    """The name of a file without a place: its system, else the file's."""
    return one.system or shown(one.examined.file.name, 80)
