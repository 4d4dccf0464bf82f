"""How images pass from DALI to torch."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.utils.dlpack import from_dlpack


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
    until that stream has passed the copy.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._held: tuple[Any, torch.cuda.Event] | None = None

    def take(self, made: Any) -> torch.Tensor:
        """As `Handover.take`. DALI knows no bfloat16: its operators give float32."""
        from nvidia.dali.plugin.pytorch import feed_ndarray  # noqa: PLC0415

        self.let_go()
        tensor = made.as_tensor()
        stream = torch.cuda.current_stream(self._device)
        given = torch.float32 if self._dtype == torch.bfloat16 else self._dtype
        images = torch.empty(tensor.shape(), dtype=given, device=self._device)
        feed_ndarray(tensor, images, cuda_stream=stream)
        self._held = (tensor, stream.record_event())
        return images.to(self._dtype)

    def let_go(self) -> None:
        """Wait for the copy, which a batch later is long done."""
        if self._held is not None:
            self._held[1].synchronize()
            self._held = None
