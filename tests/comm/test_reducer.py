"""The reducer against averages computed by hand, in the situations that break such things."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from reduction import settings
from thread_ranks import ThreadCommunicator, run_threads
from torch import Tensor, nn

from hpcai500.comm.communicator import Communicator
from hpcai500.comm.reducer import Reducer
from hpcai500.errors import RunError

TWO = ("a", "b")
ALL_IN_ONE = 2**20
EACH_ALONE = 4


class Weights(nn.Module):
    """Plain parameters: what is done with them is up to the test."""

    def __init__(self, *shapes: Sequence[int]) -> None:
        super().__init__()
        self.all = nn.ParameterList(torch.arange(1.0, 1 + torch.Size(shape).numel()).view(*shape) for shape in shapes)


Step = Callable[[nn.ParameterList, int], Any]


def reduced(
    step: Step,
    shapes: Sequence[Sequence[int]],
    *,
    hosts: Sequence[str] = TWO,
    bucket_bytes: int = EACH_ALONE,
    **changes: Any,
) -> list[list[Tensor | None]]:
    """Gradients on each rank after an update in which each rank does `step(weights, rank)`."""

    def on_rank(communicator: Communicator) -> list[Tensor | None]:
        weights = Weights(*shapes).all
        reducer = Reducer(weights, communicator, settings(**changes), bucket_bytes=bucket_bytes)
        reducer.begin(0)
        step(weights, communicator.rank)
        reducer.finish([])
        reducer.close()
        return [weight.grad for weight in weights]

    return run_threads(on_rank, hosts)


@pytest.mark.parametrize("bucket_bytes", [EACH_ALONE, ALL_IN_ONE])
def test_gradients_become_the_average_over_ranks(bucket_bytes: int) -> None:
    def step(weights: nn.ParameterList, rank: int) -> None:
        sum((10.0**rank * (place + 1) * weight.sum()) for place, weight in enumerate(weights)).backward()

    for gradients in reduced(step, [(2, 3), (4,), (1,)], hosts="abc", bucket_bytes=bucket_bytes):
        for place, gradient in enumerate(gradients):
            torch.testing.assert_close(gradient, torch.full_like(gradient, (place + 1) * 37.0))


def test_a_parameter_that_no_rank_used_has_no_gradient() -> None:
    for gradients in reduced(lambda weights, rank: weights[0].sum().backward(), [(2,), (3,), (1,)]):
        assert gradients[0] is not None
        assert gradients[1:] == [None, None]


def test_a_parameter_that_some_ranks_used_is_averaged_with_zeros() -> None:
    # Rank r uses weight 0 and weight r: each rank lacks gradients in other buckets, and others are ready out of order.
    def step(weights: nn.ParameterList, rank: int) -> None:
        (weights[0].sum() + 6 * weights[rank].sum()).backward()

    for gradients in reduced(step, [(2,), (3,), (1,), (5,)], hosts="abc"):
        torch.testing.assert_close(gradients[0], torch.full((2,), 3.0))
        torch.testing.assert_close(gradients[1], torch.full((3,), 2.0))
        torch.testing.assert_close(gradients[2], torch.full((1,), 2.0))
        assert gradients[3] is None


def test_what_a_rank_did_not_use_is_not_averaged_from_an_earlier_step() -> None:
    def step(weights: nn.ParameterList, rank: int) -> None:
        for weight in weights:
            weight.grad = torch.full_like(weight, 100.0)
        if rank == 0:
            weights[0].grad = None
            (8 * weights[0].sum()).backward()

    for gradients in reduced(step, [(2,), (3,)]):
        assert torch.equal(gradients[0], torch.full((2,), 4.0))
        assert torch.equal(gradients[1], torch.full((3,), 100.0))


def test_ranks_may_be_ready_in_different_orders() -> None:
    def step(weights: nn.ParameterList, rank: int) -> None:
        # Autograd visits first what was computed last.
        order = [0, 1, 2, 3] if rank else [3, 1, 0, 2]
        total = torch.zeros(())
        for place in order:
            total = total + (place + 1) * (weights[place] * (1 + rank)).sum()
        total.backward()

    for gradients in reduced(step, [(2,), (3,), (1,), (4,)]):
        assert [gradient.unique().tolist() for gradient in gradients] == [[1.5], [3.0], [4.5], [6.0]]


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
    def on_rank(communicator: Communicator) -> tuple[list[Tensor | None], int]:
        weights = Weights((2,), (3,), (1,)).all
        reducer = Reducer(weights, communicator, settings(), bucket_bytes=EACH_ALONE)
        reducer.begin(0)
        with reducer.accumulate():
            # Weight 0 is used in this pass only, weight 2 in the other one only.
            ((1 + 2 * communicator.rank) * weights[0].sum() + 2 * weights[1].sum()).backward()
            (weights[1].sum() * communicator.rank).backward()
        (weights[1].sum() + 4 * weights[2].sum()).backward()
        reducer.finish([])
        return [weight.grad for weight in weights]

    for gradients in run_threads(on_rank, TWO):
        assert [gradient.unique().tolist() for gradient in gradients] == [[2.0], [3.5], [4.0]]


def test_a_second_backward_pass_that_would_be_lost_is_an_error() -> None:
    def step(weights: nn.ParameterList, rank: int) -> None:
        weights[0].sum().backward()
        weights[0].sum().backward()

    with pytest.raises(RunError, match=r"parameter 0 \[2\] came twice.*inside Reducer.accumulate"):
        reduced(step, [(2,)])


@pytest.mark.filterwarnings("ignore:grad and param do not obey the gradient layout contract")
def test_gradients_that_lie_differently_in_memory_are_averaged_element_by_element() -> None:
    def step(weights: nn.ParameterList, rank: int) -> None:
        weight = weights[0]
        if rank:
            # Autograd adds to it in place: the gradient lies by columns here, by rows on the other rank.
            weight.grad = torch.zeros(4, 3).t()
        (weight * torch.arange(12.0).view(3, 4) * (rank + 1)).sum().backward()

    for (gradient,) in reduced(step, [(3, 4)]):
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
        weights = Weights((2,), (3,)).all
        optimizer = torch.optim.SGD(weights, lr=1.0)
        reducer = Reducer(weights, communicator, settings(), bucket_bytes=EACH_ALONE)
        found = []
        for number in range(5):
            optimizer.zero_grad(set_to_none=to_none)
            reducer.begin(number)
            (weights[0].sum() * number * (1 + communicator.rank)).backward()
            reducer.finish([])
            found.append(float(weights[0].grad[0]))
            assert weights[1].grad is None
        return found

    assert run_threads(on_rank, TWO) == [[0.0, 1.5, 3.0, 4.5, 6.0]] * 2


def test_the_callers_numbers_are_summed_in_float64() -> None:
    def on_rank(communicator: Communicator) -> list[float]:
        weights = Weights((2,)).all
        reducer = Reducer(weights, communicator, settings(compression="fp16"), bucket_bytes=EACH_ALONE)
        reducer.begin(0)
        weights[0].sum().backward()
        return reducer.finish([1.0, 2.0**40 + communicator.rank, 0.1])

    assert run_threads(on_rank, "abc") == [[3.0, 3 * 2.0**40 + 3, pytest.approx(0.3, rel=1e-15)]] * 3


def test_backward_passes_outside_an_update_are_the_ranks_own() -> None:
    def on_rank(communicator: Communicator) -> tuple[float, float]:
        weights = Weights((2,)).all
        reducer = Reducer(weights, communicator, settings(), bucket_bytes=EACH_ALONE)
        if communicator.rank == 0:
            for _ in range(3):
                weights[0].sum().backward()
        own = 0.0 if weights[0].grad is None else float(weights[0].grad[0])
        weights[0].grad = None
        reducer.begin(0)
        weights[0].sum().backward()
        reducer.finish([])
        reducer.close()
        (5 * weights[0].sum()).backward()
        return own, float(weights[0].grad[0])

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
        weights = Weights((2,), (3,)).all
        reducer = Reducer(weights, communicator, settings(), bucket_bytes=EACH_ALONE)
        reducer.begin(0)
        first = weights[0] * 1.0
        waited: list[bool] = []
        # The gradient of weight 0 is only computed when that of weight 1 has been summed over ranks.
        first.register_hook(lambda gradient: waited.append(summed.wait(20)))
        (first.sum() + (weights[1] * 2.0).sum()).backward()
        reducer.finish([])
        return waited == [True]

    assert run_threads(on_rank, TWO) == [True, True]


def test_the_training_thread_may_have_collectives_of_its_own_meanwhile() -> None:
    def on_rank(communicator: Communicator) -> list[float]:
        weights = Weights((2,), (3,), (4,)).all
        reducer = Reducer(weights, communicator, settings(), bucket_bytes=EACH_ALONE)
        totals = []
        for number in range(10):
            reducer.begin(number)
            total = torch.zeros(1)
            for weight in weights:
                middle = weight * (1.0 + communicator.rank)

                def in_backward(gradient: Tensor) -> None:
                    mine = gradient.sum().view(1)
                    communicator.all_reduce(mine)
                    totals.append(float(mine))

                middle.register_hook(in_backward)
                total = total + middle.sum()
            total.sum().backward()
            reducer.finish([])
        return [sorted(set(totals)), [float(weight.grad[0]) for weight in weights]]

    assert run_threads(on_rank, TWO)[0][0] == [4.0, 6.0, 8.0]


@pytest.mark.parametrize("compression", ["none", "fp16", "bf16", "int8"])
def test_a_loss_scaler_skips_the_same_step_on_all_ranks(compression: str) -> None:
    def on_rank(communicator: Communicator) -> list[tuple[float, float]]:
        weights = Weights((2,), (300,)).all
        optimizer = torch.optim.SGD(weights, lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        table = settings(compression=compression, error_feedback=compression != "none")
        reducer = Reducer(weights, communicator, table, bucket_bytes=EACH_ALONE)
        found = []
        for number in range(3):
            optimizer.zero_grad()
            reducer.begin(number)
            factor = float("inf") if number == communicator.rank == 1 else 1.0
            scaler.scale(weights[0].sum() + factor * weights[1].sum()).backward()
            reducer.finish([])
            scaler.step(optimizer)
            scaler.update()
            found.append((weights[1][7].item(), scaler.get_scale()))
        return found

    # The weight begins at 8 and goes down by 1, but for the step in between.
    assert (
        run_threads(on_rank, TWO) == [[(pytest.approx(7), 16.0), (pytest.approx(7), 8.0), (pytest.approx(6), 8.0)]] * 2
    )


@pytest.mark.parametrize("bucket_bytes", [EACH_ALONE, ALL_IN_ONE])
@pytest.mark.parametrize("compression", ["none", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("feedback", [False, True])
def test_each_rank_knows_the_norm_of_its_own_gradients(compression: str, feedback: bool, bucket_bytes: int) -> None:
    """One that is no number on rank 1 makes no other rank's so, though all averages are; and not the next update's."""

    def on_rank(communicator: Communicator) -> list[float]:
        weights = Weights((2,), (300,)).all
        table = settings(compression=compression, error_feedback=feedback and compression != "none")
        reducer = Reducer(weights, communicator, table, bucket_bytes=bucket_bytes)
        found = []
        for number in range(3):
            for weight in weights:
                weight.grad = None
            reducer.begin(number)
            factor = float("nan") if number == communicator.rank == 1 else 1.0 + communicator.rank
            (weights[0].sum() + factor * weights[1].sum()).backward()
            reducer.finish([])
            assert bool(weights[1].grad.isfinite().all()) == (number != 1)
            found.append(float(reducer.own_norm))
        reducer.close()
        return found

    one, two = 2**0.5 + 300**0.5, 2**0.5 + 2 * 300**0.5
    expected = [[one, one, one], [two, float("nan"), two]]
    assert run_threads(on_rank, TWO) == [pytest.approx(norms, nan_ok=True) for norms in expected]


def test_other_buckets_may_be_chosen_between_updates() -> None:
    def on_rank(communicator: Communicator) -> list[int]:
        weights = Weights((2,), (3,), (4,)).all
        reducer = Reducer(weights, communicator, settings(), bucket_bytes=EACH_ALONE)
        counts = []
        for bucket_bytes in (EACH_ALONE, 20, ALL_IN_ONE):
            reducer.set_bucket_bytes(bucket_bytes)
            counts.append(len(reducer.buckets))
            for weight in weights:
                weight.grad = None
            reducer.begin(0)
            (sum(weight.sum() for weight in weights) * (1 + communicator.rank)).backward()
            reducer.finish([])
            assert all(torch.equal(weight.grad, torch.full_like(weight, 1.5)) for weight in weights)
        return counts

    assert run_threads(on_rank, TWO) == [[3, 2, 1]] * 2
