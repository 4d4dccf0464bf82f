"""The synthetic set that a recipe trains on where no data is given: where it is, and how it comes to be."""

from __future__ import annotations

import signal
from pathlib import Path

from hpcai500.errors import EnvironmentLacksError, ExitCode, error_kind
from hpcai500.files import is_folder
from hpcai500.launch.in_job import module_command, run_to_end
from hpcai500.launch.measuring import say
from hpcai500.layers import Recipe
from hpcai500.scratch import can_be_made

_MADE_DATA = Path("data")


def make_data(recipe: Recipe, out: Path | None) -> Path:
    """The folder of the synthetic set that the recipe trains on, made now if it is not there."""
    folder = place_of_made_data(f"{recipe.benchmark}-{recipe.problem.dataset}", out)
    code = run_to_end(module_command("data", "make", recipe.benchmark, folder))
    if code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
        raise KeyboardInterrupt
    if code != ExitCode.PASS:
        raise error_kind(code)(
            f"{folder}: the synthetic data could not be made (see above); give other data with --data DIR"
        )
    return folder


def place_of_made_data(name: str, out: Path | None) -> Path:
    """Where the synthetic set `name` is, or is to be made: in `data/` here, or, where that cannot be, beside `out`.

    Raises:
        EnvironmentLacksError: neither can be written.
    """
    here = _MADE_DATA / name
    if is_folder(here) or can_be_made(here):
        return here
    beside = out.absolute().parent / here if out else None
    if beside and (is_folder(beside) or can_be_made(beside)):
        say(f"{Path.cwd()}: cannot be written: the synthetic data goes to {beside}")
        return beside
    tried = dict.fromkeys([str(Path.cwd()), *([str(out.absolute().parent)] if out else [])])
    raise EnvironmentLacksError(
        f"synthetic data cannot be made: {' and '.join(tried)}: not to be written by this user; start in a folder of "
        "yours, or give --out DIR/RUN in one (in a container: `--bind DIR --pwd DIR`)"
    )
