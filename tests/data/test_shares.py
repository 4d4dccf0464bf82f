"""Shares of updates: the same samples in the same updates, however many processes do them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.data.samplers import Sharding, Shares, Tail, epoch_order


def updates(shares: Shares, order: np.ndarray, turns: int, first_step: int = 0) -> list[list[list[int]]]:
    """For each update, for each share in turn, its real samples."""
    flat = [share.ids[: share.real].tolist() for share in shares.of_epoch(order, first_step)]
    return [flat[at : at + turns] for at in range(0, len(flat), turns)]


@given(
    samples=st.integers(1, 60),
    batch_size=st.integers(1, 5),
    tail=st.sampled_from(["pad", "drop"]),
    sizes=st.sampled_from([(1, 1), (2, 1), (4, 2), (6, 3), (6, 2), (12, 4)]),
)
def test_an_update_holds_the_same_samples_whatever_the_number_of_processes(
    samples: int, batch_size: int, tail: Tail, sizes: tuple[int, int]
) -> None:
    total, processes = sizes
    if tail == "drop" and samples < batch_size * total:
        return
    order = epoch_order(samples, seed=3, epoch=1)
    alone = updates(Shares(samples, batch_size, total, range(total), tail), order, total)
    together = [
        updates(Shares(samples, batch_size, total, range(rank, total, processes), tail), order, total // processes)
        for rank in range(processes)
    ]
    assert len(alone) == len(together[0]) == Sharding(samples, batch_size, total, 0, tail).steps_per_epoch
    for step, shares in enumerate(alone):
        dealt = {
            rank + turn * processes: share for rank, own in enumerate(together) for turn, share in enumerate(own[step])
        }
        assert [dealt[number] for number in range(total)] == shares


def test_going_on_in_the_middle_of_an_epoch_skips_whole_updates() -> None:
    order = epoch_order(20, seed=1, epoch=2)
    shares = Shares(20, 2, 4, (1, 3), "pad")
    assert updates(shares, order, 2, first_step=2) == updates(shares, order, 2)[2:]


def test_the_first_share_is_the_first_of_a_global_batch() -> None:
    order = np.arange(8, dtype=np.int64)
    assert updates(Shares(8, 2, 2, (0, 1), "pad"), order, 2) == [[[0, 2], [1, 3]], [[4, 6], [5, 7]]]
