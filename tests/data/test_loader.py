"""Batches hold the images that were asked for, whatever the threads, and the files' defects."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_tree import encoded, pixels, settle, write_tree

from hpcai500._core import DecodeSpec, crop_pixels, decode_crop
from hpcai500.data.device_batches import MemoryBatches
from hpcai500.data.imagenet.index import ImageIndex, load_index
from hpcai500.data.imagenet.loader import ImageBatch, JpegBatches
from hpcai500.errors import DataError

SIZE = 16
RANDOM: dict[str, Any] = {"size": SIZE, "mode": "random", "area": (0.35, 1.0)}
CENTRE: dict[str, Any] = {"size": SIZE, "mode": "centre", "resize_shorter": 18}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageIndex:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    return load_index(write_tree(tmp_path / "set", train=10))


@pytest.fixture
def make(index: ImageIndex) -> Iterator[Any]:
    made = []

    def build(**settings: Any) -> JpegBatches:
        batches = JpegBatches(index.train, index.root, **({"batch_size": 4, "threads": 2} | RANDOM | settings))
        made.append(batches)
        return batches

    yield build
    for batches in made:
        batches.close()


def ids(*batches: list[int]) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    return [np.array(batch, dtype=np.int64) for batch in batches]


def direct(index: ImageIndex, sample: int, *, seed: int, epoch: int, **settings: Any) -> np.ndarray[Any, Any]:
    spec = DecodeSpec(**(RANDOM | settings))
    out = np.zeros((3, SIZE, SIZE), dtype=np.float32)
    decode_crop((index.root / index.train.paths[sample]).read_bytes(), spec, out, seed=seed, epoch=epoch, sample=sample)
    return out


def test_batches_equal_direct_decoding(index: ImageIndex, make: Any) -> None:
    asked = ids([3, 1, 19, 7], [0, 0, 5, 12], [11])
    seen = 0
    for batch, wanted in zip(make().epoch(asked, seed=5, epoch=2), asked, strict=True):
        assert batch.samples.tolist() == wanted.tolist()
        assert batch.labels.dtype == torch.int64
        assert batch.labels.tolist() == [int(sample >= 10) for sample in wanted]
        assert batch.images.shape == (len(wanted), 3, SIZE, SIZE)
        assert batch.warnings == 0
        for image, sample in zip(batch.images, wanted, strict=True):
            assert np.array_equal(image.numpy(), direct(index, int(sample), seed=5, epoch=2))
            seen += 1
    assert seen == 9


def test_crops_depend_on_seed_epoch_and_sample_alone(make: Any) -> None:
    def first(threads: int, depth: int, seed: int, epoch: int, place: int) -> torch.Tensor:
        asked = ids(*([[1, 2, 3, 4]] * place), [8])
        batches = make(threads=threads, depth=depth)
        return [batch.images.clone() for batch in batches.epoch(asked, seed=seed, epoch=epoch)][-1]

    reference = first(1, 1, 3, 4, 0)
    assert torch.equal(first(3, 4, 3, 4, 5), reference)
    assert not torch.equal(first(1, 1, 4, 4, 0), reference)
    assert not torch.equal(first(1, 1, 3, 5, 0), reference)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_every_type_and_layout_shows_the_same_image(make: Any, dtype: str, layout: str) -> None:
    asked = ids([2, 13, 5])
    [reference] = [batch.images.clone() for batch in make(**CENTRE).epoch(asked, seed=0, epoch=0)]
    source = make(**CENTRE, dtype=dtype, layout=layout)
    [batch] = source.epoch(asked, seed=0, epoch=0)
    assert batch.images.shape == (3, 3, SIZE, SIZE)
    assert batch.images.dtype == getattr(torch, dtype)
    memory_format = torch.contiguous_format if layout == "nchw" else torch.channels_last
    assert batch.images.is_contiguous(memory_format=memory_format)
    images = batch.images.float()
    if dtype == "uint8":
        mean = torch.tensor([123.675, 116.28, 103.53])[:, None, None]
        deviation = torch.tensor([58.395, 57.12, 57.375])[:, None, None]
        assert (images - (reference * deviation + mean)).abs().max() <= 0.51
    else:
        # Half a unit in the last place of values up to 2.7: 8 bits of bfloat16, 11 of float16.
        assert (images - reference).abs().max() <= {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]


def test_slots_are_aligned_for_vector_stores(make: Any) -> None:
    for batch in make(depth=5, batch_size=3).epoch(ids(*[[1, 2, 3]] * 5), seed=0, epoch=0):
        assert batch.images.data_ptr() % 64 == 0


def test_a_batch_is_a_view_of_a_slot_that_is_reused(make: Any) -> None:
    pointers = [batch.images.data_ptr() for batch in make(depth=3).epoch(ids(*[[1]] * 12), seed=0, epoch=0)]
    # Which of the three free slots a batch takes depends on how fast the threads are; a fourth there must never be.
    assert len(pointers) == 12
    assert len(set(pointers)) <= 3


def test_a_batch_stays_as_it_is_until_the_next_is_asked_for(index: ImageIndex, make: Any) -> None:
    epoch = make(depth=2).epoch(ids(*[[n, n + 1] for n in range(12)]), seed=0, epoch=0)
    for n, batch in enumerate(epoch):
        # The other slot's batch gets every chance to be made meanwhile.
        os.sched_yield()
        gc.collect()
        assert np.array_equal(batch.images[1].numpy(), direct(index, n + 1, seed=0, epoch=0))


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_a_consumer_may_stop_early_and_start_again(index: ImageIndex, make: Any, depth: int) -> None:
    source = make(depth=depth)
    asked = ids(*[[n, n + 1, n + 2] for n in range(9)])
    for _ in range(5):
        epoch = source.epoch(asked, seed=1, epoch=1)
        next(epoch)
        next(epoch)
        epoch.close()
        complete = [batch.samples.tolist() for batch in source.epoch(asked, seed=1, epoch=1)]
        assert complete == [batch.tolist() for batch in asked]


def test_an_epoch_that_is_left_open_ends_when_another_begins(index: ImageIndex, make: Any) -> None:
    source = make()
    old = source.epoch(ids(*[[1, 2]] * 9), seed=0, epoch=0)
    next(old)
    new = source.epoch(ids([3], [4]), seed=0, epoch=1)
    assert list(old) == []
    for batch, sample in zip(new, (3, 4), strict=True):
        assert np.array_equal(batch.images[0].numpy(), direct(index, sample, seed=0, epoch=1))


def test_an_exception_of_the_consumer_leaves_the_source_usable(make: Any) -> None:
    source = make()

    def consume() -> None:
        for _ in source.epoch(ids(*[[1, 2]] * 9), seed=0, epoch=0):
            raise KeyError("the consumer's own")

    with pytest.raises(KeyError):
        consume()
    assert len(list(source.epoch(ids([1], [2]), seed=0, epoch=0))) == 2


def test_no_batches_are_an_empty_epoch(make: Any) -> None:
    assert list(make().epoch([], seed=0, epoch=0)) == []


def test_a_closed_source_says_so(make: Any) -> None:
    source = make()
    epoch = source.epoch(ids(*[[1]] * 9), seed=0, epoch=0)
    next(epoch)
    source.close()
    source.close()
    assert list(epoch) == []
    with pytest.raises(ValueError, match="closed"):
        source.epoch(ids([1]), seed=0, epoch=0)


PNG = encoded(pixels(4, 40, 30), "PNG")


@pytest.mark.parametrize("settings", [RANDOM, CENTRE, {**RANDOM, "dtype": "bfloat16"}, {**CENTRE, "layout": "nhwc"}])
def test_a_png_is_cropped_as_its_pixels_would_be(index: ImageIndex, make: Any, settings: dict[str, Any]) -> None:
    (index.root / index.train.paths[6]).write_bytes(PNG)
    [batch] = make(**settings).epoch(ids([5, 6, 7, 6]), seed=9, epoch=3)
    spec = DecodeSpec(**settings)
    out = np.zeros(spec.shape, dtype={"float32": np.float32, "bfloat16": np.uint16}[spec.dtype])
    crop_pixels(np.array(pixels(4, 40, 30)), spec, out, seed=9, epoch=3, sample=6)
    expected = torch.from_numpy(out)
    if spec.dtype == "bfloat16":
        expected = expected.view(torch.bfloat16)
    if spec.layout == "nhwc":
        expected = expected.permute(2, 0, 1)
    assert torch.equal(batch.images[1], expected)
    assert torch.equal(batch.images[3], expected)
    [beside] = make(**settings).epoch(ids([7]), seed=9, epoch=3)
    assert torch.equal(batch.images[2], beside.images[0])


DEFECTS = {
    "truncated": (encoded(pixels(1, 64, 64), quality=95)[:900], "the data ends"),
    "empty": (b"", "empty"),
    "text": (b"<html>", "no JPEG and no other image format"),
    "truncated png": (PNG[: len(PNG) // 2], "truncated"),
}


@pytest.mark.parametrize(("content", "reason"), DEFECTS.values(), ids=DEFECTS)
def test_a_file_that_cannot_be_decoded_ends_the_epoch_with_its_path(
    index: ImageIndex, make: Any, content: bytes, reason: str
) -> None:
    bad = index.root / index.train.paths[9]
    good = bad.read_bytes()
    bad.write_bytes(content)
    source = make()
    asked = ids([1, 2], [8, 9], [3, 4], [5, 6])
    epoch = source.epoch(asked, seed=0, epoch=0)
    next(epoch)
    with pytest.raises(DataError) as caught:
        next(epoch)
    message = str(caught.value)
    assert message.startswith(f"cannot decode {bad}: ")
    assert reason in message
    assert message.endswith(f"run `hpcai500 data check ic {index.root}` to find all such files")
    assert "\n" not in message

    bad.write_bytes(good)
    assert len(list(source.epoch(asked, seed=0, epoch=0))) == 4


def test_a_file_that_has_gone_is_named(index: ImageIndex, make: Any) -> None:
    (index.root / index.train.paths[0]).unlink()
    with pytest.raises(DataError, match=r"cat_0\.JPEG: .*No such file"):
        list(make().epoch(ids([0]), seed=0, epoch=0))


def test_a_name_that_is_not_utf8_is_read(index: ImageIndex) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    (index.root / "train/cat" / name).write_bytes(encoded(pixels(50)))
    settle(index.root)
    fresh = load_index(index.root)
    sample = fresh.train.paths.index(f"train/cat/{name}")
    source = JpegBatches(fresh.train, fresh.root, batch_size=1, threads=1, **RANDOM)
    [batch] = source.epoch(ids([sample]), seed=0, epoch=0)
    assert np.array_equal(batch.images[0].numpy(), direct(fresh, sample, seed=0, epoch=0))
    source.close()


def test_warnings_are_counted(index: ImageIndex, make: Any) -> None:
    whole = encoded(pixels(1, 200, 200), quality=95)
    middle = len(whole) // 2
    (index.root / index.train.paths[2]).write_bytes(whole[:middle] + b"\xff\xd3" + whole[middle:])
    counts = [batch.warnings for batch in make(**CENTRE).epoch(ids([1, 2], [3]), seed=0, epoch=0)]
    assert counts == [1, 0]


@pytest.mark.parametrize(
    "wrong",
    [{"batch_size": 0}, {"threads": 0}, {"depth": 0}, {"mode": "middle"}, {"size": 0}, {"area": (0.5, 0.1)}],
)
def test_settings_that_make_no_sense_are_refused(make: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        make(**wrong)


def test_memory_stays_flat_over_epochs(index: ImageIndex) -> None:
    # In a fresh process, so that no other test's memory is counted. Of 40 epochs that leak one slot each, 60 MiB would
    # stay; what threads keep for themselves differs by some MiB on a busy machine.
    script = f"""
