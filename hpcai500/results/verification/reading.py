"""Reads what was extracted from a submission into a Context, whatever of it can be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from hpcai500.campaign.reading import Campaign, read_campaign
from hpcai500.campaign.standing import standing
from hpcai500.errors import RecipeError, RecordError
from hpcai500.methodology.result import Result, derive
from hpcai500.methodology.rules import judge
from hpcai500.record import Record, read_record
from hpcai500.results.verification.code_changes import code_changes
from hpcai500.results.verification.context import Context, Question, Scored, done_records
from hpcai500.results.verification.guard import one_line
from hpcai500.results.verification.metrics import metrics_of
from hpcai500.rulebook import rulebook

if TYPE_CHECKING:
    from hpcai500.results.submission.archive import Submission

_Value = TypeVar("_Value")
# All of them are compared with each other.
_MOST_RUNS = 300


def read_context(submission: Submission, question: Question, told: Callable[[], None]) -> Context:
    """All that a check needs.

    Args:
        submission: the opened file.
        question: what is asked for.
        told: is called for each record that is read.

    Raises:
        RecordError: the campaign cannot be read, so that there is nothing to look at.
        RecipeError: there is no such edition as is asked for.
    """
    campaign = _read_campaign(submission)
    read = {}
    for attempt in campaign.attempts:
        if campaign.record(attempt).is_dir():
            read[attempt.record] = _attempted(read_record, campaign.record(attempt))
        told()
    records, unreadable = _parted(read)
    claimed = _scored(campaign, records, campaign.edition)
    asked = _scored(campaign, records, question.edition) if question.edition else claimed
    changes = code_changes(submission.code, submission.manifest.code.version)
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
            f"campaign: {len(campaign.trials)} trials and {len(campaign.attempts)} attempts; more than {_MOST_RUNS} "
            "are no campaign"
        )
    return campaign


def _scored(campaign: Campaign, records: Mapping[str, Record], edition: str) -> Scored:
    rules = rulebook(edition, campaign.benchmark)
    done = done_records(campaign, records)
    results, unscored = _parted({name: _attempted(_score, record, rules, edition) for name, record in done.items()})
    judgements, _ = _parted({name: _attempted(judge, record.tables, rules) for name, record in done.items()})
    metrics = _attempted(metrics_of, results)
    stands = _attempted(standing, campaign, edition)
    return Scored(
        edition=edition,
        rules=rules,
        results=results,
        unscored=unscored,
        judgements=judgements,
        metrics=None if isinstance(metrics, str) else metrics,
        standing=None if isinstance(stands, str) else stands,
    )


def _score(record: Record, rules: Mapping[str, Any], edition: str) -> Result:
    return derive({**record.tables, "edition": edition}, rules, record.events)


def _attempted(function: Callable[..., _Value], *arguments: Any) -> _Value | str:
    """What `function` returns, or in words why it cannot."""
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001 - the types of all that is read are the submitter's choice
        kind = "" if isinstance(error, RecordError) else f"{type(error).__name__}: "
        return one_line(f"{kind}{error}")


def _parted(read: Mapping[str, _Value | str]) -> tuple[dict[str, _Value], dict[str, str]]:
    values = {name: value for name, value in read.items() if not isinstance(value, str)}
    return values, {name: value for name, value in read.items() if isinstance(value, str)}
