"""Arithmetic of a run (layer 4): fp32, tf32, mixed precision in bf16 or fp16 over fp32 weights, and int8 values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, optim

from hpcai500.comm.base import Communicator
from hpcai500.engine.agreed_scaler import AgreedGradScaler
from hpcai500.engine.int8 import Int8Products

_MIXED = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Runs forward passes and updates in the precision that the recipe names.

    Args:
        name: the recipe's word.
        device: where the model is.
        stages: the ranks that hold parts of the same model, which leave out a step alike; by default this one alone.
    """

    def __init__(self, name: str, device: torch.device, *, stages: Communicator | None = None) -> None:
        self._device = device
        self._mixed = _MIXED.get(name)
        self._is_int8 = name == "int8"
        # fp16 has 5 exponent bits: small gradients vanish unless the loss is scaled up.
        self._scaler = _scaler(device, stages) if name == "fp16" else None
        self._in_stages = stages is not None
        # torch's older switches: its newer ones (fp32_precision) may not be mixed with them, torch's own compiler still
        # reads the older ones, and of both only these are in all versions that we run on.
        matmul = "high" if name == "tf32" else "highest"
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = name == "tf32"
        # Shapes never change in a run, so the search for the fastest convolution is worth its time.
        torch.backends.cudnn.benchmark = True

    @property
    def input_dtype(self) -> torch.dtype:
        """The type in which images are best delivered."""
        return self._mixed or torch.float32

    @property
    def leaves_out_overflows(self) -> bool:
        """Whether `step` leaves the weights as they are where a gradient is not finite."""
        return self._scaler is not None

    def forward(self, *, caching: bool = True) -> AbstractContextManager[Any]:
        """Context of forward pass and loss.

        Args:
            caching: whether a weight that is used twice is rounded once. Not while a CUDA graph is captured: a weight
                that was rounded outside of it would stay what it was.
        """
        if self._is_int8:
            return Int8Products()
        if self._mixed is None:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=self._mixed, cache_enabled=caching)

    def scaled(self, loss: Tensor) -> Tensor:
        """What a backward pass begins with: the loss, with fp16 scaled up."""
        return self._scaler.scale(loss) if self._scaler else loss

    def backward(self, loss: Tensor) -> None:
        """Backward pass; with fp16 its gradients are scaled up."""
        self.scaled(loss).backward()

    def step(self, optimizer: optim.Optimizer) -> None:
        """One step of `optimizer`; with fp16 a step whose gradients overflow is left out.

        A fused optimizer divides by the scale and leaves out the step by itself, on the device; for others the host
        waits for the device's answer whether a gradient overflowed.
        """
        if self._scaler is None:
            optimizer.step()
            return
        if self._in_stages:
            # A fused optimizer skips what asks the other stages.
            self._scaler.unscale_(optimizer)
        self._scaler.step(optimizer)
        self._scaler.update()

    def state(self) -> dict[str, Any]:
        """State of the loss scale, for a checkpoint."""
        return self._scaler.state_dict() if self._scaler else {}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on with the loss scale of a checkpoint."""
        if self._scaler:
            self._scaler.load_state_dict(state)


@contextmanager
def same_kernels() -> Iterator[None]:
    """Within, a GPU takes the same kernels for the same shapes, whatever was timed before."""
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = before


def _scaler(device: torch.device, stages: Communicator | None) -> torch.amp.GradScaler:
    return AgreedGradScaler(device, stages) if stages else torch.amp.GradScaler(device.type)