import numpy as np, resource
from hpcai500.data.imagenet.index import load_index
from hpcai500.data.imagenet.loader import JpegBatches
index = load_index({str(index.root)!r})
source = JpegBatches(index.train, index.root, batch_size=32, threads=2, size=128, mode="random")
def rss_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
def run(epochs, first):
    for epoch in range(first, first + epochs):
        asked = [np.arange(start, start + 32) % len(index.train) for start in range(0, 320, 32)]
        for number, batch in enumerate(source.epoch(asked, seed=0, epoch=epoch)):
            if epoch % 5 == 4 and number == 3:
                break
run(10, 0)
before = rss_bytes()
run(40, 10)
print(rss_bytes() - before)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 16 << 20


def test_held_batches_repeat(make: Any) -> None:
    source = make(layout="nhwc")
    decoded = [
        ImageBatch(b.images.clone(), b.labels, b.samples, b.warnings)
        for b in source.epoch(ids([1, 12], [3, 4]), seed=0, epoch=0)
    ]
    held = MemoryBatches(source.epoch(ids([1, 12], [3, 4]), seed=0, epoch=0))
    list(source.epoch(ids(*[[7, 8]] * 8), seed=0, epoch=0))
    batches = list(held.epoch(ids([5, 6], [7, 8], [9]), seed=3, epoch=3))
    assert [batch.samples.tolist() for batch in batches] == [[5, 6], [7, 8], [9]]
    assert torch.equal(batches[0].images, decoded[0].images)
    assert torch.equal(batches[1].images, decoded[1].images)
    assert torch.equal(batches[2].images, decoded[0].images[:1])
    assert batches[0].labels.tolist() == [0, 1]
    assert batches[0].images.is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(ValueError, match="3 was asked for, and 2 images"):
        list(held.epoch(ids([1, 2, 3]), seed=0, epoch=0))


def test_memory_without_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        MemoryBatches([])
