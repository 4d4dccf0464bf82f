"""Which marks a bucket waits for, where gradients come on several streams: as with captured parts of a model."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from reduction import settings
from torch import Tensor

from hpcai500.comm.communicator import LocalCommunicator
from hpcai500.comm.reducer import AllReduceChannel, ExchangeStream, GradientUpdate, make_buckets

COMPUTING, CAPTURING = "computing", "capturing"


@dataclass
class FakeStream:
    """Stands in for a device's stream, which cannot exist here: writes down marks, as (queue, moment), and waits."""

    current: str = COMPUTING
    moment: int = 0
    waited_for: list[tuple[Any, ...]] = field(default_factory=list)

    def queue(self) -> Hashable:
        return self.current

    def mark(self, queue: Hashable | None = None) -> tuple[Hashable, int]:
        self.moment += 1
        return queue or self.current, self.moment

    @contextmanager
    def after(self, *marks: Any) -> Iterator[None]:
        self.waited_for.append(marks)
        yield

    def let_go(self, tensors: Sequence[Tensor]) -> None:
        """Nothing is freed here."""

    def settle(self) -> None:
        """Nothing runs here."""

    def seconds(self, mark: tuple[Hashable, int]) -> float:
        return float(mark[1])


def update_of(stream: Any, parameters: int, in_each_bucket: int) -> tuple[GradientUpdate, list[Tensor]]:
    weights = [torch.ones(8) for _ in range(parameters)]
    for number, weight in enumerate(weights):
        weight.grad = torch.full((8,), float(number))
    return GradientUpdate(3, weights, make_buckets([8] * parameters, 32 * in_each_bucket), stream), weights


def arrive(update: GradientUpdate, stream: FakeStream, queues: Sequence[str]) -> None:
    """Gradients from the last parameter to the first: one on each of these queues."""
    for index, queue in zip(reversed(range(len(queues))), queues, strict=True):
        stream.current = queue
        update.arrive(index, leaving=True)
    stream.current = COMPUTING


def exchanged(update: GradientUpdate, stream: FakeStream, buckets: int, weights: Sequence[Tensor]) -> None:
    cpu = torch.device("cpu")
    channel = AllReduceChannel(LocalCommunicator(), settings(), stream, None, device=cpu, threads=1)
    for bucket in make_buckets([8] * len(weights), 32 * len(weights) // buckets):
        channel.average(update, bucket)


@pytest.mark.parametrize(
    "queues",
    [(CAPTURING, COMPUTING, COMPUTING), (COMPUTING, CAPTURING, COMPUTING), (COMPUTING, COMPUTING, CAPTURING)],
)
def test_a_bucket_waits_for_every_stream_that_its_gradients_came_on(queues: tuple[str, ...]) -> None:
    stream = FakeStream()
    update, weights = update_of(stream, 3, in_each_bucket=3)
    arrive(update, stream, queues)
    before = stream.moment
    exchanged(update, stream, 1, weights)
    (marks,) = stream.waited_for
    assert {queue for queue, _ in marks} == {COMPUTING, CAPTURING}
    # Behind all of its gradients: these marks are the last ones before the exchange.
    assert {moment for _, moment in marks} == {before - 1, before}


def test_a_bucket_whose_gradients_came_on_one_stream_waits_for_that_one_alone() -> None:
    stream = FakeStream()
    update, weights = update_of(stream, 4, in_each_bucket=2)
    arrive(update, stream, (COMPUTING, COMPUTING, CAPTURING, CAPTURING))
    exchanged(update, stream, 2, weights)
    assert [[queue for queue, _ in marks] for marks in stream.waited_for] == [[COMPUTING], [CAPTURING]]


def test_a_bucket_that_misses_gradients_waits_for_the_end_of_the_backward_pass() -> None:
    """There, autograd has made the computation wait for all streams that gradients came on."""
    stream = FakeStream()
    update, weights = update_of(stream, 3, in_each_bucket=3)
    stream.current = CAPTURING
    update.arrive(2, leaving=True)
    stream.current = COMPUTING
    update.end()
    exchanged(update, stream, 1, weights)
    assert stream.waited_for == [(update.backward_end,)]


def test_the_timeline_has_a_bucket_ready_when_the_last_of_its_streams_was() -> None:
    stream = FakeStream()
    update, weights = update_of(stream, 3, in_each_bucket=3)
    arrive(update, stream, (COMPUTING, CAPTURING, COMPUTING))
    bucket = make_buckets([8] * 3, 96)[0]
    exchanged(update, stream, 1, weights)
    span = update.span(bucket, sent_bytes=0)
    ready = [moment for _, moment in update.last_ready[0]]
    assert span.last_ready == max(ready)
    assert span.backward_start < span.first_ready < min(ready)
    assert span.last_ready < span.copy_start < span.sent < span.received < span.done


def test_on_the_host_there_is_one_queue() -> None:
    stream = ExchangeStream()
    update, _ = update_of(stream, 2, in_each_bucket=2)
    update.arrive(1, leaving=True)
    update.arrive(0, leaving=True)
    assert len(update.last_ready[0]) == 1
