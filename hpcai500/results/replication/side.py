"""One side of a replication: a verified submission, or a campaign on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcai500.campaign.outcome import ODD, Outcome, read_outcome
from hpcai500.campaign.reading import Campaign, is_campaign, read_campaign
from hpcai500.campaign.standing import standing
from hpcai500.errors import RecordError, UsageError, WrongAnswerError
from hpcai500.methodology.result import Result
from hpcai500.progress import Tracker, silent
from hpcai500.record import Record
from hpcai500.results.global_batch import global_batch
from hpcai500.results.same_runs import Runs, run_facts
from hpcai500.results.submission.claim import level_of
from hpcai500.results.submission.manifest import Manifest
from hpcai500.results.verification.checks.levels import not_compared
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.finding import Finding, Verification
from hpcai500.results.verification.software import other_code
from hpcai500.results.verification.verify import verify_submission
from hpcai500.rulebook import rulebook
from hpcai500.system.versions import package_code_hash


@dataclass(frozen=True)
class Side:
    """Finished runs of one campaign.

    Attributes:
        path: the submission, or the campaign's folder.
        campaign: as its journal tells.
        records: of the runs that came to their end, in order of their trials.
        results: theirs, computed from their events.
        reasons: why the campaign cannot be ranked.
        level: the lowest level that allows all runs: as verification found it in a submission, of a campaign on disk by
            its recipes; None where none does, or where nobody can tell.
        no_level: why nobody can tell; None where the code of the runs was compared with that of this installation.
        verification: what was found in the submission; None for a campaign on disk, which is one's own.
        manifest: of the submission.
    """

    path: Path
    campaign: Campaign
    records: tuple[Record, ...]
    results: tuple[Result, ...]
    reasons: tuple[str, ...]
    level: str | None
    no_level: str | None = None
    verification: Verification | None = None
    manifest: Manifest | None = None

    @property
    def tables(self) -> Mapping[str, Any]:
        """The recipe, with the seed of the first trial."""
        return self.campaign.tables

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the finished runs."""
        return tuple(int(record.tables["hyperparameters"]["seed"]) for record in self.records)

    @property
    def runs(self) -> Runs:
        """What the finished runs tell that no others do, by the names of their records."""
        return {record.path.name: run_facts(record) for record in self.records}


def read_side(path: Path, signers: Path | None = None, tracker: Tracker = silent) -> Side:
    """The submission, or the campaign, at `path`.

    Raises:
        UsageError: it is neither, or has no finished run.
        RecordError: the campaign's journal, or a record of a finished run, cannot be read.
        WrongAnswerError: the submission does not hold when it is verified.
    """
    if is_campaign(path):
        return _of_campaign(read_campaign(path))
    if path.is_dir():
        raise UsageError(f"{path}: neither a submission nor a campaign: a campaign's folder holds campaign.jsonl")
    return read_submission(path, signers, tracker)


def read_submission(path: Path, signers: Path | None = None, tracker: Tracker = silent) -> Side:
    """The submission in the file `path`, verified.

    Raises:
        UsageError: there is no such file.
        WrongAnswerError: it does not hold; nothing of it can be repeated then.
    """
    kept: list[Context] = []

    def keep(context: Context) -> Iterable[Finding]:
        kept.append(context)
        return ()

    verification = verify_submission(path, signers=signers, more_checks=[keep], tracker=tracker)
    if verification.verdict != "verified" or not kept:
        failed = [finding for finding in verification.findings if finding.severity == "fail"]
        first = f"{failed[0].name}: {failed[0].evidence}" if failed else "it cannot be read"
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise WrongAnswerError(f"{path}: refused: {first}{more}; see `hpcai500 verify {path}`")
    context = kept[0]
    results = verification.results
    scored = [(record, results[name]) for name, record in context.done.items() if name in results]
    return _side(path, context.campaign, scored, verification.reasons, not_compared(context), verification)


def _of_campaign(campaign: Campaign) -> Side:
    rules = rulebook(campaign.edition, campaign.benchmark)
    outcomes = [read_outcome(campaign, attempt, rules) for attempt in campaign.done()]
    scored = [_scored(one) for one in outcomes]
    level, ours = level_of([result for _, result in scored]), package_code_hash()
    unknown = next((told for record, _ in scored if (told := other_code(record, level, ours))), None)
    return _side(campaign.path, campaign, scored, standing(campaign).reasons, unknown)


def _scored(outcome: Outcome) -> tuple[Record, Result]:
    if outcome.record is None or outcome.result is None:
        raise RecordError(f"{outcome.attempt.name}: {outcome.error or 'its record is not complete'}")
    return outcome.record, outcome.result


def _side(
    path: Path,
    campaign: Campaign,
    scored: Sequence[tuple[Record, Result]],
    reasons: Sequence[str],
    no_level: str | None,
    verification: Verification | None = None,
) -> Side:
    if not scored:
        raise UsageError(f"{path}: no run has come to its end: there is nothing to compare")
    records, results = (tuple(one) for one in zip(*scored, strict=True))
    manifest = verification.manifest if verification else None
    level = verification.level if verification else level_of(results)
    known = None if no_level else level
    side = Side(path, campaign, records, results, tuple(reasons), known, no_level, verification, manifest)
    try:
        # What is looked at later: a recipe that is read as plain tables may hold anything.
        for record in records:
            global_batch(record.tables)
        _ = side.seeds, global_batch(side.tables)
    except ODD as error:
        raise RecordError(f"{path}: its recipe lacks something: {type(error).__name__} {error}") from error
    return side
