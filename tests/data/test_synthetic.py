"""The synthetic set: the same bytes for the same numbers, nothing written twice, nothing of others touched."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, JpegImagePlugin

from hpcai500.data.derived import MANIFEST
from hpcai500.data.imagenet.index import load_index
from hpcai500.data.imagenet.synthetic import CLASSES, SHAPES, TEXTURES, SyntheticSet, class_name, draw_jpeg, make_images
from hpcai500.errors import DataError

SMALL = SyntheticSet(classes=3, train_per_class=9, val_per_class=4)


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_the_bytes_do_not_depend_on_the_workers(tmp_path: Path) -> None:
    assert make_images(tmp_path / "one", SMALL, workers=1) == SMALL.images == 39
    assert make_images(tmp_path / "two", SMALL, workers=2) == 39
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_a_larger_set_contains_the_smaller_one(tmp_path: Path) -> None:
    make_images(tmp_path / "small", SMALL, workers=1)
    make_images(tmp_path / "large", replace(SMALL, train_per_class=12), workers=1)
    small, large = content(tmp_path / "small"), content(tmp_path / "large")
    assert {path: large[path] for path in small if path != MANIFEST} == {
        path: small[path] for path in small if path != MANIFEST
    }


def test_no_two_images_are_the_same(tmp_path: Path) -> None:
    make_images(tmp_path / "a", SMALL, workers=1)
    make_images(tmp_path / "b", replace(SMALL, seed=1), workers=1)
    images = [data for root in ("a", "b") for path, data in content(tmp_path / root).items() if path != MANIFEST]
    assert len(set(images)) == len(images) == 78


def test_the_set_is_what_imagenet_ships(tmp_path: Path) -> None:
    make_images(tmp_path, SMALL, workers=1)
    index = load_index(tmp_path)
    assert index.classes == tuple(class_name(label) for label in range(3))
    assert (len(index.train), len(index.val)) == (27, 12)
    assert index.ignored_files == 0


def test_files_have_mixed_sizes_qualities_and_subsamplings(tmp_path: Path) -> None:
    make_images(tmp_path, replace(SMALL, train_per_class=20), workers=1)
    images = [Image.open(path) for path in tmp_path.rglob("*.JPEG")]
    assert all(image.format == "JPEG" and image.mode == "RGB" for image in images)
    sides = np.array([image.size for image in images])
    assert sides.min() >= 72
    assert sides.max() <= 128
    assert len({tuple(size) for size in sides.tolist()}) > 40
    assert {JpegImagePlugin.get_sampling(image) for image in images} == {0, 1, 2}
    assert len({image.quantization[0][5] for image in images}) > 10


def test_class_names_sort_as_labels_and_say_what_is_shown() -> None:
    names = [class_name(label) for label in range(len(CLASSES))]
    assert names == sorted(names)
    assert names[0] == "00-disc-plain"
    assert sorted(CLASSES) == sorted((shape, texture) for shape in SHAPES for texture in TEXTURES)
    # Even a set of few classes differs in form and in texture.
    assert len({shape for shape, _ in CLASSES[:8]}) == 4
    assert len({texture for _, texture in CLASSES[:8]}) == 2


@pytest.mark.parametrize("label", range(len(CLASSES)), ids=class_name)
def test_each_class_shows_an_object_on_its_background(label: int) -> None:
    stands_out = []
    for seed in range(8):
        data = draw_jpeg(label, np.random.default_rng(seed), 96, 96)
        image = np.asarray(_opened(data), dtype=np.float64)
        border = np.concatenate([image[:4].reshape(-1, 3), image[-4:].reshape(-1, 3)])
        # Noise has a deviation of 18 levels; the object's colour differs by at least 0.3 of 255 a channel.
        distance = np.abs(image - border.mean(axis=0)).min(axis=2)
        stands_out.append((distance > 40).mean())
    assert 0.04 < np.mean(stands_out) < 0.6


def _opened(data: bytes) -> Image.Image:
    import io

    return Image.open(io.BytesIO(data))


def test_a_second_call_writes_nothing_and_a_lost_file_comes_back(tmp_path: Path) -> None:
    make_images(tmp_path, SMALL, workers=1)
    before = content(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert make_images(tmp_path, SMALL, workers=1) == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times

    lost = load_index(tmp_path, refresh=True).train.paths[5]
    (tmp_path / lost).unlink()
    assert make_images(tmp_path, SMALL, workers=1) == 1
    assert {path: data for path, data in content(tmp_path).items() if not path.endswith(".npz")} == before


def test_an_interrupted_call_leaves_whole_files_and_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpcai500.data.imagenet import synthetic

    calls = 0

    def interrupted(*args: Any) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 11:
            raise KeyboardInterrupt
        return draw_jpeg(*args)

    with monkeypatch.context() as patch:
        patch.setattr(synthetic, "draw_jpeg", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make_images(tmp_path / "set", SMALL, workers=1)
    files = [path for path in (tmp_path / "set").rglob("*") if path.is_file() and path.name != MANIFEST]
    assert len(files) == 10
    for path in files:
        Image.open(path).load()
    assert make_images(tmp_path / "set", SMALL, workers=1) == 29
    make_images(tmp_path / "other", SMALL, workers=1)
    assert content(tmp_path / "set") == content(tmp_path / "other")


def refused(root: Path, wanted: SyntheticSet = SMALL) -> str:
    with pytest.raises(DataError) as caught:
        make_images(root, wanted, workers=1)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_other_parameters_are_refused_with_the_difference(tmp_path: Path) -> None:
    make_images(tmp_path, SMALL, workers=1)
    before = content(tmp_path)
    message = refused(tmp_path, replace(SMALL, seed=4, classes=5))
    assert "made with classes 3, not 5; seed 0, not 4: choose another folder" in message
    assert content(tmp_path) == before


def test_a_set_of_others_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "val" / "n01440764").mkdir(parents=True)
    (tmp_path / "val" / "n01440764" / "x.JPEG").write_bytes(b"theirs")
    assert "already has val/, not made by this command" in refused(tmp_path)
    assert list(content(tmp_path)) == ["val/n01440764/x.JPEG"]


def test_a_folder_with_other_files_may_hold_a_set(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("theirs")
    make_images(tmp_path, SMALL, workers=1)
    assert (tmp_path / "README").read_text() == "theirs"


@pytest.mark.parametrize("damaged", [b"", b"{", b"[1]", b"\xff"])
def test_a_damaged_manifest_is_refused(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(damaged)
    assert "is damaged" in refused(tmp_path)


def test_a_manifest_of_another_generator_is_refused(tmp_path: Path) -> None:
    make_images(tmp_path, SMALL, workers=1)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps(manifest | {"generator_version": 0}))
    assert "generator_version 0, not 1" in refused(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert f"cannot write the synthetic set: {tmp_path}/file" in refused(tmp_path / "file" / "set")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"classes": 1}, "choose 2 to 36"),
        ({"classes": 37}, "choose 2 to 36"),
        ({"train_per_class": 0}, "train_per_class"),
        ({"val_per_class": -1}, "val_per_class"),
        ({"seed": -1}, "seed"),
        ({"smallest_side": 8}, "pixels"),
        ({"smallest_side": 200}, "the smaller first"),
    ],
)
def test_impossible_parameters_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        SyntheticSet(**wrong)


def test_no_workers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least 1"):
        make_images(tmp_path / "set", SMALL, workers=0)
    assert not (tmp_path / "set").exists()
