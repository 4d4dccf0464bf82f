"""Offsets between clocks: inside the bound that is promised, for simulated barriers and for a real one."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.comm.timeline import ClockAlignment, align_clocks, alignment

delays = st.floats(0, 0.01)


@given(st.lists(st.floats(-1e5, 1e5), min_size=2, max_size=5), st.data())
def test_the_true_offset_is_within_the_bound(clocks: list[float], data: st.DataObject) -> None:
    """`clocks`: what each host's clock shows at true time 0."""
    passages: list[list[tuple[float, float]]] = [[] for _ in clocks]
    for number in range(data.draw(st.integers(1, 6))):
        entered = [number + data.draw(delays) for _ in clocks]
        for rank, clock in enumerate(clocks):
            passages[rank].append((entered[rank] + clock, max(entered) + data.draw(delays) + clock))
    found = alignment(passages, [f"host{rank}" for rank in range(len(clocks))])
    for rank, clock in enumerate(clocks):
        truth = clocks[0] - clock
        assert abs(found.offsets_seconds[rank] - truth) <= found.errors_seconds[rank] + 1e-9
        assert found.errors_seconds[rank] <= 0.02 + 1e-9
    assert (found.offsets_seconds[0], found.errors_seconds[0]) == (0.0, 0.0)


def test_ranks_of_one_host_share_the_best_bound_and_rank_0s_host_is_exact() -> None:
    narrow, wide = [(5.0, 5.1)], [(4.5, 5.4)]
    here, near = [(0.0, 0.2)], [(0.05, 0.3)]
    found = alignment([here, near, wide, narrow], ["a", "a", "b", "b"])
    assert found.offsets_seconds[:2] == (0.0, 0.0)
    assert found.errors_seconds[:2] == (0.0, 0.0)
    # narrow says -5.1 to -4.8, wide -5.4 to -4.3.
    assert found.offsets_seconds[2:] == pytest.approx((-4.95, -4.95))
    assert found.errors_seconds[2:] == pytest.approx((0.15, 0.15))


def test_two_machines_of_one_name_keep_their_own_offsets() -> None:
    found = alignment([[(0.0, 0.2)], [(100.0, 100.2)]], ["localhost", "localhost"])
    assert found.offsets_seconds == pytest.approx((0.0, -100.0))


class Threads:
    """Ranks that are threads of this process: a real barrier, and one clock."""

    def __init__(self, size: int) -> None:
        self.hosts = tuple(f"host{rank}" for rank in range(size))
        self._meeting = threading.Barrier(size)
        self._table: list[Any] = [None] * size

    def member(self, rank: int) -> Any:
        whole = self

        class Member:
            hosts = whole.hosts

            def barrier(self) -> None:
                whole._meeting.wait()

            def gather_objects(self, thing: Any) -> list[Any]:
                whole._table[rank] = thing
                whole._meeting.wait()
                return list(whole._table)

        return Member()


def test_a_real_barrier_finds_that_one_clock_is_one_clock() -> None:
    ranks, found = Threads(3), dict[int, ClockAlignment]()
    threads = [
        threading.Thread(target=lambda rank=rank: found.update({rank: align_clocks(ranks.member(rank), rounds=8)}))
        for rank in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1] == found[2]
    for offset, error in zip(found[0].offsets_seconds, found[0].errors_seconds, strict=True):
        assert abs(offset) <= error
