"""srun over two real Slurm nodes: ranks that find each other, and launchers that would start copies of one."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import torch
from builders.ranks import Outcome
from site_ranks import Task, layout
from slurm import Slurm

from hpcai500.comm.communicator import Communicator

NODES = ("n1", "n2")


def sums(communicator: Communicator) -> dict[str, Any]:
    """Who this rank is, and what two ranks add up to."""
    tensor = torch.full((1000,), float(communicator.rank + 1))
    communicator.all_reduce(tensor)
    return {
        "rank": communicator.rank,
        "hosts": communicator.hosts,
        "here": socket.gethostname(),
        "library": communicator.library,
        "sum": set(tensor.tolist()),
    }


def start(slurm: Slurm, flavour: str, backend: str) -> tuple[list[Outcome], str, int]:
    task = Task(slurm.site, sums, (), [f"communication.backend={backend}", *layout(NODES)])
    words = [f"--mpi={flavour}", "--nodes=2", "--ntasks=2", *task.command]
    output, code = slurm.srun(*words, environment={"OMP_NUM_THREADS": "1"})
    return task.outcomes(2), output, code


@pytest.mark.parametrize(
    ("flavour", "backend", "library"),
    [
        ("pmix", "horovod", "Open MPI"),
        ("pmix", "torch", "Gloo"),
        ("pmi2", "torch", "Gloo"),
        ("none", "torch", "Gloo"),
    ],
)
def test_ranks_of_srun_find_each_other_over_two_nodes(slurm: Slurm, flavour: str, backend: str, library: str) -> None:
    outcomes, output, code = start(slurm, flavour, backend)
    assert code == 0, output
    for rank, outcome in enumerate(outcomes):
        assert outcome.value["rank"] == rank
        assert outcome.value["hosts"] == NODES
        assert outcome.value["here"] == NODES[rank]
        assert outcome.value["sum"] == {3.0}
        assert library in outcome.value["library"]


def test_horovod_under_an_srun_without_process_manager_is_an_error_with_the_fix(slurm: Slurm) -> None:
    outcomes, output, code = start(slurm, "none", "horovod")
    assert code != 0, output
    for rank, outcome in enumerate(outcomes):
        assert outcome.error == "EnvironmentLacksError", output
        assert outcome.message.startswith(f"srun says that this is rank {rank} of 2, but for Horovod it is rank 0 of 1")
        assert "start it with `srun --mpi=pmix`" in outcome.message


def test_an_mpi_that_does_not_speak_the_flavour_of_srun_runs_no_copies(slurm: Slurm) -> None:
    """Debian's Open MPI speaks PMIx only, and ends the process itself under PMI2: no word of ours comes after that."""
    outcomes, output, code = start(slurm, "pmi2", "horovod")
    assert code != 0
    assert [outcome.value for outcome in outcomes] == [None, None]
    assert "PMIx" in output


def test_copies_of_one_process_run_are_an_error_with_the_fix(slurm: Slurm) -> None:
    task = Task(slurm.site, sums, (), [])
    output, code = slurm.srun("--nodes=2", "--ntasks=2", *task.command)
    assert code != 0, output
    for outcome in task.outcomes(2):
        assert outcome.error == "EnvironmentLacksError", output
        assert "srun started 2 processes, but communication.backend is local" in outcome.message
