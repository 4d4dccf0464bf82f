"""The engine's own training steps on one batch that lies on the device: a step without the cost of input."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from clock import Timed
from torch import Tensor, nn

from hpcai500.comm.communicator import LocalCommunicator
from hpcai500.engine import measured_steps
from hpcai500.engine.measured_steps import ProfiledSteps
from hpcai500.engine.precision import Precision
from hpcai500.engine.ranks import Ranks
from hpcai500.hosts import find_placement
from hpcai500.layers import ImageClassification, Recipe
from hpcai500.workloads.base import Place, TrainingBatch
from hpcai500.workloads.blank import BlankWorkload
from hpcai500.workloads.models.detector import Targets

# Captures, compilations and choices of kernels are over by then.
WARM_UP_STEPS = 12
# Published of the data's first year: 5.1 boxes an image.
_BOXES = 5
_PATIENCE_SECONDS = 600.0


@dataclass(frozen=True)
class Shape:
    """What a recipe leaves to its data: classes of a classifier, height and width of climate images."""

    classes: int | None = None
    grid: tuple[int, int] | None = None


class HeldWorkload(BlankWorkload):
    """One batch of noise, made once and kept on the device; as many boxes in an image as real ones have."""

    metric = "none"
    steps_per_epoch = 10**6
    drawn = None

    def __init__(self, recipe: Recipe, place: Place, shape: Shape) -> None:
        # The weights of all contestants are the same: they decide how many proposals overlap.
        torch.manual_seed(0)
        super().__init__(recipe, place, shape.classes, shape.grid)
        images, truth = super().blank_payload()
        generator = torch.Generator().manual_seed(1)
        if isinstance(recipe.workload, ImageClassification):
            truth = torch.randint(0, shape.classes or 1000, (len(images),), generator=generator)
        else:
            truth = boxes_in(images.shape[-2], images.shape[-1], len(images), generator)
        self.payload = images.to(place.device), truth.to(place.device)

    def blank_payload(self) -> Any:
        """The batch."""
        return self.payload

    def hold_in_memory(self, count: int) -> None:
        """It is held already."""

    def training_batches(self, epoch: int, first_step: int) -> Generator[TrainingBatch]:
        """The same batch, for ever."""
        while True:
            yield TrainingBatch(np.empty(0, np.int64), 0, self.payload)

    def close(self) -> None:
        """Nothing reads."""


def boxes_in(height: int, width: int, images: int, generator: torch.Generator) -> Targets:
    """Boxes of a twentieth to a quarter of the height, anywhere in each image, one label after the other."""
    sides = height * (0.05 + 0.2 * torch.rand(images, _BOXES, 2, generator=generator))
    corners = torch.rand(images, _BOXES, 2, generator=generator) * (torch.tensor([width, height]) - sides)
    labels = (torch.arange(_BOXES) % 4 + 1).expand(images, _BOXES).contiguous()
    return Targets(torch.cat([corners, corners + sides], dim=-1), labels, torch.arange(images))


class HeldSteps:
    """Steps of `recipe` as the engine does them, on a held batch.

    Args:
        recipe: what a step does, with all its options.
        device: where.
        shape: see `Shape`.
    """

    def __init__(self, recipe: Recipe, device: torch.device, shape: Shape) -> None:
        made: list[HeldWorkload] = []

        def make(recipe: Recipe, data: Path, place: Place) -> HeldWorkload:
            made.append(HeldWorkload(recipe, place, shape))
            return made[0]

        world = LocalCommunicator()
        with ExitStack() as opened:
            ranks = opened.enter_context(closing(Ranks(find_placement({}), world, _PATIENCE_SECONDS)))
            # The engine asks for the workload of a benchmark's name, which reads data: here is the one that does not.
            with patch.object(measured_steps, "factory", lambda benchmark: make):
                self._steps = ProfiledSteps(recipe, Path(), ranks, device, torch.get_num_threads(), world=world)
            opened.enter_context(closing(self._steps))
            self._opened = opened.pop_all()
        # Who keeps only what `timed` returns cannot close this.
        weakref.finalize(self, self._opened.close)
        self.workload = made[0]
        self.payload: tuple[Tensor, Any] = made[0].payload

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""
        return self.workload.model

    def timed(self, quick: bool) -> Timed:
        """Steps, timed by the engine from an idle device to an idle device, after everything is warm."""
        self._steps.warm_up(1 if quick else WARM_UP_STEPS)
        return lambda steps: self._steps.run(steps).seconds

    def close(self) -> None:
        """Give threads back."""
        self._opened.close()


def held_workload(recipe: Recipe, device: torch.device, shape: Shape) -> HeldWorkload:
    """For rivals: the batch that `HeldSteps` trains on, in the type that its precision has it in, and such a model."""
    dtype = Precision(recipe.accelerator.precision, device).input_dtype
    return HeldWorkload(recipe, Place(device, dtype, 1), shape)


def free(device: torch.device) -> None:
    """Give the device's memory back, that of graphs included, before the next case needs it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
