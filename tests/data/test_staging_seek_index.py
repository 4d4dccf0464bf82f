"""A seek index goes with the set into a staged folder, as far as there is room; staging never fails of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_tree import encoded, pixels, settle, write_tree
from member_runs import member_recipe
from staged_sets import files_of, parts_of

from hpcai500.data.command import main
from hpcai500.data.imagenet.index import load_index
from hpcai500.data.imagenet.loader import JpegBatches
from hpcai500.data.imagenet.seek_index import SEEK_INDEX, SeekCounts, make_seek_index
from hpcai500.data.staging import Order, Room, release, stage
from hpcai500.errors import EnvironmentLacksError
from hpcai500.progress import Progress, silent


@pytest.fixture(autouse=True)
def handler_of_sigterm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    source = write_tree(tmp_path / "source", train=8, val=2)
    for number, path in enumerate(sorted(source.rglob("*.JPEG"))):
        path.write_bytes(encoded(pixels(number, 64, 100), quality=96))
    settle(source)
    return source


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "node" / "set"


def staged(source: Path, root: Path, **options: Any) -> list[str]:
    """Stage; returns what was said."""
    said: list[str] = []
    stage(Order("ic", source, root, options.pop("name", "somebody"), **options), say=said.append)
    return said


def seek_of(root: Path) -> SeekCounts:
    """What became of the index for all images that are evaluated on."""
    index = load_index(root)
    batches = JpegBatches(index.val, root, batch_size=8, threads=1, size=16, mode="random")
    try:
        return next(batches.epoch([np.arange(len(index.val))], seed=1, epoch=0)).seek
    finally:
        batches.close()


def test_an_index_is_staged_with_the_set_and_goes_with_it(source: Path, root: Path) -> None:
    index = make_seek_index(source).path
    assert staged(source, root) == []
    assert (root / SEEK_INDEX).read_bytes() == index.read_bytes()
    assert parts_of(root) == []
    assert seek_of(root) == SeekCounts(used=4)
    assert release(root, None).left == ()
    assert not root.exists()


def test_a_part_of_the_set_is_served_by_the_index_of_the_whole(source: Path, root: Path) -> None:
    make_seek_index(source)
    recipe = member_recipe("ic", "hyperparameters.seed=7", "ensemble.out_of_bag_samples=3")
    assert staged(source, root, recipes=[recipe]) == []
    assert len(files_of(root)) < 20
    assert seek_of(root) == SeekCounts(used=4)


def test_the_index_in_the_users_cache_is_staged_too(source: Path, root: Path) -> None:
    index = make_seek_index(source, in_cache=True).path
    staged(source, root)
    assert (root / SEEK_INDEX).read_bytes() == index.read_bytes()


def test_one_that_is_made_later_comes_with_the_next_staging(source: Path, root: Path) -> None:
    assert staged(source, root) == []
    assert not (root / SEEK_INDEX).exists()
    index = make_seek_index(source).path
    assert staged(source, root) == []
    assert (root / SEEK_INDEX).read_bytes() == index.read_bytes()


def test_a_newer_one_that_was_made_in_the_folder_stays(source: Path, root: Path) -> None:
    index = make_seek_index(source).path
    staged(source, root)
    made = make_seek_index(root).path
    before = made.stat()
    os.utime(index, ns=(before.st_mtime_ns - 1, before.st_mtime_ns - 1))
    staged(source, root)
    assert made.stat().st_ino == before.st_ino


def test_one_that_a_crash_of_the_node_has_zeroed_is_copied_again(source: Path, root: Path) -> None:
    index = make_seek_index(source).path
    staged(source, root)
    here = root / SEEK_INDEX
    before = here.stat()
    here.write_bytes(bytes(before.st_size))
    os.utime(here, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert staged(source, root) == []
    assert here.read_bytes() == index.read_bytes()
    assert here.stat().st_mtime_ns == index.stat().st_mtime_ns


def test_one_that_cannot_be_used_is_not_copied_and_told_as_that(
    source: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = make_seek_index(source).path
    index.write_bytes(index.read_bytes()[:-1])
    assert staged(source, root) == []
    assert not (root / SEEK_INDEX).exists()
    assert capsys.readouterr().err == (
        f"hpcai500: warning: the seek index {index} is truncated: it is not copied; "
        f"`hpcai500 data index ic {source}` makes it anew\n"
    )


def test_copying_it_shows_how_far_it_is(source: Path, root: Path) -> None:
    make_seek_index(source)
    shown: list[tuple[str, str]] = []

    def show(total: int, description: str, unit: str) -> AbstractContextManager[Progress]:
        shown.append((description, unit))
        return silent(total, description, unit)

    for _ in range(2):
        stage(Order("ic", source, root, "somebody"), show)
    assert shown.count(("staging the seek index", "MB")) == 1


def test_one_that_is_large_beside_what_is_staged_is_not_copied(source: Path, root: Path) -> None:
    index = make_seek_index(source).path
    with index.open("ab") as stream:
        stream.write(bytes(40_000))
    said = staged(source, root)
    assert not (root / SEEK_INDEX).exists()
    assert len(said) == 1
    assert said[0].startswith(f"the seek index {index} is not copied: it takes 0.04")
    assert said[0].endswith(f" MB of images; `hpcai500 data index ic {root}` makes one there")


def test_one_that_does_not_fit_in_the_limit_is_not_copied(source: Path, root: Path) -> None:
    index = make_seek_index(source).path
    blocks = sum(-(-path.stat().st_size // 4096) for path in source.rglob("*.JPEG"))
    said = staged(source, root, limit_bytes=blocks * 4096 + 100)
    assert not (root / SEEK_INDEX).exists()
    assert said[0].startswith(f"the seek index {index} is not copied: no room for its ")


def test_one_that_is_in_the_way_of_images_goes(source: Path, root: Path) -> None:
    make_seek_index(source)
    first = member_recipe("ic", "hyperparameters.seed=7", "ensemble.out_of_bag_samples=3")
    staged(source, root, recipes=[first])
    assert (root / SEEK_INDEX).exists()
    blocks = sum(-(-path.stat().st_size // 4096) for path in source.rglob("*.JPEG"))
    staged(source, root, name="all", limit_bytes=blocks * 4096)
    assert files_of(root) == files_of(source)
    assert not (root / SEEK_INDEX).exists()


def test_one_stays_where_images_do_not_fit_without_it_either(source: Path, root: Path) -> None:
    make_seek_index(source)
    first = member_recipe("ic", "hyperparameters.seed=7", "ensemble.out_of_bag_samples=3")
    staged(source, root, recipes=[first])
    before = files_of(root)
    with pytest.raises(EnvironmentLacksError, match="more than the --limit"):
        staged(source, root, name="all", limit_bytes=4096)
    assert files_of(root) == before
    assert seek_of(root) == SeekCounts(used=4)


def test_what_is_left_is_what_the_limit_and_the_storage_leave() -> None:
    sizes, here = np.array([1, 4096, 5000]), np.array([True, True, False])
    assert Room(4096, 10**6, None, None).left_bytes(sizes, here) == 10**6
    assert Room(4096, 10**6, None, 20_000).left_bytes(sizes, here) == 20_000 - 2 * 4096
    assert Room(4096, 100, None, 20_000).left_bytes(sizes, here) == 100


def test_a_copy_that_fails_is_told_and_leaves_nothing(
    source: Path, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    index, reason, write = make_seek_index(source).path, "No space left on device", os.write

    def full(descriptor: int, content: bytes) -> int:
        # A mock: a full disk cannot be had without root.
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "seek-index":
            raise OSError(28, reason)
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", full)
    assert main(["stage", "ic", str(source), str(root), "--json"]) == 0
    assert capsys.readouterr().err == (
        f"hpcai500: the seek index {index} is not copied: {reason}; `hpcai500 data index ic {root}` makes one there\n"
    )
    assert parts_of(root) == []
    assert files_of(root) == files_of(source)
    assert not (root / SEEK_INDEX).exists()


def test_an_index_that_is_made_in_a_staged_folder_goes_with_it(source: Path, root: Path) -> None:
    staged(source, root)
    make_seek_index(root)
    assert seek_of(root) == SeekCounts(used=4)
    assert not (source / SEEK_INDEX).exists()
    release(root, None)
    assert not root.exists()
