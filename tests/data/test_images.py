"""An image set in ImageNet's layout: what its index lists, when a cache is believed, and what a check finds."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.data import encoded_picture, picture, settle, write_digits, write_tree
from PIL import Image
from sklearn.datasets import load_digits

from hpcai500 import _core
from hpcai500._core import SeekIndex
from hpcai500.data.imagenet import check as check_module
from hpcai500.data.imagenet import index as index_module
from hpcai500.data.imagenet.check import FileCheck, as_document, check_file, check_images
from hpcai500.data.imagenet.index import MOST_BYTES, decode_odd, load_content_fingerprint, load_index, read_image
from hpcai500.errors import DataError, ExitCode

CACHE = ".hpcai500-index.npz"
ODD = "train/cat/odd.JPEG"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three training and two validation images of cats, and of dogs."""
    return write_tree(tmp_path / "set")


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The class folders that were listed."""
    listed: list[str] = []
    original = index_module._scan_class

    def spy(root: Path, path: str) -> index_module.ClassFolder:
        listed.append(path)
        return original(root, path)

    monkeypatch.setattr(index_module, "_scan_class", spy)
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


# --- the cache


def test_names_that_are_not_utf8_survive_the_cache(root: Path) -> None:
    name = os.fsdecode(b"caf\xe9\n.jpg")
    (root / "train/cat" / name).write_bytes(b"x")
    settle(root)
    first, second = load_index(root), load_index(root)
    assert f"train/cat/{name}" in first.train.paths
    assert second.train.paths == first.train.paths


def test_a_second_load_lists_nothing_and_says_the_same_of_a_moved_set_too(root: Path, scans: list[str]) -> None:
    first = load_index(root)
    assert sorted(scans) == ["train/cat", "train/dog", "val/cat", "val/dog"]
    scans.clear()
    second = load_index(root)
    moved = load_index(root.rename(root.with_name("moved")))
    assert not scans
    assert moved.root == root.with_name("moved")
    for index in (second, moved):
        assert (index.classes, index.fingerprint) == (first.classes, first.fingerprint)
        for one, other in zip(first.splits, index.splits, strict=True):
            assert one.paths == other.paths
            assert np.array_equal(one.labels, other.labels)
            assert np.array_equal(one.sizes_bytes, other.sizes_bytes)


def test_a_change_in_a_class_folder_makes_the_cache_stale(root: Path) -> None:
    load_index(root)
    (root / "val/dog/dog_0.JPEG").unlink()
    assert len(load_index(root).val) == 3
    for split in ("train", "val"):
        (root / split / "eel").mkdir()
        (root / split / "eel" / "e.jpg").write_bytes(b"x")
    assert load_index(root).classes == ("cat", "dog", "eel")
    shutil.rmtree(root / "val" / "eel")
    assert load_index(root).classes_absent_in_val == ("eel",)


def test_a_refresh_lists_again(root: Path, scans: list[str]) -> None:
    load_index(root)
    with (root / "val/cat/cat_0.JPEG").open("ab") as stream:
        stream.write(b"x")
    size_bytes = (root / "val/cat/cat_0.JPEG").stat().st_size
    assert load_index(root, refresh=True).val.sizes_bytes[0] == size_bytes
    assert load_index(root).val.sizes_bytes[0] == size_bytes
    assert len(scans) == 8


def _add(root: Path) -> None:
    (root / "train/cat/more.JPEG").write_bytes(WHOLE)


def _rename(root: Path) -> None:
    (root / "val/dog/dog_1.JPEG").rename(root / "val/dog/dog_2.JPEG")


def _resize(root: Path) -> None:
    (root / "train/dog/dog_2.JPEG").write_bytes(WHOLE + b"longer")


def _add_class(root: Path) -> None:
    (root / "train/eel").mkdir()
    (root / "train/eel/e.JPEG").write_bytes(WHOLE)


@pytest.mark.parametrize("place", ["set", "user's cache"])
@pytest.mark.parametrize("is_image", [False, True], ids=["copied", "image-of-data"])
@pytest.mark.parametrize("change", [_add, _rename, _resize, _add_class])
def test_another_version_with_the_same_times_is_listed_anew(
    root: Path, place: str, is_image: bool, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_image:
        # A SquashFS image has one time for all, also as the time of change, which no call can set.
        monkeypatch.setattr(index_module, "_times_ns", lambda folder: (0, 0))
    if place != "set":
        (root / CACHE).mkdir()
    second = shutil.copytree(root, root.with_name("second"))
    change(second)
    for tree in (root, second):
        for path in (tree, *tree.rglob("*")):
            os.utime(path, (0, 0))
    expected = load_index(second, refresh=True).fingerprint
    (second / CACHE).unlink() if place == "set" else None
    first = load_index(root).fingerprint
    root.rename(root.with_name("first"))
    second.rename(root)
    if place == "set":
        shutil.copy(root.with_name("first") / CACHE, root / CACHE)
    assert load_index(root).fingerprint == expected != first


def test_a_folder_replaced_under_old_times_is_listed_anew(root: Path) -> None:
    first, times = load_index(root), (root / "val/cat").stat()
    other = root / "val/cat/other"
    other.write_bytes((root / first.val.paths[0]).read_bytes() + b"longer")
    other.replace(root / first.val.paths[0])
    os.utime(root / "val/cat", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert load_index(root).val.sizes_bytes[0] == first.val.sizes_bytes[0] + 6


def test_some_sizes_of_a_large_set_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_DRAWN_FILES", 8)
    root = write_tree(tmp_path / "set", train=10, val=10)
    first, asked = load_index(root), list[Path]()
    original = Path.stat
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", lambda path, **options: asked.append(path) or original(path, **options))
        load_index(root)
    images = {str(path.relative_to(root)) for path in asked if path.suffix == ".JPEG"}
    assert len(images) == 8
    assert {path.rpartition("/")[0] for path in images} == {"train/cat", "train/dog", "val/cat", "val/dog"}
    with (root / sorted(images)[0]).open("ab") as stream:
        stream.write(b"x")
    assert load_index(root).fingerprint != first.fingerprint


def test_a_damaged_cache_is_rebuilt(root: Path) -> None:
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


def test_no_cache_is_made_of_a_set_that_has_just_changed_and_none_of_another_format_used(
    root: Path, scans: list[str]
) -> None:
    os.utime(root / "train" / "cat")
    load_index(root)
    assert not (root / CACHE).exists()
    settle(root)
    load_index(root)
    with np.load(root / CACHE) as arrays:
        content = dict(arrays)
    content["format"] += 1
    np.savez(root / CACHE, **content)
    scans.clear()
    load_index(root)
    assert len(scans) == 4


def test_a_read_only_set_is_cached_for_the_user_or_not_at_all(
    root: Path, user_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scans: list[str]
) -> None:
    # A folder in the cache's place cannot be replaced by a file, whoever asks (root ignores permissions).
    (root / CACHE).mkdir()
    for _ in range(2):
        fingerprint = load_index(root).fingerprint
    assert len(list(user_cache.rglob("*.npz"))) == 1
    assert len(scans) == 4
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        assert load_index(root).fingerprint == fingerprint
    assert len(scans) == 12
    assert not list(root.glob("**/*.part"))


# --- what is no set


def refused(root: Path) -> str:
    with pytest.raises(DataError) as caught:
        load_index(root)
    assert caught.value.exit_code == ExitCode.USAGE
    assert "\n" not in str(caught.value)
    return str(caught.value)


def without(path: str) -> Callable[[Path], object]:
    return lambda root: shutil.rmtree(root / path)


def images_beside_the_classes(root: Path) -> None:
    shutil.rmtree(root / "val")
    (root / "val").mkdir()
    (root / "val" / "ILSVRC2012_val_00000001.JPEG").write_bytes(encoded_picture(picture(1)))


def emptied(split: str) -> Callable[[Path], None]:
    def empty(root: Path) -> None:
        for path in (root / split / "dog").iterdir():
            path.unlink()
        (root / split / "dog" / "readme.txt").write_text("no image")

    return empty


def five_empty_classes(root: Path) -> None:
    for number in range(5):
        (root / "train" / f"empty{number}").mkdir()


def no_classes(root: Path) -> None:
    for split in ("train", "val"):
        shutil.rmtree(root / split)
        (root / split).mkdir()


NO_SETS = {
    "no folder": (without(""), "no such folder; expected train/<class>/*.JPEG and val/<class>/*.JPEG"),
    "no val": (without("val"), "has no folder val/: expected"),
    "no train": (without("train"), "has no folder train/: expected"),
    "no classes": (no_classes, "train has no class folders"),
    "images beside the classes": (images_beside_the_classes, "move each image into the folder of its class"),
    "an empty class of train": (emptied("train"), "no image in class folder train/dog ("),
    "an empty class of val": (emptied("val"), "no image in class folder val/dog ("),
    "many empty classes": (five_empty_classes, "class folders train/empty0, train/empty1, train/empty2 and 2 more"),
    "a class that only val has": (without("train/dog"), "val/ has class folder dog, which train/ lacks"),
}


@pytest.mark.parametrize(("spoil", "told"), NO_SETS.values(), ids=NO_SETS)
def test_what_is_no_set_is_refused_in_one_line(root: Path, spoil: Callable[[Path], object], told: str) -> None:
    spoil(root)
    assert told in refused(root)


def test_a_class_that_val_lacks_is_allowed_and_told(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "set", ("cat", "dog", "eel"))
    shutil.rmtree(root / "val" / "dog")
    index = load_index(root)
    assert index.classes_absent_in_val == ("dog",)
    assert index.val.labels.tolist() == [0, 0, 2, 2]
    report = check_images(root)
    assert report.passed
    assert report.classes_absent_in_val == ("dog",)
    assert [(of_class.name, of_class.val) for of_class in report.classes] == [("cat", 2), ("dog", 0), ("eel", 2)]


def test_a_folder_that_cannot_be_read_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.scandir

    def scandir(path: Path) -> object:
        if Path(path).name == "dog":
            raise PermissionError(13, "Permission denied", str(path))
        return original(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert refused(root).startswith(f"cannot read {root}/train/dog: Permission denied")


@pytest.mark.parametrize("link", ["train/loop", "train/cat/loop.jpg", "val/cat/dangling.jpg"])
def test_a_link_that_leads_nowhere_is_named(root: Path, link: str) -> None:
    (root / link).symlink_to("nothing.jpg" if "dangling" in link else Path(link).name)
    assert f"cannot read {root / link}: " in refused(root)


# --- one file is read alike by Python's side and by the native loader
SPEC = _core.DecodeSpec(size=8, dtype="uint8")


def refusal_of_the_loader(path: Path) -> str:
    """Why the native loader cannot read a file."""
    with _core.JpegLoader(
        str(path.parent), [path.name], SPEC, slots=[np.zeros((1, *SPEC.shape), np.uint8)], threads=1
    ) as loader:
        loader.submit(np.array([0]), seed=0, epoch=0)
        (failure,) = loader.next().failures
    assert failure.kind == "unreadable"
    return failure.reason


def test_a_file_and_what_a_link_leads_to_are_read_whole(tmp_path: Path) -> None:
    content = encoded_picture(picture(1))
    (tmp_path / "image").write_bytes(content)
    (tmp_path / "link").symlink_to("image")
    (tmp_path / "empty").touch()
    assert read_image(tmp_path / "image") == read_image(tmp_path / "link") == content
    assert read_image(tmp_path / "empty") == b""


@pytest.mark.parametrize("kind", ["pipe", "folder", "too large", "missing", "link to nothing"])
def test_what_cannot_be_read_is_refused_in_the_loaders_words(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "image"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "too large":
        path.touch()
        os.truncate(path, MOST_BYTES + 1)
    elif kind == "link to nothing":
        path.symlink_to("nothing")
    with pytest.raises(OSError, match=r".") as refused:
        read_image(path)
    assert refused.value.strerror
    assert refusal_of_the_loader(path).endswith(refused.value.strerror)


# --- a check reads every file


def test_a_good_set_passes_with_its_counts(root: Path) -> None:
    report = check_images(root, workers=2)
    assert report.passed
    assert [(c.name, c.train, c.val) for c in report.classes] == [("cat", 3, 2), ("dog", 3, 2)]
    assert (report.train_samples, report.val_samples) == (6, 4)
    assert report.kinds == {"colour": 10}
    assert report.total_bytes == sum(path.stat().st_size for path in root.rglob("*.JPEG"))
    assert (report.broken, report.damaged, report.odd) == ((), (), ())
    assert report.pixel_histogram[1024] == 10  # 24 x 32
    assert sum(report.byte_histogram.values()) == 10
    assert report.fingerprint == load_index(root).fingerprint


PNG = encoded_picture(picture(1), "PNG")
USABLE = {
    "grey": (encoded_picture(picture(1).convert("L")), "grey"),
    "cmyk": (encoded_picture(picture(1).convert("CMYK")), "cmyk"),
    "progressive": (encoded_picture(picture(1), progressive=True), "colour"),
    "one pixel": (encoded_picture(picture(1, 1, 1)), "colour"),
    "exif": (encoded_picture(picture(1), exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"), "colour"),
    "png": (PNG, "other"),
    "png with palette": (encoded_picture(picture(1).quantize(16), "PNG", transparency=3), "other"),
    "png with alpha": (encoded_picture(picture(1).convert("RGBA"), "PNG"), "other"),
    "gif": (encoded_picture(picture(1), "GIF"), "other"),
}


@pytest.mark.parametrize(("content", "kind"), USABLE.values(), ids=USABLE)
def test_a_file_that_a_run_can_use_passes(root: Path, content: bytes, kind: str) -> None:
    (root / ODD).write_bytes(content)
    report = check_images(root)
    assert report.passed
    assert report.kinds[kind] == (11 if kind == "colour" else 1)
    assert report.odd == ((ODD,) if kind == "other" else ())


WHOLE = encoded_picture(picture(1))
BROKEN = {
    "truncated": (WHOLE[: len(WHOLE) * 2 // 3], "truncated"),
    "empty": (b"", "empty"),
    "text": (b"<html>404 Not Found</html>", "not a JPEG or another image format"),
    "truncated png": (PNG[: len(PNG) // 2], "truncated"),
    "png without pixels": (PNG[:33], ""),
}


@pytest.mark.parametrize(("content", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_file_that_a_run_cannot_use_fails_with_path_and_reason(root: Path, content: bytes, reason: str) -> None:
    (root / ODD).write_bytes(content)
    report = check_images(root)
    assert not report.passed
    assert [finding.path for finding in report.broken] == [ODD]
    assert reason in report.broken[0].reason
    assert "0x7f" not in report.broken[0].reason
    assert report.content_fingerprint is None


def test_a_marker_out_of_place_counts_as_damage(root: Path) -> None:
    whole = encoded_picture(picture(1, 200, 200), quality=95)
    middle = len(whole) // 2
    (root / ODD).write_bytes(whole[:middle] + b"\xff\xd3" + whole[middle:])
    report = check_images(root)
    assert report.passed
    assert [(finding.path, finding.reason) for finding in report.damaged] == [(ODD, "2 decoder warnings")]
    assert len(report.content_fingerprint or "") == 64


def test_a_file_that_vanishes_during_the_check_is_broken(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check_after_removal(root: Path, path: str, index: SeekIndex | None) -> FileCheck:
        if path == "val/dog/dog_1.JPEG":
            (root / path).unlink()
        return check_file(root, path, index)

    monkeypatch.setattr(check_module, "check_file", check_after_removal)
    report = check_images(root)
    assert [(finding.path, finding.reason) for finding in report.broken] == [
        ("val/dog/dog_1.JPEG", "unreadable: No such file or directory")
    ]


def test_a_check_does_not_believe_the_cache(root: Path) -> None:
    load_index(root)
    (root / "train/cat/cat_0.JPEG").write_bytes(encoded_picture(picture(77, 50, 50)))
    report = check_images(root)
    assert report.total_bytes == sum(path.stat().st_size for path in root.rglob("*.JPEG"))
    assert report.fingerprint == load_index(root).fingerprint


def test_the_content_fingerprint_is_that_of_the_bytes(root: Path, tmp_path: Path) -> None:
    report = check_images(root, workers=3)
    digest = hashlib.sha256(b"hpcai500 image content 1\0")
    for path in sorted(root.glob("train/*/*.JPEG")) + sorted(root.glob("val/*/*.JPEG")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    assert report.content_fingerprint == digest.hexdigest()

    twin = shutil.copytree(root, tmp_path / "twin")
    assert check_images(twin, workers=1).content_fingerprint == report.content_fingerprint
    flipped = bytearray((twin / "val/cat/cat_1.JPEG").read_bytes())
    flipped[-30] ^= 1
    (twin / "val/cat/cat_1.JPEG").write_bytes(flipped)
    changed = check_images(twin)
    assert changed.fingerprint == report.fingerprint
    assert changed.content_fingerprint != report.content_fingerprint


def test_later_runs_find_the_content_fingerprint_of_these_files_only(root: Path) -> None:
    assert load_content_fingerprint(load_index(root)) is None
    report = check_images(root)
    assert load_content_fingerprint(load_index(root)) == report.content_fingerprint
    kept = root / ".hpcai500-content.json"
    whole = kept.read_bytes()
    for damaged in (b"", b"[]", b"{}", b"\xff", b"null"):
        kept.write_bytes(damaged)
        assert load_content_fingerprint(load_index(root)) is None
    kept.write_bytes(whole)
    assert load_content_fingerprint(load_index(root)) == report.content_fingerprint
    flipped = bytearray((root / "val/cat/cat_1.JPEG").read_bytes())
    flipped[-30] ^= 1
    times = (root / "val/cat/cat_1.JPEG").stat()
    (root / "val/cat/cat_1.JPEG").write_bytes(flipped)
    os.utime(root / "val/cat/cat_1.JPEG", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert load_content_fingerprint(load_index(root)) is None
    assert check_images(root).content_fingerprint == load_content_fingerprint(load_index(root)) != report
    (root / "train/cat/more.jpg").write_bytes(WHOLE)
    assert load_content_fingerprint(load_index(root)) is None


def test_what_is_left_out_is_counted_by_kind(root: Path, call: Any) -> None:
    folder = root / "train/cat"
    for name in ("a.jfif", "b.JFIF", "c.webp", ".hidden.JPEG", "README"):
        (folder / name).write_bytes(WHOLE)
    (folder / "folder.JPEG").mkdir()
    (root / "train/stray.JPEG").write_bytes(WHOLE)
    settle(root)
    kinds = {".jfif": 2, ".webp": 1, "hidden": 1, "no ending": 1, "folder": 1, "in no class folder": 1}
    for _ in range(2):
        index = load_index(root)
        assert (index.left_out, index.ignored_files) == (kinds, 7)
    document = json.loads(call("check", "ic", root, "--json")[0])
    assert (document["left_out"], document["ignored_files"]) == (kinds, 7)
    out, _ = call("check", "ic", root)
    assert "note: 7 entries are left out (2 .jfif, 1 " in out
    assert "1 more kinds): images are files in class folders whose names end in .jpeg, .jpg, .png, in any case\n" in out


COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"


def test_classes_that_look_the_same_are_refused_with_the_fix(root: Path) -> None:
    for split, name in (("train", COMPOSED), ("val", DECOMPOSED)):
        (root / split / name).mkdir()
        (root / split / name / "x.JPEG").write_bytes(WHOLE)

    def fix(what: str) -> None:
        with pytest.raises(
            DataError, match=rf"look the same, but their names have other bytes .*: {what}: mv "
        ) as told:
            load_index(root)
        subprocess.run(["bash", "-c", str(told.value).partition(f"{what}: ")[2]], check=True)

    fix("rename it")
    assert load_index(root).classes == (COMPOSED, "cat", "dog")
    (root / "train" / DECOMPOSED).mkdir()
    (root / "train" / DECOMPOSED / "y.JPEG").write_bytes(WHOLE)
    fix("put all images into one of them")
    fix("rename it")
    assert [path.rpartition("/")[2] for path in load_index(root).train.paths[:2]] == ["x.JPEG", "y.JPEG"]


def test_no_workers_are_refused(root: Path) -> None:
    with pytest.raises(DataError, match="at least 1"):
        check_images(root, workers=0)


def test_only_a_window_of_files_is_in_memory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(400):
        shutil.copy(root / "train/cat/cat_0.JPEG", root / f"train/cat/copy_{number:03d}.JPEG")
    checked = 0
    ahead: list[int] = []
    original = check_module._Totals.add

    def count(root: Path, path: str, index: SeekIndex | None) -> FileCheck:
        nonlocal checked
        checked += 1
        return check_file(root, path, index)

    def add(tally: check_module._Totals, check: FileCheck) -> None:
        ahead.append(checked - len(ahead))
        original(tally, check)

    monkeypatch.setattr(check_module, "check_file", count)
    monkeypatch.setattr(check_module._Totals, "add", add)
    check_images(root, workers=1)
    assert len(ahead) == 410
    # Four tasks of 16 files a worker, and the one that the consumer holds.
    assert max(ahead) <= 5 * 16


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.fromarray(np.array([[0, 128, 65535]], dtype=np.uint16)), [0, 0, 255]),
        (Image.fromarray(np.array([[0, 128, 255]], dtype=np.uint8)), [0, 128, 255]),
    ],
    ids=["16-bit grey", "8-bit grey"],
)
def test_grey_pngs_keep_their_levels(image: Image.Image, expected: list[int]) -> None:
    decoded = decode_odd(encoded_picture(image, "PNG"))
    assert decoded.shape == (1, 3, 3)
    assert decoded.dtype == np.uint8
    assert decoded[0].tolist() == [[level] * 3 for level in expected]


def test_pixels_of_an_odd_file_are_those_of_pillow_and_too_many_are_refused() -> None:
    decoded = decode_odd(encoded_picture(picture(3), "PNG"))
    assert np.array_equal(decoded, np.asarray(picture(3)))
    assert decoded.flags.writeable
    with pytest.raises(ValueError, match="decompression bomb"):
        decode_odd(encoded_picture(Image.new("1", (14_000, 14_000)), "PNG"))


def test_the_json_document_has_the_keys_that_others_build_on(root: Path) -> None:

    (root / ODD).write_bytes(b"")
    document = json.loads(json.dumps(as_document(check_images(root))))
    assert document["verdict"] == "fail"
    assert document["samples"] == {"train": 7, "val": 4}
    assert document["classes"] == 2
    assert document["broken"] == [{"path": ODD, "reason": document["broken"][0]["reason"]}]
    assert len(document["fingerprint"]) == 64
    assert document["content_fingerprint"] is None
    assert document["per_class"][1] == {"name": "dog", "train": 3, "val": 2}
    assert {"up_to": None, "files": 0} in document["byte_histogram"]


# --- the digits that end-to-end tests train on


def test_each_scan_is_in_exactly_one_split_and_still_looks_like_itself(tmp_path: Path) -> None:
    assert write_digits(tmp_path, side=64) == (1438, 359)
    report = check_images(tmp_path)
    assert report.passed
    assert len(report.classes) == 10
    scans = load_digits()
    files = {int(path.stem): path for path in tmp_path.rglob("*.JPEG")}
    assert sorted(files) == list(range(1797))
    for number in range(0, 1797, 97):
        assert files[number].parent.name == f"digit-{scans.target[number]}"
        small = np.asarray(Image.open(files[number]).convert("L").resize((8, 8), Image.Resampling.BOX), dtype=float)
        assert np.corrcoef(small.ravel(), scans.images[number].ravel())[0, 1] > 0.98
