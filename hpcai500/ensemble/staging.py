"""What a member reads, copied to the storage of each of its nodes before it trains, and gone after it.

The job on every rank is `python -m hpcai500.data stage`: one rank of a node copies, the others wait for it, and all end
together. Members side by side on a node share one folder, and samples in it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hpcai500.campaign.reading import RECIPE
from hpcai500.ensemble.reading import Ensemble
from hpcai500.errors import ExitCode, HpcAi500Error, UsageError, error_kind
from hpcai500.files import expand_variables
from hpcai500.launch.crew import Crew
from hpcai500.layers import Recipe
from hpcai500.streams import say
from hpcai500.system.process_token import owner_of

BENCHMARKS = ("ic", "ewa")
_MODULE = "data"


@contextmanager
def staged(
    ensemble: Ensemble, member: int, crew: Crew, recipe: Recipe, environment: Mapping[str, str] = os.environ
) -> Iterator[Path]:
    """The folder that a member trains on: the data set, or a copy on its nodes of what it reads, while this is open.

    A member that is killed leaves its copy, which its next attempt on that node goes on with; whoever needs the space
    takes it.

    Args:
        ensemble: whose `stage` may name $VARIABLES, which are read here, on a node.
        member: begun already: its campaign's recipe is read.
        crew: open, with the ranks that will train.
        recipe: of the member.
        environment: of this node.

    Raises:
        UsageError: the folder is none, or the benchmark is one that is not staged.
        HpcAi500Error: it could not be staged, as the ranks have said.
    """
    if ensemble.stage is None:
        yield ensemble.data
        return
    require_stageable(recipe)
    folder = f"{ensemble.stage}/{_folder_name(ensemble, recipe)}"
    root = Path(expand_variables(folder, environment))
    if not root.is_absolute():
        raise UsageError(f"--stage {ensemble.stage}: is {root.parent} here; give a folder from the root on, as /tmp")
    name = f"{ensemble.identity[:12]}-member-{member:05d}"
    common: list[str | Path] = ["stage", recipe.benchmark, ensemble.data, folder, "--expand", root, "--for", name]
    wanted: list[str | Path] = ["--recipe", ensemble.folder(member) / RECIPE, "--owner", owner_of(os.getpid())]
    try:
        code = crew.run(recipe, [*common, *wanted], module=_MODULE)
        if code != ExitCode.PASS:
            raise error_kind(code)(f"member {member}: what it reads could not be staged into {root} (see above)")
        yield root
    finally:
        _release(crew, recipe, [*common, "--release"], member, root)


def require_stageable(recipe: Recipe) -> None:
    """Refuse the data of a plug-in: which files a sample is in, it alone knows.

    Raises:
        UsageError: so it is.
    """
    if recipe.benchmark not in BENCHMARKS:
        raise UsageError(
            f"ensemble: data of {recipe.benchmark} cannot be staged, only of {' and '.join(BENCHMARKS)}: plan it "
            "without --stage"
        )


def _release(crew: Crew, recipe: Recipe, arguments: list[str | Path], member: int, root: Path) -> None:
    """Let the copy go; what befell the member counts for more than a copy that stays."""
    try:
        released = crew.run(recipe, arguments, module=_MODULE) == ExitCode.PASS
    except HpcAi500Error as error:
        say(f"member {member}: {error}")
        released = False
    if not released:
        say(f"member {member}: its copy in {root} stays until another member on that node needs the space")


def _folder_name(ensemble: Ensemble, recipe: Recipe) -> str:
    """One for each data set: ensembles on the same data share it, and those on other data do not meet."""
    place = hashlib.sha256(os.fsencode(ensemble.data)).hexdigest()[:12]
    return f"hpcai500-{recipe.benchmark}-{place}"
