"""The order of submissions: a list for each edition, benchmark and level.

Levels nest: the system level allows all that the hardware level allows, and the free level allows more (V2.0 section
3.1). A submission is therefore in the list of its own level and of each wider one. Its rank is that in the list of its
own level, unless another is requested.
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
    entry_of,
    shown,
)
from hpcai500.results.ranking.site_folder import content_before
from hpcai500.results.verification.copies import Part, RunFacts, Shared, shared_runs
from hpcai500.text import aligned, duration, quantity, share, short

# ----------------------------------------------------------------------------------------------------
# Runs in several submissions: resubmitted by one signer, or claimed by two.
#
# A file cannot prove whose runs they are. If several submissions claim the same runs, none is ranked, unless the site
# has shown them before: then the first one stays ranked. A site keeps hashes of all runs that it has shown.


RUNS = "runs.json"
_MOST_NAME = 80
_MOST_PATH = 200
_MOST_NAMED = 2


class Shown(Part):
    """A ranked submission, and the facts that identify its runs (by their names in the campaign).

    `manifest_sha256` identifies the submission, `campaign` is the identity of its campaign, `signer` the fingerprint of
    the key; the names of system and organisation are cleaned.
    """

    manifest_sha256: str
    campaign: str
    system: str
    organisation: str
    signer: str
    runs: dict[str, RunFacts]

    @property
    def key(self) -> tuple[str, str]:
        """Manifest and signer, as anyone can sign another's manifest."""
        return self.manifest_sha256, self.signer


class _Document(Part):
    schema_: Literal["hpcai500-runs-1"] = Field(alias="schema")
    submissions: list[Shown]


@dataclass(frozen=True)
class Kept:
    """A ranked entry, and a sentence for each other submission that claims its runs."""

    entry: Entry
    claimed_by: tuple[str, ...] = ()


def read_shown(site: Path) -> tuple[Shown, ...]:
    """The submissions that the site in the folder `site` has shown; none if there is no site.

    Raises:
        UsageError: the site's runs.json cannot be read.
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
            f"{site / RUNS}: damaged at {shown(where, _MOST_NAME)}: {first['msg']}; restore a copy of it, or give "
            "--html a new folder"
        ) from error


def shown_text(submissions: Sequence[Shown]) -> str:
    """Content of the site's runs.json."""
    document = _Document(schema="hpcai500-runs-1", submissions=list(submissions))
    return document.model_dump_json(by_alias=True) + "\n"


def shown_as(entry: Entry) -> Shown:
    """The entry as a site keeps it."""
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


def without_conflicts(entries: Sequence[Entry], before: Sequence[Shown]) -> tuple[list[Kept], list[Unranked]]:
    """The entries that can be ranked, and the others with a reason; `before` are those that the site has shown."""
    claims = _Claims(entries, before)
    kept: list[Kept] = []
    without: list[Unranked] = []
    places: list[int] = []
    for place in _by_precedence(entries):
        rivals = claims.rivals(place)
        stronger = [other for other in rivals if not claims.was_first(place, other) or claims.was_first(other, place)]
        if stronger:
            without.append(Unranked(entries[place].examined, "disputed", claims.dispute(place, stronger)))
            continue
        original = next((other for other in places if claims.are_one(place, other)), None)
        if original is not None:
            reason = _why_duplicate(entries[place], entries[original])
            without.append(Unranked(entries[place].examined, "duplicate", reason))
            continue
        places.append(place)
        kept.append(Kept(entries[place], tuple(claims.claim(other, place) for other in rivals)))
    return kept, without


