"""One benchmark command: which recipe, which data, which record, and the job that turns them into a result."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hpcai500.campaign.reading import is_campaign, read_campaign
from hpcai500.campaign.writing import create_campaign
from hpcai500.chain import iterate
from hpcai500.errors import ExitCode, UsageError
from hpcai500.launch.campaign import CampaignOrder, run_campaign
from hpcai500.launch.crew import Crew
from hpcai500.launch.made_data import make_data
from hpcai500.launch.outcome import Outcome
from hpcai500.launch.unfinished import latest_unfinished
from hpcai500.layers import Recipe
from hpcai500.recipe import default_recipe, load_recipe
from hpcai500.record import Record, read_record
from hpcai500.record_writer import require_unused
from hpcai500.streams import say
from hpcai500.system.doctor import Subject, require_healthy
from hpcai500.system.power.choice import parse_power

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


def run_benchmark(request: Request, crew: Crew) -> Iterator[Outcome]:
    """Run the trials of `request`, one after the other, yielding each as it ends; stops after one that failed.

    `crew` runs the jobs; to end it is the caller's, when all is said.

    Raises:
        UsageError: the request makes no sense, or recipe, data or record cannot be used.
    """
    crew.open()
    power = str(parse_power(request.power).from_anywhere())
    if request.resume:
        yield from _resume(request, power, crew)
        return
    # Without a recipe and without data there is still something to run; with data, the real thing.
    name = request.recipe or default_recipe(request.benchmark, has_data=request.data is not None)
    overrides = [*request.overrides, *crew.fit(name, request.overrides)]
    recipe = load_recipe(name, overrides)
    crew.check(recipe, request.trials)
    _check_benchmark(request, recipe.benchmark, f"{name}: a recipe", f"--recipe {name}")
    folder = request.out or _RUNS / f"{request.benchmark}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    require_healthy(Subject(recipe, request.data, folder, sys.argv[1:]))
    if request.trials == 1 and folder.is_dir():
        require_unused(folder)
    if request.trials > 1:
        campaign = create_campaign(folder, recipe, request.trials, request.data)
        say(f"{folder}: a campaign of {request.trials} runs, identity {campaign.identity}")
        yield from run_campaign(CampaignOrder(folder, power=power), crew)
    else:
        data = request.data or make_data(recipe, request.out)
        yield _start(crew, recipe, name, overrides, data, folder, power)


def _start(
    crew: Crew, recipe: Recipe, name: str | Path, overrides: Sequence[str], data: Path, record: Path, power: str
) -> Outcome:
    settings = [token for text in overrides for token in ("--set", text)]
    say(f"{recipe.benchmark}: recipe {name}, data {data}, record {record}")
    arguments = ["--recipe", name, "--data", data, "--out", record, "--power", power, *settings]
    return Outcome(record, crew.run(recipe, arguments))


def _resume(request: Request, power: str, crew: Crew) -> Iterator[Outcome]:
    if request.recipe or request.overrides or request.trials != 1:
        raise UsageError(
            "--resume goes on with the recipe of the record: leave out --recipe, --set, --input and --trials"
        )
    folder = request.out or latest_unfinished(_RUNS, request.benchmark)
    # What stops a run names its record, also that of a campaign: there its journal has to know that it goes on.
    campaign = next((one for one in (folder, folder.absolute().parent) if is_campaign(one)), None)
    if campaign is not None:
        _check_benchmark(request, read_campaign(campaign).benchmark, f"{campaign}: runs", f"--resume --out {folder}")
        only = None if campaign == folder else _trial_of(campaign, folder.name)
        yield from run_campaign(CampaignOrder(campaign, request.data, only, power), crew)
    else:
        yield _resume_record(request, folder, power, crew)


def _trial_of(campaign: Path, record: str) -> int:
    """The planned run that the last attempt with this folder is at."""
    plan = read_campaign(campaign)
    latest = {trial.trial: attempts[-1].record for trial in plan.trials if (attempts := plan.attempts_at(trial.trial))}
    trial = next((trial for trial, name in latest.items() if name == record), None)
    if trial is None:
        raise UsageError(
            f"{campaign / record}: not the latest attempt at a run of this campaign: go on with the campaign, "
            f"`hpcai500 campaign run {campaign}`"
        )
    return trial


def _resume_record(request: Request, folder: Path, power: str, crew: Crew) -> Outcome:
    record = read_record(folder)
    benchmark = str(record.tables.get("benchmark"))
    _check_benchmark(request, benchmark, f"{folder}: a record", f"--resume --out {folder}")
    if record.status == "done":
        say(f"{benchmark}: {folder} is complete: this is its result")
        return Outcome(folder, ExitCode.PASS)
    # Without either, the job says what the record lacks.
    if data := request.data or _data_of(record):
        require_healthy(Subject(record.recipe(), data, folder, sys.argv[1:]))
    return _go_on(crew, folder, request.data, power)


def _data_of(record: Record) -> Path | None:
    """The folder that a run was started on."""
    dataset = next(iterate(record.events, "dataset"), None)
    return Path(dataset["value"]["root"]) if dataset else None


def _go_on(crew: Crew, record: Path, data: Path | None, power: str) -> Outcome:
    recipe = read_record(record).recipe()
    say(f"{recipe.benchmark}: going on with {record}")
    where = ["--data", str(data)] if data else []
    return Outcome(record, crew.run(recipe, ["--resume", "--out", str(record), "--power", power, *where]))


def _check_benchmark(request: Request, benchmark: str, what: str, arguments: str) -> None:
    if benchmark != request.benchmark:
        raise UsageError(f"{what} of {benchmark}; run `hpcai500 {benchmark} {arguments}`")
