"""One member of an ensemble, on the ranks that were started for it: begun, gone on with, or done already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpcai500.campaign.outcome import read_outcome
from hpcai500.campaign.reading import Campaign
from hpcai500.ensemble.reading import Ensemble, read_ensemble
from hpcai500.ensemble.writing import begin_member
from hpcai500.errors import ExitCode, RunError, UsageError
from hpcai500.launch.campaign import CampaignOrder, campaign_recipe, run_campaign
from hpcai500.launch.crew import Crew
from hpcai500.launch.measuring import say
from hpcai500.rulebook import rulebook


@dataclass(frozen=True)
class MemberOrder:
    """Which member, and what tells the power (as --power has it)."""

    folder: Path
    member: int
    power: str = "auto"


def run_member(order: MemberOrder, crew: Crew) -> int:
    """Run what is not done yet of a member; returns 0 when it is done, whatever its quality.

    The other codes tell a scheduler what to do: 1, it may be run again; 2, it diverged, which no other attempt takes
    back; 64 and 69, it cannot be run like this, or not here.

    Raises:
        HpcAi500Error: as said.
    """
    ensemble = read_ensemble(order.folder)
    if order.member not in ensemble.members:
        raise UsageError(f"--member {order.member}: {order.folder} has the members 0 to {ensemble.shape.members - 1}")
    campaign = begin_member(ensemble, order.member)
    recipe = campaign_recipe(campaign)
    crew.check(recipe, 1)
    if campaign.done():
        say(f"member {order.member} of {order.folder} is done already: {campaign.record(campaign.done()[0])}")
        return ExitCode.PASS
    with _staged(ensemble, order.member, crew) as data:
        (outcome,) = run_campaign(CampaignOrder(campaign.path, data, None, order.power), crew)
    if outcome.exit_code != ExitCode.PASS:
        campaign = begin_member(ensemble, order.member)
        return ExitCode.WRONG_ANSWER if _diverged(campaign) else outcome.exit_code
    if not begin_member(ensemble, order.member).done():
        raise RunError(f"member {order.member}: its job ended well, but its record is not complete: {outcome.record}")
    return ExitCode.PASS


def _diverged(campaign: Campaign) -> bool:
    attempts = campaign.attempts_at(1)
    rules = rulebook(campaign.edition, campaign.benchmark)
    return bool(attempts) and read_outcome(campaign, attempts[-1], rules).diverged is not None


@contextmanager
def _staged(ensemble: Ensemble, member: int, crew: Crew) -> Iterator[Path]:
    yield ensemble.data
