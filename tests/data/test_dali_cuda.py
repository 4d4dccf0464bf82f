"""On a CUDA device: DALI's own decoder, with the crops that are ours, handed over on the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dali_here import needs_dali
from image_tree import encoded, pixels, write_tree

from hpcai500.data.imagenet.dali import DaliBatches
from hpcai500.data.imagenet.index import ImageIndex, load_index
from hpcai500.data.imagenet.loader import JpegBatches
from hpcai500.errors import DataError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    needs_dali,
]

RANDOM: dict[str, Any] = {"size": 32, "mode": "random", "area": (0.35, 1.0)}
CENTRE: dict[str, Any] = {"size": 32, "mode": "centre", "resize_shorter": 36}
IDS = [np.array(batch, dtype=np.int64) for batch in ([3, 1, 19, 7], [0, 0, 5, 12], [11])]
# Of levels: what nvJPEG's chroma upsampling and DALI's filter at the edges may make of a smooth picture.
MEAN_APART = 2.0


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageIndex:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    return load_index(write_tree(tmp_path / "set", train=10))


def on_device(index: ImageIndex, **settings: Any) -> DaliBatches:
    return DaliBatches(
        index.train, index.root, batch_size=4, threads=2, depth=2, device=torch.device("cuda"), **settings
    )


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("crop", [RANDOM, CENTRE], ids=["random", "centre"])
def test_images_show_what_the_native_loader_shows(index: ImageIndex, crop: dict[str, Any], layout: Any) -> None:
    settings = crop | {"dtype": "uint8", "layout": layout}
    native = JpegBatches(index.train, index.root, batch_size=4, threads=2, **settings)
    source = on_device(index, **settings)
    epochs = (loader.epoch(IDS, seed=5, epoch=2) for loader in (native, source))
    for ours, theirs in zip(*epochs, strict=True):
        assert theirs.images.is_cuda
        assert theirs.images.stride() == ours.images.stride()
        apart = (theirs.images.cpu().float() - ours.images.float()).abs()
        assert apart.mean() < MEAN_APART
        assert torch.equal(theirs.labels, ours.labels)
    for loader in (native, source):
        loader.close()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_images_are_normalised_on_the_device(index: ImageIndex, dtype: Any) -> None:
    source = on_device(index, **CENTRE, dtype=dtype)
    native = JpegBatches(index.train, index.root, batch_size=4, threads=2, **CENTRE)
    [theirs], [ours] = (loader.epoch(IDS[:1], seed=5, epoch=2) for loader in (source, native))
    assert theirs.images.dtype == getattr(torch, dtype)
    assert (theirs.images.cpu().float() - ours.images).abs().mean() < MEAN_APART / 57
    for loader in (native, source):
        loader.close()


def test_a_batch_stays_as_it_is_while_others_are_made(index: ImageIndex) -> None:
    source = on_device(index, **RANDOM)
    kept = [batch.images for batch in source.epoch(IDS, seed=1, epoch=1)]
    again = [batch.images.clone() for batch in source.epoch(IDS, seed=1, epoch=1)]
    assert all(map(torch.equal, kept, again))
    source.close()


def test_odd_files_are_mended_and_broken_ones_named(index: ImageIndex) -> None:
    (index.root / index.train.paths[6]).write_bytes(encoded(pixels(4, 40, 30), "PNG"))
    asked = [np.array([5, 6, 7, 6])]
    source = on_device(index, **CENTRE)
    native = JpegBatches(index.train, index.root, batch_size=4, threads=2, **CENTRE)
    [theirs], [ours] = (loader.epoch(asked, seed=9, epoch=3) for loader in (source, native))
    assert torch.equal(theirs.images[[1, 3]].cpu(), ours.images[[1, 3]])
    (index.root / index.train.paths[7]).write_bytes(b"<html>")
    with pytest.raises(DataError, match=r"cannot decode .*: no JPEG and no other image format"):
        list(source.epoch(asked, seed=9, epoch=3))
    for loader in (native, source):
        loader.close()
