"""Tensors that the exchange of gradients keeps from step to step: buffers to work in, and what compression lost."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Of which bucket, and at which of the places where values are rounded.
Place = tuple[int, str]


class Buffers:
    """Flat buffers by purpose. They are kept, because fresh pages cost more than the copies that fill them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, purpose: str, length: int, dtype: torch.dtype) -> Tensor:
        """`length` elements with undefined content, valid until the next call with the same purpose and type."""
        key = purpose, dtype
        if key not in self._kept or len(self._kept[key]) < length:
            self._kept[key] = torch.empty(length, dtype=dtype, device=self._device)
        return self._kept[key][:length]


class Residuals:
    """What rounding took away at each place, to be added to the next step's values there.

    Error feedback: Seide et al. 2014, "1-bit stochastic gradient descent", section 3; at every place that rounds, as
    Tang et al. 2019, "DoubleSqueeze", does it for worker and server.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: dict[Place, Tensor] = {}

    def at(self, place: Place, length: int) -> Tensor:
        """The residual of `place`: `length` float32 values, 0 at first, to be changed in place."""
        if place not in self._kept:
            self._kept[place] = torch.zeros(length, device=self._device)
        residual = self._kept[place]
        assert len(residual) == length
        return residual

    def forget(self) -> None:
        """Begin again with zeros."""
        self._kept.clear()

    def state(self) -> dict[str, Any]:
        """Copies on the host, for a checkpoint."""
        return {f"{bucket}.{name}": residual.cpu().clone() for (bucket, name), residual in self._kept.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on with what `state` returned."""
        self._kept.clear()
        for key, residual in state.items():
            bucket, _, name = key.partition(".")
            self._kept[int(bucket), name] = residual.to(self._device, copy=True)
