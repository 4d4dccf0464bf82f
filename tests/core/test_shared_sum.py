"""SharedSum: float32 values added up over the processes of a host. Threads stand in for processes where none dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hpcai500._core import SharedSum

SLOT_VALUES = 1 << 18


def opened(path: Path, ranks: int) -> list[SharedSum]:
    return [SharedSum(str(path), rank, ranks) for rank in range(ranks)]


def at_once(works: list[Callable[[], Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(works)) as pool:
        return [done.result(60) for done in [pool.submit(work) for work in works]]


def in_order_of_ranks(parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The twin: one addition after the other, each rounded."""
    total = parts[0].copy()
    for part in parts[1:]:
        total = total + part
    return total


@settings(max_examples=25, deadline=None)
@given(
    ranks=st.integers(2, 5),
    counts=st.lists(
        st.one_of(st.integers(0, 200), st.integers(SLOT_VALUES - 20, SLOT_VALUES + 20), st.just(2 * SLOT_VALUES + 7)),
        min_size=1,
        max_size=4,
    ),
    seed=st.integers(0, 99),
)
def test_all_ranks_get_the_sum_in_the_order_of_the_ranks(
    ranks: int, counts: list[int], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    members = opened(tmp_path_factory.mktemp("sums") / "sums", ranks)
    random = np.random.default_rng(seed)
    for count in counts:
        parts = [(random.standard_normal(count) * 10.0 ** random.integers(-30, 30)).astype(np.float32) for _ in members]
        expected = in_order_of_ranks(parts)
        at_once([lambda one=one, part=part: one.all_reduce(part) for one, part in zip(members, parts, strict=True)])
        for part in parts:
            assert part.tobytes() == expected.tobytes()


def test_nan_and_infinity_of_one_rank_reach_all(tmp_path: Path) -> None:
    parts = [np.ones(1000, np.float32) for _ in range(3)]
    parts[1][7], parts[2][8], parts[0][9], parts[1][9] = np.nan, np.inf, np.inf, -np.inf
    members = opened(tmp_path / "sums", 3)
    at_once([lambda one=one, part=part: one.all_reduce(part) for one, part in zip(members, parts, strict=True)])
    assert parts[0].tobytes() == parts[1].tobytes() == parts[2].tobytes()
    assert np.isnan(parts[0][[7, 9]]).all()
    assert parts[0][8] == np.inf
    assert np.isfinite(np.delete(parts[0], [7, 8, 9])).all()


def test_many_sums_follow_one_another(tmp_path: Path) -> None:
    members = opened(tmp_path / "sums", 3)

    def work(rank: int) -> list[float]:
        found = []
        for turn in range(300):
            values = np.full(33, rank + turn, np.float32)
            members[rank].all_reduce(values)
            assert (values == values[0]).all()
            found.append(float(values[0]))
        return found

    for found in at_once([lambda rank=rank: work(rank) for rank in range(3)]):
        assert found == [3.0 * turn + 3 for turn in range(300)]


def test_a_rank_that_closes_ends_the_wait_of_the_others(tmp_path: Path) -> None:
    first, second = opened(tmp_path / "sums", 2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.all_reduce, np.ones(10, np.float32))
        time.sleep(0.2)
        second.close()
        with pytest.raises(RuntimeError, match="another rank has left"):
            waiting.result(60)
    with pytest.raises(RuntimeError, match="another rank has left"):
        first.all_reduce(np.ones(10, np.float32))


def test_a_rank_whose_process_is_killed_ends_the_wait_of_the_others(tmp_path: Path) -> None:
    """Also while a child that it has forked lives on."""
    path = tmp_path / "sums"
    first = SharedSum(str(path), 0, 2)
    program = (
        "import os, sys, time\nfrom hpcai500._core import SharedSum\n"
        "second = SharedSum(sys.argv[1], 1, 2)\nread, write = os.pipe()\n"
        "if os.fork() == 0:\n    os.write(write, b'.')\n    sys.stdin.read()\n    os._exit(0)\n"
        "os.read(read, 1)\nprint('open', flush=True)\ntime.sleep(600)"
    )
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(first.all_reduce, np.ones(10, np.float32))
            time.sleep(0.3)
            assert not waiting.done()
            process.send_signal(signal.SIGKILL)
            try:
                with pytest.raises(RuntimeError, match="rank 1 of this host has ended"):
                    waiting.result(10)
            finally:
                first.close()


def test_a_forked_child_leaves_the_sums_of_its_parent_alone(tmp_path: Path) -> None:
    members = opened(tmp_path / "sums", 2)
    parts = [np.full(5, rank, np.float32) for rank in (1, 2)]
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        status = 1
        try:
            members[0].all_reduce(parts[0])
        except RuntimeError:
            status = 0
        members[0].close()
        members.clear()
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    at_once([lambda one=one, part=part: one.all_reduce(part) for one, part in zip(members, parts, strict=True)])
    assert parts[0].tolist() == [3] * 5


def test_only_one_process_can_be_a_rank(tmp_path: Path) -> None:
    path = str(tmp_path / "sums")
    members = [SharedSum(path, 0, 2), SharedSum(path, 1, 2)]
    with pytest.raises(RuntimeError):
        SharedSum(path, 1, 2)
    with pytest.raises(RuntimeError):
        SharedSum(path, 0, 2)
    with pytest.raises(RuntimeError, match="not of 3 ranks"):
        SharedSum(path, 2, 3)
    assert len(members) == 2


@pytest.mark.parametrize(("rank", "ranks"), [(0, 1), (-1, 2), (2, 2), (0, 1025)])
def test_a_rank_must_be_one_of_the_ranks(rank: int, ranks: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"got rank {rank} of {ranks}"):
        SharedSum(str(tmp_path / "sums"), rank, ranks)


def test_the_others_cannot_open_what_rank_0_has_not_made(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="No such file"):
        SharedSum(str(tmp_path / "sums"), 1, 2)


@pytest.mark.parametrize("values", [np.ones(4), np.ones((2, 4), np.float32)[:, ::2]])
def test_values_must_be_dense_float32(values: NDArray[Any], tmp_path: Path) -> None:
    first, _ = opened(tmp_path / "sums", 2)
    with pytest.raises(ValueError, match="values"):
        first.all_reduce(values)
