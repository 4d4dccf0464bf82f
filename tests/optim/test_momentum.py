"""Where the learning rate stands in momentum: equations 9 and 10 of Goyal et al. 2017, and their correction."""

from __future__ import annotations

from functools import partial

import numpy as np
import optimizer_reference as reference
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.optim.optimizers import InsideSGD

RATES = st.lists(st.floats(1e-3, 1.0), min_size=2, max_size=8)


def _gradients(steps: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).standard_normal((steps, 3, 4)))


def _after(form: str, rates: list[float], momentum: float = 0.9, decay: float = 1e-2) -> torch.Tensor:
    start, *gradients = _gradients(len(rates) + 1)
    make = torch.optim.SGD if form == "torch" else partial(InsideSGD, form=form)
    return reference.weights_after(
        partial(make, lr=0.0, momentum=momentum, weight_decay=decay), start, gradients, rates
    )


@pytest.mark.parametrize("form", ["outside", "inside", "corrected"])
def test_each_form_is_its_equation(form: str) -> None:
    rates = [0.1, 0.2, 0.4, 0.05, 0.05]
    start, *gradients = _gradients(6)
    expected = reference.sgd(start, gradients, rates, momentum=0.9, decay=1e-2, form=form)
    assert torch.allclose(_after(form, rates), torch.tensor(expected).float(), rtol=1e-5, atol=1e-6)


@given(RATES, st.floats(0, 0.99))
def test_the_correction_makes_inside_equal_to_torchs_sgd(rates: list[float], momentum: float) -> None:
    assert torch.allclose(_after("corrected", rates, momentum), _after("torch", rates, momentum), rtol=1e-4, atol=1e-4)


def test_without_correction_a_changing_rate_makes_a_difference() -> None:
    rates = [0.1, 0.5, 0.5]
    assert not torch.allclose(_after("inside", rates), _after("torch", rates), rtol=1e-2, atol=1e-2)


def test_with_a_constant_rate_all_forms_are_one() -> None:
    rates = [0.1] * 5
    for form in ("inside", "corrected"):
        assert torch.allclose(_after(form, rates), _after("torch", rates), rtol=1e-5, atol=1e-6)


def test_a_warm_up_from_zero_leaves_nothing_to_correct() -> None:
    # At rate 0 nothing enters a velocity that contains the rate: what follows is as if that step had not been.
    start, first, *gradients = _gradients(5)
    make = partial(InsideSGD, lr=0.0, momentum=0.9, form="corrected")
    with_zero = reference.weights_after(make, start, [first, *gradients], [0.0, 0.1, 0.2, 0.3])
    without = reference.weights_after(make, start, gradients, [0.1, 0.2, 0.3])
    assert torch.equal(with_zero, without)


def test_a_weight_without_a_gradient_stays() -> None:
    used, unused = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer = InsideSGD([{"params": [used, unused]}], lr=0.1, momentum=0.9, weight_decay=0.1)
    used.grad = torch.ones(2)
    optimizer.step()
    assert torch.equal(unused, torch.ones(2))
    assert not torch.equal(used, torch.ones(2))
