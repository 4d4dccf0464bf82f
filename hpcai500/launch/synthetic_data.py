"""The synthetic data set of a recipe, for runs without --data: where it is, and how it is generated."""

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

_FOLDER = Path("data")


def make_data(recipe: Recipe, out: Path | None) -> Path:
    """The folder of the recipe's synthetic data set, which is generated if it is missing."""
    folder = data_folder(_name(recipe), out)
    _make(recipe, folder)
    return folder


@contextmanager
def data_for_measuring(recipe: Recipe, *, is_shared: bool) -> Iterator[Path]:
    """The synthetic data set that an earlier run left here, else one that is removed after the block.

    With `is_shared`, ranks of other hosts read it too, so it is generated in the working directory, like a run's.
    """
    here = _FOLDER / _name(recipe)
    if is_folder(here):
        _make(recipe, here)
        yield here
        return
    environment = {**os.environ, "TMPDIR": str(Path.cwd())} if is_shared else os.environ
    with scratch_folder(environment, Path.cwd()) as scratch:
        folder = Path(scratch, _name(recipe))
        say(f"{recipe.benchmark}: generates synthetic data for measuring in {scratch}, and removes it afterwards")
        _make(recipe, folder)
        yield folder


def _name(recipe: Recipe) -> str:
    return f"{recipe.benchmark}-{recipe.problem.dataset}"


def _make(recipe: Recipe, folder: Path) -> None:
    built_in = {"ic": ImageSet, "ewa": YearSet}.get(recipe.benchmark)
    options = MakeOptions(folder, built_in()) if built_in else SetOptions(folder)
    code = run_to_end(module_command("data", "make", recipe.benchmark, as_argument(options)), hold=True)
    if code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
        raise Stopped(code - 128)
    if code != ExitCode.PASS:
        raise error_kind(code)(
            f"{folder}: the synthetic data could not be generated (see above); give other data with --data DIR"
        )


def data_folder(name: str, out: Path | None) -> Path:
    """Where the synthetic set `name` is or will be: in `data/` here, or, if that cannot be written, beside `out`.

    Raises:
        EnvironmentLacksError: neither can be written.
    """
    here = _FOLDER / name
    if is_folder(here) or can_be_made(here):
        return here
    beside = out.absolute().parent / here if out else None
    if beside and (is_folder(beside) or can_be_made(beside)):
        say(f"{Path.cwd()}: cannot be written: the synthetic data goes to {beside}")
        return beside
    tried = dict.fromkeys([str(Path.cwd()), *([str(out.absolute().parent)] if out else [])])
    raise EnvironmentLacksError(
        f"synthetic data cannot be generated: {' and '.join(tried)}: not writable by this user; start in a writable "
        "folder, or give --out DIR/RUN in one (in a container: `--bind DIR --pwd DIR`)"
    )
