"""One member of an ensemble, on the ranks that were started for it: begun, gone on with, or done already."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpcai500.campaign.attempts import is_written
from hpcai500.campaign.outcome import read_outcome
from hpcai500.campaign.reading import Campaign
from hpcai500.campaign.turns import ALL_TRIALS, turn_at
from hpcai500.ensemble.reading import Ensemble, read_ensemble
from hpcai500.ensemble.staging import staged
from hpcai500.ensemble.writing import begin_member
from hpcai500.errors import ExitCode, RunError, UsageError
from hpcai500.launch.campaign import CampaignOrder, campaign_recipe, run_campaign
from hpcai500.launch.crew import Crew
from hpcai500.rulebook import rulebook
from hpcai500.streams import say

# Ranks whose command was killed stop with a checkpoint in less, and NFS keeps the locks of a node that died for 90 s.
_PATIENCE_SECONDS = 120.0
_POLL_SECONDS = 1.0
# Said while another process is at the member, and where that goes on for too long.
BEING_RUN = "is being run by another process"


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
    with _turn(ensemble, order.member):
        return _run(ensemble, order, crew)


def _run(ensemble: Ensemble, order: MemberOrder, crew: Crew) -> int:
    """Nobody else is at the member: neither its copy on a node nor its journal is another's."""
    campaign = begin_member(ensemble, order.member)
    recipe = campaign_recipe(campaign)
    crew.check(recipe, 1)
    if campaign.done():
        say(f"member {order.member} of {order.folder} is done already: {campaign.record(campaign.done()[0])}")
        return ExitCode.PASS
    with staged(ensemble, order.member, crew, recipe) as data:
        (outcome,) = run_campaign(CampaignOrder(campaign.path, data, None, order.power), crew)
    if outcome.exit_code != ExitCode.PASS:
        campaign = begin_member(ensemble, order.member)
        if campaign.attempts and campaign.attempts[-1].status == "stopped":
            folder = shlex.quote(str(order.folder))
            say(f"member {order.member} was stopped: go on with it by `hpcai500 ensemble run {folder}`, or submit")
        return ExitCode.WRONG_ANSWER if _diverged(campaign) else outcome.exit_code
    if not begin_member(ensemble, order.member).done():
        raise RunError(f"member {order.member}: its job ended well, but its record is not complete: {outcome.record}")
    return ExitCode.PASS


@contextmanager
def _turn(ensemble: Ensemble, member: int) -> Iterator[None]:
    """Wait until nobody else is at the member, and keep others from it while this is entered.

    Raises:
        RunError: somebody is, and goes on; or the member's folder cannot be made.
    """
    folder = ensemble.folder(member)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be made: {error.strerror}; mend it, then go on") from error
    end_s, is_told = time.monotonic() + _PATIENCE_SECONDS, False
    while True:
        with turn_at(folder, ALL_TRIALS) as turn:
            if turn != "taken" and not _is_written(ensemble, member):
                yield
                return
        if time.monotonic() > end_s:
            raise RunError(f"{folder}: member {member} {BEING_RUN}: wait for it, or stop it")
        if not is_told:
            say(f"{folder}: {BEING_RUN}: waiting up to {_PATIENCE_SECONDS:g} s for its end")
            is_told = True
        time.sleep(_POLL_SECONDS)


def _is_written(ensemble: Ensemble, member: int) -> bool:
    """Whether ranks whose command was killed still write their checkpoint."""
    campaign = ensemble.campaign(member)
    return campaign is not None and any(
        attempt.status == "running" and is_written(campaign.record(attempt)) for attempt in campaign.attempts
    )


def _diverged(campaign: Campaign) -> bool:
    attempts = campaign.attempts_at(1)
    rules = rulebook(campaign.edition, campaign.benchmark)
    return bool(attempts) and read_outcome(campaign, attempts[-1], rules).diverged is not None
