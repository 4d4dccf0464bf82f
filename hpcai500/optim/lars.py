"""LARS: layer-wise adaptive rate scaling (You, Gitman and Ginsburg 2017), as MLPerf's reference has it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, optim

from hpcai500.optim.momentum import Form, descend, with_gradients
from hpcai500.optim.norms import layer_norms, ratios_of


class LARS(optim.Optimizer):
    """SGD with momentum whose update of a layer is scaled to the size of its weights.

    With g the gradient, d the weight decay and c the trust coefficient, the update that enters the velocity is

        c |w| / (|g| + d |w| + epsilon) (g + d w)

    and g + d w where |w| or |g| is 0. A group with `adapted` false moves along g alone: neither adaptation nor decay.

    Args:
        groups: parameters, as torch's optimizers take them; each may set `adapted`, which is true by default.
        lr: learning rate; whoever trains sets it anew before each step.
        momentum: share of the velocity that stays.
        weight_decay: L2 penalty, added to the gradient.
        trust_coefficient: c above; 0.001 in the paper.
        epsilon: keeps layers with tiny gradients from huge steps; 0 in MLPerf's reference.
        form: where the learning rate stands, as of `descend`; MLPerf's reference has it inside.
    """

    def __init__(
        self,
        groups: Iterable[Any],
        *,
        lr: float,
        momentum: float,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        epsilon: float = 0.0,
        form: Form = "inside",
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "momentum_form": form,
            "previous_lr": 0.0,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "epsilon": epsilon,
            "adapted": True,
        }
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
            if group["adapted"]:
                ratios = _trust_ratios(group, weights, gradients)
                descend(self, group, weights, gradients, decay=group["weight_decay"], ratios=ratios)
            else:
                descend(self, group, weights, gradients)


def _trust_ratios(group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
    norms = layer_norms([*weights, *gradients])
    of_weights, of_gradients = norms[: len(weights)], norms[len(weights) :]
    sizes = of_gradients + group["weight_decay"] * of_weights + group["epsilon"]
    # A gradient of 0 says nothing about how far the weights should go, whatever decay and epsilon add.
    return ratios_of(group["trust_coefficient"] * of_weights, torch.where(of_gradients > 0, sizes, 0.0), weights)
