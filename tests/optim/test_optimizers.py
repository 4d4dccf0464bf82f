"""Every update rule of the recipe: what it is built of, that it learns, and that it goes on from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F

from hpcai500.layers import Hyperparameters
from hpcai500.optim.optimizers import LAMB, LARS, InsideSGD, RMSpropWarmup, advance, build_optimizer
from hpcai500.recipe import reference_recipe

# Rates at which a small network learns.
RULES: list[tuple[dict[str, Any], type[optim.Optimizer], float]] = [
    ({"optimizer": "sgd"}, optim.SGD, 0.1),
    ({"optimizer": "sgd", "momentum_form": "inside"}, InsideSGD, 0.1),
    ({"optimizer": "sgd", "momentum_form": "corrected"}, InsideSGD, 0.1),
    ({"optimizer": "lars", "trust_coefficient": 0.1, "momentum_form": "corrected"}, LARS, 0.5),
    ({"optimizer": "lamb"}, LAMB, 0.03),
    ({"optimizer": "adam"}, optim.Adam, 0.01),
    ({"optimizer": "adagrad"}, optim.Adagrad, 0.05),
    ({"optimizer": "rmsprop-warmup", "rmsprop_learning_rate": 0.005}, RMSpropWarmup, 0.1),
]
EVERY_RULE = pytest.mark.parametrize(
    ("changes", "kind", "rate"), RULES, ids=["-".join(map(str, rule[0].values())) for rule in RULES]
)


def policy(**changes: Any) -> Hyperparameters:
    return reference_recipe("ic").hyperparameters.model_copy(update=changes)


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))


def train(model: nn.Module, optimizer: optim.Optimizer, rate: float, steps: range) -> list[float]:
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


@EVERY_RULE
def test_each_rule_of_the_recipe_is_built_and_learns(
    changes: dict[str, Any], kind: type[optim.Optimizer], rate: float
) -> None:
    model = network()
    optimizer = build_optimizer(model, policy(**changes))
    assert type(optimizer) is kind
    losses = train(model, optimizer, rate, range(40))
    assert max(losses[-5:]) < 0.5 * losses[0]


@EVERY_RULE
def test_each_rule_goes_on_from_a_checkpoint_as_if_nothing_had_been(
    tmp_path: Path, changes: dict[str, Any], kind: type[optim.Optimizer], rate: float
) -> None:
    whole, halved = network(), network()
    train(whole, build_optimizer(whole, policy(**changes)), rate, range(8))
    first_half = build_optimizer(halved, policy(**changes))
    train(halved, first_half, rate, range(4))
    torch.save({"model": halved.state_dict(), "optimizer": first_half.state_dict()}, tmp_path / "checkpoint.pt")
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    resumed = network(seed=1)
    resumed.load_state_dict(state["model"])
    optimizer = build_optimizer(resumed, policy(**changes))
    optimizer.load_state_dict(state["optimizer"])
    train(resumed, optimizer, rate, range(4, 8))
    assert all(torch.equal(one, other) for one, other in zip(resumed.parameters(), whole.parameters(), strict=True))


@pytest.mark.parametrize("optimizer", ["lars", "lamb"])
@pytest.mark.parametrize("weight_decay_on", ["all", "weights"])
def test_layerwise_rules_skip_what_has_one_dimension(optimizer: str, weight_decay_on: str) -> None:
    adapted, skipped = build_optimizer(
        network(), policy(optimizer=optimizer, weight_decay_on=weight_decay_on)
    ).param_groups
    assert {parameter.ndim for parameter in adapted["params"]} == {2, 4}
    assert {parameter.ndim for parameter in skipped["params"]} == {1}
    assert (adapted["adapted"], adapted["weight_decay"]) == (True, 1 / 32768)
    assert (skipped["adapted"], skipped["weight_decay"]) == (False, 0.0)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad", "rmsprop-warmup"])
def test_the_other_rules_decay_what_the_recipe_says(optimizer: str) -> None:
    (everything,) = build_optimizer(network(), policy(optimizer=optimizer)).param_groups
    assert everything["weight_decay"] == 1 / 32768
    spared = build_optimizer(network(), policy(optimizer=optimizer, weight_decay_on="weights")).param_groups[1]
    assert spared["weight_decay"] == 0.0
    assert {parameter.ndim for parameter in spared["params"]} == {1}


def test_frozen_parameters_are_left_out() -> None:
    model = network()
    model[0].weight.requires_grad_(False)
    (group,) = build_optimizer(model, policy()).param_groups
    assert all(parameter is not model[0].weight for parameter in group["params"])


def test_the_recipes_numbers_arrive() -> None:
    numbers = {"momentum": 0.8, "beta1": 0.7, "beta2": 0.6, "epsilon": 1e-3, "trust_coefficient": 0.02}
    warmup = {"rmsprop_learning_rate": 0.04, "rmsprop_center_epoch": 3.0, "rmsprop_period_epochs": 2.0}

    def group(**changes: Any) -> dict[str, Any]:
        return build_optimizer(network(), policy(**numbers, **warmup, **changes)).param_groups[0]

    lars = group(optimizer="lars", momentum_form="inside")
    assert (lars["momentum"], lars["trust_coefficient"], lars["epsilon"]) == (0.8, 0.02, 1e-3)
    assert lars["momentum_form"] == "inside"
    lamb = group(optimizer="lamb")
    assert (lamb["betas"], lamb["epsilon"]) == ((0.7, 0.6), 1e-3)
    adam = group(optimizer="adam")
    assert (adam["betas"], adam["eps"]) == ((0.7, 0.6), 1e-3)
    assert group(optimizer="adagrad")["eps"] == 1e-3
    rmsprop = group(optimizer="rmsprop-warmup")
    assert (rmsprop["momentum"], rmsprop["beta2"], rmsprop["epsilon"]) == (0.8, 0.6, 1e-3)
    assert (rmsprop["rmsprop_lr"], rmsprop["center"], rmsprop["period"]) == (0.04, 3.0, 2.0)
