"""The index of an image set: what counts, what is refused, and when a cache is believed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from image_tree import encoded, pixels, settle, write_tree

from hpcai500.data.imagenet import index
from hpcai500.data.imagenet.index import load_index
from hpcai500.errors import DataError, ExitCode

CACHE = ".hpcai500-index.npz"


@pytest.fixture(autouse=True)
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the tests out of the real user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    return tmp_path / "user-cache" / "hpcai500"


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The class folders that were listed."""
    listed: list[str] = []
    original = index._scan_class

    def spy(root: Path, path: str) -> index.ClassFolder:
        listed.append(path)
        return original(root, path)

    monkeypatch.setattr(index, "_scan_class", spy)
    return listed


def test_an_index_lists_what_is_there(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "set", ("zebra", "ant"), train=2, val=1)
    index = load_index(root)
    assert index.classes == ("ant", "zebra")
    assert index.train.paths == tuple(f"train/{name}/{name}_{i}.JPEG" for name in ("ant", "zebra") for i in (0, 1))
    assert index.train.labels.tolist() == [0, 0, 1, 1]
    assert index.val.labels.tolist() == [0, 1]
    assert index.val.sizes_bytes.tolist() == [(root / path).stat().st_size for path in index.val.paths]
    assert len(index.fingerprint) == 64
    with pytest.raises(ValueError, match="read-only"):
        index.train.labels[0] = 5


def test_extensions_count_in_any_case_and_other_files_do_not(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "set", train=1, val=1)
    folder = root / "train" / "cat"
    for name in ("a.jpg", "b.JPG", "c.Jpeg", "d.png", "e.PNG"):
        (folder / name).write_bytes(b"x")
    for name in ("notes.txt", "f.gif", ".DS_Store", "._a.jpg", "jpeg"):
        (folder / name).write_bytes(b"x")
    (folder / "g.jpg").mkdir()
    (root / "train" / ".hidden").mkdir()
    index = load_index(root)
    assert [path.rpartition("/")[2] for path in index.train.paths[:6]] == [
        "a.jpg",
        "b.JPG",
        "c.Jpeg",
        "cat_0.JPEG",
        "d.png",
        "e.PNG",
    ]
    assert index.ignored_files == 6
    assert index.classes == ("cat", "dog")


def test_a_copy_has_the_same_fingerprint_and_a_change_another(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "set")
    fingerprint = load_index(root).fingerprint
    assert load_index(shutil.copytree(root, tmp_path / "elsewhere")).fingerprint == fingerprint

    longer = shutil.copytree(root, tmp_path / "longer")
    with (longer / "val/cat/cat_0.JPEG").open("ab") as stream:
        stream.write(b"x")
    renamed = shutil.copytree(root, tmp_path / "renamed")
    (renamed / "val/cat/cat_0.JPEG").rename(renamed / "val/cat/cat_9.JPEG")
    more = shutil.copytree(root, tmp_path / "more")
    (more / "train/cat/new.jpg").write_bytes(b"x")
    changed = {load_index(tree, refresh=True).fingerprint for tree in (longer, renamed, more)}
    assert len(changed | {fingerprint}) == 4


def test_names_that_are_not_utf8_survive_the_cache(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "set")
    name = os.fsdecode(b"caf\xe9\n.jpg")
    (root / "train/cat" / name).write_bytes(b"x")
    settle(root)
    first, second = load_index(root), load_index(root)
    assert f"train/cat/{name}" in first.train.paths
    assert second.train.paths == first.train.paths


def test_a_second_load_lists_nothing_and_says_the_same(tmp_path: Path, scans: list[str]) -> None:
    root = write_tree(tmp_path / "set")
    first = load_index(root)
    assert sorted(scans) == ["train/cat", "train/dog", "val/cat", "val/dog"]
    scans.clear()
    second = load_index(root)
    assert not scans
    assert (second.classes, second.fingerprint) == (first.classes, first.fingerprint)
    for one, other in zip(first.splits, second.splits, strict=True):
        assert one.paths == other.paths
        assert np.array_equal(one.labels, other.labels)
        assert np.array_equal(one.sizes_bytes, other.sizes_bytes)


def test_a_moved_set_keeps_its_cache(tmp_path: Path, scans: list[str]) -> None:
    root = write_tree(tmp_path / "set")
    load_index(root)
    scans.clear()
    moved = root.rename(tmp_path / "moved")
    assert load_index(moved).root == moved
    assert not scans


def test_a_change_in_a_class_folder_makes_the_cache_stale(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "set")
    load_index(root)
    (root / "val/dog/dog_0.JPEG").unlink()
    assert len(load_index(root).val) == 3
    for split in ("train", "val"):
        (root / split / "eel").mkdir()
        (root / split / "eel" / "e.jpg").write_bytes(b"x")
    assert load_index(root).classes == ("cat", "dog", "eel")
    shutil.rmtree(root / "val" / "eel")
    assert load_index(root).classes_absent_in_val == ("eel",)


def test_a_refresh_lists_again(tmp_path: Path, scans: list[str]) -> None:
    root = write_tree(tmp_path / "set")
    load_index(root)
    with (root / "val/cat/cat_0.JPEG").open("ab") as stream:
        stream.write(b"x")
    size_bytes = (root / "val/cat/cat_0.JPEG").stat().st_size
    assert load_index(root, refresh=True).val.sizes_bytes[0] == size_bytes
    assert load_index(root).val.sizes_bytes[0] == size_bytes
    assert len(scans) == 8


