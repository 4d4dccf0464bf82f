"""Loaders use a seek index where there is one, without being told; images and fingerprints stay what they are."""

from __future__ import annotations

import errno
import os
import signal
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dali_here import needs_dali
from image_tree import encoded, pixels, settle, write_tree

from hpcai500._core import SeekIndex
from hpcai500.data.imagenet import dali as dali_loader_module
from hpcai500.data.imagenet import seek_index as seek_index_module
from hpcai500.data.imagenet.check import check_images
from hpcai500.data.imagenet.dali import DaliBatches, host_pipeline
from hpcai500.data.imagenet.index import load_index
from hpcai500.data.imagenet.loader import Batches, JpegBatches
from hpcai500.data.imagenet.seek_index import SEEK_INDEX, SeekCounts, make_seek_index

SETTINGS: dict[str, Any] = {"batch_size": 4, "threads": 2, "size": 16, "mode": "random", "area": (0.35, 1.0)}
ASKED = [np.array(batch, np.int64) for batch in ([3, 1, 19, 7], [0, 0, 5, 12], [11])]
LOADERS = [pytest.param("native"), pytest.param("dali", marks=needs_dali)]


@pytest.fixture(autouse=True)
def handler_of_sigterm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    # What was told to another test was told in the same process.
    monkeypatch.setattr(seek_index_module, "_told", set())
    root = write_tree(tmp_path / "set", train=10)
    for number, path in enumerate(sorted(root.rglob("*.JPEG"))):
        path.write_bytes(encoded(pixels(number, 64, 100), quality=96))
    settle(root)
    return root


def batches_of(loader: str, root: Path) -> Batches:
    split = load_index(root).train
    if loader == "dali":
        return DaliBatches(split, root, device=torch.device("cpu"), **SETTINGS)
    return JpegBatches(split, root, **SETTINGS)


def run(loader: str, root: Path, epochs: int = 1) -> tuple[torch.Tensor, SeekCounts]:
    """All images, and what became of the index."""
    batches = batches_of(loader, root)
    images, seek = [], SeekCounts()
    try:
        for epoch in range(epochs):
            for batch in batches.epoch(ASKED, seed=5, epoch=epoch):
                images.append(batch.images.clone())
                seek += batch.seek
    finally:
        batches.close()
    return torch.cat(images), seek


