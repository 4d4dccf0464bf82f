"""An epoch's order, its shards and shares: every sample once, in the same updates, whatever the ranks."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from builders.philox import philox
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.data.samplers import Sharding, Shares, Tail, epoch_order, evaluation_shard, windowed_order
from hpcai500.errors import DataError

SAMPLES = st.integers(1, 200)
BATCH = st.integers(1, 9)
WORLD = st.integers(1, 9)
WORD = st.integers(0, 2**64 - 1)


def shards(samples: int, batch_size: int, world_size: int, tail: Tail) -> list[Sharding]:
    return [Sharding(samples, batch_size, world_size, rank, tail) for rank in range(world_size)]


def test_the_order_of_an_epoch_never_changes() -> None:
    # Golden: a new value means that no earlier record's batches can be repeated.
    assert epoch_order(12, seed=500, epoch=3).tolist() == [3, 5, 0, 10, 9, 2, 1, 6, 8, 4, 11, 7]
    imagenet = epoch_order(1_281_167, seed=0, epoch=89).astype("<i8").tobytes()
    assert hashlib.sha256(imagenet).hexdigest() == "8ea86c22c93f24298a35d036b60158f2fbfd8f5513798668a03ba18a912c59b9"


@given(st.integers(1, 40), WORD, WORD)
def test_the_order_sorts_the_samples_by_their_random_numbers(samples: int, seed: int, epoch: int) -> None:
    keys = philox((seed, epoch), samples)
    order = epoch_order(samples, seed, epoch)
    assert order.dtype == np.int64
    assert order.tolist() == sorted(range(samples), key=lambda i: (keys[i], i))


def test_seed_and_epoch_both_change_the_order_and_favour_no_position() -> None:
    orders = {tuple(epoch_order(50, seed, epoch).tolist()) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16
    first = [int(epoch_order(10, seed=7, epoch=epoch)[0]) for epoch in range(3000)]
    # 300 expected in each; six standard deviations are 99.
    assert abs(np.bincount(first, minlength=10) - 300).max() < 99


@pytest.mark.parametrize(("seed", "epoch"), [(-1, 0), (2**64, 0), (0, -1)])
def test_a_seed_that_does_not_fit_is_refused(seed: int, epoch: int) -> None:
    with pytest.raises(ValueError, match="non-negative 64-bit"):
        epoch_order(10, seed, epoch)


@given(SAMPLES, BATCH, WORLD)
def test_padding_covers_each_sample(samples: int, batch_size: int, world_size: int) -> None:
    order = epoch_order(samples, 1, 2)
    real: list[int] = []
    for shard in shards(samples, batch_size, world_size, "pad"):
        batches = list(shard.batches(order))
        assert len(batches) == shard.steps_per_epoch
        assert all(batch.shape == (batch_size,) for batch in batches)
        for step, batch in enumerate(batches):
            real += batch[: shard.real_count(step)].tolist()
    assert sorted(real) == list(range(samples))


@given(SAMPLES, BATCH, WORLD)
def test_dropping_never_repeats_and_leaves_out_less_than_a_step(samples: int, batch_size: int, world_size: int) -> None:
    if samples < batch_size * world_size:
        with pytest.raises(DataError, match="fewer than one global batch"):
            Sharding(samples, batch_size, world_size, 0, "drop")
        return
    order = epoch_order(samples, 1, 2)
    seen: list[int] = []
    for shard in shards(samples, batch_size, world_size, "drop"):
        for step, batch in enumerate(shard.batches(order)):
            assert shard.real_count(step) == batch_size
            seen += batch.tolist()
    assert len(seen) == len(set(seen)) == shard.steps_per_epoch * shard.global_batch
    assert samples - len(seen) < batch_size * world_size


@given(SAMPLES, st.integers(1, 4), st.sampled_from([1, 2, 3, 4, 6, 12]), st.sampled_from(["pad", "drop"]))
def test_a_global_batch_is_the_same_whatever_the_world_size(
    samples: int, scale: int, world_size: int, tail: Tail
) -> None:
    global_batch = 12 * scale
    if tail == "drop" and samples < global_batch:
        samples += global_batch
    order = epoch_order(samples, 3, 4)

    def global_batches(ranks: int) -> list[list[int]]:
        per_rank = [list(shard.batches(order)) for shard in shards(samples, global_batch // ranks, ranks, tail)]
        return [sorted(np.concatenate(step).tolist()) for step in zip(*per_rank, strict=True)]

    assert global_batches(world_size) == global_batches(1)


def test_padding_is_spread_over_the_ranks() -> None:
    counts = [shard.real_count(0) for shard in shards(10, 4, 4, "pad")]
    assert counts == [3, 3, 2, 2]


@pytest.mark.parametrize(
    "wrong",
    [{"samples": 0}, {"batch_size": 0}, {"world_size": 0}, {"rank": 2}, {"rank": -1}, {"tail": "wrap"}],
)
def test_an_impossible_sharding_is_refused(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"samples": 10, "batch_size": 2, "world_size": 2, "rank": 0, "tail": "pad"}
    assert Sharding(**right).steps_per_epoch == 3
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sharding(**(right | wrong))


def test_a_step_or_order_that_is_not_of_this_epoch_is_refused() -> None:
    shard = Sharding(10, 2, 2, 0, "pad")
    with pytest.raises(ValueError, match="step"):
        shard.real_count(3)
    with pytest.raises(ValueError, match="shape"):
        next(shard.batches(epoch_order(9, 0, 0)))


@given(st.integers(0, 200), BATCH, WORLD)
def test_an_evaluation_sees_each_sample_exactly_once(samples: int, batch_size: int, world_size: int) -> None:
    per_rank = [evaluation_shard(samples, batch_size, world_size, rank) for rank in range(world_size)]
    assert [i for batches in per_rank for batch in batches for i in batch.tolist()] == list(range(samples))
    sizes = [sum(map(len, batches)) for batches in per_rank]
    assert max(sizes) - min(sizes) <= 1
    for batches in per_rank:
        assert all(len(batch) == batch_size for batch in batches[:-1])
        assert all(0 < len(batch) <= batch_size for batch in batches)


# --- windows: images that share chunks of their file
WINDOWS = st.lists(st.integers(0, 12), min_size=1, max_size=150).map(lambda numbers: np.array(numbers, np.int64))


def runs(windows: np.ndarray[Any, Any]) -> list[int]:
    """The windows in the order in which a stream enters them."""
    return [int(window) for at, window in enumerate(windows) if at == 0 or windows[at - 1] != window]


@given(WINDOWS, st.integers(0, 2**64 - 1), st.integers(0, 1000), st.integers(1, 9))
def test_a_windowed_order_is_a_permutation_that_meets_each_window_once(
    windows: np.ndarray[Any, Any], seed: int, epoch: int, streams: int
) -> None:
    order = windowed_order(windows, seed, epoch, streams)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(windows.size))
    if len(set(windows.tolist())) == windows.size:
        return
    entered = [runs(windows[order[stream::streams]]) for stream in range(streams)]
    assert all(len(once) == len(set(once)) for once in entered)
    # A window that several streams enter lies across a cut, or several.
    assert sum(map(len, entered)) <= len(set(windows.tolist())) + streams - 1


@given(SAMPLES, st.integers(0, 2**64 - 1), st.integers(0, 1000), st.integers(1, 9))
def test_windows_of_one_sample_change_nothing(samples: int, seed: int, epoch: int, streams: int) -> None:
    windows = np.arange(samples)[::-1]
    assert windowed_order(windows, seed, epoch, streams).tolist() == epoch_order(samples, seed, epoch).tolist()


def test_windows_and_their_images_are_shuffled() -> None:
    windows = np.repeat(np.arange(6), 4)
    orders = [windowed_order(windows, seed=2, epoch=epoch, streams=1) for epoch in range(2000)]
    first = np.bincount([windows[order[0]] for order in orders], minlength=6)
    # 333 expected in each; six standard deviations are 100.
    assert abs(first - 2000 / 6).max() < 100
    inside = np.bincount([order[0] % 4 for order in orders], minlength=4)
    assert abs(inside - 500).max() < 117


def test_a_windowed_order_never_changes() -> None:
    # From the order of the epoch above, 3 5 0 10 9 2 1 6 8 4 11 7, and one word for each window.
    words = philox((500, 3), 4, highest=2)
    assert sorted(range(4), key=lambda window: words[window]) == [3, 2, 0, 1]
    windows = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3])
    # So the line is 10 9 11 | 6 8 7 | 0 2 1 | 3 5 4, and its halves alternate.
    assert windowed_order(windows, seed=500, epoch=3, streams=2).tolist() == [10, 0, 9, 2, 11, 1, 6, 3, 8, 5, 7, 4]


@pytest.mark.parametrize("streams", [0, -1])
def test_less_than_one_stream_is_refused(streams: int) -> None:
    with pytest.raises(ValueError, match="streams must be at least 1"):
        windowed_order(np.zeros(3, np.int64), 0, 0, streams)


# --- shares of an update


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


def test_shares_come_in_the_order_of_the_batch_and_from_any_update_on() -> None:
    assert updates(Shares(8, 2, 2, (0, 1), "pad"), np.arange(8), 2) == [[[0, 2], [1, 3]], [[4, 6], [5, 7]]]
    order, shares = epoch_order(20, seed=1, epoch=2), Shares(20, 2, 4, (1, 3), "pad")
    assert updates(shares, order, 2, first_step=2) == updates(shares, order, 2)[2:]
