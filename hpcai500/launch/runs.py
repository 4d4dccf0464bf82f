"""The runs of `ic`, `ewa` and `campaign`, one at a time: what is run or resumed, and where its record goes.

A command names recipe, data and record, or leaves them out. A campaign fixes recipe, number of runs and seeds before
the first run, and every attempt at a run is in its journal before it begins.
"""

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
    is_campaign,
    last_head,
    read_campaign,
    turn_at,
)
from hpcai500.campaign.standing import read_outcome
from hpcai500.errors import DataError, ExitCode, HpcAi500Error, RecordError, UsageError
from hpcai500.files import RUNS, run_folder, why_not
from hpcai500.hosts import find_placement
from hpcai500.launch.launcher import Launcher, Outcome
from hpcai500.launch.processes import until_stopped
from hpcai500.launch.synthetic_data import make_data
from hpcai500.layers import Recipe
from hpcai500.methodology.rules import find_level
from hpcai500.methodology.trials import runs_to_plan
from hpcai500.plugins import plugin_facts
from hpcai500.recipe import default_recipe, load_recipe, read_resolved, rulebook
from hpcai500.record import is_being_written, iterate, read_record, require_unused
from hpcai500.restarts import Restarts
from hpcai500.streams import say
from hpcai500.system.doctor import Subject, paths_and_device_first, require_healthy
from hpcai500.system.power import parse_power
from hpcai500.system.process import JOB_TIMES
from hpcai500.text import next_lines

# ----------------------------------------------------------------------------------------------------
# A benchmark's own command: one run, a new campaign, or what is resumed.


@dataclass(frozen=True)
class Request:
    """What the user asked for on the command line of a benchmark."""

    benchmark: str
    recipe: str | None = None
    data: Path | None = None
    out: Path | None = None
    overrides: Sequence[str] = ()
    trials: int = 1
    resume: bool = False
    power: str = "auto"
    restarts: int = 0


def run_benchmark(request: Request, launcher: Launcher) -> Iterator[Outcome]:
    """Run the trials of `request`, yielding each as it ends; stops after one that failed.

    `launcher` is opened here, and is not ended.

    Raises:
        UsageError: the request makes no sense, or recipe, data or record cannot be used.
    """
    launcher.open()
    power = str(parse_power(request.power).from_anywhere())
    if request.resume:
        yield from _resume(request, power, launcher)
        return
    # Without recipe and data, the default recipe runs anywhere; with data, it is the reference.
    name = request.recipe or default_recipe(request.benchmark, has_data=request.data is not None)
    overrides = [*request.overrides, *launcher.fit(name, request.overrides)]
    recipe = load_recipe(name, overrides)
    subject = Subject(recipe, request.data, request.out or RUNS, sys.argv[1:])
    with paths_and_device_first(subject):
        launcher.check(recipe, request.trials)
    _check_benchmark(request, recipe.benchmark, f"{name}: a recipe", f"--recipe {name}")
    require_healthy(subject)
    with run_folder(request.out, request.benchmark) as folder:
        if request.trials > 1:
            campaign = create_campaign(folder, recipe, request.trials, request.data)
            say(f"{folder}: a campaign of {request.trials} runs, identity {campaign.identity}")
            yield from run_campaign(folder, launcher, power=power, restarts=request.restarts)
            return
        if folder.is_dir():
            require_unused(folder)
        data = request.data or make_data(recipe, request.out)
        say(f"{recipe.benchmark}: recipe {name}, data {data}, record {folder}")
        settings = [token for text in overrides for token in ("--set", text)]
        arguments: list[str | Path] = ["--recipe", name, "--data", data, "--out", folder, "--power", power, *settings]
        restarts = _restarts_of(folder, request.restarts, ["--power", power])
        yield Outcome(folder, launcher.run(recipe, arguments, restarts=restarts))


