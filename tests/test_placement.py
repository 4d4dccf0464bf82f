"""Where a process stands among its job's: hosts as Slurm lists them, and what each launcher's variables mean.

The sets of variables are those that the launchers were seen to set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.errors import UsageError
from hpcai500.hosts import Placement, expand_hosts, find_placement, is_first_of_host, name_ranks, without_placement


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", "a"),
        ("a,b", "a b"),
        ("n[1-3]", "n1 n2 n3"),
        ("n[1-3,7]", "n1 n2 n3 n7"),
        ("n[01-03]", "n01 n02 n03"),
        ("n[08-11],gpu,n[098-101]x", "n08 n09 n10 n11 gpu n098x n099x n100x n101x"),
        ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
        ("n[5]", "n5"),
        ("node-1.site.org", "node-1.site.org"),
    ],
)
def test_the_usual_forms(text: str, hosts: str) -> None:
    assert expand_hosts(text) == hosts.split()


@given(st.lists(st.integers(0, 300), min_size=1, max_size=20, unique=True), st.integers(1, 5))
def test_numbers_come_back_as_they_were_written(numbers: list[int], width: int) -> None:
    written = [f"{number:0{width}d}" for number in numbers]
    assert expand_hosts(f"n[{','.join(written)}]") == [f"n{number}" for number in written]


@pytest.mark.parametrize("text", ["", "n[1-", "n[a-b]", "n[3-1]", "a,,b", "n[1][2", "n[]", "a b", "n[1-99999999]"])
def test_what_nobody_can_read_is_named(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=re.escape(repr(text)) + ".*set MASTER_ADDR"):
        expand_hosts(text)


def test_slurm_is_asked_about_other_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "scontrol"
    asked.write_text('#!/bin/sh\n[ "$*" = "show hostnames n[1-3/2]" ] && printf "n1\\nn3\\n"\n')
    asked.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert expand_hosts("n[1-3/2]") == ["n1", "n3"]


def test_the_first_rank_of_each_host_speaks_for_it() -> None:
    hosts = ["a", "a", "b", "a", "b"]
    assert [is_first_of_host(rank, hosts) for rank in range(5)] == [True, False, True, False, False]


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        ([7], "rank 7"),
        ([2, 1], "ranks 1, 2"),
        ([*range(73), *range(74, 79)], "ranks 0-72, 74-78"),
        ([0, 1, 3, 5, 6, 7], "ranks 0, 1, 3, 5-7"),
        (range(0, 100, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 42 more"),
    ],
)
def test_lists_of_ranks_are_folded(ranks: Sequence[int], named: str) -> None:
    assert name_ranks(ranks) == named


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


def place(found: Placement) -> tuple[int, int, int, int | None, str]:
    return found.rank, found.size, found.local_rank, found.local_size, found.launcher


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
        # Of several sources the first counts: mpirun in a batch script, on its first node,
        (BATCH | OPEN_MPI, (1, 4, 1, 4, "mpirun")),
        # and on the second, where a step of one daemon started the rank.
        (STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"} | OPEN_MPI, (1, 4, 1, 4, "mpirun")),
        (STEP | HYDRA | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}, (2, 4, 0, 2, "mpirun")),
        (STEP | TORCHRUN, (3, 8, 1, 2, "torchrun")),  # a torchrun for each task
        (OPEN_MPI | HOROVODRUN, (1, 2, 1, 2, "horovodrun")),
        (STEP | {"RANK": "1", "WORLD_SIZE": "3"}, (1, 3, 1, None, "torchrun")),  # set by hand, from Slurm's
        (STEP | {"RANK": "7", "WORLD_SIZE": "12", "LOCAL_RANK": "3"}, (7, 12, 3, None, "torchrun")),
        (STEP | {"WORLD_SIZE": "3"}, (1, 3, 1, 2, "srun")),
        ({"RANK": "0"}, (0, 1, 0, 1, "none")),
    ],
)  # fmt: skip
def test_each_launcher_is_understood(environment: dict[str, str], expected: tuple[object, ...]) -> None:
    placement = find_placement(environment)
    assert place(placement) == expected
    assert placement.is_alone == (expected[1] == 1)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK=one: expected a whole number"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK=-1: expected a whole number"),
        ({"RANK": "2", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "RANK=2: expected less than WORLD_SIZE=2"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE=0: expected at least 1"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "RANK is set, but no variable has the rank on this host: set LOCAL_RANK"),
        ({"RANK": "1"}, "RANK=1 is set, but WORLD_SIZE is not: set both, or unset RANK"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE=4 is set, but RANK is not"),
        (STEP | {"RANK": "0"}, "RANK=0 is set, but WORLD_SIZE is not"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "4"}, "OMPI_COMM_WORLD_RANK=4: expec"),
        ({"PMIX_RANK": "1"}, "PMIX_RANK=1 is set, but no variable has the number of ranks"),
        (STEP | {"SLURM_PROCID": "3"}, "SLURM_PROCID=3: expected less than SLURM_STEP_NUM_TASKS=3"),
        ({**HYDRA, "PMI_SIZE": "x"}, "PMI_SIZE=x"),
        # N copies of one rank
        (STEP | {"RANK": "0", "WORLD_SIZE": "1"}, "WORLD_SIZE=1, but SLURM_STEP_NUM_TASKS=3: this would start 3 runs"),
        (STEP | {"PMI_RANK": "0", "PMI_SIZE": "1"}, "PMI_SIZE=1, but SLURM_STEP_NUM_TASKS=3: this would start 3 runs"),
        # RANK left in a shell: the same for all
        (OPEN_MPI | {"RANK": "0", "WORLD_SIZE": "4"}, "RANK=0 and WORLD_SIZE=4, but OMPI_COMM_WORLD_RANK=1"),
        (STEP | {"RANK": "1", "WORLD_SIZE": "2"}, "WORLD_SIZE=2, but SLURM_PROCID=1 and SLURM_STEP_NUM_TASKS=3"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_variable(environment: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        find_placement(environment)
    assert message in str(refused.value)


def test_srun_says_how_many_ranks_each_node_has() -> None:
    uneven = find_placement(STEP)
    assert (uneven.layout, uneven.is_uneven) == ((2, 1), True)
    # The rank's own node would let the three seem to be one a node.
    last_first = find_placement(STEP | {"SLURM_STEP_TASKS_PER_NODE": "1,2", "SLURM_LOCALID": "0"})
    assert (last_first.local_size, last_first.is_uneven) == (1, True)
    even = find_placement(STEP | {"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NUM_TASKS": "4"})
    assert (even.layout, even.is_uneven) == ((2, 2), False)
    assert find_placement(OPEN_MPI).layout == ()


def test_ranks_of_one_host_meet_on_the_loopback_at_a_port_of_their_job() -> None:
    one = find_placement(OPEN_MPI).rendezvous
    host, _, port = str(one).partition(":")
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


# `sattach --layout` in a step of `srun -m arbitrary -w n3,n1,n3,n2` of Slurm 22.05, whose list of hosts is n[1-3].
LAYOUT = (
    "Job step layout:\n\t4 tasks, 3 nodes (n[1-3])\n\n"
    "\tNode 0 (n1), 1 task(s): 1 \n\tNode 1 (n2), 1 task(s): 3 \n\tNode 2 (n3), 2 task(s): 0 2 \n"
)
ARBITRARY = STEP | {"SLURM_STEP_NODELIST": "n[1-3]", "SLURM_STEP_NUM_TASKS": "4", "SLURM_DISTRIBUTION": "arbitrary"}


def test_rank_0_on_another_than_the_first_host_is_found_by_the_layout_of_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "layout").write_text(LAYOUT)
    asked = tmp_path / "sattach"
    asked.write_text(f'#!/bin/sh\n[ "$*" = "--layout 17.0" ] && cat {tmp_path}/layout\n')
    asked.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert str(find_placement(ARBITRARY).rendezvous).startswith("n3:")
    assert str(find_placement(ARBITRARY | {"MASTER_ADDR": "n1"}).rendezvous).startswith("n1:")


def test_rank_0_knows_at_once_that_no_other_rank_would_find_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_placement(ARBITRARY).rendezvous is None
    root = STEP | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    assert find_placement(root | {"SLURM_NODEID": "1"}).rendezvous is None
    assert find_placement(root | {"SLURM_NODEID": "0"}).rendezvous


def test_nobody_meets_at_the_port_of_torchrun_itself() -> None:
    place = find_placement(TORCHRUN).rendezvous
    assert str(place).startswith("n1:")
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
