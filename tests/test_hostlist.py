"""Lists of hosts as Slurm writes them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.errors import UsageError
from hpcai500.hosts import expand_hosts, is_first_of_host, name_ranks


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
