"""Every topology sums every form of gradients over any ranks that it accepts, and says which it does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from reduction import COMPRESSIONS, TOPOLOGIES, error_bound, gradients_of, settings
from thread_ranks import run_threads
from torch import Tensor

from hpcai500.comm.codecs import Buffers, make_codec
from hpcai500.comm.communicator import Communicator
from hpcai500.comm.topologies import make_topology
from hpcai500.errors import RecipeError

CPU = torch.device("cpu")


def average(communicator: Communicator, gradients: list[Tensor], buckets: int = 1, **changes: Any) -> Tensor:
    """The average of `gradients`, which travel `buckets` times: other servers serve, buffers are used again."""
    table, buffers = settings(**changes), Buffers(CPU)
    codec = make_codec(table.compression, buffers, None, 1)
    topology = make_topology(table, communicator, codec, buffers)
    unit = topology.pieces * codec.grain
    elements = -(-sum(map(len, gradients)) // unit) * unit
    for bucket in range(buckets):
        averages = [torch.empty_like(gradient) for gradient in gradients]
        packed = codec.pack(gradients, elements, scale=1 / communicator.size, bucket=bucket)
        assert packed.nbytes == codec.packed_bytes(elements)
        codec.unpack(topology.sum(packed, bucket), averages)
    return torch.cat(averages)


def check(hosts: list[str], lengths: list[int], seed: int, **changes: Any) -> None:
    def on_rank(communicator: Communicator) -> Tensor:
        return average(communicator, gradients_of(communicator.rank, lengths, seed), 2, **changes)

    results = run_threads(on_rank, hosts)
    assert all(torch.equal(result, results[0]) for result in results)
    everyones = torch.stack([torch.cat(gradients_of(rank, lengths, seed)) for rank in range(len(hosts))])
    error = (results[0].double() - everyones.double().mean(0)).abs()
    assert (error <= error_bound(everyones, changes["compression"])).all()


LENGTHS = st.lists(st.integers(1, 3000), min_size=1, max_size=4)
HOSTS = st.lists(st.sampled_from("abc"), min_size=2, max_size=8)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("topology", ["flat", "hierarchical", "parameter-server"])
@hypothesis_settings(max_examples=8)
@given(hosts=HOSTS, lengths=LENGTHS, seed=st.integers(0, 99))
def test_any_ranks_on_any_hosts_get_the_average(
    topology: str, compression: str, hosts: list[str], lengths: list[int], seed: int
) -> None:
    check(hosts, lengths, seed, topology=topology, compression=compression)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@hypothesis_settings(max_examples=10)
@given(rows=st.integers(1, 4), columns=st.integers(1, 4), lengths=LENGTHS, seed=st.integers(0, 99))
def test_any_full_torus_gets_the_average(
    compression: str, rows: int, columns: int, lengths: list[int], seed: int
) -> None:
    if rows * columns > 1:
        hosts = [f"host{row}" for row in range(rows) for _ in range(columns)]
        stated = columns if seed % 2 else 0
        check(hosts, lengths, seed, topology="torus", compression=compression, torus_columns=stated)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_twelve_ranks_on_three_hosts(topology: str, compression: str) -> None:
    check([host for host in "abc" for _ in range(4)], [5, 70000], 1, topology=topology, compression=compression)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_no_number_on_one_rank_is_none_on_all(topology: str, compression: str, value: float) -> None:
    def on_rank(communicator: Communicator) -> Tensor:
        gradient = torch.ones(5000)
        if communicator.rank == 2:
            gradient[4500] = value
        return average(communicator, [gradient], topology=topology, compression=compression)

    results = run_threads(on_rank, "aabb")
    assert not any(result[4500].isfinite() for result in results)
    assert all(result[:4000].isfinite().all() for result in results)


def test_a_torus_that_the_ranks_do_not_fill_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"6 ranks do not fill rows of 4: use one of 1, 2, 3, 6"):
        check(["a"] * 6, [1], 0, topology="torus", compression="none", torus_columns=4)


def test_a_torus_of_uneven_nodes_is_refused() -> None:
    with pytest.raises(RecipeError, match="nodes have 1 or 3 ranks"):
        check(["a", "a", "a", "b"], [1], 0, topology="torus", compression="none")


def test_a_torus_of_nodes_whose_ranks_are_scattered_is_refused_unless_rows_are_stated() -> None:
    with pytest.raises(RecipeError, match=r"ranks of a node are not consecutive.*block"):
        check(["a", "b", "a", "b"], [1], 0, topology="torus", compression="none")
    check(["a", "b", "a", "b"], [9], 0, topology="torus", compression="none", torus_columns=2)
