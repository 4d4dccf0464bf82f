"""Error feedback: what compression takes away comes later."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from reduction import TOPOLOGIES, error_bound, gradients_of, settings
from thread_ranks import run_threads
from torch import Tensor, nn

from hpcai500.comm.codecs import Buffers, Residuals, make_codec
from hpcai500.comm.communicator import Communicator
from hpcai500.comm.reducer import Reducer

CPU = torch.device("cpu")
# Three chunks of int8, which two columns of a torus cannot share without padding.
LENGTHS = [3000, 1, 6000]
STEPS = 20


def packed_and_unpacked(compression: str, residuals: Residuals | None) -> tuple[Tensor, Tensor]:
    """Sums over steps of what was given to a codec and of what came out of it."""
    codec = make_codec(compression, Buffers(CPU), residuals, 1)
    given, received = torch.zeros(9001, dtype=torch.float64), torch.zeros(9001, dtype=torch.float64)
    for step in range(STEPS):
        gradients = gradients_of(0, LENGTHS, step)
        given += torch.cat(gradients).double() / 4
        packed = codec.pack(gradients, 12288, scale=1 / 4, bucket=3)
        unpacked = [torch.empty_like(gradient) for gradient in gradients]
        codec.unpack(packed, unpacked)
        received += torch.cat(unpacked).double()
    return given, received


@pytest.mark.parametrize("compression", ["fp16", "bf16", "int8"])
def test_what_came_out_and_what_remains_are_what_was_given(compression: str) -> None:
    residuals = Residuals(CPU)
    given, received = packed_and_unpacked(compression, residuals)
    error = (received + residuals.at((3, "pack"), 9001).double() - given).abs().max()
    _, without = packed_and_unpacked(compression, None)
    # What is left is the rounding of fp32.
    assert error < 0.02 * (without - given).abs().max()


def mean_of_averages(communicator: Communicator, **changes: Any) -> Tensor:
    """The mean over steps of the average of constant gradients."""
    gradient = torch.cat(gradients_of(communicator.rank, LENGTHS))
    weight = nn.Parameter(torch.zeros(len(gradient)))
    reducer = Reducer([weight], communicator, settings(**changes), bucket_bytes=4000)
    total = torch.zeros(len(gradient), dtype=torch.float64)
    for step in range(STEPS):
        weight.grad = None
        reducer.begin(step)
        (weight * gradient).sum().backward()
        reducer.finish([])
        total += weight.grad
    return total / STEPS


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_errors_of_int8_do_not_add_up_over_steps_at_any_place_that_rounds(topology: str) -> None:
    everyones = torch.stack([torch.cat(gradients_of(rank, LENGTHS)) for rank in range(4)])
    exact, errors = everyones.double().mean(0), {}
    for feedback in (False, True):
        change = {"topology": topology, "compression": "int8", "error_feedback": feedback}
        results = run_threads(lambda communicator, change=change: mean_of_averages(communicator, **change), "aabb")
        assert all(torch.equal(one, other) for one, other in pairwise(results))
        errors[feedback] = (results[0] - exact).abs()
    # What is still to come after all steps is at most what one step may lose.
    assert (errors[True] <= error_bound(everyones, "int8") / STEPS * 1.01 + 1e-6 * everyones.abs().sum(0)).all()
    assert errors[True].mean() < 0.2 * errors[False].mean()


@pytest.mark.parametrize("compression", ["fp16", "bf16", "int8"])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 3e38])
def test_an_overflow_is_not_remembered(compression: str, value: float) -> None:
    residuals = Residuals(CPU)
    codec = make_codec(compression, Buffers(CPU), residuals, 1)
    bad = torch.full((500,), 0.1)
    bad[7] = value
    codec.pack([bad], codec.grain * 500, scale=1.0, bucket=0)
    assert residuals.at((0, "pack"), 500).isfinite().all()
    assert residuals.at((0, "pack"), 500)[7] in (0.0, pytest.approx(0, abs=3e38 / 100))
    good = torch.full((500,), 0.1)
    codec.unpack(codec.pack([good], codec.grain * 500, scale=1.0, bucket=0), [good])
    assert good.isfinite().all()


def updates(reducer: Reducer, weights: list[nn.Parameter], rank: int, steps: range) -> list[Tensor]:
    found = []
    for step in steps:
        for weight in weights:
            weight.grad = None
        reducer.begin(step)
        gradients = gradients_of(rank, LENGTHS, step)
        sum((weight * gradient).sum() for weight, gradient in zip(weights, gradients, strict=True)).backward()
        reducer.finish([])
        found.append(torch.cat([weight.grad for weight in weights]))
    return found


@pytest.mark.parametrize("compression", ["fp16", "int8"])
def test_new_buckets_begin_without_the_errors_of_the_old_ones(compression: str) -> None:
    def on_rank(communicator: Communicator) -> None:
        table = settings(compression=compression, error_feedback=True, topology="hierarchical")
        weights = [nn.Parameter(torch.zeros(length)) for length in LENGTHS]
        reducer = Reducer(weights, communicator, table, bucket_bytes=4000)
        anew = updates(reducer, weights, communicator.rank, range(3))
        later = updates(reducer, weights, communicator.rank, range(3))
        reducer.set_bucket_bytes(4000)
        again = updates(reducer, weights, communicator.rank, range(3))
        assert all(torch.equal(one, other) for one, other in zip(again, anew, strict=True))
        assert not all(torch.equal(one, other) for one, other in zip(later, anew, strict=True))

    run_threads(on_rank, "aab")


@pytest.mark.parametrize("compression", ["bf16", "int8"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_what_working_memory_held_before_does_not_matter(
    topology: str, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_rank(communicator: Communicator) -> list[Tensor]:
        table = settings(topology=topology, compression=compression, error_feedback=True)
        weights = [nn.Parameter(torch.zeros(length)) for length in LENGTHS]
        reducer = Reducer(weights, communicator, table, bucket_bytes=2**20)
        # What the first steps lose comes with the later ones.
        return updates(reducer, weights, communicator.rank, range(3))

    clean, take = run_threads(on_rank, "aabb"), Buffers.take

    def soiled(self: Buffers, purpose: str, length: int, dtype: torch.dtype) -> Tensor:
        buffer = take(self, purpose, length, dtype)
        # Not a number as float32, float16 and bfloat16.
        buffer.view(torch.uint8).fill_(255)
        return buffer

    monkeypatch.setattr(Buffers, "take", soiled)
    for gradients, others in zip(run_threads(on_rank, "aabb"), clean, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(gradients, others, strict=True))
        assert all(gradient.isfinite().all() for gradient in gradients)
