"""How images pass from DALI to torch."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

import torch
from torch.utils.dlpack import from_dlpack

_MOST_HELD = 2


class Handover(Protocol):
    """Takes the images of a batch that DALI has finished."""

    def take(self, made: Any) -> torch.Tensor:
        """`made`, a list of DALI's tensors of one shape, as one tensor of the type that was asked for."""

    def let_go(self) -> None:
        """Give back what DALI made, once nobody reads it."""


class HostHandover:
    """On a CPU: the same memory, which lives as long as the tensor."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def take(self, made: Any) -> torch.Tensor:
        """As `Handover.take`. DALI knows no bfloat16: our operator gives its bits."""
        images: torch.Tensor = from_dlpack(made.as_tensor())
        return images.view(self._dtype) if self._dtype == torch.bfloat16 else images

    def let_go(self) -> None:
        """Nothing is held."""


class DeviceHandover:
    """On a CUDA device: a copy on torch's current stream into memory of torch's.

    DALI's memory may be used again as soon as DALI has it back, whatever a stream of torch's still reads: it is held
    until that stream has passed the copy. The copy comes behind the step before, which the host does not wait for: at
    most two batches are held, so that DALI keeps buffers to fill.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._held: deque[tuple[Any, torch.cuda.Event]] = deque()

    def take(self, made: Any) -> torch.Tensor:
        """As `Handover.take`. DALI knows no bfloat16: its operators give float32."""
        from nvidia.dali.plugin.pytorch import feed_ndarray  # noqa: PLC0415

        self._keep(_MOST_HELD - 1)
        tensor = made.as_tensor()
        stream = torch.cuda.current_stream(self._device)
        given = torch.float32 if self._dtype == torch.bfloat16 else self._dtype
        images = torch.empty(tensor.shape(), dtype=given, device=self._device)
        feed_ndarray(tensor, images, cuda_stream=stream)
        self._held.append((tensor, stream.record_event()))
        return images.to(self._dtype)

    def let_go(self) -> None:
        """Wait for all copies."""
        self._keep(0)

    def _keep(self, most: int) -> None:
        """Give back what was copied, and wait for the oldest copies where more than `most` are held."""
        while self._held and (len(self._held) > most or self._held[0][1].query()):
            self._held[0][1].synchronize()
            self._held.popleft()
