"""RMSprop warm-up (Akiba, Suzuki and Fukuda 2017): training starts as RMSprop and turns into SGD."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, optim

from hpcai500.optim.momentum import descend, with_gradients


def sgd_share(epoch: float, center: float, period: float) -> float:
    """Share of SGD at `epoch` (from 0, with fractions): an exponential up to 1/2 at `center`, then a line up to 1.

    The paper prints the line with twice this slope: it would be at 3/2 where it ends, half a `period` after `center`.
    With this slope it is at 1 there, and share and slope are continuous at `center`, as of the ELU that it follows.
    """
    turns = (epoch - center) / period
    return 0.5 * math.exp(2 * turns) if turns < 0 else min(0.5 + turns, 1.0)


class RMSpropWarmup(optim.Optimizer):
    """Momentum along a gradient that is scaled as in RMSprop at first, and not at all after the transition.

    With g the gradient, s the share of SGD, r the learning rate and q that of RMSprop,

        m = beta2 m + (1 - beta2) g^2,    u = (s + (1 - s) q / r / (sqrt(m) + epsilon)) g

    and u enters the velocity, the learning rate outside. At r = 0 nothing moves.

    Attributes:
        epoch: how far the run is (from 0, with fractions); whoever trains sets it anew before each step.

    Args:
        groups: parameters, as torch's optimizers take them.
        lr: learning rate; whoever trains sets it anew before each step.
        rmsprop_lr: rate of the RMSprop share, whatever `lr` is.
        momentum: share of the velocity that stays.
        beta2: decay of the second moment.
        weight_decay: L2 penalty, added to the gradient.
        epsilon: added to the root of the second moment.
        center: epoch at which half of the update is SGD's.
        period: length of the transition, in epochs.
    """

    def __init__(
        self,
        groups: Iterable[Any],
        *,
        lr: float,
        rmsprop_lr: float = 3e-4,
        momentum: float = 0.9,
        beta2: float = 0.99,
        weight_decay: float = 0.0,
        epsilon: float = 1e-8,
        center: float = 10.0,
        period: float = 5.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "rmsprop_lr": rmsprop_lr,
            "momentum": momentum,
            "momentum_form": "outside",
            "previous_lr": 0.0,
            "beta2": beta2,
            "weight_decay": weight_decay,
            "epsilon": epsilon,
            "center": center,
            "period": period,
        }
        super().__init__(groups, defaults)
        self.epoch = 0.0

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Do one update by the gradients that are there."""
        for group in self.param_groups:
            weights, gradients = with_gradients(group)
            if weights:
                updates = list(torch._foreach_add(gradients, weights, alpha=group["weight_decay"]))
                moments = self._moments(group, weights, updates)
                if group["lr"] > 0:
                    torch._foreach_mul_(updates, self._scales(group, moments))
                    descend(self, group, weights, updates)

    def _moments(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        for weight in weights:
            if "second_moment" not in self.state[weight]:
                self.state[weight]["second_moment"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        moments: list[Tensor] = [self.state[weight]["second_moment"] for weight in weights]
        torch._foreach_mul_(moments, group["beta2"])
        torch._foreach_addcmul_(moments, gradients, gradients, 1 - group["beta2"])
        return moments

    def _scales(self, group: dict[str, Any], moments: list[Tensor]) -> list[Tensor]:
        share = sgd_share(self.epoch, group["center"], group["period"])
        scales = list(torch._foreach_sqrt(moments))
        torch._foreach_add_(scales, group["epsilon"])
        torch._foreach_reciprocal_(scales)
        torch._foreach_mul_(scales, (1 - share) * group["rmsprop_lr"] / group["lr"])
        torch._foreach_add_(scales, share)
        return scales
