"""The MPI that a program would load here, and whether MPI and launcher let the ranks find each other."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcai500.errors import UsageError
from hpcai500.files import is_folder
from hpcai500.hosts import Placement, find_placement
from hpcai500.layers import Recipe
from hpcai500.system.checks import Check, Status
from hpcai500.system.container import Container
from hpcai500.system.looking import run

# ----------------------------------------------------------------------------------------------------
# The MPI library.


# Open MPI 3 to 5; MPICH and all with its binary interface (Intel, MVAPICH, Cray).
_LIBRARIES = ("libmpi.so.40", "libmpi.so.12")
_PROBE = Path(__file__).with_name("probe.py")
_PATIENCE_SECONDS = 30.0


def installed_mpi(environment: Mapping[str, str]) -> str | None:
    """`Open MPI 4.1.4`; None if there is none, or it has no version.

    The library itself is asked, in a separate process, because a site may bind its own MPI over that of an image.
    """
    try:
        ended = run([sys.executable, "-I", "-S", str(_PROBE), "mpi", *_LIBRARIES], _PATIENCE_SECONDS, environment)
    except TimeoutError:
        return None
    return short_name(ended.output) if ended.code == 0 and ended.output.strip() else None


def short_name(version: str) -> str:
    """`Open MPI 4.1.4`, from MPI_Get_library_version's answer; for another MPI, its first line."""
    line = version.splitlines()[0]
    found = re.match(r"Open MPI v([\w.]+)", line)
    return f"Open MPI {found.group(1)}" if found else " ".join(line.split())


# ----------------------------------------------------------------------------------------------------
# Launcher, process manager and MPI must match, so that the ranks find each other.


NAME = "launcher"
_TORCH = "or use --set communication.backend=torch"
# Unsupported launchers: their variables for rank, size and local rank.
_FOREIGN = (
    ("Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID"),
    ("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK"),
    ("MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"),
)
# Slurm puts each task into its own control group, even with an empty environment.
_STEP_GROUP = re.compile(r"/job_\d+/step_\d+(?:/|$)", re.MULTILINE)


@dataclass(frozen=True)
class Ranks:
    """The input of the check.

    Attributes:
        control_groups: content of /proc/self/cgroup.
        mpi: returns the MPI here (`Open MPI 4.1.4`; None: unknown); called only if it matters.
    """

    environment: Mapping[str, str]
    control_groups: str
    mpi: Callable[[], str | None]
    container: Container | None = None


def process_manager_check(ranks: Ranks, recipe: Recipe | None) -> Check:
    """Whether the ranks will find each other."""
    try:
        placement = find_placement(ranks.environment)
    except UsageError as error:
        return Check(NAME, "fail", str(error))
    if placement.is_alone:
        return _alone(ranks, recipe)
    found = f"{placement.launcher}: rank {placement.rank} of {placement.size}, {_offer(ranks.environment)}"
    wrong = _mpi_problem(ranks, placement) if recipe and _uses_mpi(ranks.environment, recipe, placement) else None
    return wrong or Check(NAME, "pass", found)


def _alone(ranks: Ranks, recipe: Recipe | None) -> Check:
    """The check of a single process, which may be one of several copies that do not know each other."""
    environment = ranks.environment
    for launcher, rank, size, local in _FOREIGN:
        if environment.get(rank, "").isdecimal() and int(environment.get(size) or 0) > 1:
            return Check(
                NAME,
                "fail",
                f"{launcher} started {environment[size]} copies ({rank}={environment[rank]}), but each would be rank 0 "
                "of 1",
                f"start each with: sh -c 'RANK=${rank} WORLD_SIZE=${size} LOCAL_RANK=${local} exec hpcai500 …', and "
                "set MASTER_ADDR to the first host",
            )
    if _STEP_GROUP.search(ranks.control_groups) and "SLURM_STEP_ID" not in environment:
        program = ranks.container.program if ranks.container else "apptainer"
        return Check(
            NAME,
            "warn",
            "a task of a Slurm step, but its environment lacks Slurm's variables: each task would be rank 0 of 1",
            f"srun {program} run …, without --cleanenv",
        )
    tasks = environment.get("SLURM_NTASKS", "")
    in_script = "SLURM_JOB_ID" in environment and "SLURM_STEP_ID" not in environment
    if tasks.isdecimal() and recipe is not None and recipe.world_size < int(tasks) and in_script:
        return Check(
            NAME,
            "warn",
            f"the Slurm job has {tasks} tasks, but this process uses only {recipe.world_size} of them",
            "srun --mpi=pmix hpcai500 … (`hpcai500 slurm render` writes such a script)",
        )
    return Check(NAME, "pass", "none: one process")


