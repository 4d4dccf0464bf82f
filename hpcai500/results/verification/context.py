"""What checks get: a submission that was opened, read and scored again, and each of its runs.

A submission is untrusted: no type and no value in it can be relied on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import hpcai500
from hpcai500 import __version__
from hpcai500.campaign.journal import Attempt, Campaign, GivenHeads, read_campaign
from hpcai500.campaign.standing import Standing, standing
from hpcai500.errors import RecipeError, RecordError
from hpcai500.methodology.conduct import ranks_of
from hpcai500.methodology.events import Log
from hpcai500.methodology.integrity import Pass, last_passes
from hpcai500.methodology.result import Result, derive
from hpcai500.methodology.rules import LevelReport, find_level
from hpcai500.methodology.trials import TrialSummary
from hpcai500.recipe import rulebook
from hpcai500.record import Record, read_record
from hpcai500.results.score import summarise_trials
from hpcai500.results.submission.manifest import CODE
from hpcai500.results.verification.finding import Finding, one_line
from hpcai500.system.software import code_files

if TYPE_CHECKING:
    from hpcai500.results.submission.archive import Submission


# ----------------------------------------------------------------------------------------------------
# Changed code: which files of the package differ, and the layer of each.


# The longest prefix wins. A file without one measures, records or checks: changing it changes the measurement itself.
LAYERS: dict[str, int] = {
    "optim/": 8,
    "workloads/": 7,
    "engine/": 6,
    "data/": 4,
    "engine/precision.py": 4,
    "side_stream.py": 4,
    "comm/": 3,
    "cli/": 2,
    "launch/": 2,
    "hosts.py": 2,
    "streams.py": 2,
}
# Files in folders of a layer that measure times, count, evaluate or record, and so have no layer.
TRUSTED = (
    "comm/timeline.py",
    "engine/checkpoints.py",
    "engine/evidence.py",
    "engine/job.py",
    "engine/measurement.py",
    "engine/replay_command.py",
    "engine/reporting.py",
    "engine/run_power.py",
    "engine/sharded.py",
    "engine/trainer.py",
    "workloads/quality.py",
)

How = Literal["changed", "added", "missing"]


@dataclass(frozen=True)
class Changed:
    """A Python file that differs from this version; its layer is None if it measures, records or checks."""

    path: str
    how: How
    layer: int | None


def layer_of(path: str) -> int | None:
    """Return the layer of a file of the package; None if the file measures, records or checks."""
    if path.startswith(TRUSTED):
        return None
    prefixes = [prefix for prefix in LAYERS if path.startswith(prefix)]
    return LAYERS[max(prefixes, key=len)] if prefixes else None


def code_changes(theirs: Mapping[str, str], version: str) -> tuple[Changed, ...] | None:
    """Return the files of the package that differ from the installed ones; `theirs` are SHA-256 (hex) by path.

    None if the installed version is not `version`, so that they cannot be compared.
    """
    if version != __version__:
        return None
    package = Path(hpcai500.__file__).parent
    ours = {path.relative_to(package).as_posix(): path for path in code_files(package)}
    found = ((name, _how(theirs.get(name), ours.get(name))) for name in sorted({*theirs, *ours}))
    return tuple(Changed(name, how, layer_of(name)) for name, how in found if how)


def _how(theirs: str | None, ours: Path | None) -> How | None:
    if theirs is None:
        return "missing"
    if ours is None:
        return "added"
    return "changed" if hashlib.sha256(ours.read_bytes()).hexdigest() != theirs else None


# ----------------------------------------------------------------------------------------------------
# A submission, opened and read, with its results computed again.


Metrics = Mapping[str, TrialSummary]
NO_STANDING = "its records are malformed, so whether it is rankable is unknown"


@dataclass(frozen=True)
class Question:
    """What the committee gives to compare the submission with.

    Attributes:
        signers: OpenSSH file of the trusted keys (ssh-keygen's ALLOWED SIGNERS).
        registered: identity of the campaign as it was registered before its first run.
        edition: rules to score under; None: the claimed edition.
        heads: of journals, received while campaigns ran; None: they were not collected.
    """

    signers: Path | None = None
    registered: str | None = None
    edition: str | None = None
    heads: GivenHeads | None = None


@dataclass(frozen=True)
class Scored:
    """A campaign scored under one edition of the rules; mappings are by record.

    Attributes:
        rules: all of them (`rulebook`).
        results: of done records, computed from their events.
        unscored: why a done record has no result.
        judgements: what each done record's recipe changes, and the level that this requires.
        metrics: over the trials; None if they cannot be computed.
        standing: whether the campaign is rankable; None if that cannot be computed.
    """

    edition: str
    rules: Mapping[str, Any] = field(repr=False)
    results: Mapping[str, Result]
    unscored: Mapping[str, str]
    judgements: Mapping[str, LevelReport]
    metrics: Metrics | None
    standing: Standing | None


@dataclass(frozen=True)
class Context:
    """One submission.

    Attributes:
        submission: the opened file; its content is extracted, except checkpoints.
        campaign: as read from its journal, whose hash chain was checked.
        records: those that could be read, by the names of their folders in the campaign.
        unreadable: why the others could not be read.
        asked: scored under the requested edition.
        claimed: scored under the edition that the submission claims.
        code_changes: files that differ from this installation; None if that has another version.
    """

    submission: Submission
    campaign: Campaign
    records: Mapping[str, Record]
    unreadable: Mapping[str, str]
    asked: Scored
    claimed: Scored
    code_changes: tuple[Changed, ...] | None
    question: Question = field(default_factory=Question)

    @cached_property
    def attempts(self) -> Mapping[str, Attempt]:
        """All attempts, by the names of their records."""
        return {attempt.record: attempt for attempt in self.campaign.attempts}

    @cached_property
    def done(self) -> Mapping[str, Record]:
        """Readable records of the finished attempts, in order of their trials."""
        return done_records(self.campaign, self.records)


def done_records(campaign: Campaign, records: Mapping[str, Record]) -> dict[str, Record]:
    """Those of `records` whose attempts are done in the campaign's journal, in order of their trials."""
    return {one.record: records[one.record] for one in campaign.done() if one.record in records}


Check = Callable[[Context], Iterable[Finding]]


# ----------------------------------------------------------------------------------------------------
# Reading the extracted files into a Context, as far as they can be read.


_Value = TypeVar("_Value")
# Runs are compared in pairs.
_MOST_RUNS = 300


def read_context(submission: Submission, question: Question, advance: Callable[[], None]) -> Context:
    """Read all that the checks need; `advance` is called after each attempt.

    Raises:
        RecordError: the campaign cannot be read, so that nothing can be checked.
        RecipeError: the requested edition does not exist.
    """
    campaign = _read_campaign(submission)
    read = {}
    for attempt in campaign.attempts:
        if campaign.record(attempt).is_dir():
            read[attempt.record] = _attempted(read_record, campaign.record(attempt))
        advance()
    records, unreadable = _parted(read)
    claimed = _scored(campaign, records, campaign.edition)
    asked = _scored(campaign, records, question.edition) if question.edition else claimed
    # Opening has compared each file with its hash in the manifest.
    packed = {path.relative_to(submission.code).as_posix() for path in code_files(submission.code)}
    theirs = {name: submission.entries[f"{CODE}/{name}"].sha256 for name in packed}
    changes = code_changes(theirs, submission.manifest.code.version)
    return Context(submission, campaign, records, unreadable, asked, claimed, changes, question)


def _read_campaign(submission: Submission) -> Campaign:
    try:
        campaign = read_campaign(submission.campaign)
        rulebook(campaign.edition, campaign.benchmark)
    except RecordError:
        raise
    except RecipeError as error:
        raise RecordError(f"campaign: {error}") from error
    except Exception as error:
        raise RecordError(f"campaign: not what hpcai500 writes: {type(error).__name__}: {error}") from error
    if max(len(campaign.trials), len(campaign.attempts)) > _MOST_RUNS:
        raise RecordError(
            f"campaign: {len(campaign.trials)} trials and {len(campaign.attempts)} attempts; at most {_MOST_RUNS} "
            "of each can be verified"
        )
    return campaign


def _scored(campaign: Campaign, records: Mapping[str, Record], edition: str) -> Scored:
    rules = rulebook(edition, campaign.benchmark)
    done = done_records(campaign, records)
    results, unscored = _parted({name: _attempted(_score, record, rules, edition) for name, record in done.items()})
    judgements, _ = _parted({name: _attempted(find_level, record.tables, rules) for name, record in done.items()})
    metrics = _attempted(summarise_trials, list(results.values())) if results else {}
    current = _attempted(standing, campaign, edition, records)
    return Scored(
        edition=edition,
        rules=rules,
        results=results,
        unscored=unscored,
        judgements=judgements,
        metrics=None if isinstance(metrics, str) else metrics,
        standing=None if isinstance(current, str) else current,
    )


def _score(record: Record, rules: Mapping[str, Any], edition: str) -> Result:
    return derive({**record.tables, "edition": edition}, rules, record.events)


def _attempted(function: Callable[..., _Value], *arguments: Any) -> _Value | str:
    """Return what `function` returns, or why it failed, as text."""
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001 - a submitter can write any type anywhere
        kind = "" if isinstance(error, RecordError) else f"{type(error).__name__}: "
        return one_line(f"{kind}{error}")


def _parted(read: Mapping[str, _Value | str]) -> tuple[dict[str, _Value], dict[str, str]]:
    values = {name: value for name, value in read.items() if not isinstance(value, str)}
    return values, {name: value for name, value in read.items() if isinstance(value, str)}


# ----------------------------------------------------------------------------------------------------
# One run.


_MOST_SHOWN = 3


@dataclass(frozen=True)
class Run:
    """A finished run, its events with typed values.

    Attributes:
        rules: of the edition; empty for a benchmark that it does not know.
        result: computed from its events; None if that is impossible.
    """

    record: Record
    log: Log
    rules: Mapping[str, Any]
    result: Result | None

    @cached_property
    def passes(self) -> dict[int, Pass]:
        """The last pass of each epoch."""
        return last_passes(self.log)

    @property
    def epochs(self) -> list[Pass]:
        """The passes in the order of their epochs."""
        return [self.passes[number] for number in sorted(self.passes)]

    def field(self, table: str, key: str) -> Any:
        """Return a field of the recipe.

        Raises:
            KeyError: the recipe lacks it.
        """
        return self.record.tables[table][key]

    @property
    def world_size(self) -> int:
        """Ranks that the recipe asks for."""
        return ranks_of(self.record.tables["hardware"])


RunCheck = Callable[[Run], Iterable[Finding]]


def one_finding(name: str, faults: Iterable[str], make: Callable[[str, str], Finding]) -> Iterable[Finding]:
    """Return one finding, made by `make`, with the first of `faults` and how many more there are; none without them."""
    found = list(faults)
    more = f" (and {len(found) - _MOST_SHOWN} more)" if len(found) > _MOST_SHOWN else ""
    return [make(name, "; ".join(found[:_MOST_SHOWN]) + more)] if found else []
