"""Runs one member of an ensemble on the ranks that were started for it, from a copy of its data on its nodes if asked.

A member is begun, resumed, or found to be done.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hpcai500.campaign.attempts import is_written
from hpcai500.campaign.journal import ALL_TRIALS, RECIPE, Campaign, turn_at
from hpcai500.campaign.standing import read_outcome
from hpcai500.ensemble.journal import Ensemble, begin_member, read_ensemble
from hpcai500.errors import ExitCode, HpcAi500Error, RunError, UsageError, error_kind
from hpcai500.files import expand_variables
from hpcai500.job_options import StageOptions, as_argument
from hpcai500.launch.launcher import Launcher
from hpcai500.launch.runs import run_campaign
from hpcai500.layers import Recipe
from hpcai500.recipe import read_resolved, rulebook
from hpcai500.streams import say
from hpcai500.system.process import owner_of

# ----------------------------------------------------------------------------------------------------
# Staging: what a member reads is copied to the storage of its nodes before it trains, and removed after.
#
# The job on every rank is `python -m hpcai500.data stage`: one rank of a node copies while the others wait, and all end
# together. Members side by side on a node share one folder, and the samples in it.


BENCHMARKS = ("ic", "ewa")


@contextmanager
def staged(
    ensemble: Ensemble, member: int, launcher: Launcher, recipe: Recipe, environment: Mapping[str, str] = os.environ
) -> Iterator[Path]:
    """The folder that a member trains on: the data set, or a copy on its nodes of what it reads, within the block.

    A member that is killed leaves its copy, which its next attempt on that node uses; whoever needs the space removes
    it.

    Args:
        ensemble: its `stage` may name $VARIABLES, which are read here, on a node.
        member: must have begun: its campaign's recipe is read.
        launcher: open, with the ranks that will train.

    Raises:
        UsageError: the folder is not absolute, or data of this benchmark cannot be staged.
        HpcAi500Error: it could not be staged, as the ranks have said.
    """
    if ensemble.stage is None:
        yield ensemble.data
        return
    require_stageable(recipe)
    folder = f"{ensemble.stage}/{_folder_name(ensemble, recipe)}"
    root = Path(expand_variables(folder, environment))
    if not root.is_absolute():
        raise UsageError(f"--stage {ensemble.stage}: is {root.parent} here; give a folder from the root on, as /tmp")
    name = f"{ensemble.identity[:12]}-member-{member:05d}"
    common = StageOptions(ensemble.data, Path(folder), name=name, expand=root)
    wanted = replace(common, recipes=(str(ensemble.folder(member) / RECIPE),), owner=owner_of(os.getpid()))
    try:
        code = _stage(launcher, recipe, wanted)
        if code != ExitCode.PASS:
            raise error_kind(code)(f"member {member}: what it reads could not be staged into {root} (see above)")
        yield root
    finally:
        _release(launcher, recipe, replace(common, release=True), member, root)


def _stage(launcher: Launcher, recipe: Recipe, options: StageOptions) -> int:
    return launcher.run(recipe, ["stage", recipe.benchmark, as_argument(options)], module="data")


def require_stageable(recipe: Recipe) -> None:
    """Refuse the data of a plug-in, which alone knows the files of a sample.

    Raises:
        UsageError: it is a plug-in's.
    """
    if recipe.benchmark not in BENCHMARKS:
        raise UsageError(
            f"ensemble: data of {recipe.benchmark} cannot be staged, only of {' and '.join(BENCHMARKS)}: plan it "
            "without --stage"
        )


def _release(launcher: Launcher, recipe: Recipe, options: StageOptions, member: int, root: Path) -> None:
    """Release the copy; a failure is only said, because the member's own end counts for more."""
    try:
        released = _stage(launcher, recipe, options) == ExitCode.PASS
    except HpcAi500Error as error:
        say(f"member {member}: {error}")
        released = False
    if not released:
        say(f"member {member}: its copy in {root} stays until another member on that node needs the space")


def _folder_name(ensemble: Ensemble, recipe: Recipe) -> str:
    """One name for each data folder: ensembles on the same data share copies, others do not meet."""
    place = hashlib.sha256(os.fsencode(ensemble.data)).hexdigest()[:12]
    return f"hpcai500-{recipe.benchmark}-{place}"


# ----------------------------------------------------------------------------------------------------
# Running the member.


# Ranks whose command was killed stop with a checkpoint in less time; NFS keeps the locks of a dead node for 90 s.
_PATIENCE_SECONDS = 120.0
_POLL_SECONDS = 1.0
# Said while another process runs the member, and as the error where that goes on for too long.
BEING_RUN = "is being run by another process"


@dataclass(frozen=True)
class MemberOrder:
    """Which member to run; `power` is the value of --power."""

    folder: Path
    member: int
    power: str = "auto"


def run_member(order: MemberOrder, launcher: Launcher) -> int:
    """Run what is not done of a member; returns 0 when it is done, whatever its quality.

    Other codes tell a scheduler what to do: 1: it may be run again; 2: it diverged, which no other attempt changes; 64
    and 69: it cannot be run like this, or not here.

    Raises:
        HpcAi500Error: with one of these exit codes.
    """
    ensemble = read_ensemble(order.folder)
    if order.member not in ensemble.members:
        raise UsageError(f"--member {order.member}: {order.folder} has the members 0 to {ensemble.shape.members - 1}")
    with _turn(ensemble, order.member):
        return _run(ensemble, order, launcher)


def _run(ensemble: Ensemble, order: MemberOrder, launcher: Launcher) -> int:
    """Called while no other process runs the member, writes its journal or uses its copy."""
    campaign = begin_member(ensemble, order.member)
    recipe = read_resolved(campaign.path / RECIPE)
    launcher.check(recipe, 1)
    if campaign.done():
        say(f"member {order.member} of {order.folder} is done already: {campaign.record(campaign.done()[0])}")
        return ExitCode.PASS
    with staged(ensemble, order.member, launcher, recipe) as data:
        (outcome,) = run_campaign(campaign.path, launcher, data=data, power=order.power)
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
    """Wait until no other process runs the member, and keep others from it within the block.

    Raises:
        RunError: another process still runs it after the wait, or the member's folder cannot be made.
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
