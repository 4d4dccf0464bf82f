"""Whether the campaign may be ranked is no question of honesty: it is said, and refuses nothing."""

from __future__ import annotations

from collections.abc import Iterator

from hpcai500.results.verification.context import Context
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note

_NAME = "standing"


def check_standing(context: Context) -> Iterator[Finding]:
    """The reasons that `hpcai500 campaign status` would give, under the edition that is asked for."""
    scored, standing = context.asked, context.asked.standing
    if standing is None:
        yield fail(
            _NAME, "whether the campaign may be ranked cannot be found out: its records are not of any known form"
        )
    elif standing.rankable:
        told = f"{len(scored.results)} finished runs of {len(context.campaign.trials)} planned"
        yield note(_NAME, f"rankable under {scored.edition}: {told}, at least {standing.least_runs} are wanted")
    else:
        for reason in standing.reasons:
            yield note(_NAME, f"not rankable under {scored.edition}: {reason}")
