"""Plans a campaign, and runs what is not done of it, one run at a time; every attempt is in the journal first."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcai500.campaign.attempts import Invocation, begin_attempt, is_written, resume_attempt, stop_attempt
from hpcai500.campaign.journal import (
    RECIPE,
    Attempt,
    Campaign,
    Trial,
    create_campaign,
    last_head,
    read_campaign,
    turn_at,
)
from hpcai500.campaign.standing import read_outcome
from hpcai500.errors import DataError, ExitCode, RecordError, UsageError
from hpcai500.hosts import find_placement
from hpcai500.launch.launcher import Launcher, Outcome
from hpcai500.launch.made_data import make_data
from hpcai500.launch.processes import until_stopped
from hpcai500.layers import Recipe
from hpcai500.methodology.rules import judge
from hpcai500.methodology.trials import runs_to_plan
from hpcai500.recipe import load_recipe, read_resolved, rulebook
from hpcai500.streams import say
from hpcai500.system.doctor import Subject, require_healthy

# ----------------------------------------------------------------------------------------------------
# Planning: recipe, number of runs and seeds are fixed before the first run.


@dataclass(frozen=True)
class PlanRequest:
    """What the user asked for; `trials` is None for the number that the edition suggests."""

    folder: Path
    recipe: str
    trials: int | None = None
    data: Path | None = None
    overrides: Sequence[str] = ()


@dataclass(frozen=True)
class Plan:
    """A new campaign.

    Attributes:
        least_runs: that its edition wants; None for a benchmark that the edition does not know.
        warnings: what the user may want to change before the first run.
    """

    campaign: Campaign
    least_runs: int | None
    warnings: Sequence[str]

    def lines(self) -> Iterator[str]:
        """For people."""
        campaign = self.campaign
        seeds = [trial.seed for trial in campaign.trials]
        wanted = f"; edition {campaign.edition} wants {self.least_runs} at least" if self.least_runs else ""
        yield f"campaign    {campaign.path}: {campaign.benchmark}, edition {campaign.edition}"
        yield f"identity    {campaign.identity}"
        yield f"recipe      {campaign.start['recipe_hash']}"
        yield f"trials      {len(seeds)}, seeds {seeds[0]} to {seeds[-1]}{wanted}"
        yield f"data        {campaign.start['data'] or 'made by hpcai500'}"
        yield "Register the identity before the first run: it shows that the plan was made before the runs. It cannot"
        yield "rule out a second copy of the campaign. To rule that out, send each HPCAI500 HEAD line as it is printed."
        yield f"Then: hpcai500 campaign run {campaign.path}"

    def document(self) -> dict[str, Any]:
        """For programs."""
        campaign = self.campaign
        return {
            "path": str(campaign.path),
            "identity": campaign.identity,
            **campaign.start,
            "least_runs": self.least_runs,
            "warnings": list(self.warnings),
        }


def plan_campaign(request: PlanRequest, launcher: Launcher) -> Plan:
    """Fix the campaign of `request`, for the ranks of `launcher`.

    Raises:
        UsageError: recipe, data or folder cannot be used.
    """
    overrides = [*request.overrides, *launcher.fit(request.recipe, request.overrides)]
    recipe = load_recipe(request.recipe, overrides)
    rules = rulebook(recipe.edition, recipe.benchmark)
    least: int | None = rules.get("least_runs")
    trials = request.trials or runs_to_plan(least)
    _check_data(request.data, recipe)
    campaign = create_campaign(request.folder, recipe, trials, request.data)
    return Plan(campaign, least, [*_warnings(recipe, rules, trials, least), *_missing_data(request.data)])


def _check_data(data: Path | None, recipe: Recipe) -> None:
    dataset = recipe.problem.dataset
    if data is None and not recipe.problem.is_synthetic:
        raise DataError(f"{recipe.benchmark}: the recipe trains on {dataset}: give its folder with --data DIR")
    if data is not None and data.exists() and not data.is_dir():
        raise DataError(f"{data}: not a folder; give the folder of {dataset} with --data DIR")


def _missing_data(data: Path | None) -> Iterator[str]:
    """A plan may be made where the data cannot be seen: on a login node."""
    if data is not None and not data.exists():
        yield (
            f"{data}: no such folder here: if it is not on the nodes of the runs either, name it when they begin: "
            "`hpcai500 campaign run DIR --data FOLDER`"
        )


def _warnings(recipe: Recipe, rules: Mapping[str, Any], trials: int, least: int | None) -> Iterator[str]:
    if least is None:
        yield f"edition {recipe.edition} has no benchmark {recipe.benchmark}: this campaign cannot be ranked"
        return
    if trials < least:
        yield f"{trials} runs are fewer than the {least} that edition {recipe.edition} wants: not rankable"
    if "reference_error" in rules:
        yield f"{rules['reference_error']}: not rankable"
        return
    tables = recipe.model_dump(mode="json")
    forbidden = [change for change in judge(tables, rules).changes if change.level is None]
    if forbidden:
        first, more = forbidden[0], len(forbidden) - 1
        yield (
            f"{first.field} is {first.value}; edition {recipe.edition} fixes {first.reference}: not rankable"
            + (f" (and {more} more: hpcai500 rules RECIPE)" if more else "")
        )
    elif recipe.accelerator.loader == "memory":
        yield "accelerator.loader is memory, which reads no data: not rankable"


# ----------------------------------------------------------------------------------------------------
# Running.


@dataclass(frozen=True)
class CampaignOrder:
    """What the user asked for.

    Attributes:
        data: where its data set is now; None: where the plan says.
        only: one trial; None: all of them.
        power: value of --power.
    """

    folder: Path
    data: Path | None = None
    only: int | None = None
    power: str = "auto"


@dataclass(frozen=True)
class _Work:
    """What every run of the campaign needs."""

    launcher: Launcher
    recipe: Recipe
    data: Path
    power: str
    how: Invocation
    rules: Mapping[str, Any]


def run_campaign(order: CampaignOrder, launcher: Launcher) -> Iterator[Outcome]:
    """Run what is not done, yielding each planned run as it ends; stops after one that failed.

    `launcher` must be open, and is not ended.

    Raises:
        UsageError: there is no such campaign or trial, or the launcher does not fit the recipe.
        RecordError: another process runs a trial.
        Stopped: by a signal that a run heard too late to stop.
    """
    campaign = read_campaign(order.folder)
    trials = _wanted(campaign, order.only)
    recipe = campaign_recipe(campaign)
    done = {attempt.trial: attempt for attempt in campaign.done()}
    left = [trial for trial in trials if trial.trial not in done]
    launcher.check(recipe, len(left))
    if not left:
        yield from (Outcome(campaign.record(done[trial.trial]), ExitCode.PASS) for trial in trials)
        return
    planned = campaign.start["data"]
    data = order.data or (Path(planned) if planned else None)
    require_healthy(Subject(recipe, data, order.folder, sys.argv[1:]))
    how = Invocation(["hpcai500", *sys.argv[1:]], find_placement(os.environ).launcher, os.environ.get("SLURM_JOB_ID"))
    rules = rulebook(campaign.edition, campaign.benchmark)
    work = _Work(launcher, recipe, data or make_data(recipe, order.folder), order.power, how, rules)
    for trial in until_stopped(trials):
        with turn_at(order.folder, trial.trial) as turn:
            if turn == "taken":
                raise _busy(order.folder, trial)
            outcome = _run_trial(work, order.folder, trial)
        yield outcome
        if outcome.exit_code != ExitCode.PASS:
            return


def campaign_recipe(campaign: Campaign) -> Recipe:
    """The recipe of `campaign`, validated, with the seed of its first trial.

    Raises:
        RecipeError: this version of hpcai500 cannot run it.
    """
    return read_resolved(campaign.path / RECIPE)


def _wanted(campaign: Campaign, only: int | None) -> Sequence[Trial]:
    wanted = [trial for trial in campaign.trials if only in (None, trial.trial)]
    if not wanted:
        raise UsageError(f"--only {only}: {campaign.path} has the trials 1 to {len(campaign.trials)}")
    return wanted


def _run_trial(work: _Work, folder: Path, trial: Trial) -> Outcome:
    """One planned run, from where its last attempt left it; called while no other process runs it."""
    campaign, last = _settled(read_campaign(folder), trial, work.rules)
    if last is not None and last.status == "done":
        return Outcome(campaign.record(last), ExitCode.PASS)
    before = read_outcome(campaign, last, work.rules) if last else None
    if last is not None and before is not None:
        if before.diverged:
            say(
                f"{last.name} diverged ({before.diverged}): a result of this recipe, which no new attempt takes back: "
                "change the recipe, and plan another campaign"
            )
            return Outcome(campaign.record(last), ExitCode.RUN_FAILED)
        if before.can_go_on:
            return _go_on(work, resume_attempt(campaign, last, work.how), last)
        say(f"{last.name}: {last.reason}; it is kept, and trial {trial.trial} begins anew")
    return _begin(work, campaign, trial)


def _settled(campaign: Campaign, trial: Trial, rules: Mapping[str, Any]) -> tuple[Campaign, Attempt | None]:
    """The last attempt at `trial`; if it was killed, its end is written down first."""
    attempts = campaign.attempts_at(trial.trial)
    last = attempts[-1] if attempts else None
    if last is not None and last.status == "running":
        if is_written(campaign.record(last)):
            raise _busy(campaign.path, trial)
        campaign = _stop(campaign, last, None, rules)
        last = campaign.attempts_at(trial.trial)[-1]
    return campaign, last


def _begin(work: _Work, campaign: Campaign, trial: Trial) -> Outcome:
    campaign, attempt = begin_attempt(campaign, trial.trial, work.how)
    record = campaign.record(attempt)
    say(f"{work.recipe.benchmark}: {attempt.name} of {campaign.path}, seed {trial.seed}, record {record}")
    place = f"{campaign.identity}:{attempt.trial}:{attempt.attempt}:{attempt.start_hash}"
    arguments: list[str | Path] = [
        *("--recipe", campaign.path / RECIPE, "--set", f"hyperparameters.seed={trial.seed}", "--data", work.data),
        *("--out", record, "--power", work.power, "--campaign", place),
    ]
    return _run(work, campaign, attempt, arguments)


def _go_on(work: _Work, campaign: Campaign, attempt: Attempt) -> Outcome:
    record = campaign.record(attempt)
    say(f"{work.recipe.benchmark}: going on with {attempt.name} of {campaign.path}, record {record}")
    return _run(work, campaign, attempt, ["--resume", "--out", record, "--power", work.power, "--data", work.data])


def _run(work: _Work, campaign: Campaign, attempt: Attempt, arguments: Sequence[str | Path]) -> Outcome:
    _tell_head(campaign, attempt)
    try:
        code = work.launcher.run(work.recipe, arguments)
    except BaseException:
        # Ctrl-C before the job could handle it, or ranks that did not come.
        _stop(campaign, attempt, None, work.rules)
        raise
    _stop(campaign, attempt, code, work.rules)
    return Outcome(campaign.record(attempt), code)


def _stop(campaign: Campaign, attempt: Attempt, code: int | None, rules: Mapping[str, Any]) -> Campaign:
    campaign, _ = stop_attempt(campaign, attempt, code, rules)
    _tell_head(campaign, attempt)
    return campaign


def _tell_head(campaign: Campaign, attempt: Attempt) -> None:
    """Print the line for the committee, without a prefix."""
    say(str(last_head(campaign, attempt)), prefix="")


def _busy(folder: Path, trial: Trial) -> RecordError:
    return RecordError(
        f"{folder}: trial {trial.trial} is being run by another process: wait for it or stop it, or run another trial "
        "with --only K"
    )
