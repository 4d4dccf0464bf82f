"""Members, accelerators and nodes: Equation 5, the mapping, and what is said where neither holds."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hpcai500.ensemble.mapping import Shape, fits_nodes, member_places, possible_shapes, shape_of
from hpcai500.errors import UsageError

counts = st.integers(1, 64)


@given(counts, counts, counts)
def test_equation_5_holds_for_every_plan(per_node: int, members: int, degree: int) -> None:
    assume(fits_nodes(degree, per_node))
    shape = shape_of(per_node, members=members, degree=degree)
    assert shape.scale == members * degree
    assert shape_of(per_node, scale=shape.scale, members=members) == shape
    assert shape_of(per_node, scale=shape.scale, degree=degree) == shape
    assert shape_of(per_node, scale=shape.scale, members=members, degree=degree) == shape


@pytest.mark.parametrize("members", range(1, 9))
def test_the_scalability_experiments_of_the_paper(members: int) -> None:
    """V3.0 section 4.2: 8, 16, ... 64 GPUs, eight a node, are 1, 2, ... 8 jobs; a node each."""
    shape = shape_of(8, scale=8 * members)
    assert (shape.members, shape.degree, shape.nodes) == (members, 8, members)


@pytest.mark.parametrize(("members", "degree", "nodes_a_member"), [(8, 8, 1), (4, 16, 2), (1, 64, 8)])
def test_the_trade_off_of_the_paper(members: int, degree: int, nodes_a_member: int) -> None:
    """V3.0 section 4.3, Fig. 7."""
    shape = shape_of(8, scale=64, members=members)
    assert (shape.degree, shape.nodes_a_member, shape.nodes) == (degree, nodes_a_member, 8)


@given(counts, counts, counts)
def test_no_accelerator_belongs_to_two_members_and_none_of_a_member_is_missing(
    per_node: int, members: int, degree: int
) -> None:
    assume(fits_nodes(degree, per_node))
    shape = Shape(members, degree, per_node)
    jobs = member_places(shape, first_seed=5)
    taken = [(node, accelerator) for job in jobs for node in job.nodes for accelerator in job.accelerators]
    assert len(taken) == len(set(taken)) == shape.scale
    assert {accelerator for _, accelerator in taken} <= set(range(per_node))
    assert len({node for node, _ in taken}) == shape.nodes == math.ceil(shape.scale / per_node)
    assert [job.seed for job in jobs] == list(range(5, 5 + members))


def test_members_smaller_than_a_node_share_it() -> None:
    jobs = member_places(shape_of(4, members=3, degree=2), first_seed=1, hosts=["a", "b"])
    assert [(job.nodes, job.accelerators) for job in jobs] == [(("a",), (0, 1)), (("a",), (2, 3)), (("b",), (0, 1))]


def test_a_member_larger_than_a_node_takes_whole_ones() -> None:
    jobs = member_places(shape_of(2, members=2, degree=4), first_seed=1, hosts=["a", "b", "c", "d"])
    assert [job.nodes for job in jobs] == [("a", "b"), ("c", "d")]


@pytest.mark.parametrize(
    ("scale", "members", "degree", "nearest"),
    [
        (8, 3, None, "8 x 1, 4 x 2, 2 x 4"),
        (64, 4, 8, "16 x 4, 8 x 8, 4 x 16"),
        (7, None, 4, "7 x 1"),
    ],
)
def test_an_impossible_plan_is_refused_with_the_nearest_possible_ones(
    scale: int, members: int | None, degree: int | None, nearest: str
) -> None:
    with pytest.raises(UsageError, match=f"do are .*{nearest}"):
        shape_of(4 if scale != 64 else 8, scale=scale, members=members, degree=degree)


@given(counts, counts, counts)
def test_what_is_offered_instead_is_possible(per_node: int, scale: int, members: int) -> None:
    try:
        shape_of(per_node, scale=scale, members=members)
    except UsageError as error:
        if "Eq. 5" not in str(error):
            return
        offered = str(error).rpartition("do are ")[2].split(", ")
        for text in offered:
            count, _, degree = text.partition(" x ")
            assert shape_of(per_node, scale=scale, members=int(count), degree=int(degree)).scale == scale
        assert offered


def test_a_degree_that_cuts_nodes_is_refused_with_degrees_that_do_not() -> None:
    with pytest.raises(UsageError, match=r"nearest degrees that do are 1, 2, 4"):
        shape_of(4, members=2, degree=3)


def test_every_possible_shape_of_a_scale_is_found() -> None:
    assert [(shape.members, shape.degree) for shape in possible_shapes(8, 16)] == [
        (16, 1),
        (8, 2),
        (4, 4),
        (2, 8),
        (1, 16),
    ]


def test_too_few_hosts_are_told_before_anything_is_written() -> None:
    with pytest.raises(UsageError, match="4 members of 2 accelerators take 2 nodes of 4, got 1"):
        member_places(Shape(4, 2, 4), 1, ["a"])


def test_a_host_that_stands_there_twice_is_told() -> None:
    with pytest.raises(UsageError, match="a stands there twice"):
        member_places(Shape(2, 4, 4), 1, ["a", "a"])


@pytest.mark.parametrize("numbers", [{"members": 10**9}, {"scale": 10**9}, {"members": 10**5, "degree": 8 * 10**5}])
def test_a_slip_of_the_finger_is_told_before_it_fills_the_memory(numbers: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="1000000 at most"):
        shape_of(8, **numbers)


def test_nothing_follows_from_nothing() -> None:
    with pytest.raises(UsageError, match="Give --members M or --scale S"):
        shape_of(4)


def test_a_number_below_one_is_no_number_of_anything() -> None:
    with pytest.raises(UsageError, match="--members: expected 1 or more, got 0"):
        shape_of(4, members=0)
