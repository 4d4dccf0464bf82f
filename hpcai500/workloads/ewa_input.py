"""Where climate images become input: normalised by the host's threads, or on the device while a step computes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from hpcai500.data.climate.reading.loader import ClimateBatch, ClimateBatches
from hpcai500.data.climate.storage import Storage
from hpcai500.data.copy_lanes import CopyLane, make_copy_lane
from hpcai500.data.device_batches import DeviceBatches, DeviceForm, Source
from hpcai500.layers import Recipe
from hpcai500.workloads.base import Place


class ClimateInput:
    """Makes loaders of climate years as `recipe` asks for, for the process at `place`.

    `channels` are numbers of the wanted channels; `mean` and `std` have a value for each of them.
    """

    def __init__(
        self,
        recipe: Recipe,
        place: Place,
        channels: Sequence[int],
        mean: npt.NDArray[np.float64],
        std: npt.NDArray[np.float64],
    ) -> None:
        self._recipe = recipe
        self._place = place
        self._channels = channels
        self._mean, self._std = mean, std

    def loader(
        self, files: Sequence[tuple[Path, Storage]], samples: npt.NDArray[np.int64], *, width: int, roll: bool = False
    ) -> ClimateBatches:
        """Batches on the host: as the model takes them, or as they are stored where the device converts them."""
        return ClimateBatches(
            files,
            samples,
            batch_size=self._recipe.hyperparameters.batch_size,
            threads=self._place.input_threads,
            channels=self._channels,
            mean=None if self._on_device else self._mean,
            std=None if self._on_device else self._std,
            dtype="float32" if self._on_device else self._place.input_name,
            width=width,
            roll=roll,
            depth=self._recipe.accelerator.prefetch_batches,
            pin_memory=self._place.device.type == "cuda",
        )

    def on_device(self, source: Source[ClimateBatch]) -> Source[ClimateBatch]:
        """The same batches one ahead on a CUDA device, as the model takes them; on a CPU the source itself."""
        if self._place.device.type != "cuda":
            return source
        form = DeviceForm(
            dtype=self._place.input_dtype,
            memory_format=torch.channels_last if self._recipe.framework.channels_last else torch.contiguous_format,
            converted=self._on_device,
            mean=tuple(self._mean.tolist()) if self._on_device else None,
            std=tuple(self._std.tolist()) if self._on_device else None,
        )
        batch_size = self._recipe.hyperparameters.batch_size
        return DeviceBatches(source, device=self._place.device, batch_size=batch_size, form=form, lane=self._lane)

    @property
    def _on_device(self) -> bool:
        return self._recipe.accelerator.conversion == "device"

    @cached_property
    def _lane(self) -> CopyLane:
        """One for all: training and evaluation take turns, and so do their places on the device."""
        return make_copy_lane(self._place.device)
