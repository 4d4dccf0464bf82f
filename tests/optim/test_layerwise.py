"""LARS and LAMB against float64 twins, and what layer-wise adaptation promises: steps as large as the layer allows."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import optimizer_reference as reference
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim

from hpcai500 import _core
from hpcai500.optim.optimizers import LAMB, LARS, layer_norms

RATES = [0.0, 2.0, 10.0, 10.0, 5.0]
LARS_OPTIONS: dict[str, Any] = {"lr": 0.0, "momentum": 0.9, "weight_decay": 2e-4, "trust_coefficient": 0.001}
LAMB_OPTIONS: dict[str, Any] = {"lr": 0.0, "betas": (0.9, 0.99), "weight_decay": 0.1, "epsilon": 1e-6}


def _numbers(steps: int, shape: tuple[int, ...] = (5, 3, 2), seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).standard_normal((steps, *shape)))


@pytest.mark.parametrize("form", ["outside", "inside", "corrected"])
@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_lars_is_its_equation(form: str, epsilon: float) -> None:
    start, *gradients = _numbers(len(RATES) + 1)
    options = {"momentum": 0.9, "decay": 2e-4, "form": form, "trust": 0.001, "epsilon": epsilon}
    expected = reference.lars(start, gradients, RATES, **options)
    make = partial(LARS, **LARS_OPTIONS, form=form, epsilon=epsilon)
    got = reference.weights_after(make, start, gradients, RATES)
    assert torch.allclose(got, torch.tensor(expected).float(), rtol=1e-5, atol=1e-6)
    assert not np.allclose(expected, start, rtol=1e-3)


@pytest.mark.parametrize("adapted", [True, False])
def test_lamb_is_algorithm_2(adapted: bool) -> None:
    rates = [0.0, 0.01, 0.02, 0.02]
    start, *gradients = _numbers(5)
    options = {"beta1": 0.9, "beta2": 0.99, "decay": 0.1, "epsilon": 1e-6, "adapted": adapted}
    expected = reference.lamb(start, gradients, rates, **options)
    got = reference.weights_after(partial(LAMB, **LAMB_OPTIONS), start, gradients, rates, adapted=adapted)
    assert torch.allclose(got, torch.tensor(expected).float(), rtol=1e-5, atol=1e-6)
    assert not np.allclose(expected, start, rtol=1e-3)


def test_lamb_without_adaptation_is_adam() -> None:
    start, *gradients = _numbers(5)
    mine = reference.weights_after(partial(LAMB, **LAMB_OPTIONS), start, gradients, [0.01] * 4, adapted=False)
    adam = partial(optim.Adam, lr=0.0, betas=(0.9, 0.99), eps=1e-6)
    assert torch.allclose(mine, reference.weights_after(adam, start, gradients, [0.01] * 4), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["outside", "inside"])
def test_lars_without_adaptation_is_momentum_without_decay(form: str) -> None:
    start, *gradients = _numbers(len(RATES) + 1)
    expected = reference.sgd(start, gradients, RATES, momentum=0.9, decay=0.0, form=form)
    got = reference.weights_after(partial(LARS, **LARS_OPTIONS, form=form), start, gradients, RATES, adapted=False)
    assert torch.allclose(got, torch.tensor(expected).float(), rtol=1e-4, atol=1e-4)


@given(st.floats(-6, 6), st.floats(-6, 6))
def test_the_share_of_the_weights_that_lars_changes_depends_on_no_scale(of_weights: float, of_gradients: float) -> None:
    start, *gradients = _numbers(4)
    make = partial(LARS, **{**LARS_OPTIONS, "weight_decay": 0.0})
    plain = reference.weights_after(make, start, gradients, RATES[:3])
    scaled = reference.weights_after(
        make, start * 10**of_weights, [gradient * 10**of_gradients for gradient in gradients], RATES[:3]
    )
    assert torch.allclose(scaled.double() / 10**of_weights, plain.double(), rtol=1e-5, atol=1e-6)


@given(st.floats(-6, 6), st.floats(-3, 6))
def test_the_share_of_the_weights_that_lamb_changes_depends_on_no_scale(of_weights: float, of_gradients: float) -> None:
    start, *gradients = _numbers(4)
    make = partial(LAMB, **{**LAMB_OPTIONS, "weight_decay": 0.0, "epsilon": 0.0})
    plain = reference.weights_after(make, start, gradients, [0.01] * 3)
    scaled = reference.weights_after(
        make, start * 10**of_weights, [gradient * 10**of_gradients for gradient in gradients], [0.01] * 3
    )
    assert torch.allclose(scaled.double() / 10**of_weights, plain.double(), rtol=1e-5, atol=1e-6)


def test_one_step_of_lars_changes_each_layer_by_rate_times_trust_coefficient() -> None:
    layers = [nn.Parameter(torch.randn(4, 4) * scale) for scale in (1e-3, 1.0, 1e3)]
    before = [layer.detach().clone() for layer in layers]
    optimizer = LARS([{"params": layers}], lr=10.0, momentum=0.9, trust_coefficient=0.001)
    for layer in layers:
        layer.grad = torch.randn_like(layer)
    optimizer.step()
    for layer, old in zip(layers, before, strict=True):
        assert ((layer - old).norm() / old.norm()).item() == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize("make", [partial(LARS, **LARS_OPTIONS), partial(LAMB, **LAMB_OPTIONS)])
def test_weights_of_zero_move_as_without_adaptation(make: Any) -> None:
    # Decay adds nothing to weights of 0, so that the step alone is compared.
    gradients = _numbers(1)
    start = np.zeros_like(gradients[0])
    got = reference.weights_after(make, start, gradients, [0.1])
    assert torch.equal(got, reference.weights_after(make, start, gradients, [0.1], adapted=False))
    assert got.abs().min() > 0


def test_a_gradient_of_zero_leaves_lars_the_plain_decay() -> None:
    start, zero = _numbers(1)[0], np.zeros((5, 3, 2))
    got = reference.weights_after(partial(LARS, **LARS_OPTIONS), start, [zero], [1.0])
    assert torch.allclose(got, torch.tensor(start * (1 - 2e-4)).float(), rtol=1e-6)


def test_norms_neither_overflow_nor_vanish() -> None:
    # Squares of either leave float32: 1e-60 is below its range, 1e60 above it.
    tiny, huge = torch.full((4,), 1e-30), torch.full((9,), 1e30)
    norms = layer_norms([tiny, huge, torch.zeros(3)])
    assert norms.dtype == torch.float64
    assert norms.tolist() == pytest.approx([2e-30, 3e30, 0.0], rel=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.skipif(not _core.cuda_architectures(), reason="no CUDA device can be used by a build without CUDA")
@pytest.mark.parametrize("make", [partial(LARS, **LARS_OPTIONS), partial(LAMB, **LAMB_OPTIONS)])
def test_a_gpu_takes_the_steps_of_the_cpu(make: Any) -> None:
    start, *gradients = _numbers(4)
    on_cpu, on_gpu = (nn.Parameter(torch.tensor(start, dtype=torch.float32, device=name)) for name in ("cpu", "cuda"))
    for weight in (on_cpu, on_gpu):
        optimizer = make([{"params": [weight]}])
        for gradient in gradients:
            optimizer.param_groups[0]["lr"] = 0.1
            weight.grad = torch.tensor(gradient, dtype=torch.float32, device=weight.device)
            optimizer.step()
    assert torch.allclose(on_gpu.cpu(), on_cpu, rtol=1e-5, atol=1e-6)


def test_gradients_are_left_as_they_were() -> None:
    weight = nn.Parameter(torch.randn(3, 3))
    for optimizer in (LARS([{"params": [weight]}], lr=1.0, momentum=0.9), LAMB([{"params": [weight]}], lr=1.0)):
        weight.grad = torch.ones(3, 3)
        optimizer.step()
        assert torch.equal(weight.grad, torch.ones(3, 3))
