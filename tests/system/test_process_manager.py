"""Launcher, process manager and MPI: variables as mpirun 4.1.4 and srun of Slurm 22.05 were seen to set them."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipes_of_tests import inside, of_two, recipe

from hpcai500.layers import Recipe
from hpcai500.system.checks import Check
from hpcai500.system.container import Container
from hpcai500.system.mpi import Ranks, outer_series, process_manager_check

OPEN_MPI = "Open MPI 4.1.4"
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


def look(
    environment: dict[str, str],
    what: Recipe | None = None,
    *,
    mpi: str | None = OPEN_MPI,
    container: Container | None = None,
    groups: str = "",
) -> Check:
    return process_manager_check(Ranks(environment, groups, lambda: mpi, container), what)


def test_one_process_is_fine() -> None:
    assert look({}, recipe()) == Check("launcher", "pass", "none: one process")


@pytest.mark.parametrize(
    ("environment", "detail"),
    [(PMIX, "srun: rank 0 of 2, PMIx"), (MPIRUN_4, "mpirun: rank 0 of 2, PMIx")],
)
def test_an_mpi_that_speaks_what_is_offered_is_fine(environment: dict[str, str], detail: str) -> None:
    assert look(environment, of_two(), container=inside()) == Check("launcher", "pass", detail)


@pytest.mark.parametrize(
    ("environment", "said"),
    [(PMI2, "srun --mpi=pmi2 offers PMI-2"), (STEP, "srun without --mpi offers no process manager")],
)
def test_a_step_that_open_mpi_cannot_join_is_told_pmix(environment: dict[str, str], said: str) -> None:
    check = look(environment, of_two(), container=inside())
    assert check.status == "fail"
    assert check.detail.startswith(f"{said}, but Open MPI 4.1.4, which Horovod uses here, speaks PMIx")
    assert "there would be 2 runs of one rank each" in check.detail
    assert (check.fix or "").startswith("srun --mpi=pmix …")
    # Outside our image, which MPI Horovod was built with, and how that one was configured, is a guess.
    assert look(environment, of_two()).status == "warn"
    assert look(environment, of_two(), container=inside(description=None)).status == "warn"


def test_an_mpi_of_the_host_may_speak_pmi_2(tmp_path: Path) -> None:
    """EasyBuild and RHEL configure Open MPI 4 with it, and `srun --mpi=pmi2` is what their sites use."""
    (tmp_path / "libmpi.so.40").touch()
    own = inside()
    assert look(PMI2, of_two(), container=own).status == "fail"
    assert look(PMI2, of_two(), mpi="Open MPI 4.1.6", container=own).status == "warn"
    assert look(PMI2 | {"OPAL_PREFIX": "/opt/openmpi"}, of_two(), container=own).status == "warn"
    assert look(PMI2 | {"LD_LIBRARY_PATH": f"/none:{tmp_path}"}, of_two(), container=own).status == "warn"
    check = look(PMI2, of_two(), container=inside(binds=("/data", "/opt/openmpi/4.1.4")))
    assert check.status == "warn"
    assert "may have been built without PMI-2" in check.detail


def test_another_mpis_mpirun_is_told() -> None:
    check = look(HYDRA, of_two(), container=inside())
    assert check.status == "fail"
    assert check.detail.startswith("mpirun of another MPI offers PMI-2, but Open MPI 4.1.4")
    assert "the mpirun of Open MPI 4" in (check.fix or "")


def test_an_mpirun_of_another_series_is_a_warning() -> None:
    check = look(MPIRUN_5, of_two(), container=inside())
    assert check.status == "warn"
    assert check.detail == "mpirun is of Open MPI 5, and Open MPI 4.1.4 is in the image: ranks may not find each other"
    assert look(MPIRUN_5, of_two(), mpi="Open MPI 5.0.2", container=inside()).status == "pass"


def test_the_series_of_mpirun_is_known_from_its_variables() -> None:
    assert [outer_series(one) for one in (MPIRUN_4, MPIRUN_5, PMIX)] == ["Open MPI 4", "Open MPI 5", None]


@pytest.mark.parametrize("environment", [PMI2, STEP, HYDRA])
def test_ranks_that_need_no_mpi_are_not_asked_for_one(environment: dict[str, str]) -> None:
    def asked() -> str:
        raise AssertionError("MPI was asked")

    ranks = Ranks(environment, "", asked, inside())
    assert process_manager_check(ranks, of_two("torch")).status == "pass"
    assert process_manager_check(ranks, None).status == "pass"
    gloo = Ranks(environment | {"HOROVOD_CONTROLLER": "gloo"}, "", asked, inside())
    assert process_manager_check(gloo, of_two()).status == "pass"


@pytest.mark.parametrize("mpi", [None, "MPICH Version: 4.0.2"])
def test_of_an_mpi_that_we_do_not_know_nothing_is_claimed(mpi: str | None) -> None:
    assert look(PMI2, of_two(), mpi=mpi, container=inside()).status == "pass"


def test_variables_that_contradict_each_other_are_an_error_with_the_placements_own_words() -> None:
    check = look({"RANK": "0", "WORLD_SIZE": "1", **PMIX})
    assert check.status == "fail"
    assert "this would be 2 copies of a run of one rank each" in check.detail


@pytest.mark.parametrize(
    ("launcher", "prefix"), [("Flux", "FLUX_TASK_RANK FLUX_JOB_SIZE FLUX_TASK_LOCAL_ID"),
                             ("MVAPICH2", "MV2_COMM_WORLD_RANK MV2_COMM_WORLD_SIZE MV2_COMM_WORLD_LOCAL_RANK")],
)  # fmt: skip
def test_copies_that_would_each_be_rank_0_of_1_are_refused(launcher: str, prefix: str) -> None:
    rank, size, local = prefix.split()
    check = look({rank: "3", size: "8", local: "3"})
    assert check.status == "fail"
    assert check.detail == f"{launcher} started 8 copies ({rank}=3), and each would be rank 0 of 1"
    assert f"RANK=${rank} WORLD_SIZE=${size} LOCAL_RANK=${local}" in (check.fix or "")
    assert look({rank: "0", size: "1", local: "0"}).status == "pass"


def test_a_step_whose_variables_were_cleaned_away_is_told() -> None:
    groups = "0::/system.slice/slurmstepd.scope/job_1234/step_0/user/task_3\n"
    check = look({}, recipe(), groups=groups, container=inside())
    assert check.status == "warn"
    assert check.fix == "srun apptainer run …, without --cleanenv"
    assert look({}, groups=groups.replace("step_0", "step_batch")).status == "pass"
    assert look(PMIX, groups=groups).status == "pass"


def test_a_batch_script_with_tasks_that_nobody_starts_is_told() -> None:
    batch = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
    check = look(batch, recipe())
    assert check.status == "warn"
    assert check.detail == "the Slurm job has 4 tasks, and this is one process with 1 of them"
    assert look(batch | {"SLURM_NTASKS": "1"}, recipe()).status == "pass"
    assert look(batch).status == "pass"