def _resume(request: Request, power: str, launcher: Launcher) -> Iterator[Outcome]:
    if request.recipe or request.overrides or request.trials != 1:
        raise UsageError("--resume uses the recipe of the record: leave out --recipe, --set, --input and --trials")
    folder = request.out or latest_unfinished(RUNS, request.benchmark)
    # If the record belongs to a campaign, the resumption must be in the campaign's journal.
    campaign = next((one for one in (folder, folder.absolute().parent) if is_campaign(one)), None)
    if campaign is not None:
        _check_benchmark(request, read_campaign(campaign).benchmark, f"{campaign}: runs", f"--resume --out {folder}")
        only = None if campaign == folder else _trial_of(campaign, folder.name)
        yield from run_campaign(
            campaign, launcher, data=request.data, only=only, power=power, restarts=request.restarts
        )
    else:
        yield _resume_record(request, folder, power, launcher)


def _trial_of(campaign: Path, record: str) -> int:
    """The trial whose last attempt has this folder."""
    plan = read_campaign(campaign)
    latest = {trial.trial: attempts[-1].record for trial in plan.trials if (attempts := plan.attempts_at(trial.trial))}
    trial = next((trial for trial, name in latest.items() if name == record), None)
    if trial is None:
        raise UsageError(
            f"{campaign / record}: not the last attempt at a run of this campaign: continue the campaign with "
            f"`hpcai500 campaign run {campaign}`"
        )
    return trial


def _resume_record(request: Request, folder: Path, power: str, launcher: Launcher) -> Outcome:
    record = read_record(folder)
    benchmark = str(record.tables.get("benchmark"))
    _check_benchmark(request, benchmark, f"{folder}: a record", f"--resume --out {folder}")
    if record.status == "done":
        say(f"{benchmark}: {folder} is complete: this is its result")
        return Outcome(folder, ExitCode.PASS)
    recipe = record.recipe()
    dataset = next(iterate(record.events, "dataset"), None)
    # Without data, the job reports what the record lacks.
    if data := request.data or (Path(dataset["value"]["root"]) if dataset else None):
        require_healthy(Subject(recipe, data, folder, sys.argv[1:]))
    say(f"{benchmark}: resuming {folder}")
    how: list[str | Path] = ["--power", power, *(("--data", request.data) if request.data else ())]
    restarts = _restarts_of(folder, request.restarts, how)
    return Outcome(folder, launcher.run(recipe, ["--resume", "--out", folder, *how], restarts=restarts))


def _restarts_of(record: Path, most: int, how: Sequence[str | Path]) -> Restarts | None:
    """The restarts of a run; `how` are the arguments of its job besides the record. None: there are none."""

    def resume() -> Sequence[str | Path] | None:
        return ["--resume", "--out", record, *how] if _has_begun(record) else None

    return Restarts(most, resume) if most else None


def _has_begun(record: Path) -> bool:
    """Whether the run has begun to train, so that it can be resumed."""
    try:
        return any(iterate(read_record(record).events, "run_start"))
    except HpcAi500Error:
        return False


def _check_benchmark(request: Request, benchmark: str, what: str, arguments: str) -> None:
    if benchmark != request.benchmark:
        raise UsageError(f"{what} of {benchmark}; run `hpcai500 {benchmark} {arguments}`")


# ----------------------------------------------------------------------------------------------------
# What `--resume` resumes if no record is named.


def latest_unfinished(runs: Path, benchmark: str) -> Path:
    """The newest run or campaign in the folder `runs` that can be resumed and that no process is writing.

    One that was stopped or killed comes before one that failed, which would most likely fail again.

    Raises:
        RecordError: there is none.
    """
    found = []
    for folder in (path for path in runs.glob("*") if path.is_dir()):
        try:
            failed = _campaign_failed(folder, benchmark) if is_campaign(folder) else _run_failed(folder, benchmark)
        except HpcAi500Error:
            continue  # not a record, or a damaged one
        if failed is not None:
            found.append((not failed, folder.stat().st_mtime, folder))
    if not found:
        raise RecordError(f"{runs}/: no unfinished {benchmark} run to resume; name its record: --resume --out DIR")
    return max(found)[2]


