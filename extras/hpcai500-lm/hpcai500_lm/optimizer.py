"""The update rule of language models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from hpcai500.workloads.base import Place
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hpcai500_lm import LmRecipe

# Added to the norm, as torch's clip_grad_norm_ does.
_EPSILON = 1e-6


class ClippedAdamW(torch.optim.AdamW):
    """AdamW (Loshchilov and Hutter 2019) after scaling gradients down to a largest norm (Pascanu et al. 2013).

    The norm is that of all gradients of the model, on whichever ranks they are. With `weight_decay_on = "weights"`,
    weight decay is for matrices alone.
    """

    def __init__(self, model: nn.Module, recipe: LmRecipe, place: Place) -> None:
        policy = recipe.hyperparameters
        matrices = [weight for weight in model.parameters() if weight.dim() > 1]
        norms = [weight for weight in model.parameters() if weight.dim() == 1]
        of_norms = policy.weight_decay if policy.weight_decay_on == "all" else 0.0
        super().__init__(
            [{"params": matrices, "weight_decay": policy.weight_decay}, {"params": norms, "weight_decay": of_norms}],
            lr=policy.base_learning_rate,
            betas=(policy.beta1, policy.beta2),
            eps=policy.epsilon,
            fused=recipe.framework.fused_optimizer or None,
        )
        self._largest, self._stages = policy.largest_norm, place.stages

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Scale the gradients, then update the weights."""
        if self._largest:
            weights = (weight for group in self.param_groups for weight in group["params"])
            gradients = [weight.grad for weight in weights if weight.grad is not None]
            squared = squared_norm(gradients)
            if self._stages:
                self._stages.all_reduce(squared)
            scale = (self._largest / (squared.sqrt() + _EPSILON)).clamp(max=1.0)
            torch._foreach_mul_([one.to_local() if isinstance(one, DTensor) else one for one in gradients], scale)
        return super().step(closure)


def squared_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The squared norm of all gradients; of a sharded model, over all shards."""
    of_mesh: dict[Any, list[Tensor]] = defaultdict(list)
    for gradient in gradients:
        of_mesh[gradient.device_mesh if isinstance(gradient, DTensor) else None].append(gradient)
    norms = (torch.nn.utils.get_total_norm(group) for group in of_mesh.values())
    squares = [(norm.full_tensor() if isinstance(norm, DTensor) else norm).square() for norm in norms]
    return torch.stack(squares).sum()
