"""The report of all runs of a campaign, made while its submission lies open."""

from __future__ import annotations

from markupsafe import escape

from hpcai500.campaign.reading import Campaign
from hpcai500.results.report.page import make_report


def run_report(campaign: Campaign) -> str:
    """The page of `hpcai500 report`, without the name of the folder that the submission was opened in.

    Raises:
        RecordError, UsageError: a record cannot be read, or none was done.
    """
    made = make_report([campaign.record(attempt) for attempt in campaign.done()])
    return made.html.replace(str(escape(f"{campaign.path}/")), "")
