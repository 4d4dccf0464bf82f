"""The recipe's all-reduce algorithm reaches the library, and is refused where the library has no switch for it."""

from __future__ import annotations

import importlib.util
import shutil
import typing

import pytest
import torch
from many_ranks import run_ranks, try_ranks
from torch import Tensor

from hpcai500.comm.communicator import Communicator
from hpcai500.comm.connect import connect
from hpcai500.comm.horovod_backend import Carrier, switch_on, switches
from hpcai500.errors import RecipeError
from hpcai500.hosts import Placement
from hpcai500.layers import Communication
from hpcai500.recipe import load_recipe

needs_open_mpi = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None or shutil.which("ompi_info") is None, reason="no Horovod with Open MPI"
)
ALGORITHMS = typing.get_args(Communication.model_fields["algorithm"].annotation)
CARRIERS = typing.get_args(Carrier)
# V2.0 Table 7, and who has a switch for what: a change here is a change of the table in docs/communication.md.
KNOWN = {
    "Gloo": {"ring"},
    "NCCL": {"ring", "double-binary-tree"},
    "NCCL of Horovod": {"ring", "double-binary-tree", "hierarchical-ring"},
    "NCCL before 2.24": set(),
    "Open MPI": {"ring", "butterfly"},
    "MPI": set(),
    "none": set(),
}


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_library_uses_what_it_has_and_refuses_the_rest(carrier: Carrier, algorithm: str) -> None:
    if algorithm in KNOWN[carrier] | {"default"}:
        switches(algorithm, carrier)
        return
    with pytest.raises(RecipeError) as raised:
        switches(algorithm, carrier)
    message = str(raised.value)
    assert message.startswith(f"communication.algorithm: `{algorithm}` cannot be had: ")
    for known in KNOWN[carrier]:
        assert known in message


def test_default_leaves_every_library_alone() -> None:
    assert all(switches("default", carrier) == {} for carrier in CARRIERS)


def test_nccl_is_told_of_all_reduce_alone() -> None:
    """NCCL_ALGO=Tree for everything would leave it no way to do an all-gather."""
    assert switches("double-binary-tree", "NCCL") == {"NCCL_ALGO": "allreduce:tree"}


def test_a_users_own_switch_is_never_overruled() -> None:
    wanted = switches("ring", "NCCL")
    environment = {"NCCL_ALGO": "Tree", "HOME": "/"}
    with pytest.raises(RecipeError, match=r"needs NCCL_ALGO=allreduce:ring, but .* has NCCL_ALGO=Tree: unset it"):
        switch_on(wanted, environment)
    assert environment == {"NCCL_ALGO": "Tree", "HOME": "/"}
    switch_on({}, environment)
    assert environment["NCCL_ALGO"] == "Tree"
    agreeing = dict(wanted)
    switch_on(wanted, agreeing)
    assert agreeing == wanted


def test_one_process_has_no_algorithm() -> None:
    recipe = load_recipe("ic/smoke", ["communication.algorithm=ring"])
    with pytest.raises(RecipeError, match=r"`ring` cannot be had: one process has no all-reduce"):
        connect(recipe, Placement(0, 1, 0, 1, "none", None, None))


def rounded_sum(communicator: Communicator) -> Tensor:
    """A sum whose last bits tell in which order it was made."""
    tensor = part(communicator.rank)
    communicator.all_reduce(tensor)
    return tensor


def part(rank: int) -> Tensor:
    """What one rank adds. Long enough that no library falls back to what it does with short messages."""
    return torch.randn(1 << 16, generator=torch.Generator().manual_seed(rank))


def ring_sum(size: int) -> Tensor:
    """Piece p starts with rank p and goes round: (x_p + x_(p+1)) + x_(p+2) ..."""
    pieces = []
    for piece in range(size):
        turn = [part((piece + step) % size).chunk(size)[piece] for step in range(size)]
        total = turn[0]
        for term in turn[1:]:
            total = total + term
        pieces.append(total)
    return torch.cat(pieces)


def butterfly_sum() -> Tensor:
    """Four ranks: pairs, then pairs of pairs."""
    return (part(0) + part(1)) + (part(2) + part(3))


@needs_open_mpi
def test_open_mpi_adds_in_the_order_of_the_algorithm() -> None:
    ring, butterfly = (
        run_ranks(rounded_sum, 4, backend="horovod", launcher="mpirun", overrides=[f"communication.algorithm={name}"])
        for name in ("ring", "butterfly")
    )
    assert all(torch.equal(result, butterfly_sum()) for result in butterfly)
    assert all(torch.equal(result, ring_sum(4)) for result in ring)
    assert not torch.equal(ring_sum(4), butterfly_sum())


@needs_open_mpi
def test_a_conflict_ends_every_rank_before_the_library_starts() -> None:
    outcomes, _ = try_ranks(
        rounded_sum,
        2,
        backend="horovod",
        launcher="mpirun",
        overrides=["communication.algorithm=ring"],
        environment={"OMPI_MCA_coll_tuned_allreduce_algorithm": "3"},
    )
    assert "RecipeError" in {outcome.error for outcome in outcomes}
    for outcome in outcomes:
        # mpirun ends the others as soon as the first has failed.
        assert outcome.error == "Dead" or "environment has OMPI_MCA_coll_tuned_allreduce_algorithm=3" in outcome.message
