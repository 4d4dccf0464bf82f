"""One benchmark command: which recipe, which data, which record, and the job that turns them into a result."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hpcai500.chain import iterate
from hpcai500.errors import (
    ExitCode,
    HpcAi500Error,
    RecordError,
    UsageError,
)
from hpcai500.launch.crew import Crew
from hpcai500.launch.made_data import make_data
from hpcai500.launch.trials import TrialPlan, is_series, read_plan, write_plan
from hpcai500.layers import Recipe
from hpcai500.recipe import load_recipe
from hpcai500.record import Record, read_record
from hpcai500.record_writer import is_being_written, require_unused
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


@dataclass(frozen=True)
class Outcome:
    """One run: where its record lies and how its job ended."""

    record: Path
    exit_code: int


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
    name = request.recipe or f"{request.benchmark}/{'reference' if request.data else 'smoke'}"
    overrides = [*request.overrides, *crew.fit(name, request.overrides)]
    recipe = load_recipe(name, overrides)
    crew.check(recipe, request.trials)
    _check_benchmark(request, recipe.benchmark, f"{name}: a recipe", f"--recipe {name}")
    folder = request.out or _RUNS / f"{request.benchmark}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    require_healthy(Subject(recipe, request.data, folder, sys.argv[1:]))
    if request.trials == 1 and folder.is_dir():
        require_unused(folder)
    data = request.data or make_data(recipe, request.out)
    if request.trials > 1:
        plan = TrialPlan(request.trials, str(data.resolve()))
        yield from _run_series(folder, write_plan(folder, recipe, plan), recipe, plan, power, crew)
    else:
        yield _start(crew, recipe, name, overrides, data, folder, power)


def _start(
    crew: Crew, recipe: Recipe, name: str | Path, overrides: Sequence[str], data: Path, record: Path, power: str
) -> Outcome:
    settings = [token for text in overrides for token in ("--set", text)]
    _say(f"{recipe.benchmark}: recipe {name}, data {data}, record {record}")
    arguments = ["--recipe", name, "--data", data, "--out", record, "--power", power, *settings]
    return Outcome(record, crew.run(recipe, arguments))


def _run_series(folder: Path, path: Path, recipe: Recipe, plan: TrialPlan, power: str, crew: Crew) -> Iterator[Outcome]:
    """Every run of the series that is not finished yet."""
    for number in range(1, plan.trials + 1):
        record = plan.record(folder, number)
        if (record / "DONE").exists():
            outcome = Outcome(record, ExitCode.PASS)
        elif (record / "events.jsonl").exists():
            outcome = _go_on(crew, record, None, power)
        else:
            seed = f"hyperparameters.seed={recipe.hyperparameters.seed + number - 1}"
            outcome = _start(crew, recipe, path, [seed], Path(plan.data), record, power)
        yield outcome
        if outcome.exit_code != ExitCode.PASS:
            return


def _resume(request: Request, power: str, crew: Crew) -> Iterator[Outcome]:
    if request.recipe or request.overrides or request.trials != 1:
        raise UsageError(
            "--resume goes on with the recipe of the record: leave out --recipe, --set, --input and --trials"
        )
    folder = request.out or _latest_unfinished(request.benchmark)
    if is_series(folder):
        path, recipe, plan = read_plan(folder)
        _check_benchmark(request, recipe.benchmark, f"{folder}: runs", f"--resume --out {folder}")
        left = [number for number in range(1, plan.trials + 1) if not (plan.record(folder, number) / "DONE").exists()]
        crew.check(recipe, len(left))
        require_healthy(Subject(recipe, Path(plan.data), folder, sys.argv[1:]))
        yield from _run_series(folder, path, recipe, plan, power, crew)
    else:
        record = read_record(folder)
        benchmark = str(record.tables.get("benchmark"))
        _check_benchmark(request, benchmark, f"{folder}: a record", f"--resume --out {folder}")
        # Without either, the job says what the record lacks.
        if data := request.data or _data_of(record):
            require_healthy(Subject(record.recipe(), data, folder, sys.argv[1:]))
        yield _go_on(crew, folder, request.data, power)


def _data_of(record: Record) -> Path | None:
    """The folder that a run was started on."""
    dataset = next(iterate(record.events, "dataset"), None)
    return Path(dataset["value"]["root"]) if dataset else None


def _go_on(crew: Crew, record: Path, data: Path | None, power: str) -> Outcome:
    recipe = read_record(record).recipe()
    _say(f"{recipe.benchmark}: going on with {record}")
    where = ["--data", str(data)] if data else []
    return Outcome(record, crew.run(recipe, ["--resume", "--out", str(record), "--power", power, *where]))


def _check_benchmark(request: Request, benchmark: str, what: str, arguments: str) -> None:
    if benchmark != request.benchmark:
        raise UsageError(f"{what} of {benchmark}; run `hpcai500 {benchmark} {arguments}`")


def _latest_unfinished(benchmark: str) -> Path:
    """The newest run or series under `runs/` that can be gone on with and that nobody is writing now.

    One that was stopped or killed comes before one that failed: that would most likely fail again.
    """
    found = []
    for folder in (path for path in _RUNS.glob("*") if path.is_dir()):
        try:
            unfinished = [record for record in _records(folder) if record.status != "done"]
            complete = is_series(folder) and len(_records(folder)) == read_plan(folder)[2].trials
        except HpcAi500Error:
            continue  # no record, or a damaged one: not what is looked for
        of_this = [
            r for r in unfinished if r.tables.get("benchmark") == benchmark and any(iterate(r.events, "run_start"))
        ]
        waiting = is_series(folder) and not complete and not unfinished
        if (of_this or waiting) and not any(is_being_written(record.path) for record in unfinished):
            failed = any(r.status == "error" and not any(iterate(r.events[-4:], "interrupted")) for r in of_this)
            found.append((not failed, folder.stat().st_mtime, folder))
    if not found:
        raise RecordError(f"{_RUNS}/: no unfinished {benchmark} run to resume; name its record: --resume --out DIR")
    return max(found)[2]


def _records(folder: Path) -> list[Record]:
    paths = sorted(folder.glob("trial-*")) if is_series(folder) else [folder]
    return [read_record(path) for path in paths if (path / "events.jsonl").is_file()]


def _say(line: str) -> None:
    print(f"hpcai500: {line}", file=sys.stderr)  # noqa: T201
