"""How the ranks of one host share its cores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.errors import UsageError
from hpcai500.launch.layout import cores_for, neighbours_together, share


@given(st.lists(st.integers(0, 500), min_size=1, max_size=64, unique=True), st.integers(1, 64))
def test_all_ranks_get_as_many_cores_and_no_core_is_given_twice_while_there_are_enough(
    cores: list[int], ranks: int
) -> None:
    shares = [share(cores, rank, ranks) for rank in range(ranks)]
    assert {len(each) for each in shares} == {max(1, len(cores) // ranks)}
    given_out = [core for each in shares for core in each]
    assert set(given_out) <= set(cores)
    if ranks <= len(cores):
        assert len(set(given_out)) == len(given_out)
        assert len(cores) - len(given_out) < ranks


def machine(folder: Path, places: dict[int, tuple[int, str]]) -> Path:
    """A /sys/devices/system/cpu of `places`: package and sibling threads of each core number."""
    for core, (package, siblings) in places.items():
        topology = folder / f"cpu{core}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{package}\n")
        (topology / "thread_siblings_list").write_text(f"{siblings}\n")
    return folder


def test_the_threads_of_a_core_stay_together(tmp_path: Path) -> None:
    # Two packages of two cores with two threads each, numbered as Linux does.
    packages = {core: core % 4 // 2 for core in range(8)}
    cpus = machine(tmp_path, {core: (packages[core], f"{core % 4},{core % 4 + 4}") for core in range(8)})
    ordered = neighbours_together(range(8), cpus)
    assert [share(ordered, rank, 2) for rank in (0, 1)] == [[0, 4, 1, 5], [2, 6, 3, 7]]
    assert neighbours_together([6, 1, 5], cpus) == [1, 5, 6]


def test_a_machine_that_says_nothing_keeps_its_order(tmp_path: Path) -> None:
    assert neighbours_together({3, 1, 2}, tmp_path) == [1, 2, 3]


def test_it_is_off_for_one_rank_and_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCAI500_AFFINITY", raising=False)
    here = len(os.sched_getaffinity(0))
    assert cores_for(0, 1) is None
    assert len(cores_for(0, 2) or []) == max(1, here // 2)
    monkeypatch.setenv("HPCAI500_AFFINITY", "none")
    assert cores_for(0, 2) is None
    monkeypatch.setenv("HPCAI500_AFFINITY", "cores")
    with pytest.raises(UsageError, match="HPCAI500_AFFINITY=cores: expected none"):
        cores_for(0, 2)
