"""What hpcai500/optim computes, again: one layer at a time, in float64 NumPy, from the papers' equations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn, optim

Array = NDArray[np.float64]


def sgd(
    w: Array, gradients: Sequence[Array], rates: Sequence[float], *, momentum: float, decay: float, form: str
) -> Array:
    """Goyal et al. 2017: equation 9 (outside), equation 10 (inside), remark 2 (corrected)."""
    v, previous = np.zeros_like(w), 0.0
    for g, rate in zip(gradients, rates, strict=True):
        v, w = _moved(v, w, g + decay * w, rate, previous, momentum, form)
        previous = rate
    return w


def lars(
    w: Array,
    gradients: Sequence[Array],
    rates: Sequence[float],
    *,
    momentum: float,
    decay: float,
    form: str,
    trust: float,
    epsilon: float,
) -> Array:
    """You, Gitman and Ginsburg 2017, algorithm 1, with MLPerf's epsilon and its ratio of 1 where a norm is 0."""
    v, previous = np.zeros_like(w), 0.0
    for g, rate in zip(gradients, rates, strict=True):
        of_w, of_g = np.linalg.norm(w), np.linalg.norm(g)
        ratio = trust * of_w / (of_g + decay * of_w + epsilon) if of_w > 0 and of_g > 0 else 1.0
        v, w = _moved(v, w, ratio * (g + decay * w), rate, previous, momentum, form)
        previous = rate
    return w


def _moved(
    v: Array, w: Array, update: Array, rate: float, previous: float, momentum: float, form: str
) -> tuple[Array, Array]:
    if form == "outside":
        v = momentum * v + update
        return v, w - rate * v
    correction = rate / previous if form == "corrected" and previous > 0 else 1.0
    v = momentum * correction * v + rate * update
    return v, w - v


def lamb(
    w: Array,
    gradients: Sequence[Array],
    rates: Sequence[float],
    *,
    beta1: float,
    beta2: float,
    decay: float,
    epsilon: float,
    adapted: bool = True,
) -> Array:
    """You et al. 2019, algorithm 2, with the identity as its function of the weights' norm."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        r = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + epsilon)
        u = r + decay * w if adapted else r
        of_w, of_u = np.linalg.norm(w), np.linalg.norm(u)
        w = w - rate * (of_w / of_u if adapted and of_w > 0 and of_u > 0 else 1.0) * u
    return w


def rmsprop_warmup(
    w: Array,
    gradients: Sequence[Array],
    rates: Sequence[float],
    epochs: Sequence[float],
    *,
    momentum: float,
    beta2: float,
    decay: float,
    epsilon: float,
    rmsprop_rate: float,
    center: float,
    period: float,
) -> Array:
    """Akiba, Suzuki and Fukuda 2017; the line that follows the center with half of the slope that they print."""
    m, delta = np.zeros_like(w), np.zeros_like(w)
    for gradient, rate, epoch in zip(gradients, rates, epochs, strict=True):
        g = gradient + decay * w
        m = beta2 * m + (1 - beta2) * g**2
        if epoch < center:
            share = 0.5 * math.exp(2 * (epoch - center) / period)
        elif epoch < center + period / 2:
            share = 0.5 + (epoch - center) / period
        else:
            share = 1.0
        delta = momentum * delta - (share + (1 - share) * rmsprop_rate / rate / (np.sqrt(m) + epsilon)) * g
        w = w + rate * delta
    return w


def weights_after(
    make: Callable[[list[dict[str, Any]]], optim.Optimizer],
    start: Array,
    gradients: Sequence[Array],
    rates: Sequence[float],
    *,
    before: Callable[[optim.Optimizer, int], None] = lambda optimizer, step: None,
    **group: Any,
) -> Tensor:
    """Where the optimizer under test takes float32 weights from `start`, given gradients and rates step by step."""
    weight = nn.Parameter(torch.tensor(start, dtype=torch.float32))
    optimizer = make([{"params": [weight], **group}])
    for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True)):
        for one in optimizer.param_groups:
            one["lr"] = rate
        before(optimizer, step)
        weight.grad = torch.tensor(gradient, dtype=torch.float32)
        optimizer.step()
    return weight.detach()
