"""A check reads every file: it passes what a run can use, and names what it cannot."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from image_tree import encoded, pixels, write_tree
from PIL import Image

from hpcai500._core import SeekIndex
from hpcai500.data.imagenet import check as check_module
from hpcai500.data.imagenet.check import FileCheck, check_file, check_images
from hpcai500.data.imagenet.index import decode_odd, load_content_fingerprint, load_index
from hpcai500.errors import DataError

ODD = "train/cat/odd.JPEG"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    return write_tree(tmp_path / "set")


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


USABLE = {
    "grey": (encoded(pixels(1).convert("L")), "grey"),
    "cmyk": (encoded(pixels(1).convert("CMYK")), "cmyk"),
    "progressive": (encoded(pixels(1), progressive=True), "colour"),
    "one pixel": (encoded(pixels(1, 1, 1)), "colour"),
    "exif": (encoded(pixels(1), exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"), "colour"),
    "png": (encoded(pixels(1), "PNG"), "other"),
    "png with palette": (encoded(pixels(1).quantize(16), "PNG", transparency=3), "other"),
    "png with alpha": (encoded(pixels(1).convert("RGBA"), "PNG"), "other"),
    "gif": (encoded(pixels(1), "GIF"), "other"),
}


@pytest.mark.parametrize(("content", "kind"), USABLE.values(), ids=USABLE)
def test_a_file_that_a_run_can_use_passes(root: Path, content: bytes, kind: str) -> None:
    (root / ODD).write_bytes(content)
    report = check_images(root)
    assert report.passed
    assert report.kinds[kind] == (11 if kind == "colour" else 1)
    assert report.odd == ((ODD,) if kind == "other" else ())


WHOLE = encoded(pixels(1))
PNG = encoded(pixels(1), "PNG")
BROKEN = {
    "truncated": (WHOLE[: len(WHOLE) * 2 // 3], "truncated"),
    "empty": (b"", "empty"),
    "text": (b"<html>404 Not Found</html>", "no JPEG and no other image format"),
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
    whole = encoded(pixels(1, 200, 200), quality=95)
    middle = len(whole) // 2
    (root / ODD).write_bytes(whole[:middle] + b"\xff\xd3" + whole[middle:])
    report = check_images(root)
    assert report.passed
    assert [(finding.path, finding.reason) for finding in report.damaged] == [(ODD, "1 decoder warning")]
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
    (root / "train/cat/cat_0.JPEG").write_bytes(encoded(pixels(77, 50, 50)))
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
    (root / "train/cat/more.jpg").write_bytes(WHOLE)
    assert load_content_fingerprint(load_index(root)) is None


@pytest.mark.parametrize("damaged", [b"", b"[]", b"{}", b"\xff", b"null"])
def test_a_damaged_content_fingerprint_is_none(root: Path, damaged: bytes) -> None:
    check_images(root)
    (root / ".hpcai500-content.json").write_bytes(damaged)
    assert load_content_fingerprint(load_index(root)) is None


def test_a_class_that_val_lacks_is_reported(root: Path) -> None:
    shutil.rmtree(root / "val" / "dog")
    report = check_images(root)
    assert report.passed
    assert report.classes_absent_in_val == ("dog",)
    assert [(c.name, c.val) for c in report.classes] == [("cat", 2), ("dog", 0)]


def test_a_layout_error_ends_the_check(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        check_images(tmp_path / "none")


def test_no_workers_are_refused(root: Path) -> None:
    with pytest.raises(DataError, match="at least 1"):
        check_images(root, workers=0)


def test_only_a_window_of_files_is_in_memory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(400):
        shutil.copy(root / "train/cat/cat_0.JPEG", root / f"train/cat/copy_{number:03d}.JPEG")
    checked = 0
    ahead: list[int] = []
    original = check_module._Tally.add

    def count(root: Path, path: str, index: SeekIndex | None) -> FileCheck:
        nonlocal checked
        checked += 1
        return check_file(root, path, index)

    def add(tally: check_module._Tally, check: FileCheck) -> None:
        ahead.append(checked - len(ahead))
        original(tally, check)

    monkeypatch.setattr(check_module, "check_file", count)
    monkeypatch.setattr(check_module._Tally, "add", add)
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
    decoded = decode_odd(encoded(image, "PNG"))
    assert decoded.shape == (1, 3, 3)
    assert decoded.dtype == np.uint8
    assert decoded[0].tolist() == [[level] * 3 for level in expected]


def test_pixels_of_an_odd_file_are_those_of_pillow() -> None:
    image = pixels(3)
    decoded = decode_odd(encoded(image, "PNG"))
    assert np.array_equal(decoded, np.asarray(image))
    decoded[0, 0] = 0


def test_an_image_that_is_too_large_is_refused() -> None:
    stream = io.BytesIO()
    Image.new("1", (14_000, 14_000)).save(stream, "PNG")
    with pytest.raises(ValueError, match="decompression bomb"):
        decode_odd(stream.getvalue())


def test_the_json_document_has_the_keys_that_others_build_on(root: Path) -> None:
    from hpcai500.data.imagenet.check import as_document

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
