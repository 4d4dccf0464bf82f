"""The reducer: averages over ranks in the situations that break such things, its spans, its failures, its threads."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reduction import COMPRESSIONS, settings
from thread_ranks import ThreadCommunicator, run_threads
from torch import Tensor, nn

from hpcai500.comm import reducer as module
from hpcai500.comm.communicator import Communicator
from hpcai500.comm.reducer import ExchangeThreads, Readiness, Reducer, make_buckets, trained
from hpcai500.comm.timeline import BucketSpan, StepSpan
from hpcai500.errors import RunError, UsageError

TWO = "ab"
ALL_IN_ONE = 2**20
EACH_ALONE = 4
BOTH_SIZES = pytest.mark.parametrize("bucket_bytes", [EACH_ALONE, ALL_IN_ONE], ids=["each alone", "all in one"])


class Rank:
    """One rank's weights and their reducer; what is done with them is up to the test."""

    def __init__(self, communicator: Communicator, *shapes: Sequence[int], sink: Any = None, **changes: Any) -> None:
        self.communicator, self.number = communicator, communicator.rank
        size = changes.pop("bucket_bytes", EACH_ALONE)
        self.weights = nn.ParameterList(
            torch.arange(1.0, 1 + torch.Size(shape).numel()).view(*shape) for shape in shapes
        )
        self.reducer = Reducer(self.weights, communicator, settings(**changes), bucket_bytes=size, sink=sink)

    @contextmanager
    def update(self, number: int = 0) -> Iterator[None]:
        """Backward passes inside are those of one update."""
        self.reducer.begin(number)
        yield
        self.reducer.finish([])

    @property
    def found(self) -> list[float | None]:
        """Of each weight, the one value of its gradient's elements."""
        return [None if weight.grad is None else weight.grad.unique().item() for weight in self.weights]


# ----------------------------------------------------------------------------------------------------
# Averages.


Loss = Callable[[nn.ParameterList, int], Tensor]


def backwards(weights: nn.ParameterList, rank: int) -> Tensor:
    """Autograd visits first what was computed last: in another order on each rank."""
    total = torch.zeros(())
    for place in [0, 1, 2, 3] if rank else [3, 1, 0, 2]:
        total = total + (place + 1) * (weights[place] * (1 + rank)).sum()
    return total


@BOTH_SIZES
@pytest.mark.parametrize(
    ("loss", "hosts", "average"),
    [
        (
            lambda weights, rank: sum(10.0**rank * (place + 1) * one.sum() for place, one in enumerate(weights)),
            "abc",
            [37.0, 74.0, 111.0, 148.0],
        ),
        (lambda weights, rank: weights[0].sum(), "ab", [1.0, None, None, None]),
        # Averaged with zeros; each rank lacks gradients in other buckets, and others are ready out of order.
        (lambda weights, rank: weights[0].sum() + 6 * weights[rank].sum(), "abc", [3.0, 2.0, 2.0, None]),
        (backwards, "ab", [1.5, 3.0, 4.5, 6.0]),
    ],
    ids=["all are used", "no rank used three", "some ranks used some", "ready in different orders"],
)
def test_gradients_become_the_average_over_ranks(
    loss: Loss, hosts: str, average: list[float | None], bucket_bytes: int
) -> None:
    def on_rank(communicator: Communicator) -> list[float | None]:
        rank = Rank(communicator, (2, 3), (3,), (1,), (5,), bucket_bytes=bucket_bytes)
        with rank.update():
            loss(rank.weights, rank.number).backward()
        rank.reducer.close()
        return rank.found

    assert run_threads(on_rank, hosts) == [pytest.approx(average)] * len(hosts)


def test_buckets_have_as_many_tensors_as_the_oldest_driver_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    takes = iter([3, 2])
    monkeypatch.setattr(module.kernels, "most_tensors", lambda device: next(takes))

    def on_rank(communicator: Communicator) -> tuple[list[int], list[float | None]]:
        rank = Rank(communicator, (2,), (3,), (1,), (5,), (4,), bucket_bytes=ALL_IN_ONE)
        with rank.update():
            sum(10.0**rank.number * weight.sum() for weight in rank.weights).backward()
        rank.reducer.set_bucket_bytes(ALL_IN_ONE)
        rank.reducer.close()
        return [len(bucket.members) for bucket in rank.reducer.buckets], rank.found

    assert run_threads(on_rank, TWO) == [([2, 2, 1], [5.5] * 5)] * 2