def _uses_mpi(environment: Mapping[str, str], recipe: Recipe, placement: Placement) -> bool:
    gloo = environment.get("HOROVOD_CONTROLLER", "").lower() == "gloo" or placement.launcher == "horovodrun"
    return recipe.communication.backend == "horovod" and not gloo


def _offer(environment: Mapping[str, str]) -> str:
    """The interface by which the launcher lets MPI find the other ranks."""
    if "PMIX_RANK" in environment:
        return "PMIx"
    if "PMI_FD" in environment or "PMI_RANK" in environment:
        return "PMI-2"
    return "no process manager"


def _mpi_problem(ranks: Ranks, placement: Placement) -> Check | None:
    mpi, offer = ranks.mpi(), _offer(ranks.environment)
    if mpi is None or not mpi.startswith("Open MPI") or placement.launcher not in ("srun", "mpirun"):
        return None
    # `Open MPI 4` of `Open MPI 4.1.4`.
    series, outside = mpi.partition(".")[0], outer_series(ranks.environment)
    if offer == "PMIx":
        if placement.launcher == "srun" or ranks.container is None or outside in (None, series):
            return None
        return Check(
            NAME,
            "warn",
            f"mpirun is from {outside}, but the image has {mpi}: ranks may not find each other",
            f"load a module of {series}, or use srun --mpi=pmix …, {_TORCH}",
        )
    if placement.launcher == "srun":
        kind = ranks.environment.get("SLURM_MPI_TYPE")
        starter = f"srun --mpi={kind}" if kind else "srun without --mpi"
        fix = "srun --mpi=pmix … (see `srun --mpi=list`)"
    else:
        starter, fix = "mpirun of another MPI", f"srun --mpi=pmix …, or the mpirun of {series}"
    status: Status = "fail" if _is_of_image(ranks, mpi) else "warn"
    cannot = "needs PMIx: this would start"
    if status == "warn" and offer == "PMI-2":
        cannot = "may be built without PMI-2: then this starts"
    return Check(
        NAME,
        status,
        f"{starter} offers {offer}, but Horovod's {mpi} {cannot} {placement.size} runs of one rank each",
        f"{fix}, {_TORCH}",
    )


def _is_of_image(ranks: Ranks, mpi: str) -> bool:
    """Whether `mpi` seems to be the library of our own image, which supports only PMIx.

    Outside, Horovod may use another MPI than the one found first, and Open MPI 4 may be built with PMI-2 (EasyBuild and
    RHEL do that); the same is true of an MPI that a site binds over the image's.
    """
    container, environment = ranks.container, ranks.environment
    if container is None or container.description is None or environment.get("OPAL_PREFIX"):
        return False
    if container.description.get("mpi") not in (None, mpi) or any("mpi" in bind.lower() for bind in container.binds):
        return False
    folders = map(Path, filter(None, environment.get("LD_LIBRARY_PATH", "").split(":")))
    return not any(any(folder.glob("libmpi.so*")) for folder in folders if is_folder(folder))


def outer_series(environment: Mapping[str, str]) -> str | None:
    """`Open MPI 4`: the series of the mpirun that started this process, from the variables that it sets."""
    # Open MPI 5 sets its version; earlier series use ORTE, which version 5 removed.
    if version := environment.get("OMPI_VERSION"):
        return f"Open MPI {version.partition('.')[0]}"
    return "Open MPI 4" if any(name.startswith("OMPI_MCA_orte_") for name in environment) else None
