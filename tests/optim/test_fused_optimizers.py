"""`framework.fused_optimizer`: the same update rule in one kernel, which a CPU has too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_optimizers import network, policy, train
from torch import nn

from hpcai500.engine.precision import Precision
from hpcai500.errors import EnvironmentLacksError
from hpcai500.optim.optimizers import build_optimizer

CPU = torch.device("cpu")
# A rule and a rate at which it moves weights well beyond rounding.
FUSED = pytest.mark.parametrize(
    ("changes", "rate"),
    [
        ({"optimizer": "sgd"}, 0.1),
        ({"optimizer": "sgd", "weight_decay": 0.01, "weight_decay_on": "weights"}, 0.1),
        ({"optimizer": "adam"}, 0.01),
        ({"optimizer": "adagrad"}, 0.05),
    ],
    ids=["sgd", "sgd-weights", "adam", "adagrad"],
)


def distance(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((left - right).abs().max().item() for left, right in pairs)


@FUSED
def test_weights_are_those_of_the_rule_in_many_kernels_within_rounding(changes: dict[str, Any], rate: float) -> None:
    # In float64: rules that divide by a gradient's size make whole steps of one that is only rounding.
    plain, fused = network().double(), network().double()
    train(plain, build_optimizer(plain, policy(**changes)), rate, range(8))
    optimizer = build_optimizer(fused, policy(**changes), fused=True)
    assert all(group["fused"] for group in optimizer.param_groups)
    train(fused, optimizer, rate, range(8))
    assert distance(plain, network().double()) > 0.01
    assert distance(plain, fused) < 1e-9


@FUSED
def test_it_goes_on_from_a_checkpoint_as_if_nothing_had_been(
    tmp_path: Path, changes: dict[str, Any], rate: float
) -> None:
    whole, halved, resumed = network(), network(), network(seed=1)
    train(whole, build_optimizer(whole, policy(**changes), fused=True), rate, range(8))
    first_half = build_optimizer(halved, policy(**changes), fused=True)
    train(halved, first_half, rate, range(4))
    torch.save({"model": halved.state_dict(), "optimizer": first_half.state_dict()}, tmp_path / "checkpoint.pt")
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    resumed.load_state_dict(state["model"])
    optimizer = build_optimizer(resumed, policy(**changes), fused=True)
    optimizer.load_state_dict(state["optimizer"])
    train(resumed, optimizer, rate, range(4, 8))
    assert all(torch.equal(one, other) for one, other in zip(resumed.parameters(), whole.parameters(), strict=True))


@FUSED
@pytest.mark.parametrize("in_many_kernels", [True, False])
def test_with_fp16_a_step_is_unscaled_and_one_that_overflows_is_left_out(
    changes: dict[str, Any], rate: float, in_many_kernels: bool
) -> None:
    model, precision = network(), Precision("fp16", CPU)
    weights = list(model.parameters())
    optimizer = build_optimizer(model, policy(**changes), fused=not in_many_kernels)
    twin = network()
    reference = build_optimizer(twin, policy(**changes))
    for group in [*optimizer.param_groups, *reference.param_groups]:
        group["lr"] = rate
    scales = []
    for overflows in (False, True, False):
        scale = precision.scaled(torch.ones(())).item()
        scales.append(scale)
        for weight, other in zip(weights, twin.parameters(), strict=True):
            weight.grad = torch.full_like(weight, 0.25 * scale)
            other.grad = torch.full_like(other, 0.25)
        if overflows:
            weights[-1].grad = torch.full_like(weights[-1], float("inf"))
        before = [weight.detach().clone() for weight in weights]
        precision.step(optimizer)
        if overflows:
            assert all(torch.equal(one, other) for one, other in zip(before, weights, strict=True))
        else:
            reference.step()
            assert distance(model, twin) < 1e-5
    assert scales[0] == scales[1] == 2 * scales[2]


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """New memory that nobody has filled holds NaN, instead of what chance left there."""
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = before
        torch.use_deterministic_algorithms(False)


def after_an_overflow(device: torch.device, changes: dict[str, Any], rate: float) -> tuple[nn.Module, nn.Module]:
    """A fused rule whose very first step overflows, then three that do not; its twin in many kernels has only those."""
    model, twin, precision = network().to(device), network().to(device), Precision("fp16", device)
    pairs = [
        (model, build_optimizer(model, policy(**changes), fused=True)),
        (twin, build_optimizer(twin, policy(**changes))),
    ]
    for _, optimizer in pairs:
        for group in optimizer.param_groups:
            group["lr"] = rate
    for step in range(4):
        scale = precision.scaled(torch.ones((), device=device)).item()
        for one, factor in ((model, scale), (twin, 1.0)):
            for weight in one.parameters():
                weight.grad = torch.full_like(weight, factor * (0.25 + 0.125 * step))
        if step == 0:
            model[0].weight.grad = torch.full_like(model[0].weight, float("inf"))
        precision.step(pairs[0][1])
        if step > 0:
            pairs[1][1].step()
    return model, twin


@FUSED
@pytest.mark.usefixtures("poisoned_memory")
def test_a_first_step_that_overflows_leaves_nothing_behind(changes: dict[str, Any], rate: float) -> None:
    assert torch.empty(1).isnan()
    model, twin = after_an_overflow(CPU, changes, rate)
    assert distance(model, twin) < 1e-5


@FUSED
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.usefixtures("poisoned_memory")
def test_on_a_gpu_a_first_step_that_overflows_leaves_nothing_behind(changes: dict[str, Any], rate: float) -> None:
    model, twin = after_an_overflow(torch.device("cuda"), changes, rate)
    assert distance(model, twin) < 1e-5


def test_velocities_that_begin_with_zeros_change_no_bit_of_torchs_own_steps() -> None:
    ours, torchs = (network().to(memory_format=torch.channels_last) for _ in range(2))  # type: ignore[call-overload]
    optimizer = build_optimizer(ours, policy(optimizer="sgd"), fused=True)
    reference = torch.optim.SGD(
        torchs.parameters(),
        momentum=policy().momentum,
        weight_decay=policy().weight_decay,
        fused=True,
    )
    train(ours, optimizer, 0.1, range(5))
    train(torchs, reference, 0.1, range(5))
    for one, other in zip(ours.parameters(), torchs.parameters(), strict=True):
        assert torch.equal(one, other)
        mine, theirs = (
            state[weight]["momentum_buffer"] for state, weight in ((optimizer.state, one), (reference.state, other))
        )
        assert torch.equal(mine, theirs)
        assert mine.stride() == one.stride()


def test_a_checkpoint_without_velocities_is_gone_on_from_at_rest() -> None:
    """Of before the first step, or where some parameters had no gradient yet."""
    fresh, resumed = network(), network()
    train(fresh, build_optimizer(fresh, policy(optimizer="sgd"), fused=True), 0.1, range(3))
    optimizer = build_optimizer(resumed, policy(optimizer="sgd"), fused=True)
    state = build_optimizer(network(), policy(optimizer="sgd"), fused=True).state_dict()
    assert state["state"] == {}
    optimizer.load_state_dict(state)
    train(resumed, optimizer, 0.1, range(3))
    assert distance(fresh, resumed) == 0


def test_a_parameter_without_a_gradient_has_no_velocity() -> None:
    """As those of other stages: the checkpoint of a model in stages is put together of what each stage has."""
    model = network()
    optimizer = build_optimizer(model, policy(optimizer="sgd"), fused=True)
    model[0].weight.grad = torch.ones_like(model[0].weight)
    optimizer.step()
    assert list(optimizer.state) == [model[0].weight]
    train(model, optimizer, 0.1, range(1))
    assert len(optimizer.state) == len(list(model.parameters()))


def test_a_device_without_such_a_kernel_is_told_before_training_with_the_line_to_type() -> None:
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    with pytest.raises(EnvironmentLacksError, match=r"no single kernel of sgd for meta .*fused_optimizer=false"):
        build_optimizer(model, policy(), fused=True)
