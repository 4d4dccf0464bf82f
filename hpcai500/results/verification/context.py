"""What a check looks at: one submission, opened and read, with all that was computed from it again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcai500.campaign.heads import GivenHeads
from hpcai500.campaign.reading import Attempt, Campaign
from hpcai500.campaign.standing import Standing
from hpcai500.methodology.result import Result
from hpcai500.methodology.rules import Judgement
from hpcai500.methodology.trials import TrialSummary
from hpcai500.record import Record
from hpcai500.results.verification.code_changes import Changed
from hpcai500.results.verification.finding import Finding

if TYPE_CHECKING:
    from hpcai500.results.submission.archive import Submission

Metrics = Mapping[str, TrialSummary]


@dataclass(frozen=True)
class Question:
    """What the committee asks for, beyond what the submission says of itself.

    Attributes:
        signers: OpenSSH file of the keys that are vouched for (ssh-keygen's ALLOWED SIGNERS).
        registered: identity of the campaign as it was registered before its first run.
        edition: rules to score under; None: those that are claimed.
        heads: of journals, as they were given while campaigns ran; None: they were not collected.
    """

    signers: Path | None = None
    registered: str | None = None
    edition: str | None = None
    heads: GivenHeads | None = None


@dataclass(frozen=True)
class Scored:
    """What a campaign amounts to under one edition of the rules.

    Attributes:
        edition: its name.
        rules: all of them (`rulebook`).
        results: of done records, computed from their events.
        unscored: done records that give no result, with the reason.
        judgements: of each done record, what its recipe changes and the level that this forces.
        metrics: over the trials; None where they give none.
        standing: whether the campaign may be ranked; None where that cannot be found out.
    """

    edition: str
    rules: Mapping[str, Any] = field(repr=False)
    results: Mapping[str, Result]
    unscored: Mapping[str, str]
    judgements: Mapping[str, Judgement]
    metrics: Metrics | None
    standing: Standing | None


@dataclass(frozen=True)
class Context:
    """One submission. Whatever is in it was written by whoever submits: no type and no value can be relied on.

    Attributes:
        submission: the opened file; its content, checkpoints aside, is extracted.
        campaign: as its journal tells, the chain checked.
        records: by name of their folders in the campaign, those that could be read.
        unreadable: the others of the campaign, with the reason.
        asked: scored under the edition that is asked for.
        claimed: scored under the edition that the submission claims.
        code_changes: Python files that are not those of this installation; None where that is of another version.
        question: what else was asked for.
    """

    submission: Submission
    campaign: Campaign
    records: Mapping[str, Record]
    unreadable: Mapping[str, str]
    asked: Scored
    claimed: Scored
    code_changes: tuple[Changed, ...] | None
    question: Question = field(default_factory=Question)

    @property
    def attempts(self) -> Mapping[str, Attempt]:
        """All attempts, by the names of their records."""
        return {attempt.record: attempt for attempt in self.campaign.attempts}

    @property
    def done(self) -> Mapping[str, Record]:
        """Records of the attempts that came to their end and could be read, in order of their trials."""
        return done_records(self.campaign, self.records)


def done_records(campaign: Campaign, records: Mapping[str, Record]) -> dict[str, Record]:
    """Those of `records` that `campaign` has as done, in order of their trials."""
    return {one.record: records[one.record] for one in campaign.done() if one.record in records}


Check = Callable[[Context], Iterable[Finding]]
