"""The campaign is the one that was registered before its first run: its plan was made first."""

from __future__ import annotations

from collections.abc import Iterator

from hpcai500.results.verification.context import Context
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note, skipped, warning

_NAME = "registered"


def check_registration(context: Context) -> Iterator[Finding]:
    """The identity that was asked for with that of the campaign. All copies of one campaign have it: `check_heads`."""
    asked, anonymised = context.question.registered, context.submission.manifest.anonymised
    identity = anonymised.original_campaign if anonymised else context.campaign.identity
    if asked is None:
        yield skipped(
            _NAME,
            "not compared: the plan could have been made after the runs, or picked from several. With the identity "
            f"from before the first run: --registered HASH (here {identity})",
        )
    elif asked != identity:
        yield fail(_NAME, f"{asked} was registered, and this campaign is {identity}")
    elif anonymised:
        yield warning(
            _NAME,
            f"says that it was {identity}, as was registered, before host names were replaced: ask for the first line "
            "of the original journal, which has that hash",
        )
    else:
        yield note(_NAME, f"the campaign is the one that was registered as {identity}")
