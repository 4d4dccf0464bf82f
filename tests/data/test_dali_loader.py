"""Batches by DALI on a CPU are those of the native loader: the same bits, the same failures, in the same order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dali_here import needs_dali
from image_tree import encoded, pixels, settle, write_tree

from hpcai500.data.imagenet.dali import DaliBatches
from hpcai500.data.imagenet.index import ImageIndex, load_index
from hpcai500.data.imagenet.loader import Batches, ImageBatch, JpegBatches
from hpcai500.errors import DataError, RunError

pytestmark = needs_dali

CPU = torch.device("cpu")
RANDOM: dict[str, Any] = {"size": 16, "mode": "random", "area": (0.35, 1.0)}
CENTRE: dict[str, Any] = {"size": 16, "mode": "centre", "resize_shorter": 18}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageIndex:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    return load_index(write_tree(tmp_path / "set", train=10))


class Both:
    """The native loader and DALI's, of one split and with the same settings."""

    def __init__(self, index: ImageIndex, **settings: Any) -> None:
        common = {"batch_size": 4, "threads": 2} | RANDOM | settings
        self.native = JpegBatches(index.train, index.root, **common)
        self.dali = DaliBatches(index.train, index.root, device=CPU, **common)

    def assert_same(self, batches: list[Any], *, seed: int = 5, epoch: int = 2) -> int:
        """Run an epoch of both; returns how many images were equal."""
        native, dali = (loader.epoch(batches, seed=seed, epoch=epoch) for loader in (self.native, self.dali))
        seen = 0
        for ours, theirs in zip(native, dali, strict=True):
            assert theirs.images.dtype == ours.images.dtype
            assert theirs.images.stride() == ours.images.stride()
            assert torch.equal(theirs.images, ours.images)
            assert torch.equal(theirs.labels, ours.labels)
            assert theirs.samples.tolist() == ours.samples.tolist()
            assert theirs.warnings == ours.warnings
            assert theirs.wait_seconds > 0
            seen += len(ours.images)
        return seen

    def failures(self, batches: list[Any]) -> list[str]:
        """What each says of an epoch that fails."""
        said = []
        for loader in (self.native, self.dali):
            with pytest.raises(DataError) as caught:
                list(loader.epoch(batches, seed=0, epoch=0))
            said.append(str(caught.value))
        return said

    def close(self) -> None:
        """Stop both."""
        for loader in (self.native, self.dali):
            loader.close()


@pytest.fixture
def both(index: ImageIndex) -> Iterator[Any]:
    made = []

    def build(**settings: Any) -> Both:
        made.append(Both(index, **settings))
        return made[-1]

    yield build
    for one in made:
        one.close()


def ids(*batches: list[int]) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    return [np.array(batch, dtype=np.int64) for batch in batches]


LONG = ids(*[[n, n + 1, n + 2] for n in range(9)])


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8"])
@pytest.mark.parametrize("crop", [RANDOM, CENTRE], ids=["random", "centre"])
def test_images_are_those_of_the_native_loader(both: Any, crop: dict[str, Any], dtype: str, layout: str) -> None:
    pair = both(**crop, dtype=dtype, layout=layout)
    assert pair.assert_same(ids([3, 1, 19, 7], [0, 0, 5, 12], [11])) == 9


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (2**64 - 1, 2**32 - 1), (2**63, 7)])
def test_every_seed_and_epoch_draws_the_same_crops(both: Any, seed: int, epoch: int) -> None:
    assert both().assert_same(LONG, seed=seed, epoch=epoch) == 27


def test_numbers_without_an_end_are_taken(both: Any) -> None:
    # 1/3 and 4/3 have no end.
    pair = both(area=(0.05, 1 / 3), ratio=(0.7499999999, 4 / 3), flip_probability=0.1 + 0.2)
    assert pair.assert_same(LONG) == 27


def test_large_images_are_decoded_at_half_their_size_where_the_recipe_says_so(index: ImageIndex, both: Any) -> None:
    (index.root / index.train.paths[2]).write_bytes(encoded(pixels(3, 300, 400), quality=90))
    assert both(dct_scaling=True).assert_same(ids([1, 2, 3])) == 3


def test_an_epoch_goes_on_in_its_middle(both: Any) -> None:
    pair = both()
    whole = [batch.images.clone() for batch in pair.dali.epoch(LONG, seed=1, epoch=1)]
    rest = [batch.images.clone() for batch in pair.dali.epoch(LONG[5:], seed=1, epoch=1)]
    assert len(rest) == 4
    assert all(map(torch.equal, whole[5:], rest))


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_a_consumer_may_stop_early_and_start_again(both: Any, depth: int) -> None:
    pair = both(depth=depth)
    for _ in range(3):
        epoch = pair.dali.epoch(LONG, seed=1, epoch=1)
        next(epoch)
        next(epoch)
        epoch.close()
        assert pair.assert_same(LONG) == 27


def test_an_epoch_that_is_left_open_ends_when_another_begins(both: Any) -> None:
    pair = both()
    old = pair.dali.epoch(LONG, seed=0, epoch=0)
    next(old)
    new = pair.dali.epoch(ids([3], [4]), seed=0, epoch=1)
    assert list(old) == []
    assert [batch.samples.tolist() for batch in new] == [[3], [4]]


def test_a_batch_stays_as_it_is_while_others_are_made(both: Any) -> None:
    pair = both(depth=2)
    kept: list[ImageBatch] = list(pair.dali.epoch(LONG, seed=0, epoch=0))
    for ours, theirs in zip(pair.native.epoch(LONG, seed=0, epoch=0), kept, strict=True):
        assert torch.equal(ours.images, theirs.images)


