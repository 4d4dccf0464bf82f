"""Arithmetic of a run (layer 4): fp32, tf32, and mixed precision in bf16 or fp16 over fp32 weights."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, optim

_MIXED = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Runs forward passes and updates in the precision that the recipe names."""

    def __init__(self, name: str, device: torch.device) -> None:
        self._device = device
        self._mixed = _MIXED.get(name)
        # fp16 has 5 exponent bits: small gradients vanish unless the loss is scaled up.
        self._scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None
        matmul = "high" if name == "tf32" else "highest"
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = name == "tf32"
        # Shapes never change in a run, so the search for the fastest convolution is worth its time.
        torch.backends.cudnn.benchmark = True

    @property
    def input_dtype(self) -> torch.dtype:
        """The type in which images are best delivered."""
        return self._mixed or torch.float32

    def forward(self) -> AbstractContextManager[Any]:
        """Context of forward pass and loss."""
        if self._mixed is None:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=self._mixed)

    def backward(self, loss: Tensor) -> None:
        """Backward pass; with fp16 its gradients are scaled up."""
        (self._scaler.scale(loss) if self._scaler else loss).backward()

    def step(self, optimizer: optim.Optimizer) -> None:
        """One step of `optimizer`; with fp16 a step whose gradients overflow is left out."""
        if self._scaler is None:
            optimizer.step()
            return
        self._scaler.step(optimizer)
        self._scaler.update()

    def state(self) -> dict[str, Any]:
        """State of the loss scale, for a checkpoint."""
        return self._scaler.state_dict() if self._scaler else {}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on with the loss scale of a checkpoint."""
        if self._scaler:
            self._scaler.load_state_dict(state)
