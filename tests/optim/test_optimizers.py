"""Every update rule of the recipe: what it is built of, that it learns, goes on from a checkpoint, and runs fused.

`framework.fused_optimizer` is the same rule in one kernel, which a CPU has too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F

from hpcai500.engine.precision import Precision
from hpcai500.errors import EnvironmentLacksError
from hpcai500.layers import Hyperparameters
from hpcai500.optim.optimizers import LAMB, LARS, InsideSGD, RMSpropWarmup, advance, build_optimizer
from hpcai500.recipe import reference_recipe

# Rates at which a small network learns.
RULES: dict[str, tuple[dict[str, Any], type[optim.Optimizer], float]] = {
    "sgd": ({"optimizer": "sgd"}, optim.SGD, 0.1),
    "sgd-weights": ({"optimizer": "sgd", "weight_decay": 0.01, "weight_decay_on": "weights"}, optim.SGD, 0.1),
    "inside": ({"optimizer": "sgd", "momentum_form": "inside"}, InsideSGD, 0.1),
    "corrected": ({"optimizer": "sgd", "momentum_form": "corrected"}, InsideSGD, 0.1),
    "lars": ({"optimizer": "lars", "trust_coefficient": 0.1, "momentum_form": "corrected"}, LARS, 0.5),
    "lamb": ({"optimizer": "lamb"}, LAMB, 0.03),
    "adam": ({"optimizer": "adam"}, optim.Adam, 0.01),
    "adagrad": ({"optimizer": "adagrad"}, optim.Adagrad, 0.05),
    "rmsprop-warmup": ({"optimizer": "rmsprop-warmup", "rmsprop_learning_rate": 0.005}, RMSpropWarmup, 0.1),
}
FUSED = ("sgd", "sgd-weights", "adam", "adagrad")
EACH_FUSED = pytest.mark.parametrize("rule", FUSED)
CPU = torch.device("cpu")


def policy(**changes: Any) -> Hyperparameters:
    return reference_recipe("ic").hyperparameters.model_copy(update=changes)


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))


def built(rule: str, model: nn.Module, *, fused: bool = False) -> optim.Optimizer:
    """The optimizer of a rule, at its rate."""
    changes, _, rate = RULES[rule]
    optimizer = build_optimizer(model, policy(**changes), fused=fused)
    for group in optimizer.param_groups:
        group["lr"] = rate
    return optimizer


def train(model: nn.Module, optimizer: optim.Optimizer, steps: range, rate: float) -> list[float]:
    """Losses of telling bright images from dark ones; the rate changes from step to step, as the engine's does."""
    losses = []
    for step in steps:
        random = torch.Generator().manual_seed(step)
        labels = torch.randint(0, 2, (16,), generator=random)
        images = torch.randn(16, 1, 8, 8, generator=random) + labels.float()[:, None, None, None]
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 + 0.5 * (step % 3))
        advance(optimizer, step / 2)
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(images.to(next(model.parameters()).dtype)), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def distance(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((left - right).abs().max().item() for left, right in pairs)


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_of_the_recipe_is_built_and_learns(rule: str) -> None:
    _, kind, rate = RULES[rule]
    model = network()
    optimizer = built(rule, model)
    assert type(optimizer) is kind
    losses = train(model, optimizer, range(40), rate)
    assert max(losses[-5:]) < 0.5 * losses[0]


@pytest.mark.parametrize(("rule", "fused"), [*((rule, False) for rule in RULES), *((rule, True) for rule in FUSED)])
def test_each_rule_goes_on_from_a_checkpoint_as_if_nothing_had_been(tmp_path: Path, rule: str, fused: bool) -> None:
    rate = RULES[rule][2]
    whole, halved, resumed = network(), network(), network(seed=1)
    train(whole, built(rule, whole, fused=fused), range(8), rate)
    first_half = built(rule, halved, fused=fused)
    train(halved, first_half, range(4), rate)
    torch.save({"model": halved.state_dict(), "optimizer": first_half.state_dict()}, tmp_path / "checkpoint.pt")
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    resumed.load_state_dict(state["model"])
    optimizer = built(rule, resumed, fused=fused)
    optimizer.load_state_dict(state["optimizer"])
    train(resumed, optimizer, range(4, 8), rate)
    assert distance(resumed, whole) == 0


@pytest.mark.parametrize("weight_decay_on", ["all", "weights"])
@pytest.mark.parametrize("optimizer", ["lars", "lamb"])
def test_layerwise_rules_skip_what_has_one_dimension(optimizer: str, weight_decay_on: str) -> None:
    changes = {"optimizer": optimizer, "weight_decay_on": weight_decay_on}
    adapted, skipped = build_optimizer(network(), policy(**changes)).param_groups
    assert {parameter.ndim for parameter in adapted["params"]} == {2, 4}
    assert {parameter.ndim for parameter in skipped["params"]} == {1}
    assert (adapted["adapted"], adapted["weight_decay"]) == (True, 1 / 32768)
    assert (skipped["adapted"], skipped["weight_decay"]) == (False, 0.0)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad", "rmsprop-warmup"])
def test_the_other_rules_decay_what_the_recipe_says(optimizer: str) -> None:
    model = network()
    (everything,) = build_optimizer(model, policy(optimizer=optimizer)).param_groups
    assert everything["weight_decay"] == 1 / 32768
    assert len(everything["params"]) == len(list(model.parameters()))
    decayed, spared = build_optimizer(model, policy(optimizer=optimizer, weight_decay_on="weights")).param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (1 / 32768, 0.0)
    assert {parameter.ndim for parameter in decayed["params"]} == {2, 4}
    assert {parameter.ndim for parameter in spared["params"]} == {1}


def test_frozen_parameters_are_left_out() -> None:
    model = network()
    model[0].weight.requires_grad_(False)
    (group,) = build_optimizer(model, policy()).param_groups
    assert all(parameter is not model[0].weight for parameter in group["params"])


@pytest.mark.parametrize(
    ("changes", "arrived"),
    [
        (
            {"optimizer": "lars", "momentum_form": "inside"},
            {"momentum": 0.8, "trust_coefficient": 0.02, "epsilon": 1e-3, "momentum_form": "inside"},
        ),
        ({"optimizer": "lamb"}, {"betas": (0.7, 0.6), "epsilon": 1e-3}),
        ({"optimizer": "adam"}, {"betas": (0.7, 0.6), "eps": 1e-3}),
        ({"optimizer": "adagrad"}, {"eps": 1e-3}),
        (
            {"optimizer": "rmsprop-warmup"},
            {"momentum": 0.8, "beta2": 0.6, "epsilon": 1e-3, "rmsprop_lr": 0.04, "center": 3.0, "period": 2.0},
        ),
    ],
    ids=lambda value: value.get("optimizer", ""),
)
def test_the_recipes_numbers_arrive(changes: dict[str, Any], arrived: dict[str, Any]) -> None:
    numbers = {"momentum": 0.8, "beta1": 0.7, "beta2": 0.6, "epsilon": 1e-3, "trust_coefficient": 0.02}
    warmup = {"rmsprop_learning_rate": 0.04, "rmsprop_center_epoch": 3.0, "rmsprop_period_epochs": 2.0}
    group = build_optimizer(network(), policy(**numbers, **warmup, **changes)).param_groups[0]
    assert {name: group[name] for name in arrived} == arrived


# ----------------------------------------------------------------------------------------------------
# In one kernel.


@EACH_FUSED
def test_weights_are_those_of_the_rule_in_many_kernels_within_rounding(rule: str) -> None:
    # In float64: rules that divide by a gradient's size make whole steps of one that is only rounding.
    plain, fused, rate = network().double(), network().double(), RULES[rule][2]
    train(plain, built(rule, plain), range(8), rate)
    optimizer = built(rule, fused, fused=True)
    assert all(group["fused"] for group in optimizer.param_groups)
    train(fused, optimizer, range(8), rate)
    assert distance(plain, network().double()) > 0.01
    assert distance(plain, fused) < 1e-9


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


ON_A_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@EACH_FUSED
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "many kernels"])
@pytest.mark.parametrize("overflowing", [0, 1])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_A_GPU)])
@pytest.mark.usefixtures("poisoned_memory")
def test_with_fp16_a_step_is_unscaled_and_one_that_overflows_is_left_out(
    device: str, overflowing: int, fused: bool, rule: str
) -> None:
    """Also where it is the very first one; the twin in many kernels has only the other steps."""
    assert torch.empty(1).isnan()
    model, twin, precision = network().to(device), network().to(device), Precision("fp16", torch.device(device))
    try:
        optimizer, reference = built(rule, model, fused=fused), built(rule, twin)
    except EnvironmentLacksError:
        assert (device, rule) == ("cuda", "adagrad"), "torch's fused Adagrad is for processors alone, and no other rule"
        return
    scales = []
    for step in range(4):
        scale = precision.scaled(torch.ones((), device=device)).item()
        scales.append(scale)
        for one, factor in ((model, scale), (twin, 1.0)):
            for weight in one.parameters():
                weight.grad = torch.full_like(weight, factor * (0.25 + 0.125 * step))
        if step == overflowing:
            model[0].weight.grad = torch.full_like(model[0].weight, float("inf"))
        else:
            reference.step()
        before = [weight.detach().clone() for weight in model.parameters()]
        precision.step(optimizer)
        unchanged = all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
        assert unchanged == (step == overflowing)
        assert distance(model, twin) < 1e-5
    assert scales == [65536.0 if step <= overflowing else 32768.0 for step in range(4)]


