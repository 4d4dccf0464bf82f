"""A profile of a benchmark's training steps: recipe, data and folder, then the job that measures."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hpcai500.errors import RecordError, UsageError
from hpcai500.files import write_atomically
from hpcai500.launch.crew import Crew
from hpcai500.launch.made_data import data_for_measuring
from hpcai500.launch.measuring import measure, setting_for
from hpcai500.recipe import default_recipe
from hpcai500.streams import say
from hpcai500.system.doctor import Subject, require_healthy

PROFILE, TRACE = "profile.json", "trace.json.gz"
# A minute on a machine at rest; a model that is compiled takes several. With --steps, so much for each of them.
_LIMIT_SECONDS, _STEP_SECONDS = 1800.0, 120.0


@dataclass(frozen=True)
class ProfileRequest:
    """What the user asked for on the command line."""

    benchmark: str
    recipe: str | None = None
    data: Path | None = None
    out: Path | None = None
    overrides: Sequence[str] = ()
    steps: int | None = None


def run_profile(request: ProfileRequest, crew: Crew) -> tuple[Path, dict[str, Any]]:
    """Profile `request` on the ranks of `crew`, which is open; returns the folder and what lies in its profile.json.

    Raises:
        HpcAi500Error: recipe, data or folder cannot be used, or the job failed.
    """
    name = request.recipe or default_recipe(request.benchmark, has_data=request.data is not None)
    setting = setting_for(crew, name, request.overrides)
    recipe = setting.recipe
    crew.check(recipe, 1)
    if recipe.benchmark != request.benchmark:
        raise UsageError(f"{name}: a recipe of {recipe.benchmark}; run `hpcai500 profile {recipe.benchmark} …`")
    folder = request.out or Path("runs") / f"profile-{request.benchmark}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    require_healthy(Subject(recipe, request.data, folder, sys.argv[1:]))
    new_folder(folder)
    limit_seconds = _LIMIT_SECONDS + _STEP_SECONDS * (request.steps or 0)
    chosen = nullcontext(request.data) if request.data else data_for_measuring(recipe, is_shared=not crew.is_local)
    try:
        with chosen as data:
            say(f"profile: recipe {name}, data {data}, into {folder}; at most {limit_seconds:.0f} s, then it is ended")
            arguments: list[str | Path] = ["--data", data.absolute(), "--trace", (folder / TRACE).absolute()]
            arguments += ["--steps", str(request.steps)] if request.steps else []
            document = measure(crew, "measure.profile_command", setting, arguments, limit_seconds)
    except BaseException:
        if request.out is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    document["recipe"] = name
    document["trace"] = TRACE
    try:
        write_atomically(folder / PROFILE, (json.dumps(document, indent=1) + "\n").encode())
    except OSError as error:
        raise RecordError(f"{folder}: cannot be written: {error.strerror}; give another --out") from error
    return folder, document


def new_folder(folder: Path) -> None:
    """Make `folder`; what is there is never overwritten.

    Raises:
        RecordError: it holds something, or cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise RecordError(f"{folder}: not empty; give another --out")
    except OSError as error:
        raise RecordError(f"{folder}: cannot be written: {error.strerror}; give another --out") from error
