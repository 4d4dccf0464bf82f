"""SGD with momentum whose velocity contains the learning rate; torch's own has it outside."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import optim

from hpcai500.optim.momentum import Form, descend, with_gradients


class InsideSGD(optim.Optimizer):
    """SGD with momentum whose velocity contains the learning rate.

    Args:
        groups: parameters, as torch's optimizers take them.
        lr: learning rate; whoever trains sets it anew before each step.
        momentum: share of the velocity that stays.
        weight_decay: L2 penalty, added to the gradient.
        form: as of `descend`.
    """

    def __init__(
        self, groups: Iterable[Any], *, lr: float, momentum: float, weight_decay: float = 0.0, form: Form = "inside"
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "momentum_form": form}
        super().__init__(groups, {**defaults, "previous_lr": 0.0})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Do one update by the gradients that are there."""
        for group in self.param_groups:
            weights, gradients = with_gradients(group)
            if weights:
                descend(self, group, weights, gradients, decay=group["weight_decay"])
