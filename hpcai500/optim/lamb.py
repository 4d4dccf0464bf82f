"""LAMB: layer-wise adaptive moments for batch training (You et al. 2019, algorithm 2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, optim

from hpcai500.optim.momentum import with_gradients
from hpcai500.optim.norms import layer_norms, ratios_of


class LAMB(optim.Optimizer):
    """Adam whose step of a layer is scaled to the size of its weights.

    With m and v the moments of the gradient, corrected for their start at 0, d the weight decay and r the rate,

        u = m / (sqrt(v) + epsilon) + d w,    w = w - r |w| / |u| u

    and w - r u where |w| or |u| is 0. A group with `adapted` false takes u without decay, and the ratio 1.

    Args:
        groups: parameters, as torch's optimizers take them; each may set `adapted`, which is true by default.
        lr: learning rate; whoever trains sets it anew before each step.
        betas: decay of the first and the second moment.
        weight_decay: added to the step, not to the gradient.
        epsilon: added to the root of the second moment.
    """

    def __init__(
        self,
        groups: Iterable[Any],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.01,
        epsilon: float = 1e-6,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "epsilon": epsilon, "adapted": True}
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Do one update by the gradients that are there.

        Raises:
            EnvironmentLacksError: weights on a CUDA device, and a build without CUDA.
        """
        for group in self.param_groups:
            weights, gradients = with_gradients(group)
            if not weights:
                continue
            updates = self._moments(group, weights, gradients)
            if group["adapted"]:
                torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
                norms = layer_norms([*weights, *updates])
                torch._foreach_mul_(updates, ratios_of(norms[: len(weights)], norms[len(weights) :], weights))
            torch._foreach_add_(weights, updates, alpha=-group["lr"])

    def _moments(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        """Take the gradients into both moments; returns m / (sqrt(v) + epsilon), corrected for their start."""
        beta1, beta2 = group["betas"]
        states = [self._state(weight) for weight in weights]
        for state in states:
            state["steps"] += 1
        first, second = ([state[name] for state in states] for name in ("first_moment", "second_moment"))
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
        roots = list(torch._foreach_sqrt(second))
        torch._foreach_div_(roots, [(1 - beta2 ** state["steps"]) ** 0.5 for state in states])
        torch._foreach_add_(roots, group["epsilon"])
        torch._foreach_mul_(roots, [1 - beta1 ** state["steps"] for state in states])
        return list(torch._foreach_div(first, roots))

    def _state(self, weight: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[weight]
        if not state:
            # Counted for each tensor: one that had no gradient for a while starts later than the others.
            state["steps"] = 0
            for name in ("first_moment", "second_moment"):
                state[name] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        return state
