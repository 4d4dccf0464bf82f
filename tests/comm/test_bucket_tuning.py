"""The bucket size is the one that is fastest for the slowest rank, and the same on all."""

from __future__ import annotations

import pytest
import torch
from reduction import settings
from thread_ranks import run_threads
from torch import nn

from hpcai500.comm.communicator import Communicator
from hpcai500.comm.reducer import Reducer
from hpcai500.engine.warm_up import bucket_candidates, choose_bucket_bytes
from hpcai500.errors import UsageError


def test_what_counts_is_the_slowest_rank_and_the_median_round() -> None:
    # Seconds by rank, candidate and round. 1 is fastest on rank 0 but slow on rank 1; 3 has one lucky round.
    seconds = {
        0: {1: [1.0, 1.0, 1.0], 2: [3.0, 3.0, 9.0], 3: [5.0, 5.0, 0.1]},
        1: {1: [4.0, 4.0, 4.0], 2: [2.0, 2.0, 2.0], 3: [5.0, 5.0, 0.1]},
    }

    def on_rank(communicator: Communicator) -> tuple[tuple[int, dict[int, float]], list[int]]:
        order: list[int] = []

        def measure(candidate: int) -> float:
            order.append(candidate)
            return seconds[communicator.rank][candidate][order.count(candidate) - 1]

        return choose_bucket_bytes([1, 2, 3], measure, communicator), order

    for (choice, table), order in run_threads(on_rank, "ab"):
        assert choice == 2
        assert table == {1: 4.0, 2: 3.0, 3: 5.0}
        assert order == [1, 2, 3] * 3


def test_of_sizes_that_are_as_fast_as_each_other_the_usual_one_is_taken() -> None:
    seconds = {2**20: 1.0, 16 * 2**20: 1.04, 64 * 2**20: 1.06}
    choices = run_threads(lambda ranks: choose_bucket_bytes(list(seconds), seconds.__getitem__, ranks)[0], "ab")
    assert choices == [16 * 2**20] * 2


def test_candidates_end_with_the_whole_model() -> None:
    mib = 2**20 // 4
    assert bucket_candidates([nn.Parameter(torch.zeros(100))]) == [400]
    large = [nn.Parameter(torch.zeros(3 * mib)), nn.Parameter(torch.zeros(2 * mib)), torch.zeros(mib)]
    assert bucket_candidates(large) == [2**20, 4 * 2**20, 5 * 2**20]
    assert bucket_candidates([nn.Parameter(torch.zeros(4 * mib))]) == [2**20, 4 * 2**20]
    with pytest.raises(UsageError, match="no parameter is trained"):
        bucket_candidates([torch.zeros(3)])


def test_a_real_reducer_can_be_tuned() -> None:
    def on_rank(communicator: Communicator) -> tuple[int, int]:
        weights = [nn.Parameter(torch.ones(50)) for _ in range(4)]
        candidates = [200, 400, *bucket_candidates(weights)]
        reducer = Reducer(weights, communicator, settings(), bucket_bytes=candidates[0])
        sizes = []

        def measure(bucket_bytes: int) -> float:
            reducer.set_bucket_bytes(bucket_bytes)
            reducer.begin(0)
            sum(weight.sum() for weight in weights).backward()
            reducer.finish([])
            sizes.append(len(reducer.buckets))
            # As if all in one were slow.
            return 1.0 / len(reducer.buckets)

        choice, _ = choose_bucket_bytes(candidates, measure, communicator, rounds=1)
        assert sizes == [4, 2, 1]
        return choice, candidates[0]

    assert run_threads(on_rank, "abc") == [(200, 200)] * 3
