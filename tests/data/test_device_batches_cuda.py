"""On a CUDA device, batches arrive whole while steps compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from climate_files import SHAPE, fields, write_year

from hpcai500 import _core
from hpcai500.data.climate.loader import ClimateBatches
from hpcai500.data.climate.years import storage_of
from hpcai500.data.device_batches import DeviceBatches, DeviceForm, convert_images, make_copy_stream

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(not _core.cuda_architectures(), reason="no CUDA device can be used by a build without CUDA"),
]
DEVICE = torch.device("cuda", 0)


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("on_device", [True, False])
def test_batches_stay_whole_while_long_steps_compute(tmp_path: Path, depth: int, on_device: bool) -> None:
    year = write_year(tmp_path / "year.h5", fields(seed=4))
    with h5py.File(year) as file:
        files = [(year, storage_of(file["images"]))]
    mean, std = np.linspace(-3, 4, SHAPE[1]), np.linspace(0.5, 9, SHAPE[1])
    moments_of: dict[str, Any] = {} if on_device else {"mean": mean, "std": std}
    samples = np.array([(0, image) for image in range(SHAPE[0])], np.int64)
    loader = ClimateBatches(files, samples, batch_size=2, threads=2, depth=depth, pin_memory=True, **moments_of)
    form = DeviceForm(torch.float32, torch.channels_last, converted=on_device, mean=tuple(mean), std=tuple(std))
    batches = DeviceBatches(loader, device=DEVICE, batch_size=2, form=form, stream=make_copy_stream(DEVICE))
    order = [np.array([at % 7, (3 * at) % 7]) for at in range(40)]
    kept = []
    for batch in batches.epoch(order, seed=0, epoch=0):
        torch.cuda._sleep(3_000_000)
        kept.append(batch.images.clone())
    batches.close()
    expected = convert_images(torch.from_numpy(fields(seed=4)), mean.tolist(), std.tolist())
    for images, ids in zip(kept, order, strict=True):
        assert images.cpu().contiguous().equal(expected[ids])
