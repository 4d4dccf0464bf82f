"""Where the images of a run come from: the loader that the recipe names, for training and for evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from hpcai500.data.copy_lanes import CopyLane, make_copy_lane
from hpcai500.data.device_batches import DeviceBatches, DeviceForm
from hpcai500.data.imagenet.dali.loader import DaliBatches
from hpcai500.data.imagenet.dali.settings import CropSettings
from hpcai500.data.imagenet.image_index import Split
from hpcai500.data.imagenet.loader import Batches, JpegBatches
from hpcai500.layers import ImageClassification, Recipe
from hpcai500.workloads.base import Place


@dataclass(frozen=True)
class ImageInput:
    """Makes loaders of splits of the set in `root`, as `recipe` asks for, for the process at `place`."""

    recipe: Recipe
    root: Path
    place: Place

    def training(self, split: Split) -> Batches:
        """Random crops, flipped at random. Raises EnvironmentLacksError where the loader is not here."""
        options = self._options
        crop: CropSettings = {
            "mode": "random",
            "area": options.crop_area,
            "ratio": options.crop_ratio,
            "flip_probability": options.flip_probability,
        }
        return self._loader(split, crop)

    def evaluation(self, split: Split) -> Batches:
        """Centre crops. Raises EnvironmentLacksError where the loader is not here."""
        return self._loader(split, {"mode": "centre", "resize_shorter": self._options.evaluation_resize})

    @property
    def _options(self) -> ImageClassification:
        options = self.recipe.workload
        assert isinstance(options, ImageClassification)
        return options

    def _loader(self, split: Split, crop: CropSettings) -> Batches:
        settings: CropSettings = {
            **crop,
            "size": self._options.image_size,
            "dtype": "uint8" if self._converted else self.place.input_name,
            "layout": "nhwc" if self.recipe.framework.channels_last else "nchw",
            "dct_scaling": self._options.dct_scaling,
        }
        batch_size, depth = self.recipe.hyperparameters.batch_size, self.recipe.accelerator.prefetch_batches
        threads, device = self.place.input_threads, self.place.device
        if self.recipe.accelerator.loader == "dali":
            return DaliBatches(
                split, self.root, batch_size=batch_size, threads=threads, depth=depth, device=device, **settings
            )
        loader = JpegBatches(
            split,
            self.root,
            batch_size=batch_size,
            threads=threads,
            depth=depth,
            pin_memory=device.type == "cuda",
            **settings,
        )
        return self._on_device(loader) if device.type == "cuda" else loader

    def _on_device(self, loader: JpegBatches) -> Batches:
        """The same batches one ahead on a CUDA device, as the model takes them."""
        mean, std = loader.normalisation if self._converted else (None, None)
        memory_format = torch.channels_last if self.recipe.framework.channels_last else torch.contiguous_format
        form = DeviceForm(self.place.input_dtype, memory_format, self._converted, mean, std)
        batch_size = self.recipe.hyperparameters.batch_size
        return DeviceBatches(loader, device=self.place.device, batch_size=batch_size, form=form, lane=self._lane)

    @property
    def _converted(self) -> bool:
        """Whether the native loader gives levels, which the device normalises."""
        return self.recipe.accelerator.loader != "dali" and self.recipe.accelerator.conversion == "device"

    @cached_property
    def _lane(self) -> CopyLane:
        """One for all: training and evaluation take turns, and so do their places on the device."""
        return make_copy_lane(self.place.device)
