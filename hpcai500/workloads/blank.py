"""A workload without data: the model of a recipe and input of its shape, for timing and profiling steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.data.climate.years import MOST_BOXES
from hpcai500.layers import ExtremeWeather, ImageClassification, Recipe
from hpcai500.recipe import benchmark_rules
from hpcai500.workloads.base import Place, noise
from hpcai500.workloads.models.detector import blank_targets
from hpcai500.workloads.models.parts import static_parts


class BlankWorkload:
    """The part of a workload that `engine.updates.Updater` and `engine.warm_up.WarmUp` need, and a forward pass.

    Losses are those of `workloads.ic` and `workloads.ewa`. Images are noise, like normalised images: zeros would stay
    zeros through all layers, take less power, and so run faster than training. If the model learns boxes, each image
    has one, fewer than real images, padded to the number of places in a year's file.

    Args:
        classes: outputs of a classifier; by default those of the edition's data set.
        grid: height and width of a climate image; by default the edition's.

    Attributes:
        after_loss: called when a loss is computed, before its backward pass.
    """

    def __init__(
        self, recipe: Recipe, place: Place, classes: int | None = None, grid: tuple[int, int] | None = None
    ) -> None:
        rules = benchmark_rules(recipe.edition, recipe.benchmark)
        self._place, self._recipe = place, recipe
        self._classes = classes or rules["classes"]
        self._grid = grid or tuple(rules.get("grid", ()))
        self.after_loss: Callable[[], None] = lambda: None
        self.model: nn.Module = self._build()

    def blank_payload(self) -> Any:
        """One batch, on the device."""
        options, batch = self._recipe.workload, self._recipe.hyperparameters.batch_size
        if isinstance(options, ImageClassification):
            labels = torch.zeros(batch, dtype=torch.int64, device=self._place.device)
            return self._images(batch, 3, options.image_size, options.image_size), labels
        assert isinstance(options, ExtremeWeather)
        height, width = self._grid[0], options.crop_width or self._grid[1]
        targets = blank_targets(batch, MOST_BOXES, height, width).to(self._place.device)
        return self._images(batch, len(options.channels), height, width), targets

    def graphed_parts(self) -> tuple[str, ...]:
        return static_parts(self.model, self._place.world_size)

    def loss(self, model: nn.Module, payload: Any) -> Tensor:
        images, truth = payload[0].to(self._place.device), payload[1].to(self._place.device)
        options = self._recipe.workload
        if isinstance(options, ImageClassification):
            loss = F.cross_entropy(model(images), truth, label_smoothing=options.label_smoothing)
        else:
            loss = cast(Tensor, sum(model(images, truth).values()))
        self.after_loss()
        return loss

    def infer(self, model: nn.Module, payload: Any) -> None:
        """The forward pass of an evaluation."""
        model(payload[0].to(self._place.device))

    def _images(self, *shape: int) -> Tensor:
        layout = torch.channels_last if self._recipe.framework.channels_last else torch.contiguous_format
        images = noise(*shape, dtype=self._place.input_dtype, device=self._place.device)
        return images.to(memory_format=layout)

    def _build(self) -> nn.Module:
        options = self._recipe.workload
        is_synchronised = getattr(options, "norm", None) == "sync-batch"
        communicator = self._place.second_communicator() if is_synchronised else None
        if isinstance(options, ImageClassification):
            from hpcai500.workloads import ic  # a run has one benchmark

            return ic.build_model(options, self._classes, communicator)
        from hpcai500.workloads import ewa  # a run has one benchmark

        assert isinstance(options, ExtremeWeather)
        return ewa.build_model(options, communicator)
