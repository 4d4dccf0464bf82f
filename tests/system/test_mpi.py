"""Launcher, process manager and MPI: variables as mpirun 4.1.4 and srun of Slurm 22.05 were seen to set them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from recipes_of_tests import inside, of_two, recipe

from hpcai500.layers import Recipe
from hpcai500.system.checks import Check, Status
from hpcai500.system.container import Container
from hpcai500.system.mpi import Ranks, installed_mpi, outer_series, process_manager_check, short_name

OPEN_MPI, OURS = "Open MPI 4.1.4", inside()
ALONE = "none: one process"
TWO_RUNS = ", but Horovod's Open MPI 4.1.4 needs PMIx: this would start 2 runs of one rank each"
OR_TORCH = ", or use --set communication.backend=torch"
WITH_PMIX = f"srun --mpi=pmix … (see `srun --mpi=list`){OR_TORCH}"
STEP = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "n1", "SLURM_NTASKS": "2",
}  # fmt: skip
PMIX = STEP | {"SLURM_MPI_TYPE": "pmix", "PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.7.0"}
PMI2 = STEP | {"SLURM_MPI_TYPE": "pmi2", "PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": "11", "PMI_JOBID": "7.0"}
MPIRUN_4 = {
    "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_MCA_orte_launch": "1", "PMIX_RANK": "0", "PMIX_VERSION": "4.2.2rc2",
}  # fmt: skip
MPIRUN_5 = {name: value for name, value in MPIRUN_4.items() if "orte" not in name} | {"OMPI_VERSION": "5.0.6"}
HYDRA = {"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": "9", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}


def look(
    environment: dict[str, str],
    what: Recipe | None = None,
    mpi: str | None = OPEN_MPI,
    groups: str = "",
    container: Container | None = OURS,
) -> Check:
    return process_manager_check(Ranks(environment, groups, lambda: mpi, container), what)


@pytest.mark.parametrize(
    ("environment", "what", "status", "detail", "fix"),
    [
        ({}, recipe(), "pass", ALONE, None),
        (PMIX, of_two(), "pass", "srun: rank 0 of 2, PMIx", None),
        (MPIRUN_4, of_two(), "pass", "mpirun: rank 0 of 2, PMIx", None),
        (PMI2, of_two(), "fail", f"srun --mpi=pmi2 offers PMI-2{TWO_RUNS}", WITH_PMIX),
        (STEP, of_two(), "fail", f"srun without --mpi offers no process manager{TWO_RUNS}", WITH_PMIX),
        (HYDRA, of_two(), "fail", f"mpirun of another MPI offers PMI-2{TWO_RUNS}",
         f"srun --mpi=pmix …, or the mpirun of Open MPI 4{OR_TORCH}"),
        (MPIRUN_5, of_two(), "warn",
         "mpirun is from Open MPI 5, but the image has Open MPI 4.1.4: ranks may not find each other",
         f"load a module of Open MPI 4, or use srun --mpi=pmix …{OR_TORCH}"),
        (BATCH, recipe(), "warn", "the Slurm job has 4 tasks, but this process uses only 1 of them",
         "srun --mpi=pmix hpcai500 … (`hpcai500 slurm render` writes such a script)"),
        (BATCH | {"SLURM_NTASKS": "1"}, recipe(), "pass", ALONE, None),
        (BATCH, None, "pass", ALONE, None),
    ],
)  # fmt: skip
def test_a_launcher_that_starts_ranks_which_find_each_other_is_fine_and_any_other_is_told(
    environment: dict[str, str], what: Recipe | None, status: Status, detail: str, fix: str | None
) -> None:
    assert look(environment, what) == Check("launcher", status, detail, fix)


def test_variables_that_contradict_each_other_are_an_error_with_the_placements_own_words() -> None:
    check = look({"RANK": "0", "WORLD_SIZE": "1", **PMIX})
    assert (check.name, check.status) == ("launcher", "fail")
    assert "this would start 2 runs of one rank each" in check.detail


def test_outside_our_image_what_mpi_speaks_is_a_guess(tmp_path: Path) -> None:
    """EasyBuild and RHEL configure Open MPI 4 with PMI-2, and `srun --mpi=pmi2` is what their sites use."""
    (tmp_path / "libmpi.so.40").touch()
    for environment in (PMI2, STEP):
        assert look(environment, of_two(), container=None).status == "warn"
        assert look(environment, of_two(), container=inside(description=None)).status == "warn"
    assert look(PMI2, of_two(), mpi="Open MPI 4.1.6").status == "warn"
    assert look(PMI2 | {"OPAL_PREFIX": "/opt/openmpi"}, of_two()).status == "warn"
    assert look(PMI2 | {"LD_LIBRARY_PATH": f"/none:{tmp_path}"}, of_two()).status == "warn"
    check = look(PMI2, of_two(), container=inside(binds=("/data", "/opt/openmpi/4.1.4")))
    assert check.status == "warn"
    assert "may be built without PMI-2" in check.detail


def test_what_fits_an_mpi_or_is_of_an_mpi_that_we_do_not_know_is_fine() -> None:
    assert look(MPIRUN_5, of_two(), mpi="Open MPI 5.0.2").status == "pass"
    assert [look(PMI2, of_two(), mpi=mpi).status for mpi in (None, "MPICH Version: 4.0.2")] == ["pass", "pass"]
    assert [outer_series(one) for one in (MPIRUN_4, MPIRUN_5, PMIX)] == ["Open MPI 4", "Open MPI 5", None]


@pytest.mark.parametrize("environment", [PMI2, STEP, HYDRA])
def test_ranks_that_need_no_mpi_are_not_asked_for_one(environment: dict[str, str]) -> None:
    ranks = Ranks(environment, "", lambda: pytest.fail("MPI was asked"), OURS)
    gloo = Ranks(environment | {"HOROVOD_CONTROLLER": "gloo"}, "", ranks.mpi, OURS)
    for asked, what in ((ranks, of_two("torch")), (ranks, None), (gloo, of_two())):
        assert process_manager_check(asked, what).status == "pass"


@pytest.mark.parametrize(
    ("launcher", "prefix"), [("Flux", "FLUX_TASK_RANK FLUX_JOB_SIZE FLUX_TASK_LOCAL_ID"),
                             ("MVAPICH2", "MV2_COMM_WORLD_RANK MV2_COMM_WORLD_SIZE MV2_COMM_WORLD_LOCAL_RANK")],
)  # fmt: skip
def test_copies_that_would_each_be_rank_0_of_1_are_refused(launcher: str, prefix: str) -> None:
    rank, size, local = prefix.split()
    check = look({rank: "3", size: "8", local: "3"})
    assert check.status == "fail"
    assert check.detail == f"{launcher} started 8 copies ({rank}=3), but each would be rank 0 of 1"
    assert f"RANK=${rank} WORLD_SIZE=${size} LOCAL_RANK=${local}" in (check.fix or "")
    assert look({rank: "0", size: "1", local: "0"}).status == "pass"


def test_a_step_whose_variables_were_cleaned_away_is_told() -> None:
    groups = "0::/system.slice/slurmstepd.scope/job_1234/step_0/user/task_3\n"
    check = look({}, recipe(), groups=groups)
    assert (check.status, check.fix) == ("warn", "srun apptainer run …, without --cleanenv")
    assert look({}, groups=groups.replace("step_0", "step_batch")).status == "pass"
    assert look(PMIX, groups=groups).status == "pass"


# --- which MPI is here


def test_the_mpi_that_a_program_would_load_is_asked(tmp_path: Path) -> None:
    """A mock: the real one is asked by the ranks of tests/comm, where Horovod tells its library."""
    source = tmp_path / "mock_mpi.c"
    source.write_text(
        '#include <string.h>\nint MPI_Get_library_version(char *text, int *length) { strcpy(text, "Open MPI v5.0.6, '
        'package: Debian\\nsecond line"); *length = (int)strlen(text); return 0; }\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libmpi.so.40", source], check=True)
    assert installed_mpi({"LD_LIBRARY_PATH": str(tmp_path)}) == "Open MPI 5.0.6"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4, May 26, 2022", "Open MPI 4.1.4"),
        ("MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr  7 12:34:45 CDT 2022", "MPICH Version: 4.0.2"),
        ("Intel(R) MPI Library 2021.9 for Linux* OS\n", "Intel(R) MPI Library 2021.9 for Linux* OS"),
    ],
)
def test_an_mpi_is_named_in_few_words(text: str, name: str) -> None:
    assert short_name(text) == name