def _run_failed(folder: Path, benchmark: str) -> bool | None:
    """Whether the run has failed; None if it cannot be resumed."""
    record = read_record(folder)
    begun = record.tables.get("benchmark") == benchmark and any(iterate(record.events, "run_start"))
    if not begun or record.status == "done" or is_being_written(folder):
        return None
    return record.status == "error" and not any(iterate(record.events[-4:], "interrupted"))


def _campaign_failed(folder: Path, benchmark: str) -> bool | None:
    """Whether the last attempt at a run of the campaign has failed; None if there is nothing to resume."""
    campaign = read_campaign(folder)
    left = {trial.trial for trial in campaign.trials} - {attempt.trial for attempt in campaign.done()}
    # If no run was begun, there is nothing to resume.
    if campaign.benchmark != benchmark or not (left and campaign.attempts):
        return None
    if any(_is_run(campaign, trial) for trial in left):
        return None
    return any(attempts[-1].status == "failed" for trial in left if (attempts := campaign.attempts_at(trial)))


def _is_run(campaign: Campaign, trial: int) -> bool:
    """Whether a process runs `trial` now."""
    with turn_at(campaign.path, trial) as turn:
        running = (one for one in campaign.attempts_at(trial) if one.status == "running")
        return turn == "taken" or any(is_written(campaign.record(one)) for one in running)


# ----------------------------------------------------------------------------------------------------
# Planning a campaign.


@dataclass(frozen=True)
class Plan:
    """A new campaign.

    Attributes:
        least_runs: that its edition requires; None for a benchmark that the edition does not know.
        warnings: what the user may want to change before the first run.
    """

    campaign: Campaign
    least_runs: int | None
    warnings: Sequence[str]

    def lines(self) -> Iterator[str]:
        """For people."""
        campaign = self.campaign
        seeds = [trial.seed for trial in campaign.trials]
        required = f"; edition {campaign.edition} requires at least {self.least_runs}" if self.least_runs else ""
        yield f"campaign    {campaign.path}: {campaign.benchmark}, edition {campaign.edition}"
        yield f"identity    {campaign.identity}"
        yield f"recipe      {campaign.start['recipe_hash']}"
        yield f"trials      {len(seeds)}, seeds {seeds[0]} to {seeds[-1]}{required}"
        yield f"data        {campaign.start['data'] or 'made by hpcai500'}"
        yield "Register the identity before the first run: it shows that the plan was made before the runs. It cannot"
        yield "rule out a second copy of the campaign. To rule that out, send each HPCAI500 HEAD line as it is printed."
        yield from next_lines(
            (
                (("campaign", "run", campaign.path), "here; the same command continues an interrupted campaign"),
                (("campaign", "status", campaign.path), "what is done, and whether it is rankable"),
            )
        )

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


def plan_campaign(
    folder: Path, name: str, launcher: Launcher, *, trials: int | None, data: Path | None, overrides: Sequence[str]
) -> Plan:
    """Plan a campaign in `folder`: runs of the recipe `name` on the ranks of `launcher`.

    `trials` is None for the number that the edition suggests.

    Raises:
        UsageError: recipe, data or folder cannot be used.
    """
    recipe = load_recipe(name, [*overrides, *launcher.fit(name, overrides)])
    rules = rulebook(recipe.edition, recipe.benchmark)
    least: int | None = rules.get("least_runs")
    trials = trials or runs_to_plan(least)
    dataset = recipe.problem.dataset
    if data is None and not recipe.problem.is_synthetic:
        raise DataError(f"{recipe.benchmark}: the recipe trains on {dataset}: give its folder with --data DIR")
    if data is not None and data.exists() and not data.is_dir():
        raise DataError(f"{data}: {why_not('folder', data)}; give the folder of {dataset} with --data DIR")
    campaign = create_campaign(folder, recipe, trials, data)
    warnings = list(_warnings(recipe, rules, trials, least))
    # A plan may be made where the data cannot be seen: on a login node.
    if data is not None and (why := why_not("folder", data)):
        warnings.append(
            f"{data}: {why}: if it is not on the nodes of the runs either, give the folder there: "
            "`hpcai500 campaign run DIR --data FOLDER`"
        )
    return Plan(campaign, least, warnings)


