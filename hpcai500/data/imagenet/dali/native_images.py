"""What our own loader says of files that a DALI pipeline could not make images of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from hpcai500.data.imagenet.dali.settings import CropSettings
from hpcai500.data.imagenet.image_index import Split
from hpcai500.data.imagenet.loader import JpegBatches
from hpcai500.data.samplers import SampleIds

# Images at a time: ImageNet has a handful of odd files, and slots cost memory.
_BATCH = 8


class NativeImages:
    """The native loader, made when it is first needed: it mends files that only Pillow decodes, and names bad ones."""

    def __init__(self, split: Split, root: Path, threads: int, settings: CropSettings) -> None:
        self._make: Callable[[], JpegBatches] = lambda: JpegBatches(
            split, root, batch_size=_BATCH, threads=threads, depth=2, **settings
        )
        self._loader: JpegBatches | None = None

    def images(self, ids: SampleIds, *, seed: int, epoch: int) -> tuple[torch.Tensor, int]:
        """Images of the samples `ids`, and the warnings. Raises DataError, naming the file, where one has none."""
        self._loader = self._loader or self._make()
        parts = np.split(ids, range(_BATCH, len(ids), _BATCH))
        made = [(batch.images.clone(), batch.warnings) for batch in self._loader.epoch(parts, seed=seed, epoch=epoch)]
        return torch.cat([images for images, _ in made]), sum(warnings for _, warnings in made)

    def close(self) -> None:
        """Stop its threads, if it has any."""
        if self._loader is not None:
            self._loader.close()
