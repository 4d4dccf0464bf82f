"""The synthetic data set of a recipe, for runs without --data: where it is, and how it is made."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcai500.errors import EnvironmentLacksError, ExitCode, error_kind
from hpcai500.files import can_be_made, is_folder, scratch_folder
from hpcai500.interpreter import module_command
from hpcai500.job_options import ImageSet, MakeOptions, SetOptions, YearSet, as_argument
from hpcai500.launch.processes import run_to_end
from hpcai500.layers import Recipe
from hpcai500.stopping import Stopped
from hpcai500.streams import say

_MADE_DATA = Path("data")


def make_data(recipe: Recipe, out: Path | None) -> Path:
    """The folder of the recipe's synthetic data set, which is made if it is missing."""
    folder = place_of_made_data(_name(recipe), out)
    _make(recipe, folder)
    return folder


@contextmanager
def data_for_measuring(recipe: Recipe, *, is_shared: bool) -> Iterator[Path]:
    """The synthetic data set that an earlier run has made here, else one that is removed after the block.

    With `is_shared`, ranks of other hosts read it too, so it is made in the working directory, as a run's is.
    """
    here = _MADE_DATA / _name(recipe)
    if is_folder(here):
        _make(recipe, here)
        yield here
        return
    environment = {**os.environ, "TMPDIR": str(Path.cwd())} if is_shared else os.environ
    with scratch_folder(environment, Path.cwd()) as scratch:
        folder = Path(scratch, _name(recipe))
        say(f"{recipe.benchmark}: makes synthetic data for measuring, in {scratch}, and removes it afterwards")
        _make(recipe, folder)
        yield folder


def _name(recipe: Recipe) -> str:
    return f"{recipe.benchmark}-{recipe.problem.dataset}"


def _make(recipe: Recipe, folder: Path) -> None:
    of_ours = {"ic": ImageSet, "ewa": YearSet}.get(recipe.benchmark)
    options = MakeOptions(folder, of_ours()) if of_ours else SetOptions(folder)
    code = run_to_end(module_command("data", "make", recipe.benchmark, as_argument(options)), hold=True)
    if code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
        raise Stopped(code - 128)
    if code != ExitCode.PASS:
        raise error_kind(code)(
            f"{folder}: the synthetic data could not be made (see above); give other data with --data DIR"
        )


def place_of_made_data(name: str, out: Path | None) -> Path:
    """Where the synthetic set `name` is, or is to be made: in `data/` here, or, if that is impossible, beside `out`.

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