def _warnings(recipe: Recipe, rules: Mapping[str, Any], trials: int, least: int | None) -> Iterator[str]:
    if least is None:
        yield f"edition {recipe.edition} has no benchmark {recipe.benchmark}: this campaign cannot be ranked"
        return
    if trials < least:
        yield f"{trials} runs are fewer than the {least} that edition {recipe.edition} requires: not rankable"
    if "reference_error" in rules:
        yield f"{rules['reference_error']}: not rankable"
        return
    tables = recipe.model_dump(mode="json")
    forbidden = [change for change in find_level(tables, rules).changes if change.level is None]
    if forbidden:
        first, more = forbidden[0], len(forbidden) - 1
        yield (
            f"{first.field} is {first.value}; edition {recipe.edition} fixes {first.reference}: not rankable"
            + (f" (and {more} more: hpcai500 rules RECIPE)" if more else "")
        )
    elif recipe.accelerator.loader == "memory":
        yield "accelerator.loader is memory, which reads no data: not rankable"


# ----------------------------------------------------------------------------------------------------
# Running a campaign.


@dataclass(frozen=True)
class _Work:
    """What every run of the campaign needs."""

    launcher: Launcher
    recipe: Recipe
    data: Path
    power: str
    how: Invocation
    rules: Mapping[str, Any]
    restarts: int = 0


def run_campaign(
    folder: Path,
    launcher: Launcher,
    *,
    data: Path | None = None,
    only: int | None = None,
    power: str = "auto",
    restarts: int = 0,
) -> Iterator[Outcome]:
    """Run the trials of a campaign that are not done, yielding each as it ends; stops after one that failed.

    `launcher` must be open, and is not ended.

    Args:
        folder: of the campaign.
        launcher: runs each of its runs.
        data: where its data set is now; None: where the plan says.
        only: one trial; None: all of them.
        power: value of --power.
        restarts: number of restarts of each run.

    Raises:
        UsageError: there is no such campaign or trial, or the launcher does not fit the recipe.
        RecordError: another process runs a trial.
        Stopped: by a signal that came too late for a run to stop.
    """
    campaign = read_campaign(folder)
    trials = [trial for trial in campaign.trials if only in (None, trial.trial)]
    if not trials:
        raise UsageError(f"--only {only}: {campaign.path} has the trials 1 to {len(campaign.trials)}")
    recipe = read_resolved(campaign.path / RECIPE)
    done = {attempt.trial: attempt for attempt in campaign.done()}
    left = [trial for trial in trials if trial.trial not in done]
    planned = campaign.start["data"]
    data = data or (Path(planned) if planned else None)
    subject = Subject(recipe, data, folder, sys.argv[1:])
    with paths_and_device_first(subject):
        launcher.check(recipe, len(left))
    if not left:
        yield from (Outcome(campaign.record(done[trial.trial]), ExitCode.PASS) for trial in trials)
        return
    if (plugin := campaign.start.get("plugin")) and plugin_facts(campaign.benchmark) != plugin:
        say(
            f"{folder}: {plugin['package']} {plugin['version']} is installed with other code than this campaign was "
            "planned with, so that its runs get no mean: plan a new campaign, or install that code again"
        )
    require_healthy(subject)
    how = Invocation(["hpcai500", *sys.argv[1:]], find_placement(os.environ).launcher, os.environ.get("SLURM_JOB_ID"))
    rules = rulebook(campaign.edition, campaign.benchmark)
    work = _Work(launcher, recipe, data or make_data(recipe, folder), power, how, rules, restarts)
    for trial in until_stopped(trials):
        with turn_at(folder, trial.trial) as turn:
            if turn == "taken":
                raise _busy(folder, trial)
            outcome = _run_trial(work, folder, trial)
        yield outcome
        if outcome.exit_code != ExitCode.PASS:
            return


