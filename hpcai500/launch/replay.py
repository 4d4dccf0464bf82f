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


def replay_checkpoint(
    recipe: Path,
    checkpoint: Path,
    at_target: Path | None,
    *,
    data: Path,
    held_back: Path | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Quality of the weights in `checkpoint`, with the facts of the data and the model that it was found with.

    Args:
        recipe: `recipe.toml` of the record.
        checkpoint: its last checkpoint; it may come from anybody.
        at_target: that with which it reached its target, where it is another one.
        data: folder of the data set.
        held_back: folder of another one, to be evaluated on, too.
        device: `cpu` or `cuda`, where the recipe's own is not here.

    Raises:
        WrongAnswerError: a checkpoint is refused, or this version cannot run the recipe.
        DataError: the data cannot be used.
        HpcAi500Error: it could not be evaluated here; stderr says why.
    """
    parse_resolved(recipe.read_text(encoding="utf-8"), "recipe.toml")
    with scratch_folder(os.environ, Path.cwd()) as folder:
        result = Path(folder, "replay.json")
        options = {
            "--recipe": recipe,
            "--checkpoint": checkpoint,
            "--target": at_target,
            "--data": data.absolute(),
            "--held-back": held_back and held_back.absolute(),
            "--device": device,
            "--json-out": result,
        }
        given = [token for option, value in options.items() if value for token in (option, value)]
        code = run_to_end(module_command(_COMMAND, *given), hold=True)
        if code == ExitCode.WRONG_ANSWER:
            raise WrongAnswerError("a checkpoint of it is refused (stderr says why)")
        if code == ExitCode.USAGE:
            sets = f"{data} and {held_back}" if held_back else f"{data}"
            raise DataError(f"{sets}: the checkpoint could not be evaluated on it (see above)")
        if code != ExitCode.PASS:
            raise error_kind(code)("the checkpoint could not be evaluated here (see above)")
        return json_object(result)
