"""Weak scaling on this machine: the same recipe with 1, 2, 4, … processes, each a run with its own record.

FOLDER/
    scale.json           what is run, so that an interrupted scaling can be resumed
    procs-1/ procs-2/ …  records
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcai500.errors import DataError, ExitCode, RecordError, UsageError
from hpcai500.files import why_not, write_atomically
from hpcai500.hosts import Placement, find_placement
from hpcai500.launch.launcher import Outcome, launcher_of, require_room
from hpcai500.launch.layout import visible_devices
from hpcai500.launch.processes import until_stopped
from hpcai500.launch.runs import Request, run_benchmark
from hpcai500.layers import Recipe
from hpcai500.recipe import default_recipe, load_recipe, tables_hash
from hpcai500.record import json_object

_PLAN = "scale.json"
_ONE_PROCESS = ("communication.backend=local", "communication.topology=flat")


@dataclass(frozen=True)
class ScaleRequest:
    """What the user asked for; `procs` as on the command line, None: what fits the machine."""

    benchmark: str
    procs: str | None = None
    recipe: str | None = None
    data: Path | None = None
    out: Path | None = None
    overrides: Sequence[str] = ()

    @property
    def recipe_name(self) -> str:
        """As for the benchmark's own command."""
        return self.recipe or default_recipe(self.benchmark, has_data=self.data is not None)


@dataclass(frozen=True)
class Points:
    """The points of a scaling. Every process has as many threads as at the largest point.

    Attributes:
        request: with these threads in its overrides.
        processes: of each point, ascending.
        recipe: of the largest point.
        placement: of this command, which no launcher has started as a rank.
    """

    request: ScaleRequest
    processes: Sequence[int]
    recipe: Recipe
    placement: Placement

    def plan(self) -> dict[str, Any]:
        """What all points have in common, for scale.json."""
        tables = self.recipe.model_dump(mode="json")
        return {
            "benchmark": self.request.benchmark,
            "threads": self.recipe.os.threads,
            "data": str(self.request.data.resolve()) if self.request.data else None,
            "recipe_hash": tables_hash({name: table for name, table in tables.items() if name != "hardware"}),
        }


def run_scaling(request: ScaleRequest, folder: Path) -> Iterator[Outcome]:
    """Run what is not finished in `folder`, the smallest point first; stops after one that failed.

    Raises:
        UsageError: before the first run: the request makes no sense, or `folder` holds another scaling.
    """
    points = settle(request)
    keep_plan(folder, points.plan())
    return _run_points(points, folder)


def _run_points(points: Points, folder: Path) -> Iterator[Outcome]:
    for processes in until_stopped(points.processes):
        outcome = run_point(points, folder, processes)
        yield outcome
        if outcome.exit_code != ExitCode.PASS:
            return


def settle(request: ScaleRequest) -> Points:
    """The points of `request` on this machine.

    Raises:
        UsageError: it makes no sense.
    """
    if request.data is not None and (why := why_not("folder", request.data)):
        raise DataError(f"{request.data}: {why}; give the folder of the data set with --data DIR")
    placement = find_placement(os.environ)
    if not placement.is_alone:
        raise UsageError(
            f"scale starts the ranks itself, but {placement.launcher} has started {placement.size}: run each point "
            f"with `hpcai500 {request.benchmark}`, then draw them with `hpcai500 scale --records RECORD…`"
        )
    points = parse_procs(request.procs) if request.procs else _default_points(_resolved(request, placement, 2))
    require_room(points[-1])
    overrides = [*request.overrides, *_threads(_resolved(request, placement, points[-1]), points[-1])]
    settled = replace(request, overrides=overrides)
    recipe = _resolved(settled, placement, points[-1])
    if recipe.benchmark != request.benchmark:
        raise UsageError(
            f"{request.recipe_name}: a recipe of {recipe.benchmark}; run `hpcai500 scale {recipe.benchmark} --recipe "
            f"{request.recipe_name}`"
        )
    return Points(settled, points, recipe, placement)


def parse_procs(text: str) -> list[int]:
    """The numbers of processes in `text`, ascending: `1,2,4`.

    Raises:
        UsageError: it has something else, or fewer than two numbers.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and 0 < int(word) < 10**6 for word in words) or len(set(words)) < 2:
        raise UsageError(f"--procs {text}: expected two numbers of processes or more, for example 1,2,4")
    return sorted({int(word) for word in words})


def _default_points(recipe: Recipe) -> list[int]:
    """1, 2, 4, … up to the accelerators or cores of this machine; at least two points."""
    most = len(os.sched_getaffinity(0))
    if recipe.accelerator.device == "cuda":
        most = len(visible_devices(os.environ))
    return [1 << power for power in range(max(2, most.bit_length()))]


def _threads(recipe: Recipe, most_processes: int) -> list[str]:
    each = max(1, len(os.sched_getaffinity(0)) // most_processes)
    left_open = {"threads": recipe.os.threads, "input_threads": recipe.os.input_threads}
    return [f"os.{key}={each}" for key, value in left_open.items() if value == 0]


def _resolved(request: ScaleRequest, placement: Placement, processes: int) -> Recipe:
    launcher = launcher_of(placement, processes)
    return load_recipe(request.recipe_name, [*request.overrides, *launcher.fit(request.recipe_name, request.overrides)])


def run_point(points: Points, folder: Path, processes: int) -> Outcome:
    """Run or resume one model on `processes` processes; its record is in `folder`."""
    request, record = points.request, folder / f"procs-{processes}"
    if (record / "DONE").exists():
        return Outcome(record, ExitCode.PASS)
    if (record / "events.jsonl").exists():
        point = Request(request.benchmark, data=request.data, out=record, resume=True)
    else:
        # One process does not communicate, whatever the recipe says.
        more = _ONE_PROCESS if processes == 1 else ()
        point = Request(request.benchmark, request.recipe_name, request.data, record, [*request.overrides, *more])
    launcher = launcher_of(points.placement, processes)
    (outcome,) = run_benchmark(point, launcher)
    launcher.end(outcome.exit_code)
    return outcome


def keep_plan(folder: Path, plan: dict[str, Any]) -> None:
    """Write `plan` to `folder`, or check that it is the one there.

    Raises:
        UsageError: `folder` holds another scaling.
        RecordError: it holds something else, or cannot be written.
    """
    path = folder / _PLAN
    if path.is_file():
        before = json_object(path)
        different = next((key for key in plan if before.get(key) != plan[key]), None)
        if different:
            raise UsageError(
                f"{path}: has another {different.replace('_', ' ')} ({before.get(different)}, not {plan[different]}): "
                "it must be the same for all points; give another --out"
            )
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise RecordError(f"{folder}: not empty, and not a scaling; give another --out")
        write_atomically(path, (json.dumps(plan, indent=2) + "\n").encode())
    except OSError as error:
        raise RecordError(f"{folder}: cannot be written: {error.strerror}; give another --out") from error