def test_no_batches_are_an_empty_epoch(both: Any) -> None:
    pair = both()
    assert list(pair.dali.epoch([], seed=0, epoch=0)) == []
    assert pair.assert_same(LONG) == 27


def test_a_closed_source_says_so(both: Any) -> None:
    source: Batches = both().dali
    epoch = source.epoch(LONG, seed=0, epoch=0)
    next(epoch)
    source.close()
    source.close()
    assert list(epoch) == []
    with pytest.raises(ValueError, match="closed"):
        source.epoch(LONG, seed=0, epoch=0)


PNG = encoded(pixels(4, 40, 30), "PNG")


@pytest.mark.parametrize("settings", [RANDOM, CENTRE, {**RANDOM, "dtype": "bfloat16"}, {**CENTRE, "layout": "nhwc"}])
def test_odd_files_are_mended_as_the_native_loader_does(index: ImageIndex, both: Any, settings: dict[str, Any]) -> None:
    (index.root / index.train.paths[6]).write_bytes(PNG)
    (index.root / index.train.paths[8]).write_bytes(encoded(pixels(8).convert("CMYK")))
    (index.root / index.train.paths[9]).write_bytes(encoded(pixels(9).convert("L"), progressive=True))
    pair = both(**settings)
    assert pair.assert_same(ids([5, 6, 7, 6], [8, 9], [6])) == 7


def test_many_odd_files_are_mended(index: ImageIndex, both: Any) -> None:
    for path in index.train.paths:
        (index.root / path).write_bytes(PNG)
    assert both(batch_size=20).assert_same(ids(list(range(20)))) == 20


def test_warnings_are_counted(index: ImageIndex, both: Any) -> None:
    whole = encoded(pixels(1, 200, 200), quality=95)
    middle = len(whole) // 2
    (index.root / index.train.paths[2]).write_bytes(whole[:middle] + b"\xff\xd3" + whole[middle:])
    pair = both(**CENTRE)
    assert pair.assert_same(ids([1, 2], [3])) == 3
    assert [batch.warnings for batch in pair.dali.epoch(ids([1, 2], [3]), seed=0, epoch=0)] == [1, 0]


DEFECTS = {
    "truncated": encoded(pixels(1, 64, 64), quality=95)[:900],
    "empty": b"",
    "text": b"<html>",
    "truncated png": PNG[: len(PNG) // 2],
}


@pytest.mark.parametrize("content", [*DEFECTS.values(), None], ids=[*DEFECTS, "gone"])
def test_a_file_that_cannot_be_read_or_decoded_is_named_in_the_same_words(
    index: ImageIndex, both: Any, content: bytes | None
) -> None:
    bad = index.root / index.train.paths[9]
    good = bad.read_bytes()
    if content is None:
        bad.unlink()
    else:
        bad.write_bytes(content)
    pair = both()
    native, dali = pair.failures(ids([1, 2], [8, 9], [3, 4], [5, 6]))
    assert dali == native
    assert dali.startswith(f"cannot decode {bad}: ")

    bad.write_bytes(good)
    assert pair.assert_same(ids([1, 2], [8, 9], [3, 4])) == 6


def test_a_bad_file_of_a_batch_that_nobody_asked_for_fails_nothing(index: ImageIndex, both: Any) -> None:
    (index.root / index.train.paths[9]).unlink()
    pair = both(depth=4)
    epoch = pair.dali.epoch(ids([1, 2], [3, 4], [5, 9]), seed=0, epoch=0)
    next(epoch)
    epoch.close()
    assert pair.assert_same(ids([1, 2], [3, 4])) == 4


def test_what_dali_alone_fails_of_is_told(both: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = both()

    def fail() -> None:
        raise RuntimeError("\n  the reason\nStacktrace (17 entries)")

    monkeypatch.setattr(pair.dali._pipeline, "outputs", fail)
    with pytest.raises(RunError, match=r"could not make a batch: the reason; see whether .*native"):
        next(pair.dali.epoch(LONG, seed=0, epoch=0))
    assert pair.assert_same(LONG) == 27


@pytest.mark.parametrize("name", [b"caf\xe9.jpg", b"a b%20#?.jpg"])
def test_names_of_any_letters_are_read(index: ImageIndex, name: bytes) -> None:
    (index.root / "train/cat" / os.fsdecode(name)).write_bytes(encoded(pixels(50)))
    settle(index.root)
    fresh = load_index(index.root)
    sample = fresh.train.paths.index(f"train/cat/{os.fsdecode(name)}")
    pair = Both(fresh)
    assert pair.assert_same(ids([sample])) == 1
    pair.close()


@pytest.mark.parametrize(
    "wrong",
    [{"batch_size": 0}, {"threads": 0}, {"depth": 0}, {"mode": "middle"}, {"size": 0}, {"area": (0.5, 0.1)}],
)
def test_settings_that_make_no_sense_are_refused(index: ImageIndex, wrong: dict[str, Any]) -> None:
    settings = {"batch_size": 4, "threads": 2} | RANDOM | wrong
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DaliBatches(index.train, index.root, device=CPU, **settings)


@pytest.mark.parametrize(("seed", "epoch"), [(-1, 0), (2**64, 0), (0, -1), (0, 2**32)])
def test_numbers_that_the_generator_does_not_take_are_refused(both: Any, seed: int, epoch: int) -> None:
    with pytest.raises(ValueError, match="seed must be"):
        list(both().dali.epoch(LONG, seed=seed, epoch=epoch))