@pytest.mark.parametrize("loader", LOADERS)
def test_an_index_is_used_without_being_asked_for_and_changes_no_bit(
    loader: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without, nothing = run(loader, root)
    make_seek_index(root)
    with_index, seek = run(loader, root)
    assert torch.equal(with_index, without)
    assert (nothing, seek) == (SeekCounts(), SeekCounts(used=9))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("loader", LOADERS)
def test_changed_files_are_decoded_without_it_with_one_warning(
    loader: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_seek_index(root)
    paths = load_index(root).train.paths
    for sample in (7, 5):
        (root / paths[sample]).write_bytes(encoded(pixels(100 + sample, 64, 100), quality=96))
    images, seek = run(loader, root, epochs=2)
    assert seek == SeekCounts(used=14, unknown=4)
    index = root / SEEK_INDEX
    assert capsys.readouterr().err == (
        f"hpcai500: warning: the seek index {index} does not know 1 of the 4 images of a batch: images are "
        f"decoded without it, more slowly; `hpcai500 data index ic {root}` makes it anew\n"
    )
    index.unlink()
    assert torch.equal(run(loader, root, epochs=2)[0], images)


@pytest.mark.parametrize("loader", LOADERS)
def test_the_index_of_another_set_is_of_no_use_and_no_harm(
    loader: str, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, _ = run(loader, root)
    foreign = write_tree(tmp_path / "foreign")
    make_seek_index(foreign)
    (root / SEEK_INDEX).write_bytes((foreign / SEEK_INDEX).read_bytes())
    images, seek = run(loader, root)
    assert torch.equal(images, expected)
    assert seek == SeekCounts(unknown=9)
    assert capsys.readouterr().err.count("does not know 4 of the 4 images of a batch") == 1


def _damage_points(content: bytearray) -> None:
    # In the middle of what is said of the files, each of which has a few hundred bytes.
    table = struct.unpack_from("<Q", content, 16)[0]
    for place in range(40, table, 20):
        content[place] ^= 0x10


def _of_a_newer_version(content: bytearray) -> None:
    struct.pack_into("<I", content, 8, 9)
    struct.pack_into("<I", content, 28, zlib.crc32(content[:28]))


@pytest.mark.parametrize("loader", LOADERS)
def test_false_points_are_told_once(loader: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected, _ = run(loader, root)
    content = bytearray(make_seek_index(root).path.read_bytes())
    _damage_points(content)
    (root / SEEK_INDEX).write_bytes(content)
    images, seek = run(loader, root)
    assert torch.equal(images, expected)
    assert seek == SeekCounts(false=9)
    assert capsys.readouterr().err.count("is false for 4 of the 4 images of a batch") == 1


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda content: content.__delitem__(slice(-1, None)), "is truncated"),
        (_of_a_newer_version, "is of another version of hpcai500 (format 9, not 1)"),
        (lambda content: content.__setitem__(0, 0), "is no seek index"),
    ],
)
def test_an_index_that_cannot_be_used_is_told_with_the_line_to_type(
    loader: str, damage: Any, reason: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = bytearray(make_seek_index(root).path.read_bytes())
    damage(content)
    (root / SEEK_INDEX).write_bytes(content)
    assert run(loader, root)[1] == SeekCounts()
    run(loader, root)
    assert capsys.readouterr().err == (
        f"hpcai500: warning: the seek index {root / SEEK_INDEX} {reason}: images are decoded without it, more slowly; "
        f"`hpcai500 data index ic {root}` makes it anew\n"
    )


@pytest.mark.parametrize("loader", LOADERS)
def test_a_folder_whose_name_is_no_text_has_an_index_too(loader: str, root: Path) -> None:
    odd = root.with_name(os.fsdecode(b"s\xffet"))
    root.rename(odd)
    make_seek_index(odd)
    assert run(loader, odd)[1] == SeekCounts(used=9)


@needs_dali
def test_an_index_that_goes_while_dali_runs_does_not_end_the_run(root: Path) -> None:
    make_seek_index(root)
    batches = batches_of("dali", root)
    try:
        # An epoch that is left early makes a new pipeline for the next one.
        for epoch in range(3):
            assert next(batches.epoch(ASKED, seed=5, epoch=epoch)).images.shape[0] == 4
            (root / SEEK_INDEX).unlink(missing_ok=True)
    finally:
        batches.close()


@needs_dali
def test_an_index_that_goes_before_dali_opens_it_is_done_without(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, _ = run("dali", root)
    index = make_seek_index(root).path

    def define_and_remove(*arguments: Any) -> Any:
        index.unlink(missing_ok=True)
        return host_pipeline(*arguments)

    monkeypatch.setattr(dali_loader_module, "host_pipeline", define_and_remove)
    images, seek = run("dali", root)
    assert torch.equal(images, expected)
    assert seek == SeekCounts()
    assert capsys.readouterr().err == (
        f"hpcai500: warning: the seek index {index} could not be used by DALI (cannot open {index}: No such file or "
        "directory): images are decoded without it, more slowly; "
        f"`hpcai500 data index ic {root}` makes it anew\n"
    )


def test_what_is_no_file_in_its_place_is_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / SEEK_INDEX).mkdir()
    assert run("native", root)[1] == SeekCounts()
    assert f"{root / SEEK_INDEX} is not a file: images are decoded without it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "reason", "remedy"),
    [
        # As the core has it; and root, who may run this, is refused nothing.
        (
            PermissionError(errno.EACCES, "cannot open it: Permission denied"),
            "cannot be read (Permission denied)",
            "have it made readable, or `hpcai500 data index ic {root} --cache` makes one of your own",
        ),
        (MemoryError(), "does not fit into memory", "give the job more memory"),
    ],
)
def test_a_warning_says_what_would_help(
    error: Exception,
    reason: str,
    remedy: str,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    index = make_seek_index(root).path

    def refuse(path: bytes) -> SeekIndex:
        raise error

    monkeypatch.setattr(seek_index_module, "SeekIndex", refuse)
    assert seek_index_module.find_seek_index(root) is None
    assert capsys.readouterr().err == (
        f"hpcai500: warning: the seek index {index} {reason}: images are decoded without it, more slowly; "
        f"{remedy.format(root=root)}\n"
    )


def test_an_older_index_is_used_where_the_newer_one_is_damaged(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    in_set = make_seek_index(root).path
    in_cache = make_seek_index(root, in_cache=True).path
    in_set.write_text("no index")
    os.utime(in_cache, (1000, 1000))
    assert run("native", root)[1] == SeekCounts(used=9)
    assert capsys.readouterr().err == (
        f"hpcai500: warning: the seek index {in_set} is truncated: the older {in_cache} is used; "
        f"`hpcai500 data index ic {root}` makes it anew\n"
    )


def test_only_one_process_of_a_node_tells(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / SEEK_INDEX).write_text("no index")
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    run("native", root)
    assert capsys.readouterr().err == ""


def test_an_index_is_no_part_of_the_set(root: Path) -> None:
    before = load_index(root, refresh=True)
    content_before = check_images(root).content_fingerprint
    make_seek_index(root)
    after = load_index(root, refresh=True)
    assert after.fingerprint == before.fingerprint
    assert after.ignored_files == before.ignored_files == 0
    assert check_images(root).content_fingerprint == content_before


def test_the_newer_of_two_indexes_is_used(root: Path) -> None:
    in_set = make_seek_index(root).path
    in_cache = make_seek_index(root, in_cache=True).path
    assert in_cache.is_relative_to(os.environ["XDG_CACHE_HOME"])
    for newer, older in ((in_set, in_cache), (in_cache, in_set)):
        os.utime(newer, (2000, 2000))
        os.utime(older, (1000, 1000))
        found = seek_index_module.find_seek_index(root)
        assert found is not None
        assert found.path == newer


def test_files_of_kinds_without_points_are_known_and_no_reason_to_warn(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = load_index(root).train.paths
    (root / paths[3]).write_bytes(encoded(pixels(1, 64, 100), progressive=True))
    (root / paths[1]).write_bytes(encoded(pixels(1, 64, 100), "PNG"))
    whole = encoded(pixels(1, 64, 100))
    # Damaged behind what most crops show: our own decoder takes those, and could not find points for the rest.
    (root / paths[19]).write_bytes(whole[:-60] + b"\xff\xd9")
    make_seek_index(root)
    batches = batches_of("native", root)
    try:
        counts = [batch.seek for batch in batches.epoch([np.array([3, 1, 7])], seed=5, epoch=0)]
    finally:
        batches.close()
    assert counts == [SeekCounts(used=1)]
    assert capsys.readouterr().err == ""


def test_a_check_says_whether_the_index_is_true(root: Path) -> None:
    assert check_images(root).seek_index is None
    make_seek_index(root)
    report = check_images(root)
    assert report.seek_index is not None
    assert report.seek_index.counts == SeekCounts(used=24)
    (root / load_index(root).train.paths[7]).write_bytes(encoded(pixels(100, 64, 100), quality=96))
    content = bytearray((root / SEEK_INDEX).read_bytes())
    content[100] ^= 1
    (root / SEEK_INDEX).write_bytes(content)
    changed = check_images(root).seek_index
    assert changed is not None
    assert changed.counts == SeekCounts(used=22, unknown=1, false=1)
