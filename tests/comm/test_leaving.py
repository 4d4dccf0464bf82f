"""Who has left a job has no thread of the library any more: one that frees a tensor at Python's end aborts the rank."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from many_ranks import run_ranks
from threads_at_exit import ThreadsAtExit

from hpcai500.comm.torch_backend import TorchCommunicator

KEPT: list[object] = []


@pytest.fixture
def at_exit(tmp_path: Path) -> ThreadsAtExit:
    return ThreadsAtExit(tmp_path / "at-exit")


def sum_in_groups(communicator: TorchCommunicator) -> None:
    part = communicator.split([[0, 1]])
    groups = [communicator, part, part.group([0, 1])]
    # Whoever holds a communicator does not hold its threads.
    KEPT.extend(groups)
    for group in groups:
        assert group
        group.all_reduce(torch.ones(1))


def test_the_threads_of_all_groups_end_with_the_job(at_exit: ThreadsAtExit) -> None:
    run_ranks(sum_in_groups, 2, environment=at_exit.environment)
    assert at_exit.counts == [0, 0]


def hold_a_group(communicator: TorchCommunicator) -> None:
    communicator.all_reduce(torch.ones(1))
    KEPT.append(communicator.process_group)


def test_the_threads_of_a_group_that_is_held_are_seen_here(at_exit: ThreadsAtExit) -> None:
    run_ranks(hold_a_group, 2, environment=at_exit.environment)
    assert min(at_exit.counts) > 0


def sum_after_closing(communicator: TorchCommunicator) -> str:
    part = communicator.group([0, 1])
    assert part
    part.close()
    with pytest.raises(AssertionError, match="all-reduce on a communicator that was closed") as caught:
        part.all_reduce(torch.ones(1))
    return caught.type.__name__


def test_what_was_closed_does_not_speak_for_the_whole_job() -> None:
    assert run_ranks(sum_after_closing, 2) == ["AssertionError"] * 2
