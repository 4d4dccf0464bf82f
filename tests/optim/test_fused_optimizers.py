"""`framework.fused_optimizer`: the same update rule in one kernel, which a CPU has too."""

from __future__ import annotations

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
    plain, fused = network(), network()
    train(plain, build_optimizer(plain, policy(**changes)), rate, range(8))
    optimizer = build_optimizer(fused, policy(**changes), fused=True)
    assert all(group["fused"] for group in optimizer.param_groups)
    train(fused, optimizer, rate, range(8))
    assert distance(plain, network()) > 0.01
    assert distance(plain, fused) < 1e-4


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


def test_a_device_without_such_a_kernel_is_told_before_training_with_the_line_to_type() -> None:
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    with pytest.raises(EnvironmentLacksError, match=r"no single kernel of sgd for meta .*fused_optimizer=false"):
        build_optimizer(model, policy(), fused=True)
