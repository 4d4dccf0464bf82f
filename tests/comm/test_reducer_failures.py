"""A rank that is gone, and ranks that do not fit together."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from reduction import settings
from thread_ranks import ThreadCommunicator, run_threads
from torch import Tensor, nn

from hpcai500.comm import reducer
from hpcai500.comm.communicator import Communicator
from hpcai500.comm.reducer import Reducer
from hpcai500.errors import RunError


class Mortal(ThreadCommunicator):
    """Says what a library says when a connection breaks."""

    def all_reduce(self, tensor: Tensor) -> None:
        try:
            super().all_reduce(tensor)
        except threading.BrokenBarrierError as error:
            raise RunError("Gloo: all-reduce: connection reset by peer") from error


def mortal(communicator: Communicator) -> ThreadCommunicator:
    assert isinstance(communicator, ThreadCommunicator)
    communicator.group_type = Mortal
    return communicator


def test_a_rank_that_goes_in_the_middle_is_an_error_on_the_others() -> None:
    # Nobody goes before all have seen the end of the first step.
    together = threading.Barrier(3, timeout=20)

    def on_rank(communicator: Communicator) -> None:
        weights = nn.ParameterList([torch.ones(3), torch.ones(4)])
        reducer = Reducer(weights, mortal(communicator), settings(), bucket_bytes=4)
        for step in range(2):
            together.wait()
            reducer.begin(step)
            if step == 1 and communicator.rank == 1:
                mortal(communicator).break_off()
                reducer.close()
                return
            (weights[0].sum() + weights[1].sum()).backward()
            if step == 0:
                reducer.finish([])
        for _ in range(2):
            with pytest.raises(RunError, match="connection reset by peer"):
                reducer.finish([])
            reducer.begin(2)
        reducer.close()

    run_threads(on_rank, "abc")


def test_closing_does_not_wait_for_a_rank_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reducer, "_GOODBYE_SECONDS", 0.05)
    closed = threading.Event()

    def on_rank(communicator: Communicator) -> float:
        weights = nn.ParameterList([torch.ones(3)])
        reducer = Reducer(weights, mortal(communicator), settings(), bucket_bytes=4)
        if communicator.rank == 1:
            closed.wait(20)
            return 0.0
        reducer.begin(0)
        weights[0].sum().backward()
        start = time.monotonic()
        reducer.close()
        seconds = time.monotonic() - start
        closed.set()
        mortal(communicator).break_off()
        return seconds

    assert run_threads(on_rank, "ab")[0] < 10


def test_closing_leaves_nothing_behind() -> None:
    def on_rank(communicator: Communicator) -> None:
        made: list[ThreadCommunicator] = []

        class Listed(ThreadCommunicator):
            def __init__(self, *arguments: object) -> None:
                super().__init__(*arguments)  # type: ignore[arg-type]
                self.group_type = Listed
                made.append(self)

        assert isinstance(communicator, ThreadCommunicator)
        communicator.group_type = Listed
        weights = nn.ParameterList([torch.ones(3)])
        reducer = Reducer(weights, communicator, settings(topology="torus", torus_columns=2), bucket_bytes=4)
        threads = reducer._threads._threads
        assert all(thread.is_alive() for thread in threads)
        reducer.close()
        # For each of three channels: all ranks, a row, a column.
        assert [(group.size, group.closed) for group in made] == [(4, True), (2, True), (2, True)] * 3
        assert not communicator.closed
        communicator.barrier()
        assert not any(thread.is_alive() for thread in threads)
        assert not weights[0]._post_accumulate_grad_hooks

    run_threads(on_rank, "abcd")


@pytest.mark.parametrize("difference", ["shape", "order", "layout", "buckets"])
def test_ranks_with_other_parameters_are_named(difference: str) -> None:
    def parameters(rank: int) -> list[Tensor]:
        weights = [nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(4))]
        if rank == 1 and difference == "shape":
            weights[1] = nn.Parameter(torch.ones(5))
        if rank == 1 and difference == "order":
            weights.reverse()
        if rank == 1 and difference == "layout":
            weights[0] = nn.Parameter(torch.ones(3, 2).t())
        return weights

    def on_rank(communicator: Communicator) -> None:
        most = 4 if communicator.rank == 1 and difference == "buckets" else 400
        Reducer(parameters(communicator.rank), communicator, settings(), bucket_bytes=most)

    with pytest.raises(RunError, match=r"rank 1 on b trains 2 parameters.*same code and the same recipe"):
        run_threads(on_rank, "abc")
