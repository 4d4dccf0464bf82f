"""What the reducer tells about an update: when buckets passed their stages, and how many bytes were sent."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
import torch
from reduction import settings
from thread_ranks import run_threads
from torch import Tensor, nn

from hpcai500.comm.communicator import Communicator
from hpcai500.comm.reducer import Reducer
from hpcai500.comm.timeline import BucketSpan, StepSpan

LATE_SECONDS = 0.2


class Sink:
    def __init__(self) -> None:
        self.spans: list[BucketSpan] = []

    def bucket(self, span: BucketSpan) -> None:
        self.spans.append(span)

    def step(self, span: StepSpan) -> None:
        raise AssertionError("the engine tells of steps")


def late(gradient: Tensor) -> None:
    time.sleep(LATE_SECONDS)


def spans_of_rank(communicator: Communicator) -> tuple[list[BucketSpan], float, tuple[float, float]]:
    """Four weights, a bucket each; on rank 1 the gradient of the second bucket is late, and weight 0 is not used."""
    weights = nn.ParameterList(torch.ones(1000) for _ in range(4))
    sink = Sink()
    reducer = Reducer(weights, communicator, settings(compression="fp16"), bucket_bytes=4000, sink=sink)
    start = time.perf_counter()
    reducer.begin(17)
    middle = weights[2] * 1.0
    if communicator.rank:
        middle.register_hook(late)
    loss = (0.0 if communicator.rank else weights[0].sum()) + weights[1].sum() + middle.sum() + weights[3].sum()
    reducer.backward_begins()
    loss.backward()
    reducer.finish([])
    return sink.spans, reducer.waited_seconds, (start, time.perf_counter())


def test_each_bucket_passes_its_stages_in_order() -> None:
    for spans, _, (start, end) in run_threads(spans_of_rank, ("a", "b")):
        assert [(span.step, span.bucket, span.gradient_bytes) for span in spans] == [(17, n, 4000) for n in range(4)]
        for span in spans:
            stages = (span.first_ready, span.last_ready, span.copy_start, span.sent, span.received, span.done)
            assert start <= span.backward_start <= span.first_ready
            assert all(one <= other for one, other in pairwise(stages))
            assert span.done <= end
            # A ring of two, fp16.
            assert span.sent_bytes == 2000
        # Three channels: bucket 3 follows bucket 0.
        assert spans[0].done <= spans[3].copy_start


def test_spans_tell_a_late_gradient_from_a_late_rank() -> None:
    (early, early_wait, _), (late, late_wait, _) = run_threads(spans_of_rank, ("a", "b"))
    assert late[1].first_ready - late[0].first_ready >= LATE_SECONDS
    assert late[1].received - late[1].sent < LATE_SECONDS
    # The early rank was ready and waited for the other one in the sum; and so after its backward pass.
    assert early[1].first_ready - early[0].first_ready < LATE_SECONDS / 2
    assert early[1].received - early[1].sent > LATE_SECONDS / 2
    assert early_wait > LATE_SECONDS / 2 > late_wait


def test_bytes_of_an_update_are_those_of_its_buckets() -> None:
    def on_rank(communicator: Communicator) -> tuple[int, int, int, int]:
        weights = nn.ParameterList([torch.ones(1000), torch.ones(24)])
        sink = Sink()
        reducer = Reducer(weights, communicator, settings(topology="parameter-server"), bucket_bytes=4000, sink=sink)
        reducer.begin(0)
        sum(weight.sum() for weight in weights).backward()
        reducer.finish([])
        assert reducer.gradient_bytes == sum(span.gradient_bytes for span in sink.spans) == 4096
        assert reducer.sent_bytes == sum(span.sent_bytes for span in sink.spans)
        return reducer.sent_bytes, reducer.sent_between_nodes

    # Rank 0 serves the bucket of 96 bytes, rank 1 that of 4000; two ranks share host a.
    assert run_threads(on_rank, "aab") == [(2 * 96 + 4000, 96), (96 + 2 * 4000, 4000), (4096, 4096)]


def test_a_sink_that_fails_is_heard_of() -> None:
    class Failing(Sink):
        def bucket(self, span: BucketSpan) -> None:
            raise OSError("disk full")

    def on_rank(communicator: Communicator) -> None:
        weights = nn.ParameterList([torch.ones(3)])
        reducer = Reducer(weights, communicator, settings(), bucket_bytes=4000, sink=Failing())
        reducer.begin(0)
        weights[0].sum().backward()
        with pytest.raises(OSError, match="disk full"):
            reducer.finish([])
        reducer.close()

    run_threads(on_rank, "ab")
