"""Momentum, with the learning rate outside the velocity or inside it (Goyal et al. 2017, section 3)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, optim

Form = Literal["outside", "inside", "corrected"]


def descend(
    optimizer: optim.Optimizer,
    group: dict[str, Any],
    weights: list[Tensor],
    gradients: list[Tensor],
    *,
    decay: float = 0.0,
    ratios: list[Tensor] | None = None,
) -> None:
    """Move `weights` by one step of momentum, without a copy of them.

    With u = ratio (gradient + decay weight), m `group["momentum"]` and r `group["lr"]`, velocity v and weight w become

    - outside: v = m v + u, w = w - r v (equation 9; torch's SGD);
    - inside: v = m v + r u, w = w - v (equation 10);
    - corrected: v = m (r / r of the step before) v + r u, w = w - v (remark 2): the steps of `outside`.

    The velocity is kept in `optimizer.state`, the rate of the step before in `group`, so both are in checkpoints.

    Args:
        optimizer: whose state it is.
        group: `lr`, `momentum`, `momentum_form` and `previous_lr`.
        weights: n tensors.
        gradients: theirs.
        decay: L2 penalty.
        ratios: n tensors of no dimension; 1 by default.
    """
    velocities = [_velocity(optimizer, weight) for weight in weights]
    rate, outside = group["lr"], group["momentum_form"] == "outside"
    torch._foreach_mul_(velocities, group["momentum"] * _correction(group))
    for tensors, share in ((gradients, 1.0), (weights, decay)):
        factor = share if outside else share * rate
        if ratios is not None and share:
            torch._foreach_addcmul_(velocities, tensors, ratios, value=factor)
        elif share:
            torch._foreach_add_(velocities, tensors, alpha=factor)
    torch._foreach_add_(weights, velocities, alpha=-rate if outside else -1.0)
    group["previous_lr"] = rate


def _correction(group: dict[str, Any]) -> float:
    """What a change of the rate does to a velocity that contains the rate.

    At rate 0, as a warm-up may start, nothing enters the velocity: there is nothing to correct afterwards.
    """
    previous = group["previous_lr"]
    return float(group["lr"] / previous) if group["momentum_form"] == "corrected" and previous else 1.0


def _velocity(optimizer: optim.Optimizer, weight: Tensor) -> Tensor:
    state = optimizer.state[weight]
    if "velocity" not in state:
        state["velocity"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
    velocity: Tensor = state["velocity"]
    return velocity


def with_gradients(group: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """The weights of `group` that have a gradient, and the gradients."""
    weights = [weight for weight in group["params"] if weight.grad is not None]
    return weights, [weight.grad for weight in weights]
