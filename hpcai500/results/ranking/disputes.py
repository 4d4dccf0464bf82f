"""Runs that appear in several submissions: resubmitted by one signer, or claimed by two.

Nothing in a file tells whose runs they are, so nobody who claims them is ranked, unless a site has shown them before:
then whoever was first keeps the place. What a site has shown is kept beside its pages, as hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from hpcai500.errors import UsageError
from hpcai500.results.ranking.cleaning import shown
from hpcai500.results.ranking.entries import Entry, Unranked
from hpcai500.results.ranking.site.writing import content_before
from hpcai500.results.same_runs import Part, RunFacts, Shared, shared_runs

RUNS = "runs.json"
_MOST_NAME = 80
_MOST_PATH = 200
_MOST_NAMED = 2


class Shown(Part):
    """A submission that has a place, and what its runs tell.

    Attributes:
        manifest_sha256: names the submission.
        campaign: identity of its campaign.
        system: its name, cleaned.
        organisation: who submitted it, cleaned.
        signer: fingerprint of the key.
        runs: by their names in the campaign.
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
    """An entry that is ranked, with what others say who claim its runs, a sentence each."""

    entry: Entry
    claimed_by: tuple[str, ...] = ()


def read_shown(site: Path) -> tuple[Shown, ...]:
    """What the site in the folder `site` has shown; nothing where there is none.

    Raises:
        UsageError: what it keeps of that cannot be read.
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
    """The same for a site to keep."""
    document = _Document(schema="hpcai500-runs-1", submissions=list(submissions))
    return document.model_dump_json(by_alias=True) + "\n"


def shown_as(entry: Entry) -> Shown:
    """What a site keeps of `entry`."""
    verification, facts = entry.examined.verification, entry.examined.facts
    assert verification is not None
    assert facts is not None
    return Shown(
        manifest_sha256=facts.manifest_sha256,
        campaign=entry.manifest.campaign,
        system=entry.system,
        organisation=entry.organisation,
        signer=fingerprint(verification.signer),
        runs=dict(facts.runs),
    )


def fingerprint(signer: str | None) -> str:
    """That of the key, without the name of its owner."""
    return (signer or "nobody").partition(" ")[0]


def settled(entries: Sequence[Entry], before: Sequence[Shown]) -> tuple[list[Kept], list[Unranked]]:
    """Those of `entries` that may be ranked, and the others with the reason.

    Args:
        entries: of this ranking.
        before: what the site has shown until now.
    """
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
    """Who shows which runs: first the entries of a ranking, then what was shown before and is not among them."""

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
        """Others that claim runs of this one, or its campaign."""
        return [other for other in self._related(place) if not self.told_twice(place, other)]

    def told_twice(self, place: int, other: int) -> bool:
        """Whether one signer has submitted one campaign two times: corrected, with more runs, or without names.

        Two bundles of one campaign that have runs which the other lacks are of two copies of it.
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
        """Why this one is not ranked."""
        said = [self._in_common(place, other, self._name(other)) for other in rivals[:_MOST_NAMED]]
        more = [f"and {len(rivals) - len(said)} more"] if len(rivals) > len(said) else []
        return f"{'; '.join([*said, *more])}; decide whose they are: leave a file out, or its key out of --signers"

    def claim(self, place: int, owner: int) -> str:
        """That this one claims what is `owner`'s."""
        return f"{self._name(place)}: {self._in_common(place, owner, 'this submission')}"

    def _related(self, place: int) -> list[int]:
        same = [other for other in self._campaigns[self._all[place].campaign] if other != place]
        return sorted({*self._shared[place], *same})

    def _are_in(self, place: int, other: int) -> bool:
        """Whether all runs of one submission are in another."""
        common = self._common(place, other)
        return common.every if common else not self._all[place].runs

    def _common(self, place: int, other: int) -> Shared | None:
        return self._shared[place].get(other)

    def _in_common(self, place: int, other: int, name: str) -> str:
        """Why two are rivals, in words."""
        common, one, two = self._common(place, other), self._all[place], self._all[other]
        # Of one signer, who may correct what was submitted.
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
    """Places of `entries`: of one campaign that is told twice, the first one is ranked.

    Whoever leaves attempts out gains nothing by that; with as many, the newest one is a correction.
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