def test_velocities_that_begin_with_zeros_change_no_bit_of_torchs_own_steps() -> None:
    ours, torchs = (network().to(memory_format=torch.channels_last) for _ in range(2))  # type: ignore[call-overload]
    optimizer, rule = built("sgd", ours, fused=True), policy()
    options = {"momentum": rule.momentum, "weight_decay": rule.weight_decay, "fused": True}
    reference = torch.optim.SGD(torchs.parameters(), **options)
    train(ours, optimizer, range(5), 0.1)
    train(torchs, reference, range(5), 0.1)
    assert distance(ours, torchs) == 0
    for one, other in zip(ours.parameters(), torchs.parameters(), strict=True):
        mine, theirs = optimizer.state[one]["momentum_buffer"], reference.state[other]["momentum_buffer"]
        assert torch.equal(mine, theirs)
        assert mine.stride() == one.stride()


def test_a_checkpoint_without_velocities_is_gone_on_from_at_rest() -> None:
    """Of before the first step, or where some parameters had no gradient yet."""
    fresh, resumed = network(), network()
    train(fresh, built("sgd", fresh, fused=True), range(3), 0.1)
    optimizer = built("sgd", resumed, fused=True)
    state = built("sgd", network(), fused=True).state_dict()
    assert state["state"] == {}
    optimizer.load_state_dict(state)
    train(resumed, optimizer, range(3), 0.1)
    assert distance(fresh, resumed) == 0


def test_a_parameter_without_a_gradient_has_no_velocity() -> None:
    """As those of other stages: the checkpoint of a model in stages is put together of what each stage has."""
    model = network()
    optimizer = built("sgd", model, fused=True)
    model[0].weight.grad = torch.ones_like(model[0].weight)
    optimizer.step()
    assert list(optimizer.state) == [model[0].weight]
    train(model, optimizer, range(1), 0.1)
    assert len(optimizer.state) == len(list(model.parameters()))


def test_a_device_without_such_a_kernel_is_told_before_training_with_the_line_to_type() -> None:
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    with pytest.raises(EnvironmentLacksError, match=r"no single kernel of sgd for meta .*fused_optimizer=false"):
        build_optimizer(model, policy(), fused=True)
