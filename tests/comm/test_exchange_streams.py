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
from hpcai500.comm.reducer import AllReduceChannel, ExchangeStream, GradientUpdate, make_buckets, make_exchange_stream

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


class Update:
    """An update of parameters of 8 elements, in so many buckets, whose gradients come on these queues, last first.

    Their buckets leave as soon as they are complete, or (not `leaving`) after the pass.
    """

    def __init__(self, stream: Any, queues: Sequence[str | None], buckets: int = 1, *, leaving: bool = True) -> None:
        self.stream, count = stream, len(queues)
        weights = [torch.ones(8) for _ in queues]
        for number, weight in enumerate(weights):
            weight.grad = torch.full((8,), float(number))
        self.buckets = make_buckets([8] * count, 32 * count // buckets)
        self.update = GradientUpdate(3, weights, self.buckets, stream)
        for index, queue in zip(reversed(range(count)), queues, strict=True):
            if queue:
                stream.current = queue
                self.update.arrive(index, leaving=leaving)
        stream.current = COMPUTING
        if None in queues or not leaving:
            self.update.end()
        self.before = stream.moment if isinstance(stream, FakeStream) else 0

    def exchange(self) -> list[tuple[Any, ...]]:
        """The marks that each bucket waits for."""
        cpu = torch.device("cpu")
        channel = AllReduceChannel(LocalCommunicator(), settings(), self.stream, None, device=cpu, threads=1)
        for bucket in self.buckets:
            channel.average(self.update, bucket)
        return self.stream.waited_for


@pytest.mark.parametrize(
    "queues",
    [(CAPTURING, COMPUTING, COMPUTING), (COMPUTING, CAPTURING, COMPUTING), (COMPUTING, COMPUTING, CAPTURING)],
)
def test_a_bucket_waits_for_every_stream_that_its_gradients_came_on(queues: tuple[str, ...]) -> None:
    update = Update(FakeStream(), queues)
    (marks,) = update.exchange()
    assert {queue for queue, _ in marks} == {COMPUTING, CAPTURING}
    # Behind all of its gradients: these marks are the last ones before the exchange.
    assert {moment for _, moment in marks} == {update.before - 1, update.before}


def test_a_bucket_whose_gradients_came_on_one_stream_waits_for_that_one_alone() -> None:
    update = Update(FakeStream(), (COMPUTING, COMPUTING, CAPTURING, CAPTURING), buckets=2)
    assert [[queue for queue, _ in marks] for marks in update.exchange()] == [[COMPUTING], [CAPTURING]]


def test_a_bucket_that_misses_gradients_waits_for_the_end_of_the_backward_pass() -> None:
    """There, autograd has made the computation wait for all streams that gradients came on."""
    update = Update(FakeStream(), (CAPTURING, None, None))
    assert update.exchange() == [(update.update.backward_end,)]


def test_buckets_that_leave_after_the_pass_wait_for_all_of_it() -> None:
    """Also for collectives of the pass, such as those of batch norm, which need not precede the last gradient."""
    update = Update(FakeStream(), (CAPTURING, COMPUTING), buckets=2, leaving=False)
    assert update.exchange() == [(update.update.backward_end,)] * 2


def test_the_timeline_has_a_bucket_ready_when_the_last_of_its_streams_was() -> None:
    update = Update(FakeStream(), (COMPUTING, CAPTURING, COMPUTING))
    update.exchange()
    span = update.update.span(update.buckets[0], sent_bytes=0)
    ready = [moment for _, moment in update.update.last_ready[0]]
    assert span.last_ready == max(ready)
    assert span.backward_start < span.first_ready < min(ready)
    assert span.last_ready < span.copy_start < span.sent < span.received < span.done


def test_on_the_host_there_is_one_queue() -> None:
    assert len(Update(ExchangeStream(), (COMPUTING, CAPTURING)).update.last_ready[0]) == 1


# ----------------------------------------------------------------------------------------------------
# The stream of a CUDA device: what is put on it comes after all marks, of whatever stream.


ON_A_DEVICE = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(params=[pytest.param("cuda", marks=ON_A_DEVICE)])
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


# Longer than a host needs to put all that follows on its streams.
LONG_CYCLES = 200_000_000


def test_the_exchange_reads_what_two_streams_have_written(device: torch.device) -> None:
    stream, other = make_exchange_stream(device), torch.cuda.Stream(device)
    one, two = torch.zeros(1000, device=device), torch.zeros(1000, device=device)
    torch.cuda.synchronize(device)
    with torch.cuda.stream(other):
        torch.cuda._sleep(LONG_CYCLES)
        one.fill_(1)
        on_other = stream.queue()
    two.fill_(2)
    assert on_other != stream.queue()
    with stream.after(stream.mark(on_other), stream.mark()):
        found = one + two
        stream.settle()
    assert found.tolist() == [3.0] * 1000


def test_a_mark_of_a_queue_is_as_late_as_what_was_given_to_it(device: torch.device) -> None:
    stream, other = make_exchange_stream(device), torch.cuda.Stream(device)
    before = stream.mark()
    with torch.cuda.stream(other):
        queue = stream.queue()
        torch.cuda._sleep(LONG_CYCLES)
    here, there = stream.mark(), stream.mark(queue)
    with stream.after(here, there):
        stream.settle()
    assert stream.seconds(before) <= stream.seconds(here) < stream.seconds(there)