def test_a_set_that_has_just_changed_is_not_cached(tmp_path: Path, scans: list[str]) -> None:
    root = write_tree(tmp_path / "set")
    os.utime(root / "train" / "cat")
    load_index(root)
    scans.clear()
    load_index(root)
    assert len(scans) == 4


def test_a_damaged_cache_is_rebuilt(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "set")
    expected = load_index(root).fingerprint
    cache = root / CACHE
    whole = cache.read_bytes()
    random = np.random.default_rng(5)
    damaged = [b"", b"PK", whole[: len(whole) // 2], whole[:-1], b"\x93NUMPY" + whole[6:], 64 * b"\0"]
    for _ in range(200):
        flipped = bytearray(whole)
        flipped[random.integers(len(whole))] ^= 1 << int(random.integers(8))
        damaged.append(bytes(flipped))
    for content in damaged:
        cache.write_bytes(content)
        assert load_index(root).fingerprint == expected


def test_a_cache_of_another_format_is_not_used(tmp_path: Path, scans: list[str]) -> None:
    root = write_tree(tmp_path / "set")
    load_index(root)
    with np.load(root / CACHE) as arrays:
        content = dict(arrays)
    content["format"] += 1
    np.savez(root / CACHE, **content)
    scans.clear()
    load_index(root)
    assert len(scans) == 4


def test_a_read_only_set_is_cached_for_the_user(tmp_path: Path, user_cache: Path, scans: list[str]) -> None:
    root = write_tree(tmp_path / "set")
    # A folder in the cache's place cannot be replaced by a file, whoever asks (root ignores permissions).
    (root / CACHE).mkdir()
    load_index(root)
    assert len(list(user_cache.rglob("*.npz"))) == 1
    scans.clear()
    load_index(root)
    assert not scans


def test_a_set_that_cannot_be_cached_anywhere_still_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scans: list[str]
) -> None:
    root = write_tree(tmp_path / "set")
    (root / CACHE).mkdir()
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert load_index(root).fingerprint == load_index(root).fingerprint
    assert len(scans) == 8
    assert not list(root.glob("**/*.part"))


def refused(root: Path) -> str:
    with pytest.raises(DataError) as caught:
        load_index(root)
    message = str(caught.value)
    assert caught.value.exit_code == ExitCode.USAGE
    assert "\n" not in message
    return message


def test_a_missing_set_or_split_is_refused_with_the_layout(tmp_path: Path) -> None:
    assert "no such folder; expected train/<class>/*.JPEG and val/<class>/*.JPEG" in refused(tmp_path / "none")
    root = write_tree(tmp_path / "set")
    shutil.rmtree(root / "val")
    assert "has no folder val/: expected" in refused(root)
    shutil.rmtree(root / "train")
    assert "has no folder train/: expected" in refused(root)


def test_a_set_without_classes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "val").mkdir()
    assert "train has no class folders" in refused(tmp_path)


def test_images_that_lie_beside_the_class_folders_of_val_are_explained(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "set")
    shutil.rmtree(root / "val")
    (root / "val").mkdir()
    (root / "val" / "ILSVRC2012_val_00000001.JPEG").write_bytes(encoded(pixels(1)))
    assert "move each image into the folder of its class" in refused(root)


@pytest.mark.parametrize("split", ["train", "val"])
def test_an_empty_class_is_named(tmp_path: Path, split: str) -> None:
    root = write_tree(tmp_path / "set")
    for path in (root / split / "dog").iterdir():
        path.unlink()
    (root / split / "dog" / "readme.txt").write_text("no image")
    assert f"no image in class folder {split}/dog (" in refused(root)


def test_many_empty_classes_still_make_one_line(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "set")
    for number in range(5):
        (root / "train" / f"empty{number}").mkdir()
    assert "class folders train/empty0, train/empty1, train/empty2 and 2 more" in refused(root)


def test_a_class_that_only_val_has_is_named(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "set")
    shutil.rmtree(root / "train" / "dog")
    assert "val/ has class folder dog that train/ has not" in refused(root)


def test_a_class_that_val_lacks_is_allowed_and_told(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "set", ("cat", "dog", "eel"))
    shutil.rmtree(root / "val" / "dog")
    index = load_index(root)
    assert index.classes_absent_in_val == ("dog",)
    assert index.val.labels.tolist() == [0, 0, 2, 2]


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_tree(tmp_path / "set")
    original = os.scandir

    def scandir(path: Path) -> object:
        if Path(path).name == "dog":
            raise PermissionError(13, "Permission denied", str(path))
        return original(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert refused(root).startswith(f"cannot read {root}/train/dog: Permission denied")


@pytest.mark.parametrize("link", ["train/loop", "train/cat/loop.jpg", "val/cat/dangling.jpg"])
def test_a_link_that_leads_nowhere_is_named(tmp_path: Path, link: str) -> None:
    root = write_tree(tmp_path / "set")
    target = "loop" if link == "train/loop" else "loop.jpg" if link.endswith("loop.jpg") else "nothing.jpg"
    (root / link).symlink_to(target)
    assert f"cannot read {root / link}: " in refused(root)
