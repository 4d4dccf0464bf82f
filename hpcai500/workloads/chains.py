"""What a workload gives besides, so that its model can be cut over ranks (model and pipeline parallelism)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from hpcai500.workloads.models.faster_rcnn import FasterRCNN
from hpcai500.workloads.models.parts import Part, detector_parts
from hpcai500.workloads.models.targets import Targets


@dataclass(frozen=True)
class Chain:
    """A model as parts that follow one another, and a loss of what the last one gives.

    Attributes:
        parts: of the model, first to last; modules that only the loss uses are in the last.
        inputs: what the first part takes, on the device, of a payload.
        targets: what the loss takes besides, of a payload: on the host, and small, for it is sent to the last rank.
        pick: of such targets, those of some of the samples.
        loss: the scalar that is minimised, of the last part's outputs and their targets.
    """

    parts: tuple[Part, ...]
    inputs: Callable[[Any], Tensor]
    targets: Callable[[Any], Any]
    pick: Callable[[Any, slice], Any]
    loss: Callable[[tuple[Tensor, ...], Any], Tensor]


@runtime_checkable
class Chained(Protocol):
    """A workload whose model can be cut."""

    def chain(self) -> Chain:
        """The model's parts; `Workload.loss` of a payload is `loss(parts(inputs), targets)`."""


def detector_chain(
    model: FasterRCNN, size: tuple[int, int], device: torch.device, inputs: Callable[[Any], Tensor]
) -> Chain:
    """The chain of a detector.

    Args:
        model: the detector.
        size: (height, width) of a training image.
        device: where it is.
        inputs: the images of a payload, whose second part are their `Targets`.
    """

    def loss(levels: tuple[Tensor, ...], targets: Targets) -> Tensor:
        losses = cast(dict[str, Tensor], model.judge(levels, size, targets.to(device)))
        return cast(Tensor, sum(losses.values()))

    def pick(targets: Targets, which: slice) -> Targets:
        return Targets(targets.boxes[which], targets.labels[which], targets.seeds[which])

    return Chain(detector_parts(model), inputs, lambda payload: payload[1], pick, loss)
