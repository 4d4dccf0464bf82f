"""Starts or resumes one member of an ensemble on the ranks that were started for it, with staged data if asked."""

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
# Staging: what a member reads is copied to the storage of its nodes before it trains, and removed afterwards.
#
# The job on every rank is `python -m hpcai500.data stage`: one rank of a node copies while the others wait, and all end
# together. Members side by side on a node share one folder, and the samples in it.


BENCHMARKS = ("ic", "ewa")


@contextmanager
def staged(
    ensemble: Ensemble, member: int, launcher: Launcher, recipe: Recipe, environment: Mapping[str, str] = os.environ
) -> Iterator[Path]:
    """The folder that a member trains on: the data set, or within the block a copy on its nodes of what it reads.

    A killed member leaves its copy for its next attempt on that node; another member removes it if it needs the space.

    Args:
        ensemble: its `stage` may name $VARIABLES, which are read here, on a node.
        member: must have begun: its campaign's recipe is read.
        launcher: open, with the ranks that will train.

    Raises:
        UsageError: the folder is not absolute, or data of this benchmark cannot be staged.
        HpcAi500Error: staging failed; the ranks printed why.
    """
    if ensemble.stage is None:
        yield ensemble.data
        return
    require_stageable(recipe)
    folder = f"{ensemble.stage}/{_folder_name(ensemble, recipe)}"
    root = Path(expand_variables(folder, environment))
    if not root.is_absolute():
        raise UsageError(f"--stage {ensemble.stage}: is {root.parent} here; give an absolute folder, as /tmp")
    name = f"{ensemble.identity[:12]}-member-{member:05d}"
    common = StageOptions(ensemble.data, Path(folder), name=name, expand=root)
    options = replace(common, recipes=(str(ensemble.folder(member) / RECIPE),), owner=owner_of(os.getpid()))
    try:
        code = _stage(launcher, recipe, options)
        if code != ExitCode.PASS:
            raise error_kind(code)(f"member {member}: its data could not be staged into {root} (see above)")
        yield root
    finally:
        _release(launcher, recipe, replace(common, release=True), member, root)


def _stage(launcher: Launcher, recipe: Recipe, options: StageOptions) -> int:
    return launcher.run(recipe, ["stage", recipe.benchmark, as_argument(options)], module="data")


def require_stageable(recipe: Recipe) -> None:
    """Refuse the data of a plug-in: only the plug-in knows the files of a sample.

    Raises:
        UsageError: it is a plug-in's.
    """
    if recipe.benchmark not in BENCHMARKS:
        raise UsageError(
            f"ensemble: data of {recipe.benchmark} cannot be staged, only of {' and '.join(BENCHMARKS)}: plan without "
            "--stage"
        )


def _release(launcher: Launcher, recipe: Recipe, options: StageOptions, member: int, root: Path) -> None:
    """Release the copy; a failure is only printed, because the member's own end matters more."""
    try:
        released = _stage(launcher, recipe, options) == ExitCode.PASS
    except HpcAi500Error as error:
        say(f"member {member}: {error}")
        released = False
    if not released:
        say(f"member {member}: its copy in {root} stays until another member on that node needs the space")


def _folder_name(ensemble: Ensemble, recipe: Recipe) -> str:
    """One name for each data folder: ensembles on the same data share copies, others do not."""
    place = hashlib.sha256(os.fsencode(ensemble.data)).hexdigest()[:12]
    return f"hpcai500-{recipe.benchmark}-{place}"


# ----------------------------------------------------------------------------------------------------
# Running the member.


# Ranks whose command was killed stop with a checkpoint in less time; NFS keeps the locks of a dead node for 90 s.
_PATIENCE_SECONDS = 120.0
_POLL_SECONDS = 1.0
# Printed while another process runs the member, and in the error if that takes too long; `local` looks for it.
BEING_RUN = "is being run by another process"


@dataclass(frozen=True)
class MemberOrder:
    """Which member to run; `power` is the value of --power."""

    folder: Path
    member: int
    power: str = "auto"


def run_member(order: MemberOrder, launcher: Launcher) -> int:
    """Run a member, unless it is done; return 0 when it is done, whatever its quality.

    Other codes are for a scheduler: 1: it may be run again; 2: it diverged, which is final; 64 and 69: it cannot be run
    with these options, or not on this node.

    Raises:
        HpcAi500Error: with one of these exit codes.
    """
    ensemble = read_ensemble(order.folder)
    if order.member not in ensemble.members:
        raise UsageError(f"--member {order.member}: {order.folder} has the members 0 to {ensemble.shape.members - 1}")
    with _turn(ensemble, order.member):
        return _run(ensemble, order, launcher)


def _run(ensemble: Ensemble, order: MemberOrder, launcher: Launcher) -> int:
    """Run the member, whose lock the caller holds (`_turn`)."""
    campaign = begin_member(ensemble, order.member)
    recipe = read_resolved(campaign.path / RECIPE)
    launcher.check(recipe, 1)
    if campaign.done():
        say(f"member {order.member} of {order.folder} is already done: {campaign.record(campaign.done()[0])}")
        return ExitCode.PASS
    with staged(ensemble, order.member, launcher, recipe) as data:
        (outcome,) = run_campaign(campaign.path, launcher, data=data, power=order.power)
    if outcome.exit_code != ExitCode.PASS:
        campaign = begin_member(ensemble, order.member)
        if campaign.attempts and campaign.attempts[-1].status == "stopped":
            folder = shlex.quote(str(order.folder))
            say(f"member {order.member} was stopped: continue with `hpcai500 ensemble run {folder}`, or submit it")
        return ExitCode.WRONG_ANSWER if _diverged(campaign) else outcome.exit_code
    if not begin_member(ensemble, order.member).done():
        raise RunError(f"member {order.member}: its job succeeded, but its record is not complete: {outcome.record}")
    return ExitCode.PASS


@contextmanager
def _turn(ensemble: Ensemble, member: int) -> Iterator[None]:
    """Hold the member's lock within the block; wait for another process that runs the member.

    Raises:
        RunError: another process still runs it after the wait, or the member's folder cannot be created.
    """
    folder = ensemble.folder(member)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be created: {error.strerror}; fix that, then try again") from error
    end_s, is_announced = time.monotonic() + _PATIENCE_SECONDS, False
    while True:
        with turn_at(folder, ALL_TRIALS) as turn:
            if turn != "taken" and not _is_written(ensemble, member):
                yield
                return
        if time.monotonic() > end_s:
            raise RunError(f"{folder}: member {member} {BEING_RUN}: wait for it, or stop it")
        if not is_announced:
            say(f"{folder}: {BEING_RUN}: waiting up to {_PATIENCE_SECONDS:g} s for it")
            is_announced = True
        time.sleep(_POLL_SECONDS)


def _is_written(ensemble: Ensemble, member: int) -> bool:
    """Whether the ranks of a killed command are still writing their checkpoint."""
    campaign = ensemble.campaign(member)
    return campaign is not None and any(
        attempt.status == "running" and is_written(campaign.record(attempt)) for attempt in campaign.attempts
    )


def _diverged(campaign: Campaign) -> bool:
    attempts = campaign.attempts_at(1)
    rules = rulebook(campaign.edition, campaign.benchmark)
    return bool(attempts) and read_outcome(campaign, attempts[-1], rules).diverged is not None
