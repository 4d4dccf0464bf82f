"""Whether the runs are results of HPC AI500 at all: a contract may go without, but nobody may overlook it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcai500.campaign.standing import standing
from hpcai500.results.acceptance.evidence import Evidence, Run
from hpcai500.results.report.words import count, short


def not_rankable(evidence: Evidence) -> tuple[str, ...]:
    """Why the runs, or the campaigns that they are of, may not be ranked: a sentence each, none if they may be.

    Of a run of no campaign its own result counts; of a campaign its standing, in which those of its runs are.
    """
    return tuple(dict.fromkeys([*_of_runs(evidence), *of_campaigns(evidence)]))


def of_campaigns(evidence: Evidence) -> Iterator[str]:
    """What there is against each campaign."""
    for campaign in evidence.campaigns:
        # What is against all runs weighs more than that one is missing.
        reasons = sorted(standing(campaign).reasons, key=lambda reason: not reason.startswith("all "))
        yield from (f"{campaign.path}: {reason}" for reason in reasons)


def loud(reasons: Sequence[str]) -> str:
    """The one line that says so; empty where there is no reason."""
    if not reasons:
        return ""
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return f"these runs are not HPC AI500 results: {short(reasons[0], 300)}{more}"


def _of_runs(evidence: Evidence) -> Iterator[str]:
    """What is against runs of no campaign; what is against all of them is said once."""
    folders = {campaign.path for campaign in evidence.campaigns}
    alone = [run for run in evidence.runs if run.record.path.parent not in folders]
    told: dict[str, list[Run]] = {}
    for run in alone:
        for reason in run.result.reasons if not run.result.rankable else ():
            told.setdefault(reason, []).append(run)
    for reason, runs in told.items():
        if len(runs) == len(alone) > 1:
            yield f"all {count(len(runs), 'run')}: {reason}"
        else:
            yield from (f"{run.name}: {reason}" for run in runs)
