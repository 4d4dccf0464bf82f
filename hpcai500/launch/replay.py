"""Starts the evaluation of a checkpoint in the in-job half, in one process on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hpcai500.errors import DataError, ExitCode, WrongAnswerError, error_kind
from hpcai500.interpreter import module_command
from hpcai500.launch.in_job import run_to_end
from hpcai500.recipe import parse_resolved
from hpcai500.record import json_object
from hpcai500.scratch import scratch_folder

_COMMAND = "engine.replay_command"


def replay_checkpoint(recipe: Path, checkpoint: Path, data: Path, device: str | None = None) -> dict[str, Any]:
    """Quality of the weights in `checkpoint`, with the facts of the data and the model that it was found with.

    Args:
        recipe: `recipe.toml` of the record.
        checkpoint: its last checkpoint; it may come from anybody.
        data: folder of the data set.
        device: `cpu` or `cuda`, where the recipe's own is not here.

    Raises:
        WrongAnswerError: the checkpoint is refused, or this version cannot run the recipe.
        DataError: the data cannot be used.
        HpcAi500Error: it could not be evaluated here; stderr says why.
    """
    parse_resolved(recipe.read_text(encoding="utf-8"), "recipe.toml")
    with scratch_folder(os.environ, Path.cwd()) as folder:
        result = Path(folder, "replay.json")
        files = (*("--recipe", recipe), *("--checkpoint", checkpoint), *("--data", data.absolute()))
        more = ("--device", device) if device else ()
        code = run_to_end(module_command(_COMMAND, *files, *("--json-out", result), *more), hold=True)
        if code == ExitCode.WRONG_ANSWER:
            raise WrongAnswerError("its checkpoint is refused (stderr says why)")
        if code == ExitCode.USAGE:
            raise DataError(f"{data}: the checkpoint could not be evaluated on it (see above)")
        if code != ExitCode.PASS:
            raise error_kind(code)("the checkpoint could not be evaluated here (see above)")
        return json_object(result)
