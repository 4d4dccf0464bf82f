"""The recipes that come with hpcai500: all load, and those for large batches are what their names and sources say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hpcai500.layers import IcRecipe
from hpcai500.optim.optimizers import LARS, RMSpropWarmup, build_optimizer
from hpcai500.optim.schedules import LearningRate
from hpcai500.recipe import load_recipe, shipped_recipes

SHIPPED = shipped_recipes()
LARGE = [name for name in SHIPPED if name.rpartition("-")[2].isdigit()]
DOCS = Path(__file__).resolve().parents[2] / "docs" / "large-batch.md"
IMAGES = 1_281_167


@pytest.mark.parametrize("name", SHIPPED)
def test_every_recipe_that_is_shipped_loads(name: str) -> None:
    assert load_recipe(name).benchmark == name.partition("/")[0]


@pytest.mark.parametrize("name", LARGE)
def test_the_global_batch_is_the_one_in_the_name(name: str) -> None:
    assert load_recipe(name).global_batch == int(name.rpartition("-")[2])
    assert f"`{name}`" in DOCS.read_text()


@pytest.mark.parametrize("name", LARGE)
def test_a_large_batch_keeps_the_problem(name: str) -> None:
    assert load_recipe(name).problem == load_recipe("ic/reference").problem


# Batch: rate, warm-up epochs, weight decay, momentum (MLPerf Training 4.0, reference convergence points).
@pytest.mark.parametrize(
    ("batch", "rate", "warmup", "decay", "momentum"),
    [
        (4096, 10.0, 5, 2e-4, 0.9),
        (8192, 17.0, 5, 2e-4, 0.9),
        (32768, 21.2, 16, 2.5e-5, 0.94),
        (65536, 24.699, 31, 1e-4, 0.951807),
    ],
)
def test_lars_starts_with_the_published_values(
    batch: int, rate: float, warmup: int, decay: float, momentum: float
) -> None:
    recipe = load_recipe(f"ic/lars-{batch}")
    policy = recipe.hyperparameters
    assert (policy.weight_decay, policy.momentum) == (decay, momentum)
    assert (policy.trust_coefficient, policy.epsilon, policy.momentum_form) == (0.001, 0.0, "inside")
    steps = -(-IMAGES // batch)
    schedule = LearningRate(policy, recipe.global_batch, steps, recipe.problem.epochs)
    assert schedule.at(0) == 0
    assert schedule.at(warmup * steps) == pytest.approx(rate)
    assert schedule.at((warmup + 90) * steps // 2) == pytest.approx(rate / 4, rel=1e-2)
    assert schedule.at(90 * steps) == pytest.approx(1e-4)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    assert isinstance(build_optimizer(model, policy), LARS)


def test_akibas_recipe_has_the_papers_policy() -> None:
    recipe = load_recipe("ic/akiba-32768")
    assert isinstance(recipe, IcRecipe)
    optimizer = build_optimizer(torch.nn.Linear(2, 2), recipe.hyperparameters)
    assert isinstance(optimizer, RMSpropWarmup)
    group = optimizer.param_groups[0]
    assert (group["rmsprop_lr"], group["momentum"], group["beta2"], group["epsilon"]) == (3e-4, 0.9, 0.99, 1e-8)
    assert (group["center"], group["period"]) == (10, 5)
    schedule = LearningRate(recipe.hyperparameters, recipe.global_batch, 40, recipe.problem.epochs)
    assert schedule.at(0) == pytest.approx(0.5 * 0.1 * 128)
    assert recipe.workload.norm_statistics == "last-batch"
    assert recipe.communication.compression == "fp16"
