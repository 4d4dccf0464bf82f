"""What each launcher's variables mean. The sets of variables are those that the launchers were seen to set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.errors import UsageError
from hpcai500.hosts import Placement, find_placement, without_placement

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
    "MASTER_ADDR": "n1", "MASTER_PORT": "29400", "TORCHELASTIC_RUN_ID": "job7", "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip
HOROVODRUN = {
    "HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1", "HOROVOD_HOSTNAME": "localhost",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "41234",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_RANK": "1", "PMIX_NAMESPACE": "1658650625",
}  # fmt: skip
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2", "PMI_FD": "9"}
# sbatch -n3 -N2 of Slurm 22.05, in the script itself, and in a step of it on the first node.
BATCH = {"SLURM_JOB_ID": "17", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "3", "SLURM_NNODES": "2"}
STEP = {
    **BATCH, "SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NODEID": "0", "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
}  # fmt: skip


def place(placement: Placement) -> tuple[int, int, int, int | None, str]:
    return (
        placement.rank,
        placement.size,
        placement.local_rank,
        placement.local_size,
        placement.launcher,
    )


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1, 0, 1, "none")),
        (TORCHRUN, (3, 8, 1, 2, "torchrun")),
        (TORCHRUN | {"HPCAI500_LAUNCHER": "hpcai500"}, (3, 8, 1, 2, "hpcai500")),
        (HOROVODRUN, (1, 2, 1, 2, "horovodrun")),
        (OPEN_MPI, (1, 4, 1, 4, "mpirun")),
        (HYDRA, (2, 4, 0, 2, "mpirun")),
        (STEP, (1, 3, 1, 2, "srun")),
        (STEP | {"PMIX_RANK": "1", "PMIX_NAMESPACE": "slurm.pmix.17.0"}, (1, 3, 1, 2, "srun")),
        (STEP | {"PMI_RANK": "1", "PMI_SIZE": "3", "PMI_JOBID": "17.0"}, (1, 3, 1, 2, "srun")),
        (STEP | {"SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"}, (1, 3, 1, 1, "srun")),
        (BATCH, (0, 1, 0, 1, "none")),
        (STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, (0, 1, 0, 1, "srun")),
    ],
    ids=["no", "torchrun", "ours", "horovodrun", "openmpi", "hydra", "srun", "pmix", "pmi2", "nodes", "batch", "one"],
)  # fmt: skip
def test_each_launcher_is_understood(environment: dict[str, str], expected: tuple[object, ...]) -> None:
    placement = find_placement(environment)
    assert place(placement) == expected
    assert placement.is_alone == (expected[1] == 1)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (BATCH | OPEN_MPI, (1, 4, 1, 4, "mpirun")),  # mpirun in a batch script, on its first node
        # … and on the second, where a step of one daemon started the rank
        (STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"} | OPEN_MPI, (1, 4, 1, 4, "mpirun")),
        (STEP | HYDRA | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}, (2, 4, 0, 2, "mpirun")),
        (STEP | TORCHRUN, (3, 8, 1, 2, "torchrun")),  # a torchrun for each task
        (OPEN_MPI | HOROVODRUN, (1, 2, 1, 2, "horovodrun")),
        (STEP | {"RANK": "1", "WORLD_SIZE": "3"}, (1, 3, 1, None, "torchrun")),  # set by hand, from Slurm's
        (STEP | {"RANK": "7", "WORLD_SIZE": "12", "LOCAL_RANK": "3"}, (7, 12, 3, None, "torchrun")),
        (STEP | {"WORLD_SIZE": "3"}, (1, 3, 1, 2, "srun")),
        ({"RANK": "0"}, (0, 1, 0, 1, "none")),
    ],
)
def test_the_first_of_several_sources_counts(environment: dict[str, str], expected: tuple[object, ...]) -> None:
    assert place(find_placement(environment)) == expected


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK=one: expected a whole number"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK=-1: expected a whole number"),
        ({"RANK": "2", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "RANK=2: expected less than WORLD_SIZE=2"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE=0: expected at least 1"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "RANK is set, but nothing tells the rank on this host: set LOCAL_RANK"),
        ({"RANK": "1"}, "RANK=1 is set, but WORLD_SIZE is not: set both, or unset RANK"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE=4 is set, but RANK is not"),
        (STEP | {"RANK": "0"}, "RANK=0 is set, but WORLD_SIZE is not"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "4"}, "OMPI_COMM_WORLD_RANK=4: expec"),
        ({"PMIX_RANK": "1"}, "PMIX_RANK=1 is set, but nothing tells how many ranks there are"),
        (STEP | {"SLURM_PROCID": "3"}, "SLURM_PROCID=3: expected less than SLURM_STEP_NUM_TASKS=3"),
        ({**HYDRA, "PMI_SIZE": "x"}, "PMI_SIZE=x"),
        # N copies of one rank
        (STEP | {"RANK": "0", "WORLD_SIZE": "1"}, "WORLD_SIZE=1, but SLURM_STEP_NUM_TASKS=3: this would be 3 copies"),
        (STEP | {"PMI_RANK": "0", "PMI_SIZE": "1"}, "PMI_SIZE=1, but SLURM_STEP_NUM_TASKS=3: this would be 3 copies"),
        # RANK left in a shell: the same for all
        (OPEN_MPI | {"RANK": "0", "WORLD_SIZE": "4"}, "RANK=0 and WORLD_SIZE=4, but OMPI_COMM_WORLD_RANK=1"),
        (STEP | {"RANK": "1", "WORLD_SIZE": "2"}, "WORLD_SIZE=2, but SLURM_PROCID=1 and SLURM_STEP_NUM_TASKS=3"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_variable(environment: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        find_placement(environment)
    assert message in str(refused.value)


def test_ranks_of_one_host_meet_on_the_loopback_at_a_port_of_their_job() -> None:
    one = find_placement(OPEN_MPI).rendezvous
    assert one is not None
    host, _, port = one.partition(":")
    assert host == "127.0.0.1"
    # Below Linux's ephemeral ports.
    assert 20_000 <= int(port) < 30_000
    neighbour = OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "2", "PMIX_RANK": "2"}
    assert find_placement(neighbour).rendezvous == one
    assert find_placement(OPEN_MPI | {"PMIX_NAMESPACE": "1658650626"}).rendezvous != one


def test_ranks_of_several_hosts_meet_where_rank_0_is_known_to_be() -> None:
    spread = OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    assert find_placement(spread).rendezvous is None
    assert str(find_placement(spread | {"MASTER_ADDR": "n1"}).rendezvous).startswith("n1:2")
    assert find_placement(spread | {"MASTER_ADDR": "n1", "MASTER_PORT": "700"}).rendezvous == "n1:700"
    assert find_placement(spread | {"MASTER_ADDR": "fd00::2", "MASTER_PORT": "700"}).rendezvous == "[fd00::2]:700"
    first, other = find_placement(STEP), find_placement(STEP | {"SLURM_PROCID": "2", "SLURM_NODEID": "1"})
    assert first.rendezvous == other.rendezvous
    assert str(first.rendezvous).startswith("n1:2")
    assert find_placement(STEP | {"SLURM_STEP_ID": "1"}).rendezvous != first.rendezvous


def test_nobody_meets_at_the_port_of_torchrun_itself() -> None:
    place = find_placement(TORCHRUN).rendezvous
    assert place is not None
    assert place.startswith("n1:")
    assert place != "n1:29400"
    by_hand = {name: value for name, value in TORCHRUN.items() if not name.startswith("TORCHELASTIC")}
    assert find_placement(by_hand).rendezvous == "n1:29400"
    assert find_placement(TORCHRUN | {"HPCAI500_RENDEZVOUS": "n1:5"}).rendezvous == "n1:5"


def test_only_rank_0_has_the_listening_socket() -> None:
    assert find_placement(TORCHRUN | {"HPCAI500_LISTEN_FD": "5"}).listen_fd is None
    assert find_placement(TORCHRUN | {"RANK": "0", "HPCAI500_LISTEN_FD": "5"}).listen_fd == 5


@pytest.mark.parametrize("environment", [TORCHRUN, HOROVODRUN, OPEN_MPI, HYDRA], ids=["torch", "hvd", "ompi", "hydra"])
def test_a_job_of_its_own_starts_without_a_place(environment: dict[str, str]) -> None:
    kept = {"PATH": "/bin", "HOROVOD_GLOO_IFACE": "ib0", "PMIX_MCA_gds": "^ds12", "NCCL_DEBUG": "INFO"}
    assert find_placement(without_placement(environment | kept)).is_alone
    assert kept.items() <= without_placement(environment | kept).items()


@given(st.integers(1, 10**6).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1))))
def test_every_rank_of_every_size_is_taken_as_it_is(world: tuple[int, int]) -> None:
    size, rank = world
    found = find_placement({"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": "0"})
    assert (found.rank, found.size) == (rank, size)