class _Claims:
    """The runs of each submission: first the entries of a ranking, then others that were shown before.

    Methods take the index of a submission in this order.
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
        """Other submissions with runs or the campaign of this one, except resubmissions."""
        return [other for other in self._related(place) if not self.are_one(place, other)]

    def are_one(self, place: int, other: int) -> bool:
        """Whether one signer submitted one campaign twice: corrected, with more runs, or anonymised.

        If each of two submissions has runs that the other lacks, they come from two copies of the campaign.
        """
        one, two = self._all[place], self._all[other]
        if one.signer != two.signer:
            return False
        if one.campaign == two.campaign:
            return self._are_in(place, other) or self._are_in(other, place)
        return place in self._shared[other] and self._are_in(place, other) and self._are_in(other, place)

    def was_first(self, place: int, rival: int) -> bool:
        """Whether the site has shown the runs that `rival` claims, in this submission or one that it corrects."""
        corrected = [other for other in self._related(place) if self.are_one(place, other)]
        return any(self._all[one].key in self._before and rival in self._related(one) for one in (place, *corrected))

    def dispute(self, place: int, rivals: Sequence[int]) -> str:
        conflicts = [self._in_common(place, other, self._name(other)) for other in rivals[:_MOST_NAMED]]
        more = [f"and {len(rivals) - len(conflicts)} more"] if len(rivals) > len(conflicts) else []
        return f"{'; '.join([*conflicts, *more])}; to decide, leave one file out, or its key out of --signers"

    def claim(self, place: int, owner: int) -> str:
        """A sentence that `place` claims runs of `owner`."""
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
        # Two submissions of one campaign by one signer, each with other runs.
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
    """Indices of `entries` by precedence between submissions of one campaign.

    More attempts win, so that leaving attempts out gains nothing; with equal numbers, the newest wins as a correction.
    """
    by_name = sorted(range(len(entries)), key=lambda place: str(entries[place].examined.file))
    return sorted(
        by_name, key=lambda place: (entries[place].manifest.attempts, entries[place].manifest.created), reverse=True
    )


def _why_duplicate(entry: Entry, other: Entry) -> str:
    same = "campaign" if entry.manifest.campaign == other.manifest.campaign else "runs"
    reason = f"the same {same} as {shown(other.examined.file.name, _MOST_PATH)}, which is ranked"
    if entry.manifest.attempts != other.manifest.attempts:
        reason += f" because it has {other.manifest.attempts} attempts, this one {entry.manifest.attempts}"
    elif entry.manifest.created != other.manifest.created:
        reason += f" because it is newer ({shown(other.manifest.created, _MOST_NAME)})"
    if entry.organisation != other.organisation:
        reason += f"; that one is of {other.organisation}, this one of {entry.organisation}"
    if entry.vflops != other.vflops:
        reason += f"; the VFLOPS differ: {other.vflops:.6g} there, {entry.vflops:.6g} here"
    return reason


# ----------------------------------------------------------------------------------------------------
# The order.


@dataclass(frozen=True)
class Ranked:
    """An entry with its rank in each of its lists, and a sentence for each other submission that claims its runs."""

    entry: Entry
    ranks: Mapping[Level, int]
    claimed_by: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        """The rank in the list of its own level."""
        return self.ranks[self.entry.level]


@dataclass(frozen=True)
class Group:
    """The entries of one benchmark and edition, most VFLOPS first."""

    benchmark: str
    edition: str
    entries: Sequence[Ranked]

    def at_level(self, level: Level) -> list[Ranked]:
        """The entries that keep the rules of `level`, in order."""
        return [one for one in self.entries if level in one.ranks]


@dataclass(frozen=True)
class Ranking:
    """All groups, the files that are not ranked, and all submissions that the site has shown, now or before."""

    groups: Sequence[Group]
    unranked: Sequence[Unranked]
    shown: Sequence[Shown] = ()


def rank(files: Iterable[Examined], shown: Sequence[Shown] = (), listed: frozenset[str] | None = None) -> Ranking:
    """Rank `files`, which may be in any order.

    Args:
        shown: submissions that the site has shown until now.
        listed: fingerprints of all keys in the file of signers, whether they are valid now or not. Submissions in
            `shown` by other keys are forgotten. None: there is no such file.
    """
    verdicts = [entry_of(one) for one in files]
    rejected = [one for one in verdicts if isinstance(one, Unranked)]
    before = [one for one in shown if listed is None or one.signer in listed]
    kept, without = without_conflicts([one for one in verdicts if isinstance(one, Entry)], before)
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
    """Order by VFLOPS. Equal results share a rank, and the next rank counts both: 1, 1, 3."""
    ordered = sorted(members, key=lambda one: _order(one.entry))
    places: list[dict[Level, int]] = [{} for _ in ordered]
    for level in LEVELS:
        listed = [index for index, one in enumerate(ordered) if LEVELS.index(one.entry.level) <= LEVELS.index(level)]
        for place, index in enumerate(listed, 1):
            before = listed[place - 2] if place > 1 else None
            tied = before is not None and ordered[before].entry.vflops == ordered[index].entry.vflops
            places[index][level] = places[before][level] if tied and before is not None else place
    return [Ranked(one.entry, ranks, one.claimed_by) for one, ranks in zip(ordered, places, strict=True)]


def _order(entry: Entry) -> tuple[float, float, str, str]:
    """Sort key: VFLOPS, then the time to quality; names only make the order of lines definite."""
    seconds = entry.mean("time_to_quality_seconds")
    return -entry.vflops, float("inf") if seconds is None else seconds, entry.system, str(entry.examined.file)


# ----------------------------------------------------------------------------------------------------
# The ranking as JSON: numbers are not scaled, and unknown ones are null.


_MOST_PATH_IN_JSON = 1000


def ranking_document(ranking: Ranking, level: Level | None = None, benchmark: str | None = None) -> dict[str, Any]:
    """`{entries, unverified}`: an entry for each ranked submission, in order; with `benchmark`, only of this one.

    With `level`, only entries in its lists, and `rank` is the rank there; else `rank` is the rank at the submission's
    own level.
    """
    return {
        "entries": [
            _entry_document(one, group, level or one.entry.level)
            for group in ranking.groups
            if benchmark in (None, group.benchmark)
            for one in (group.at_level(level) if level else group.entries)
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
    """Each list, then the files that are not ranked; `level` and `benchmark` select their lists."""
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
    """The line of one file in the progress log."""
    name, verification = shown(examined.file, _MOST_PATH), examined.verification
    if verification is None:
        return f"{name}: unverified: {examined.problem}"
    if verification.verdict == "refused":
        return f"{name}: refused"
    return f"{name}: verified, {'rankable' if verification.rankable else 'not rankable'}"


def _group_lines(group: Group, levels: Sequence[Level]) -> Iterator[str]:
    before: list[Ranked] = []
    for level in levels:
        listed = group.at_level(level)
        if not listed:
            continue
        title = f"{benchmark_title(group.benchmark)}, edition {group.edition}, {level} level"
        if listed == before:
            yield f"{title}: the same list"
        else:
            yield title
            rows = [_row(one, level) for one in listed]
            head, *lines = aligned([_HEADER, *rows], right=_RIGHT)
            yield f"  {head}"
            for line, one in zip(lines, listed, strict=True):
                yield f"  {line}"
                yield f"{_INDENT}{_details(one.entry)}"
                doubts = [f"{doubt.name}: {doubt.evidence}" for doubt in one.entry.verification.doubts]
                for remark in (*doubts, *(f"also claimed by {claim}" for claim in one.claimed_by)):
                    yield from wrap(remark, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
        yield ""
        before = listed


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


def _details(entry: Entry) -> str:
    """Level, day, accelerators and framework, which are too long for columns."""
    by = f"{short(entry.accelerators, 50)}; {short(entry.framework, 30)}"
    return f"level {entry.level}; {date_text(entry)}; {by}"


def date_text(entry: Entry) -> str:
    """The day of submission."""
    return entry.submitted.isoformat() if entry.submitted else "unknown"


def unranked_title(one: Unranked) -> str:
    """The title of a file that is not ranked: its system, or the file's name."""
    return one.system or shown(one.examined.file.name, 80)
