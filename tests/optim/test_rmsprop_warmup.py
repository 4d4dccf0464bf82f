"""RMSprop warm-up against its float64 twin, and the transition that gives it its name."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import optimizer_reference as reference
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.optim.optimizers import RMSpropWarmup, advance, sgd_share

OPTIONS: dict[str, Any] = {
    "lr": 0.0, "rmsprop_lr": 3e-4, "momentum": 0.9, "beta2": 0.99, "weight_decay": 1e-2, "epsilon": 1e-8,
    "center": 10.0, "period": 5.0,
}  # fmt: skip
TWIN: dict[str, Any] = {
    "rmsprop_rate": 3e-4, "momentum": 0.9, "beta2": 0.99, "decay": 1e-2, "epsilon": 1e-8, "center": 10.0, "period": 5.0,
}  # fmt: skip


def _numbers(steps: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).standard_normal((steps, 4, 3)))


def _after(start: np.ndarray, gradients: list[np.ndarray], rates: list[float], epochs: list[float]) -> torch.Tensor:
    return reference.weights_after(
        partial(RMSpropWarmup, **OPTIONS),
        start,
        gradients,
        rates,
        before=lambda optimizer, step: advance(optimizer, epochs[step]),
    )


def test_it_is_its_equations_before_in_and_after_the_transition() -> None:
    epochs = [0.0, 5.0, 9.9, 10.0, 11.3, 12.4, 12.5, 30.0]
    rates = [0.1, 0.1, 0.2, 0.2, 0.1, 0.1, 0.05, 0.01]
    start, *gradients = _numbers(9)
    expected = reference.rmsprop_warmup(start, gradients, rates, epochs, **TWIN)
    assert torch.allclose(_after(start, gradients, rates, epochs), torch.tensor(expected).float(), rtol=1e-5, atol=1e-6)


def test_after_the_transition_it_is_torchs_sgd() -> None:
    start, *gradients = _numbers(4)
    sgd = partial(torch.optim.SGD, lr=0.0, momentum=0.9, weight_decay=1e-2)
    expected = reference.weights_after(sgd, start, gradients, [0.1] * 3)
    assert torch.allclose(_after(start, gradients, [0.1] * 3, [12.5, 13.0, 90.0]), expected, rtol=1e-6, atol=1e-7)


def test_the_learning_rate_does_not_matter_long_before_the_transition() -> None:
    start, *gradients = _numbers(4)
    epochs = [-1000.0] * 3
    slow, fast = (_after(start, gradients, [rate] * 3, epochs) for rate in (0.1, 10.0))
    assert torch.allclose(slow, fast, rtol=1e-6, atol=1e-6)
    # The first step of RMSprop with a zero moment is its rate over sqrt(1 - beta2), along the sign of the gradient.
    first = _after(start, gradients[:1], [0.1], epochs) - torch.tensor(start).float()
    assert first.abs().flatten().tolist() == pytest.approx([3e-4 / 0.01**0.5] * 12, rel=1e-2)


@given(st.floats(0, 100), st.floats(0.1, 50))
def test_the_share_of_sgd_is_continuous_and_smooth_at_the_center_and_reaches_one_at_its_end(
    center: float, period: float
) -> None:
    near = 1e-6 * period
    below, at, above = (sgd_share(center + offset, center, period) for offset in (-near, 0.0, near))
    assert at == 0.5
    assert (below, above) == (pytest.approx(0.5, abs=1e-5), pytest.approx(0.5, abs=1e-5))
    assert (at - below) / near * period == pytest.approx(1.0, rel=1e-3)
    assert (above - at) / near * period == pytest.approx(1.0, rel=1e-3)
    end = center + period / 2
    assert sgd_share(end - near, center, period) == pytest.approx(1.0, abs=1e-5)
    assert sgd_share(end + near, center, period) == 1.0


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 50), st.floats(0.1, 50))
def test_the_share_of_sgd_only_grows(one: float, other: float, center: float, period: float) -> None:
    early, late = sorted((one, other))
    assert 0 <= sgd_share(early, center, period) <= sgd_share(late, center, period) <= 1


def test_at_rate_zero_nothing_moves() -> None:
    start, *gradients = _numbers(2)
    assert torch.equal(_after(start, gradients, [0.0], [0.0]), torch.tensor(start).float())
