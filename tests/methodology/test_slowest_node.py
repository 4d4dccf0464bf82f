"""The slowest node is that of all runs, not of an unlucky one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.methodology.nodes import slowest_node

runs = st.lists(
    st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.floats(0.01, 100), min_size=2), min_size=1, max_size=6
)


def test_the_node_that_is_slow_in_most_runs_is_named_with_how_often() -> None:
    usual = {"n1": 1.0, "n2": 1.01, "n3": 1.25, "n4": 0.99}
    found = slowest_node([usual, usual, {**usual, "n1": 9.0, "n3": 1.2}])
    assert found is not None
    assert found.name == "n3"
    assert found.slowdown == pytest.approx(0.25)
    assert (found.slowest_in, found.runs, found.nodes) == (2, 3, 4)
    assert found.straggler_in == 3


def test_alike_nodes_have_no_straggler_among_them() -> None:
    found = slowest_node([{"a": 1.0, "b": 1.001}])
    assert found is not None
    assert found.straggler_in == 0
    assert found.slowdown == pytest.approx(0.001)


def test_one_node_alone_is_not_compared() -> None:
    assert slowest_node([]) is None
    assert slowest_node([{"a": 1.0}, {"a": 2.0}]) is None
    assert slowest_node([{"a": 0.0, "b": 1.0}]) is None, "no time at all is no measurement"


@given(runs, st.integers(-20, 20))
def test_the_unit_of_time_changes_nothing(told: list[dict[str, float]], power: int) -> None:
    scaled = [{name: seconds * 2.0**power for name, seconds in run.items()} for run in told]
    assert slowest_node(scaled) == slowest_node(told)


@given(runs)
def test_it_is_one_of_those_that_ran_and_is_counted_in_its_own_runs_only(told: list[dict[str, float]]) -> None:
    found = slowest_node(told)
    assert found is not None
    assert found.runs == sum(found.name in run for run in told)
    assert 0 <= found.slowest_in <= found.runs
    assert 0 <= found.straggler_in <= found.runs
    assert found.nodes == len({name for run in told for name in run})