def _run_trial(work: _Work, folder: Path, trial: Trial) -> Outcome:
    """Start or resume one planned run, which no other process may be running."""
    campaign, last = _settled(read_campaign(folder), trial, work.rules)
    if last is not None and last.status == "done":
        return Outcome(campaign.record(last), ExitCode.PASS)
    before = read_outcome(campaign, last, work.rules) if last else None
    if last is not None and before is not None:
        if before.diverged:
            say(
                f"{last.name} diverged ({before.diverged}): this is a result of the recipe, and final: change the "
                "recipe, and plan another campaign"
            )
            return Outcome(campaign.record(last), ExitCode.RUN_FAILED)
        if before.can_go_on:
            return _resume_attempt(work, resume_attempt(campaign, last, work.how), last)
        say(f"{last.name}: {last.reason}; it is kept, and trial {trial.trial} starts again")
    return _begin(work, campaign, trial)


def _settled(campaign: Campaign, trial: Trial, rules: Mapping[str, Any]) -> tuple[Campaign, Attempt | None]:
    """The last attempt at `trial`; if it was killed, its end is written into the journal first."""
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


def _resume_attempt(work: _Work, campaign: Campaign, attempt: Attempt) -> Outcome:
    record = campaign.record(attempt)
    say(f"{work.recipe.benchmark}: resuming {attempt.name} of {campaign.path}, record {record}")
    return _run(work, campaign, attempt, _resume_arguments(work, record))


def _resume_arguments(work: _Work, record: Path) -> list[str | Path]:
    return ["--resume", "--out", record, "--power", work.power, "--data", work.data]


def _run(work: _Work, campaign: Campaign, attempt: Attempt, arguments: Sequence[str | Path]) -> Outcome:
    _print_head(campaign, attempt)
    record = campaign.record(attempt)

    def resume() -> Sequence[str | Path] | None:
        """Write into the journal that the attempt was stopped and goes on, as if by another command."""
        nonlocal campaign
        if not _has_begun(record):
            return None
        campaign = _stop(campaign, attempt, ExitCode.RUN_FAILED, work.rules)
        campaign = resume_attempt(campaign, attempt, work.how)
        _print_head(campaign, attempt)
        return _resume_arguments(work, record)

    restarts = Restarts(work.restarts, resume) if work.restarts else None
    try:
        code = work.launcher.run(work.recipe, arguments, restarts=restarts)
    except BaseException:
        # Ctrl-C before the job could handle it, or ranks that did not come.
        _stop(campaign, attempt, None, work.rules)
        raise
    _stop(campaign, attempt, code, work.rules)
    # The time since the job started belongs to its first run.
    os.environ.pop(JOB_TIMES, None)
    return Outcome(campaign.record(attempt), code)


def _stop(campaign: Campaign, attempt: Attempt, code: int | None, rules: Mapping[str, Any]) -> Campaign:
    campaign, _ = stop_attempt(campaign, attempt, code, rules)
    _print_head(campaign, attempt)
    return campaign


def _print_head(campaign: Campaign, attempt: Attempt) -> None:
    """Print the line for the committee, without a prefix."""
    say(str(last_head(campaign, attempt)), prefix="")


def _busy(folder: Path, trial: Trial) -> RecordError:
    return RecordError(
        f"{folder}: trial {trial.trial} is being run by another process: wait for it or stop it, or run another trial "
        "with --only K"
    )
