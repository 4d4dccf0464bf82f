"""A benchmark's command: chooses recipe, data and record, and runs or resumes the job."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hpcai500.campaign.attempts import is_written
from hpcai500.campaign.journal import Campaign, create_campaign, is_campaign, read_campaign, turn_at
from hpcai500.errors import ExitCode, HpcAi500Error, RecordError, UsageError
from hpcai500.launch.campaign import CampaignOrder, run_campaign
from hpcai500.launch.launcher import Launcher, Outcome
from hpcai500.launch.made_data import make_data
from hpcai500.layers import Recipe
from hpcai500.recipe import default_recipe, load_recipe
from hpcai500.record import Record, is_being_written, iterate, read_record, require_unused
from hpcai500.streams import say
from hpcai500.system.doctor import Subject, require_healthy
from hpcai500.system.power import parse_power

# ----------------------------------------------------------------------------------------------------
# What `--resume` resumes where no record is named.


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
            continue  # no record, or a damaged one: not what is looked for
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
    return _has_failed(record)


def _has_failed(record: Record) -> bool:
    return record.status == "error" and not any(iterate(record.events[-4:], "interrupted"))


def _campaign_failed(folder: Path, benchmark: str) -> bool | None:
    """Whether the last attempt at a run of the campaign has failed; None if there is nothing to resume."""
    campaign = read_campaign(folder)
    left = {trial.trial for trial in campaign.trials} - {attempt.trial for attempt in campaign.done()}
    if campaign.benchmark != benchmark or not left or any(_is_run(campaign, trial) for trial in left):
        return None
    return any(attempts[-1].status == "failed" for trial in left if (attempts := campaign.attempts_at(trial)))


def _is_run(campaign: Campaign, trial: int) -> bool:
    with turn_at(campaign.path, trial) as turn:
        return turn == "taken" or any(map(is_written, _running(campaign, trial)))


def _running(campaign: Campaign, trial: int) -> Iterator[Path]:
    return (campaign.record(one) for one in campaign.attempts_at(trial) if one.status == "running")


# ----------------------------------------------------------------------------------------------------
# Running and resuming.


_RUNS = Path("runs")


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
    # Without recipe and data, the default is a recipe that runs anywhere; with data, the reference.
    name = request.recipe or default_recipe(request.benchmark, has_data=request.data is not None)
    overrides = [*request.overrides, *launcher.fit(name, request.overrides)]
    recipe = load_recipe(name, overrides)
    launcher.check(recipe, request.trials)
    _check_benchmark(request, recipe.benchmark, f"{name}: a recipe", f"--recipe {name}")
    folder = request.out or _RUNS / f"{request.benchmark}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    require_healthy(Subject(recipe, request.data, folder, sys.argv[1:]))
    if request.trials == 1 and folder.is_dir():
        require_unused(folder)
    if request.trials > 1:
        campaign = create_campaign(folder, recipe, request.trials, request.data)
        say(f"{folder}: a campaign of {request.trials} runs, identity {campaign.identity}")
        yield from run_campaign(CampaignOrder(folder, power=power), launcher)
    else:
        data = request.data or make_data(recipe, request.out)
        yield _start(launcher, recipe, name, overrides, data, folder, power)


def _start(
    launcher: Launcher, recipe: Recipe, name: str | Path, overrides: Sequence[str], data: Path, record: Path, power: str
) -> Outcome:
    settings = [token for text in overrides for token in ("--set", text)]
    say(f"{recipe.benchmark}: recipe {name}, data {data}, record {record}")
    arguments = ["--recipe", name, "--data", data, "--out", record, "--power", power, *settings]
    return Outcome(record, launcher.run(recipe, arguments))


def _resume(request: Request, power: str, launcher: Launcher) -> Iterator[Outcome]:
    if request.recipe or request.overrides or request.trials != 1:
        raise UsageError(
            "--resume goes on with the recipe of the record: leave out --recipe, --set, --input and --trials"
        )
    folder = request.out or latest_unfinished(_RUNS, request.benchmark)
    # A stopped run names its record. Where that belongs to a campaign, its journal must know of the resumption.
    campaign = next((one for one in (folder, folder.absolute().parent) if is_campaign(one)), None)
    if campaign is not None:
        _check_benchmark(request, read_campaign(campaign).benchmark, f"{campaign}: runs", f"--resume --out {folder}")
        only = None if campaign == folder else _trial_of(campaign, folder.name)
        yield from run_campaign(CampaignOrder(campaign, request.data, only, power), launcher)
    else:
        yield _resume_record(request, folder, power, launcher)


def _trial_of(campaign: Path, record: str) -> int:
    """The trial whose last attempt has this folder."""
    plan = read_campaign(campaign)
    latest = {trial.trial: attempts[-1].record for trial in plan.trials if (attempts := plan.attempts_at(trial.trial))}
    trial = next((trial for trial, name in latest.items() if name == record), None)
    if trial is None:
        raise UsageError(
            f"{campaign / record}: not the latest attempt at a run of this campaign: go on with the campaign, "
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
    # Without data, the job says what the record lacks.
    if data := request.data or _data_of(record):
        require_healthy(Subject(record.recipe(), data, folder, sys.argv[1:]))
    return _go_on(launcher, folder, request.data, power)


def _data_of(record: Record) -> Path | None:
    dataset = next(iterate(record.events, "dataset"), None)
    return Path(dataset["value"]["root"]) if dataset else None


def _go_on(launcher: Launcher, record: Path, data: Path | None, power: str) -> Outcome:
    recipe = read_record(record).recipe()
    say(f"{recipe.benchmark}: going on with {record}")
    where = ["--data", str(data)] if data else []
    return Outcome(record, launcher.run(recipe, ["--resume", "--out", str(record), "--power", power, *where]))


def _check_benchmark(request: Request, benchmark: str, what: str, arguments: str) -> None:
    if benchmark != request.benchmark:
        raise UsageError(f"{what} of {benchmark}; run `hpcai500 {benchmark} {arguments}`")
