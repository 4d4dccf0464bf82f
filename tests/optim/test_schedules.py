"""Learning-rate policies against hand computation and torch's own scheduler, and the recipes that ship with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.layers import IcRecipe
from hpcai500.optim.optimizers import LARS, RMSpropWarmup, build_optimizer
from hpcai500.optim.schedules import LearningRate
from hpcai500.recipe import load_recipe, reference_recipe, shipped_recipes

STEPS = 10
SHIPPED = shipped_recipes()
LARGE = [name for name in SHIPPED if name.rpartition("-")[2].isdigit()]
DOCS = Path(__file__).resolve().parents[2] / "docs" / "large-batch.md"
IMAGES = 1_281_167


def rate(*, global_batch: int = 256, epochs: int = 90, **changes: Any) -> LearningRate:
    policy = reference_recipe("ic").hyperparameters.model_copy(update=changes)
    return LearningRate(policy, global_batch, STEPS, epochs)


@pytest.mark.parametrize(
    ("changes", "by_epoch"),
    [
        # The reference: up for eight epochs, down along a cosine.
        ({}, {0: 0.0, 4: 0.128, 8: 0.256, 8 + 41: 0.128, 90: 0.0}),
        # Decay at epochs that count from the start of the run.
        (
            {"schedule": "step"},
            {8: 0.256, 29: 0.256, 30: 0.0256, 59: 0.0256, 60: 0.00256, 80: 0.000256, 89: 0.000256},
        ),
        ({"schedule": "polynomial", "end_learning_rate": 0.001}, {49: 0.001 + 0.255 * 0.25, 90: 0.001}),
        # A warm-up before slow start ends where slow start begins.
        ({"schedule": "slow-start", "warmup_epochs": 2}, {0: 0.0, 1: 0.064, 2: 0.128}),
        ({"warmup_start": 0.5}, {0: 0.128}),
        # V2.0 section 5.1.2: batch size k times as large, learning rate k times as large.
        ({"global_batch": 8192}, {8: 32 * 0.256}),
        ({"global_batch": 8192, "learning_rate_scaling": "none"}, {8: 0.256}),
    ],
    ids=["reference", "step", "polynomial", "slow-start", "warm-up above zero", "scaled", "not scaled"],
)
def test_a_schedule_has_the_rates_that_a_hand_computes(changes: dict[str, Any], by_epoch: dict[int, float]) -> None:
    policy = rate(**changes)
    assert {epoch: policy.at(epoch * STEPS) for epoch in by_epoch} == pytest.approx(by_epoch, abs=1e-12)


def test_cosine_equals_torchs_scheduler() -> None:
    mine = rate(warmup_epochs=0, epochs=5, end_learning_rate=0.01)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=mine.peak)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5 * STEPS, eta_min=0.01)
    for step in range(5 * STEPS):
        assert mine.at(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6)
        optimizer.step()
        theirs.step()


def test_polynomial_decay_is_that_of_mlperfs_reference() -> None:
    # Batch 65536: to 24.699 in 31 epochs, then power 2, down to 1e-4. Their decay is one step longer than ours.
    policy = rate(
        global_batch=65536,
        learning_rate_scaling="none",
        base_learning_rate=24.699,
        warmup_epochs=31,
        schedule="polynomial",
        end_learning_rate=1e-4,
    )
    warmup, decay = 31 * STEPS, (90 - 31) * STEPS + 1
    for step in (0, 1, 155, 310, 311, 600, 899):
        left = 1 - (step - warmup) / decay
        expected = 24.699 * step / warmup if step <= warmup else (24.699 - 1e-4) * left**2 + 1e-4
        assert policy.at(step) == pytest.approx(expected, rel=5e-3, abs=3e-4)


@pytest.mark.parametrize("epochs", [90, 18])
def test_slow_start_is_the_papers_scaled_to_the_epochs_of_the_problem(epochs: int) -> None:
    # Akiba et al. 2017: shares 0.5, 0.075, 0.01, 0.001 of the scaled rate for 40, 30, 15 and 5 of 90 epochs.
    slow = rate(schedule="slow-start", warmup_epochs=0, base_learning_rate=0.1, global_batch=32768, epochs=epochs)
    scaled = 0.1 * 32768 / 256
    last_steps = [epochs * STEPS * end // 90 - 1 for end in (40, 70, 85, 90)]
    assert slow.at(0) == pytest.approx(0.5 * scaled)
    assert [slow.at(step) / scaled for step in last_steps] == pytest.approx([0.5, 0.075, 0.01, 0.001])
    assert [slow.at(step + 1) / scaled for step in last_steps[:-1]] == pytest.approx([0.075, 0.01, 0.001])


@given(
    st.sampled_from(["cosine", "step", "polynomial", "constant", "slow-start"]),
    st.floats(0, 20),
    st.integers(20, 100),
    st.integers(32, 65536),
)
def test_the_rate_is_never_negative_and_never_above_its_peak(
    schedule: str, warmup: float, epochs: int, global_batch: int
) -> None:
    policy = rate(schedule=schedule, warmup_epochs=warmup, epochs=epochs, global_batch=global_batch)
    rates = [policy.at(step) for step in range(epochs * STEPS + 1)]
    assert min(rates) >= 0
    assert max(rates) <= policy.peak * (1 + 1e-12)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_recipe_that_is_shipped_loads(name: str) -> None:
    assert load_recipe(name).benchmark == name.partition("/")[0]


@pytest.mark.parametrize("name", LARGE)
def test_a_large_batch_is_that_of_its_name_is_documented_and_keeps_the_problem(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.global_batch == int(name.rpartition("-")[2])
    assert f"`{name}`" in DOCS.read_text()
    assert recipe.problem == load_recipe("ic/reference").problem


# Batch: rate, warm-up epochs, weight decay, momentum (MLPerf Training 4.0, reference convergence points).
@pytest.mark.parametrize(
    ("batch", "peak", "warmup", "decay", "momentum"),
    [
        (4096, 10.0, 5, 2e-4, 0.9),
        (8192, 17.0, 5, 2e-4, 0.9),
        (32768, 21.2, 16, 2.5e-5, 0.94),
        (65536, 24.699, 31, 1e-4, 0.951807),
    ],
)
def test_lars_starts_with_the_published_values(
    batch: int, peak: float, warmup: int, decay: float, momentum: float
) -> None:
    recipe = load_recipe(f"ic/lars-{batch}")
    policy, steps = recipe.hyperparameters, -(-IMAGES // batch)
    assert (policy.weight_decay, policy.momentum) == (decay, momentum)
    assert (policy.trust_coefficient, policy.epsilon, policy.momentum_form) == (0.001, 0.0, "inside")
    schedule = LearningRate(policy, recipe.global_batch, steps, recipe.problem.epochs)
    assert schedule.at(0) == 0
    assert schedule.at(warmup * steps) == pytest.approx(peak)
    assert schedule.at((warmup + 90) * steps // 2) == pytest.approx(peak / 4, rel=1e-2)
    assert schedule.at(90 * steps) == pytest.approx(1e-4)
    assert isinstance(build_optimizer(torch.nn.Linear(2, 2), policy), LARS)


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
