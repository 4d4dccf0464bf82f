"""Learning-rate policies against hand computation and torch's own schedulers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.layers import Hyperparameters
from hpcai500.optim.optimizers import build_optimizer
from hpcai500.optim.schedules import LearningRate
from hpcai500.recipe import reference_recipe
from hpcai500.workloads.models.resnet import BasicBlock, ResNet

STEPS = 10


def rate(*, global_batch: int = 256, epochs: int = 90, **changes: Any) -> LearningRate:
    policy = reference_recipe("ic").hyperparameters.model_copy(update=changes)
    return LearningRate(policy, global_batch, STEPS, epochs)


def test_the_reference_warms_up_for_eight_epochs_and_decays_along_a_cosine() -> None:
    reference = rate()
    assert reference.at(0) == 0.0
    assert reference.at(4 * STEPS) == pytest.approx(0.128)
    assert reference.at(8 * STEPS) == pytest.approx(0.256)
    assert reference.at((8 + 41) * STEPS) == pytest.approx(0.128)
    assert reference.at(90 * STEPS) == pytest.approx(0.0, abs=1e-12)


def test_linear_scaling_multiplies_by_k() -> None:
    # V2.0 section 5.1.2: batch size k times as large, learning rate k times as large.
    assert rate(global_batch=8192).peak == pytest.approx(32 * 0.256)
    assert rate(global_batch=8192, learning_rate_scaling="none").peak == pytest.approx(0.256)


def test_cosine_equals_torchs_scheduler() -> None:
    mine = rate(warmup_epochs=0, epochs=5, end_learning_rate=0.01)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=mine.peak)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5 * STEPS, eta_min=0.01)
    for step in range(5 * STEPS):
        assert mine.at(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6)
        optimizer.step()
        theirs.step()


def test_steps_decay_at_their_epochs_counted_from_the_start_of_the_run() -> None:
    steps = rate(schedule="step")
    values = [steps.at(epoch * STEPS) for epoch in (8, 29, 30, 59, 60, 80, 89)]
    assert values == pytest.approx([0.256, 0.256, 0.0256, 0.0256, 0.00256, 0.000256, 0.000256])


def test_polynomial_ends_at_its_end() -> None:
    polynomial = rate(schedule="polynomial", end_learning_rate=0.001)
    assert polynomial.at(49 * STEPS) == pytest.approx(0.001 + 0.255 * 0.25)
    assert polynomial.at(90 * STEPS) == pytest.approx(0.001)


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
    warmup_steps, decay_steps = 31 * STEPS, (90 - 31) * STEPS + 1
    for step in (0, 1, 155, 310, 311, 600, 899):
        expected = (
            24.699 * step / warmup_steps
            if step <= warmup_steps
            else (24.699 - 1e-4) * (1 - (step - warmup_steps) / decay_steps) ** 2 + 1e-4
        )
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


def test_a_warm_up_before_slow_start_ends_where_it_starts() -> None:
    slow = rate(schedule="slow-start", warmup_epochs=2)
    assert [slow.at(step) for step in (0, STEPS, 2 * STEPS)] == pytest.approx([0.0, 0.064, 0.128])


def test_warm_up_may_start_above_zero() -> None:
    assert rate(warmup_start=0.5).at(0) == pytest.approx(0.128)


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


def policy(**changes: Any) -> Hyperparameters:
    return reference_recipe("ic").hyperparameters.model_copy(update=changes)


def test_the_reference_decays_all_parameters() -> None:
    model = ResNet(BasicBlock, (1, 1, 1, 1), width=4)
    (group,) = build_optimizer(model, policy()).param_groups
    assert group["weight_decay"] == 1 / 32768
    assert len(group["params"]) == len(list(model.parameters()))


def test_decay_on_weights_spares_batch_norm_and_biases() -> None:
    model = ResNet(BasicBlock, (1, 1, 1, 1), width=4)
    decayed, spared = build_optimizer(model, policy(weight_decay_on="weights")).param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert all(
        "conv" in names[id(p)] or "downsample.0" in names[id(p)] or names[id(p)] == "fc.weight"
        for p in decayed["params"]
    )
    assert spared["weight_decay"] == 0
    assert {"bn1.weight", "bn1.bias", "fc.bias"} <= {names[id(p)] for p in spared["params"]}
