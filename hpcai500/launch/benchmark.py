"""One benchmark command: which recipe, which data, which record, and the job that turns them into a result."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hpcai500.errors import DataError, ExitCode, RecordError, UsageError
from hpcai500.launch.in_job import module_command, run_to_end
from hpcai500.layers import Recipe
from hpcai500.recipe import load_recipe
from hpcai500.record import read_record

_RUNS = Path("runs")
_MADE_DATA = Path("data")


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


@dataclass(frozen=True)
class Outcome:
    """One run: where its record lies and how its job ended."""

    record: Path
    exit_code: int


def run_benchmark(request: Request) -> Iterator[Outcome]:
    """Run the trials of `request`, one after the other, yielding each as it ends; stops after one that failed.

    Raises:
        UsageError: the request makes no sense, or recipe, data or record cannot be used.
    """
    if request.resume:
        yield _resume(request)
        return
    # Without a recipe and without data there is still something to run; with data, the real thing.
    name = request.recipe or f"{request.benchmark}/{'reference' if request.data else 'smoke'}"
    recipe = load_recipe(name, request.overrides)
    if recipe.benchmark != request.benchmark:
        raise UsageError(f"{name}: a recipe of {recipe.benchmark}; run `hpcai500 {recipe.benchmark} --recipe {name}`")
    data = request.data or _make_data(recipe)
    folder = request.out or _RUNS / f"{request.benchmark}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    for trial in range(1, request.trials + 1):
        record = folder if request.trials == 1 else folder / f"trial-{trial:02d}"
        seed = f"hyperparameters.seed={recipe.hyperparameters.seed + trial - 1}"
        overrides = [*request.overrides, *([seed] if request.trials > 1 else [])]
        settings = [token for text in overrides for token in ("--set", text)]
        command = module_command("train", "--recipe", name, "--data", data, "--out", record, *settings)
        _say(f"{recipe.benchmark}: recipe {name}, data {data}, record {record}")
        outcome = Outcome(record, run_to_end(command))
        yield outcome
        if outcome.exit_code != ExitCode.PASS:
            return


def _resume(request: Request) -> Outcome:
    if request.recipe or request.overrides or request.trials != 1:
        raise UsageError("--resume goes on with the recipe of the record: leave out --recipe, --set and --trials")
    record = request.out or _latest_unfinished(request.benchmark)
    benchmark = read_record(record).recipe.benchmark
    if benchmark != request.benchmark:
        raise UsageError(f"{record}: a record of {benchmark}; run `hpcai500 {benchmark} --resume --out {record}`")
    data = ["--data", str(request.data)] if request.data else []
    _say(f"{benchmark}: going on with {record}")
    return Outcome(record, run_to_end(module_command("train", "--resume", "--out", record, *data)))


def _latest_unfinished(benchmark: str) -> Path:
    records = sorted(_RUNS.glob(f"{benchmark}-*/events.jsonl"), key=lambda path: path.stat().st_mtime)
    unfinished = [path.parent for path in records if not (path.parent / "DONE").exists()]
    if not unfinished:
        raise RecordError(f"{_RUNS}/: no unfinished {benchmark} run to resume; name its record: --resume --out DIR")
    return unfinished[-1]


def _make_data(recipe: Recipe) -> Path:
    """The folder of the synthetic set that the recipe trains on, made now if it is not there."""
    dataset = recipe.problem.dataset
    if not dataset.startswith("synthetic-"):
        raise DataError(f"{recipe.benchmark}: the recipe trains on {dataset}: give its folder with --data DIR")
    folder = _MADE_DATA / f"{recipe.benchmark}-{dataset}"
    code = run_to_end(module_command("data", "make", recipe.benchmark, folder))
    if code == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    if code != ExitCode.PASS:
        raise DataError(f"{folder}: the synthetic data could not be made (see above); give other data with --data DIR")
    return folder


def _say(line: str) -> None:
    print(f"hpcai500: {line}", file=sys.stderr)  # noqa: T201
