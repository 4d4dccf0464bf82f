"""A training step as PyTorch's documentation writes it: what the engine is compared with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from clock import Call
from torch import Tensor, nn

from hpcai500.layers import Recipe

_MIXED = {"bf16": torch.bfloat16, "fp16": torch.float16}


def eager_step(model: nn.Module, loss_of: Callable[[nn.Module], Tensor], recipe: Recipe, device: torch.device) -> Call:
    """A call that makes one step of `model` by SGD with the recipe's momentum and decay, in its precision.

    Weights are channels_last where the recipe's are. fp16 scales its loss, as it must. The switches of torch that
    belong to a precision (tf32, the search for the fastest convolution) are set as the engine sets them.
    """
    model = model.to(device)
    if recipe.framework.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.train()
    policy = recipe.hyperparameters
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=policy.momentum, weight_decay=policy.weight_decay)
    precision = recipe.accelerator.precision
    set_switches(precision)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with arithmetic(precision, device):
            loss = loss_of(model)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def arithmetic(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """In which a forward pass runs: autocast where `precision` is mixed."""
    mixed = _MIXED.get(precision)
    return nullcontext() if mixed is None else torch.autocast(device.type, dtype=mixed)


def set_switches(precision: str) -> None:
    """What `engine.precision` sets: both rivals of a case share them, whichever is made first."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True