def test_what_a_rank_did_not_use_is_not_averaged_from_an_earlier_step() -> None:
    def on_rank(communicator: Communicator) -> list[float | None]:
        rank = Rank(communicator, (2,), (3,))
        with rank.update():
            for weight in rank.weights:
                weight.grad = torch.full_like(weight, 100.0)
            if rank.number == 0:
                rank.weights[0].grad = None
                (8 * rank.weights[0].sum()).backward()
        return rank.found

    assert run_threads(on_rank, TWO) == [[4.0, 100.0]] * 2


def test_shared_parameters_are_averaged_once() -> None:
    def on_rank(communicator: Communicator) -> Tensor | None:
        embedding = nn.Linear(3, 3, bias=False)
        nn.init.ones_(embedding.weight)
        model = nn.Sequential(embedding, nn.ReLU(), embedding)
        reducer = Reducer([*model.parameters(), embedding.weight], communicator, settings(), bucket_bytes=EACH_ALONE)
        assert reducer.gradient_bytes == 9 * 4
        reducer.begin(0)
        model(torch.full((1, 3), 1.0 + communicator.rank)).sum().backward()
        reducer.finish([])
        return embedding.weight.grad

    # d/dW of sum(W W x) at W = 1, x = c: 3 c from the outer use and 3 c from the inner one.
    for gradient in run_threads(on_rank, TWO):
        assert torch.equal(gradient, torch.full((3, 3), 9.0))


def test_accumulated_passes_leave_as_one_sum() -> None:
    def on_rank(communicator: Communicator) -> list[float | None]:
        rank = Rank(communicator, (2,), (3,), (1,))
        first, second, third = rank.weights
        with rank.update():
            with rank.reducer.accumulate():
                # The first is used in this pass only, the third in the other one only.
                ((1 + 2 * rank.number) * first.sum() + 2 * second.sum()).backward()
                (second.sum() * rank.number).backward()
            (second.sum() + 4 * third.sum()).backward()
        return rank.found

    assert run_threads(on_rank, TWO) == [[2.0, 3.5, 4.0]] * 2


def test_a_second_backward_pass_that_would_be_lost_is_an_error() -> None:
    def on_rank(communicator: Communicator) -> None:
        rank = Rank(communicator, (2,))
        with rank.update():
            rank.weights[0].sum().backward()
            rank.weights[0].sum().backward()

    with pytest.raises(RunError, match=r"parameter 0 \[2\] arrived twice.*inside Reducer.accumulate"):
        run_threads(on_rank, TWO)


@pytest.mark.filterwarnings("ignore:grad and param do not obey the gradient layout contract")
def test_gradients_that_lie_differently_in_memory_are_averaged_element_by_element() -> None:
    def on_rank(communicator: Communicator) -> Tensor | None:
        rank = Rank(communicator, (3, 4))
        weight = rank.weights[0]
        with rank.update():
            if rank.number:
                # Autograd adds to it in place: the gradient lies by columns here, by rows on the other rank.
                weight.grad = torch.zeros(4, 3).t()
            (weight * torch.arange(12.0).view(3, 4) * (rank.number + 1)).sum().backward()
        return weight.grad

    for gradient in run_threads(on_rank, TWO):
        assert torch.equal(gradient, torch.arange(12.0).view(3, 4) * 1.5)


