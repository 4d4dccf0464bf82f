"""fp16's loss scale where several ranks hold parts of one model: what overflows on one is left out by all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, optim

from hpcai500.comm.base import Communicator


class AgreedGradScaler(torch.amp.GradScaler):
    """torch's loss scaler, that asks the other ranks whether a gradient overflowed.

    Not torch's own ShardedGradScaler: a default argument of it holds the job's process group for as long as the process
    lives (see open_torch), fused optimizers take a step that overflows on two ranks, and nobody watches
    its wait for the others.

    Args:
        device: where the gradients are.
        communicator: all ranks that hold parts of the model. Each of them steps as often as the others.
    """

    def __init__(self, device: torch.device, communicator: Communicator) -> None:
        super().__init__(device.type)
        self._where, self._communicator = device, communicator
        # Only the last stage scales a loss; the others too must have the factor that they unscale by.
        self.scale(torch.zeros((), device=device))

    def unscale_(self, optimizer: optim.Optimizer) -> None:
        """Divide the gradients by the scale, and learn whether one overflowed on any rank.

        Raises:
            CommunicationError: another rank is lost.
        """
        super().unscale_(optimizer)
        state: dict[str, Any] = self._per_optimizer_states[id(optimizer)]
        # Empty where no parameter has a gradient; the others ask all the same.
        found: dict[torch.device, Tensor] = state["found_inf_per_device"] or {
            self._where: torch.zeros((), device=self._where)
        }
        for overflowed in found.values():
            self._communicator.all_reduce(overflowed)
            # A fused optimizer leaves out its step at 1, and takes it at any other number.
            overflowed.clamp_(max=1)
        state["found_inf_per_device"] = found
