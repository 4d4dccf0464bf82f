"""Several runs of one recipe in one folder: what was planned, so that an interrupted series can be gone on with.

FOLDER/
    recipe.toml      resolved, with the seed of the first run
    trials.json      how many runs, on which data
    trial-01/ …      records
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from hpcai500.errors import RecordError
from hpcai500.files import write_atomically
from hpcai500.layers import Recipe
from hpcai500.recipe import parse_resolved, to_toml
from hpcai500.record import json_object

_PLAN = "trials.json"
_RECIPE = "recipe.toml"


@dataclass(frozen=True)
class TrialPlan:
    """The series: each run has the recipe's seed plus its number less one."""

    trials: int
    data: str

    def record(self, folder: Path, number: int) -> Path:
        """The record of run `number` (from 1)."""
        return folder / f"trial-{number:02d}"


def is_series(folder: Path) -> bool:
    """Whether `folder` holds a series of runs."""
    return (folder / _PLAN).is_file()


def write_plan(folder: Path, recipe: Recipe, plan: TrialPlan) -> Path:
    """Write down `plan` before its first run; returns the path of the resolved recipe.

    Raises:
        RecordError: the folder is not empty or cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise RecordError(f"{folder}: not empty; give another --out, or go on with it: --resume --out {folder}")
        write_atomically(folder / _RECIPE, to_toml(recipe).encode())
        write_atomically(folder / _PLAN, (json.dumps(asdict(plan), indent=2) + "\n").encode())
    except OSError as error:
        raise RecordError(f"{folder}: cannot be written: {error.strerror}; give another --out") from error
    return folder / _RECIPE


def read_plan(folder: Path) -> tuple[Path, Recipe, TrialPlan]:
    """The resolved recipe, its path, and the plan of the series in `folder`.

    Raises:
        RecordError: the plan is damaged.
    """
    path = folder / _PLAN
    document = json_object(path)
    trials, data = document.get("trials"), document.get("data")
    if not isinstance(trials, int) or not isinstance(data, str):
        raise RecordError(f"{path}: not a plan of trials")
    recipe_path = folder / _RECIPE
    return (
        recipe_path,
        parse_resolved(recipe_path.read_text(encoding="utf-8"), str(recipe_path)),
        TrialPlan(trials, data),
    )