@pytest.mark.parametrize("compression", ["none", "fp16"])
def test_channels_last_weights_are_averaged_where_they_lie(compression: str) -> None:
    def on_rank(communicator: Communicator) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        convolution = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(communicator.rank))
        images = images.contiguous(memory_format=torch.channels_last)
        (own,) = torch.autograd.grad(convolution(images).square().sum(), convolution.weight)
        table = settings(compression=compression)
        reducer = Reducer(convolution.parameters(), communicator, table, bucket_bytes=ALL_IN_ONE)
        reducer.begin(0)
        convolution(images).square().sum().backward()
        reducer.finish([])
        gradient = convolution.weight.grad
        assert gradient.is_contiguous(memory_format=torch.channels_last)
        return own, gradient

    results = run_threads(on_rank, TWO)
    average = (results[0][0] + results[1][0]) / 2
    for _, gradient in results:
        torch.testing.assert_close(gradient, average, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("to_none", [True, False])
def test_updates_follow_each_other(to_none: bool) -> None:
    def on_rank(communicator: Communicator) -> list[float]:
        rank = Rank(communicator, (2,), (3,))
        optimizer = torch.optim.SGD(rank.weights, lr=1.0)
        found = []
        for number in range(5):
            optimizer.zero_grad(set_to_none=to_none)
            with rank.update(number):
                (rank.weights[0].sum() * number * (1 + rank.number)).backward()
            found.append(rank.found[0])
            assert rank.weights[1].grad is None
        return found

    assert run_threads(on_rank, TWO) == [[0.0, 1.5, 3.0, 4.5, 6.0]] * 2


def test_other_buckets_may_be_chosen_between_updates() -> None:
    def on_rank(communicator: Communicator) -> list[int]:
        rank = Rank(communicator, (2,), (3,), (4,))
        counts = []
        for bucket_bytes in (EACH_ALONE, 20, ALL_IN_ONE):
            rank.reducer.set_bucket_bytes(bucket_bytes)
            counts.append(len(rank.reducer.buckets))
            for weight in rank.weights:
                weight.grad = None
            with rank.update():
                (sum(weight.sum() for weight in rank.weights) * (1 + rank.number)).backward()
            assert rank.found == [1.5] * 3
        return counts

    assert run_threads(on_rank, TWO) == [[3, 2, 1]] * 2


def test_the_callers_numbers_are_summed_in_float64() -> None:
    def on_rank(communicator: Communicator) -> list[float]:
        rank = Rank(communicator, (2,), compression="fp16")
        rank.reducer.begin(0)
        rank.weights[0].sum().backward()
        return rank.reducer.finish([1.0, 2.0**40 + rank.number, 0.1])

    assert run_threads(on_rank, "abc") == [[3.0, 3 * 2.0**40 + 3, pytest.approx(0.3, rel=1e-15)]] * 3


def test_backward_passes_outside_an_update_are_the_ranks_own() -> None:
    def on_rank(communicator: Communicator) -> tuple[float, float]:
        rank = Rank(communicator, (2,))
        weight = rank.weights[0]
        for _ in range(0 if rank.number else 3):
            weight.sum().backward()
        own = 0.0 if weight.grad is None else float(weight.grad[0])
        weight.grad = None
        with rank.update():
            weight.sum().backward()
        rank.reducer.close()
        (5 * weight.sum()).backward()
        return own, float(weight.grad[0])

    assert run_threads(on_rank, TWO) == [(3.0, 6.0), (0.0, 6.0)]


def test_buckets_leave_while_the_backward_pass_still_runs() -> None:
    def on_rank(communicator: Communicator) -> bool:
        summed = threading.Event()

        class Noticing(ThreadCommunicator):
            def all_reduce(self, tensor: Tensor) -> None:
                super().all_reduce(tensor)
                summed.set()

        assert isinstance(communicator, ThreadCommunicator)
        communicator.group_type = Noticing
        rank = Rank(communicator, (2,), (3,))
        waited: list[bool] = []
        with rank.update():
            first = rank.weights[0] * 1.0
            # The gradient of weight 0 is only computed when that of weight 1 has been summed over ranks.
            first.register_hook(lambda gradient: waited.append(summed.wait(60)))
            (first.sum() + (rank.weights[1] * 2.0).sum()).backward()
        return waited == [True]

    assert run_threads(on_rank, TWO) == [True, True]


def test_the_training_thread_may_have_collectives_of_its_own_meanwhile() -> None:
    def on_rank(communicator: Communicator) -> list[float]:
        rank = Rank(communicator, (2,), (3,), (4,))
        totals = []

        def in_backward(gradient: Tensor) -> None:
            mine = gradient.sum().view(1)
            communicator.all_reduce(mine)
            totals.append(float(mine))

        for number in range(10):
            with rank.update(number):
                total = torch.zeros(1)
                for weight in rank.weights:
                    middle = weight * (1.0 + rank.number)
                    middle.register_hook(in_backward)
                    total = total + middle.sum()
                total.sum().backward()
        return sorted(set(totals))

    assert run_threads(on_rank, TWO) == [[4.0, 6.0, 8.0]] * 2


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_loss_scaler_skips_the_same_step_on_all_ranks(compression: str) -> None:
    def on_rank(communicator: Communicator) -> list[tuple[float, float]]:
        rank = Rank(communicator, (2,), (300,), compression=compression, error_feedback=compression != "none")
        optimizer = torch.optim.SGD(rank.weights, lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        found = []
        for number in range(3):
            optimizer.zero_grad()
            with rank.update(number):
                factor = float("inf") if number == rank.number == 1 else 1.0
                scaler.scale(rank.weights[0].sum() + factor * rank.weights[1].sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            found.append((rank.weights[1][7].item(), scaler.get_scale()))
        return found

    # The weight begins at 8 and goes down by 1, but for the step in between.
    steps = [(pytest.approx(7), 16.0), (pytest.approx(7), 8.0), (pytest.approx(6), 8.0)]
    assert run_threads(on_rank, TWO) == [steps] * 2


@BOTH_SIZES
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("feedback", [False, True])
def test_each_rank_knows_the_norm_of_its_own_gradients(compression: str, feedback: bool, bucket_bytes: int) -> None:
    """One that is no number on rank 1 makes no other rank's so, though all averages are; and not the next update's."""

    def on_rank(communicator: Communicator) -> list[float]:
        changes = {"compression": compression, "error_feedback": feedback and compression != "none"}
        rank = Rank(communicator, (2,), (300,), bucket_bytes=bucket_bytes, **changes)
        found = []
        for number in range(3):
            for weight in rank.weights:
                weight.grad = None
            with rank.update(number):
                factor = float("nan") if number == rank.number == 1 else 1.0 + rank.number
                (rank.weights[0].sum() + factor * rank.weights[1].sum()).backward()
            assert bool(rank.weights[1].grad.isfinite().all()) == (number != 1)
            found.append(float(rank.reducer.own_norm))
        rank.reducer.close()
        return found

    one, two = 2**0.5 + 300**0.5, 2**0.5 + 2 * 300**0.5
    expected = [[one, one, one], [two, float("nan"), two]]
    assert run_threads(on_rank, TWO) == [pytest.approx(norms, nan_ok=True) for norms in expected]


# ----------------------------------------------------------------------------------------------------
# Which gradients travel together, and in which order they may leave.


SIZES = st.lists(st.integers(1, 400), max_size=60)
BYTES = st.integers(4, 2000)


@given(SIZES, BYTES, st.none() | st.integers(1, 10))
def test_every_parameter_is_in_one_bucket_in_reverse_order_and_buckets_are_as_full_as_they_may_be(
    sizes: list[int], most: int, tensors: int | None
) -> None:
    buckets = make_buckets(sizes, most, tensors)
    assert [index for bucket in buckets for index in bucket.members] == list(range(len(sizes)))[::-1]
    assert [bucket.number for bucket in buckets] == list(range(len(buckets)))
    assert all(bucket.elements == sum(sizes[index] for index in bucket.members) for bucket in buckets)
    # A parameter that is larger than a bucket travels alone.
    assert all(bucket.gradient_bytes <= most or len(bucket.members) == 1 for bucket in buckets)
    assert tensors is None or all(len(bucket.members) <= tensors for bucket in buckets)
    assert all(
        len(one.members) == tensors or one.gradient_bytes + 4 * sizes[other.members[0]] > most
        for one, other in pairwise(buckets)
    )


@given(SIZES, BYTES, st.randoms(use_true_random=False), st.data())
def test_whatever_the_order_of_arrival_buckets_leave_in_order_and_once(
    sizes: list[int], most: int, order: random.Random, data: st.DataObject
) -> None:
    buckets = make_buckets(sizes, most)
    readiness = Readiness(buckets)
    arrivals = list(range(len(sizes)))
    order.shuffle(arrivals)
    arrivals = arrivals[: data.draw(st.integers(0, len(sizes)))]
    left, arrived = [], set()
    for index in arrivals:
        assert readiness.awaits(index)
        leaving = readiness.arrive(index)
        arrived.add(index)
        assert not readiness.awaits(index)
        left += leaving
        # Neither before it is complete, nor later than it could.
        assert all(arrived.issuperset(bucket.members) for bucket in left)
        assert left == buckets or not arrived.issuperset(buckets[len(left)].members)
    assert left + readiness.rest() == buckets
    assert readiness.rest() == []


def test_shared_parameters_count_once_frozen_and_empty_ones_not_at_all() -> None:
    shared, frozen = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2), requires_grad=False)
    last = nn.Parameter(torch.ones(4))
    found = trained([shared, frozen, nn.Parameter(torch.ones(0)), shared, last])
    assert [id(parameter) for parameter in found] == [id(shared), id(last)]


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (
            [nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(2, dtype=torch.float16))],
            r"parameter 1 \[2\] is torch.float16.*keep weights in float32",
        ),
        ([nn.Parameter(torch.ones(1), requires_grad=False)], "no parameter is trained"),
    ],
)
def test_a_model_that_cannot_be_reduced_is_refused(weights: list[Tensor], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        trained(weights)


# ----------------------------------------------------------------------------------------------------
# What the reducer tells about an update: when buckets passed their stages, and how many bytes were sent.


LATE_SECONDS = 0.2


class Sink:
    def __init__(self) -> None:
        self.spans: list[BucketSpan] = []

    def bucket(self, span: BucketSpan) -> None:
        self.spans.append(span)

    def step(self, span: StepSpan) -> None:
        raise AssertionError("the engine tells of steps")


def test_spans_tell_the_stages_of_each_bucket_in_order_and_a_late_gradient_from_a_late_rank() -> None:
    """Four weights, a bucket each; on rank 1 the gradient of the second bucket is late, and weight 0 is not used."""
    early_has_ended = threading.Event()

    def on_rank(communicator: Communicator) -> tuple[list[BucketSpan], float]:
        sink = Sink()
        rank = Rank(communicator, *[(1000,)] * 4, sink=sink, compression="fp16", bucket_bytes=4000)
        first, second, third, fourth = rank.weights
        start = time.perf_counter()
        with rank.update(17):
            middle = third * 1.0
            if rank.number:
                middle.register_hook(lambda gradient: (early_has_ended.wait(60), time.sleep(LATE_SECONDS))[1])
            loss = (0.0 if rank.number else first.sum()) + second.sum() + middle.sum() + fourth.sum()
            rank.reducer.backward_begins()
            loss.backward()
            if rank.number == 0:
                early_has_ended.set()
        assert [(one.step, one.bucket, one.gradient_bytes) for one in sink.spans] == [(17, n, 4000) for n in range(4)]
        for span in sink.spans:
            stages = (span.first_ready, span.last_ready, span.copy_start, span.sent, span.received, span.done)
            assert start <= span.backward_start <= span.first_ready
            assert all(one <= other for one, other in pairwise(stages))
            assert span.done <= time.perf_counter()
            # A ring of two, fp16.
            assert span.sent_bytes == 2000
        # Three channels: bucket 3 follows bucket 0.
        assert sink.spans[0].done <= sink.spans[3].copy_start
        return sink.spans, rank.reducer.waited_seconds

    (early, waited), (late, late_waited) = run_threads(on_rank, TWO)
    assert late[1].first_ready - late[0].first_ready >= LATE_SECONDS
    # The early rank was ready and waited for the other one in the sum; and so after its backward pass.
    assert late[1].first_ready - early[1].first_ready >= LATE_SECONDS
    assert early[1].received - early[1].sent > LATE_SECONDS / 2
    assert late[1].received - late[1].sent < early[1].received - early[1].sent
    assert waited > LATE_SECONDS / 2
    assert late_waited < waited


def test_bytes_of_an_update_are_those_of_its_buckets() -> None:
    def on_rank(communicator: Communicator) -> tuple[int, int]:
        sink = Sink()
        rank = Rank(communicator, (1000,), (24,), sink=sink, topology="parameter-server", bucket_bytes=4000)
        with rank.update():
            sum(weight.sum() for weight in rank.weights).backward()
        reducer = rank.reducer
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
        rank = Rank(communicator, (3,), sink=Failing())
        with pytest.raises(OSError, match="disk full"), rank.update():
            rank.weights[0].sum().backward()
        rank.reducer.close()

    run_threads(on_rank, TWO)


# ----------------------------------------------------------------------------------------------------
# A rank that is gone, ranks that do not fit together, and the threads that the exchange leaves behind or not.


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
    together = threading.Barrier(3, timeout=60)

    def on_rank(communicator: Communicator) -> None:
        rank = Rank(mortal(communicator), (3,), (4,))
        together.wait()
        with rank.update():
            (rank.weights[0].sum() + rank.weights[1].sum()).backward()
        together.wait()
        if rank.number == 1:
            mortal(communicator).break_off()
        else:
            for step in (1, 2):
                with pytest.raises(RunError, match="connection reset by peer"), rank.update(step):
                    (rank.weights[0].sum() + rank.weights[1].sum()).backward()
        rank.reducer.close()

    run_threads(on_rank, "abc")


def test_closing_does_not_wait_for_a_rank_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GOODBYE_SECONDS", 0.05)
    closed = threading.Event()

    def on_rank(communicator: Communicator) -> bool:
        rank = Rank(mortal(communicator), (3,))
        if rank.number == 1:
            return closed.wait(60)
        rank.reducer.begin(0)
        rank.weights[0].sum().backward()
        rank.reducer.close()
        closed.set()
        mortal(communicator).break_off()
        return True

    assert run_threads(on_rank, TWO) == [True, True]


def test_closing_leaves_nothing_behind() -> None:
    def on_rank(communicator: Communicator) -> None:
        made: list[ThreadCommunicator] = []

        class Listed(ThreadCommunicator):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                self.group_type = Listed
                made.append(self)

        assert isinstance(communicator, ThreadCommunicator)
        communicator.group_type = Listed
        rank = Rank(communicator, (3,), topology="torus", torus_columns=2)
        threads = rank.reducer._threads._threads
        assert all(thread.is_alive() for thread in threads)
        rank.reducer.close()
        # For each of three channels: all ranks, a row, a column.
        assert [(group.size, group.closed) for group in made] == [(4, True), (2, True), (2, True)] * 3
        assert not communicator.closed
        communicator.barrier()
        assert not any(thread.is_alive() for thread in threads)
        assert not rank.weights[0]._post_accumulate_grad_hooks

    run_threads(on_rank, "abcd")


@pytest.mark.parametrize("difference", ["shape", "order", "layout", "buckets"])
def test_ranks_with_other_parameters_are_named(difference: str) -> None:
    usual = [torch.ones(2, 3), torch.ones(4)]
    odd = {"shape": [usual[0], torch.ones(5)], "order": usual[::-1], "layout": [torch.ones(3, 2).t(), usual[1]]}

    def on_rank(communicator: Communicator) -> None:
        weights = odd.get(difference, usual) if communicator.rank == 1 else usual
        most = 4 if communicator.rank == 1 and difference == "buckets" else 400
        Reducer([nn.Parameter(weight) for weight in weights], communicator, settings(), bucket_bytes=most)

    with pytest.raises(RunError, match=r"rank 1 on b trains 2 parameters.*same code and the same recipe"):
        run_threads(on_rank, "abc")


def test_each_exchange_thread_does_its_jobs_in_order_beside_the_others() -> None:
    done: list[tuple[int, str]] = []
    threads, meeting = ExchangeThreads(2), threading.Barrier(2, timeout=60)
    for number in range(100):
        threads.submit(number % 2, lambda number=number: done.append((number, threading.current_thread().name)))
    for turn in range(2):
        threads.submit(turn, meeting.wait)
    threads.wait()
    for turn in range(2):
        mine = [(number, name) for number, name in done if number % 2 == turn]
        assert mine == [(number, f"hpcai500-exchange-{turn}") for number in range(turn, 100, 2)]
    assert threads.close()


def test_waiting_is_for_all_exchange_threads() -> None:
    done: list[int] = []
    threads = ExchangeThreads(3)
    for _ in range(3):
        threads.submit(1, lambda: (time.sleep(0.02), done.append(1)))
        threads.wait()
    assert done == [1, 1, 1]
    assert threads.close()


def test_the_first_error_is_told_to_whoever_waits_and_nothing_is_done_after_it() -> None:
    done: list[int] = []
    threads = ExchangeThreads(1)

    def fail() -> None:
        raise ValueError("first")

    for job in (lambda: done.append(1), fail, lambda: done.append(2), fail):
        threads.submit(0, job)
    for _ in range(2):
        with pytest.raises(ValueError, match="first"):
            threads.wait()
    assert done == [1]
    assert threads.close()


def test_an_error_is_told_although_other_threads_wait_for_ever_and_closing_waits_for_all_of_them_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_GOODBYE_SECONDS", 1.0)
    release, count = threading.Event(), 100
    threads = ExchangeThreads(count)

    def fail() -> None:
        raise ValueError("gone")

    for number in range(1, count):
        threads.submit(number, release.wait)
    threads.submit(0, fail)
    with pytest.raises(ValueError, match="gone"):
        threads.wait()
    start = time.monotonic()
    assert not threads.close()
    assert time.monotonic() - start < count / 2
    release.set()
    assert threads.close()
