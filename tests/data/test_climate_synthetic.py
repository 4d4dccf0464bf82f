"""The synthetic years: the same bytes for the same numbers, each layout as HDF5 reads it, nothing written twice."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcai500.data.climate import synthetic
from hpcai500.data.climate.synthetic import LAYOUTS, SyntheticYears, make_years
from hpcai500.data.climate.years import storage_of
from hpcai500.data.derived import MANIFEST
from hpcai500.errors import DataError

SMALL = SyntheticYears(first_year=1979, last_year=1980, images_per_year=5, height=64, width=96)


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_bytes_do_not_depend_on_the_workers(tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Parts of two images, so that each year is shared by the workers.
    monkeypatch.setattr("hpcai500.data.climate.synthetic._PART_BYTES", 2 * 16 * 64 * 96 * 4)
    wanted = replace(SMALL, layout=layout)
    assert make_years(tmp_path / "one", wanted, workers=1) == 2
    assert make_years(tmp_path / "two", wanted, workers=2) == 2
    one, two = content(tmp_path / "one"), content(tmp_path / "two")
    assert list(one) == [MANIFEST, "climo_1979.h5", "climo_1980.h5"]
    assert one == two


@pytest.mark.parametrize(
    ("layout", "images", "expected"),
    [
        ("image", 5, {"chunks": (1, 16, 64, 96), "compression": None}),
        ("contiguous", 5, {"chunks": None, "compression": None}),
        ("shipped", 5, {"compression": "gzip"}),
        # HDF5's default chunks then hold several images, of which the last chunk lacks some.
        ("shipped", 50, {"compression": "gzip"}),
    ],
)
def test_every_layout_reads_back_what_was_drawn(
    tmp_path: Path, layout: str, images: int, expected: dict[str, Any]
) -> None:
    wanted = replace(SMALL, layout=layout, last_year=1979, images_per_year=images)
    make_years(tmp_path, wanted, workers=1)
    with h5py.File(tmp_path / "climo_1979.h5") as file:
        assert set(file) == {"images", "boxes"}
        dataset, boxes = file["images"], file["boxes"]
        assert (dataset.shape, dataset.dtype) == ((images, 16, 64, 96), np.float32)
        assert (boxes.shape, boxes.dtype) == ((images, 15, 5), np.int32)
        assert {name: getattr(dataset, name) for name in expected} == expected
        if images == 50:
            assert 1 < dataset.chunks[0] < 50
            assert 50 % dataset.chunks[0] != 0
        for number in range(images):
            image, rows = wanted.draw(1979, number)
            np.testing.assert_array_equal(dataset[number], image)
            np.testing.assert_array_equal(boxes[number], rows)


def test_the_shipped_chunks_are_those_of_the_real_set(tmp_path: Path) -> None:
    from hpcai500.data.climate.synthetic import lay_out

    parts = lay_out(tmp_path / "climo_1979.h5", 1460, 768, 1152, "shipped")
    with h5py.File(tmp_path / "climo_1979.h5") as file:
        assert file["images"].chunks == (46, 1, 48, 72)
    assert len(parts) == 32
    assert [part.count for part in parts] == [46] * 31 + [34]


@pytest.mark.parametrize("layout", ["image", "contiguous"])
def test_uncompressed_images_begin_at_pages(tmp_path: Path, layout: str) -> None:
    make_years(tmp_path, replace(SMALL, layout=layout, last_year=1979), workers=1)
    with h5py.File(tmp_path / "climo_1979.h5") as file:
        storage = storage_of(file["images"])
    addresses = storage.addresses.tolist() if storage.offset is None else [storage.offset]
    assert all(address % 4096 == 0 for address in addresses)


def test_an_image_depends_on_nothing_but_seed_year_and_number(tmp_path: Path) -> None:
    make_years(tmp_path / "few", SMALL, workers=1)
    make_years(tmp_path / "many", replace(SMALL, last_year=1981, images_per_year=8), workers=1)
    for year in (1979, 1980):
        with (
            h5py.File(tmp_path / f"few/climo_{year}.h5") as few,
            h5py.File(tmp_path / f"many/climo_{year}.h5") as many,
        ):
            np.testing.assert_array_equal(few["images"][:], many["images"][:5])
            np.testing.assert_array_equal(few["boxes"][:], many["boxes"][:5])


def test_no_two_images_are_the_same() -> None:
    drawn = [
        replace(SMALL, seed=seed).draw(year, number)[0].tobytes()
        for seed in (0, 1)
        for year in (1979, 1980)
        for number in range(3)
    ]
    assert len(set(drawn)) == 12


def test_a_second_call_writes_nothing_and_a_lost_year_comes_back(tmp_path: Path) -> None:
    make_years(tmp_path, SMALL, workers=1)
    before = content(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert make_years(tmp_path, SMALL, workers=1) == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times
    (tmp_path / "climo_1979.h5").unlink()
    assert make_years(tmp_path, SMALL, workers=1) == 1
    assert content(tmp_path) == before


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_interrupted_call_leaves_whole_years_and_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    wanted = replace(SMALL, layout=layout)
    draw_scene = synthetic.draw_scene

    def interrupted(seed: int, year: int, number: int, *rest: Any) -> Any:
        if (year, number) == (1980, 3):
            raise KeyboardInterrupt
        return draw_scene(seed, year, number, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(synthetic, "draw_scene", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make_years(tmp_path / "set", wanted, workers=1)
    assert list(content(tmp_path / "set")) == [MANIFEST, "climo_1979.h5"]
    assert make_years(tmp_path / "set", wanted, workers=1) == 1
    make_years(tmp_path / "other", wanted, workers=1)
    assert content(tmp_path / "set") == content(tmp_path / "other")


MAKE = """
import sys
from hpcai500.data.climate.synthetic import SyntheticYears, make_years
from hpcai500.errors import DataError
try:
    make_years(sys.argv[1], SyntheticYears(1979, 1980, 5, 64, 96, sys.argv[2]), workers=1)
except DataError as error:
    sys.exit(f"refused: {error}")
"""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lacking", [1, 2**19, 2**40], ids=["a byte", "half a MB", "everything"])
def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(tmp_path: Path, layout: str, lacking: int) -> None:
    make_years(tmp_path / "whole", replace(SMALL, layout=layout, last_year=1979), workers=1)
    # The kernel refuses to let a file grow over the limit, as a full disk does.
    limit_bytes = max((tmp_path / "whole" / "climo_1979.h5").stat().st_size - lacking, 1000)
    done = subprocess.run(
        [sys.executable, "-c", MAKE, str(tmp_path / "set"), layout],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes)),
    )
    assert done.returncode == 1
    assert done.stderr.startswith("refused: cannot write the synthetic set: ")
    assert "File too large; choose a folder with space" in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in (tmp_path / "set").iterdir()] == [MANIFEST]


def test_too_little_space_is_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    huge = SyntheticYears(first_year=1, last_year=9999, images_per_year=1460, height=768, width=1152)
    message = refused(tmp_path, huge)
    assert "9999 years of 1460 images take 826614.6 GB" in message
    assert list(content(tmp_path)) == [MANIFEST]


def refused(root: Path, wanted: SyntheticYears = SMALL) -> str:
    with pytest.raises(DataError) as caught:
        make_years(root, wanted, workers=1)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_other_parameters_are_refused_with_the_difference(tmp_path: Path) -> None:
    make_years(tmp_path, SMALL, workers=1)
    before = content(tmp_path)
    message = refused(tmp_path, replace(SMALL, seed=4, layout="contiguous"))
    assert "made with layout image, not contiguous; seed 0, not 4: choose another folder" in message
    assert content(tmp_path) == before


def test_a_set_of_others_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "climo_1979.h5").write_bytes(b"theirs")
    assert "already has climo_1979.h5, not made by this command" in refused(tmp_path)
    assert content(tmp_path) == {"climo_1979.h5": b"theirs"}


def test_a_year_of_others_among_ours_is_refused(tmp_path: Path) -> None:
    make_years(tmp_path, SMALL, workers=1)
    (tmp_path / "climo_2005.h5").write_bytes(b"theirs")
    assert "has climo_2005.h5, not made by this command" in refused(tmp_path)


def test_a_folder_with_other_files_may_hold_a_set(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("theirs")
    make_years(tmp_path, SMALL, workers=1)
    assert (tmp_path / "README").read_text() == "theirs"


@pytest.mark.parametrize("damaged", [b"", b"{", b"[1]", b"\xff"])
def test_a_damaged_manifest_is_refused(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(damaged)
    assert "is damaged" in refused(tmp_path)


def test_the_manifest_says_how_the_set_was_made(tmp_path: Path) -> None:
    make_years(tmp_path, SMALL, workers=1)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    assert manifest.pop("generator_version") == 1
    assert SyntheticYears(**manifest | {"class_shares": tuple(manifest["class_shares"])}) == SMALL
    assert set(manifest) == set(asdict(SMALL))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert f"cannot write the synthetic set: {tmp_path}/file" in refused(tmp_path / "file" / "set")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"first_year": 1981}, "the earlier first"),
        ({"last_year": 10000}, "choose 1 to 9999"),
        ({"images_per_year": 0}, "choose at least 1"),
        ({"height": 63}, "height of 63: choose 64 to 16384; on a smaller grid"),
        ({"width": 95}, "width of 95: choose 96"),
        ({"layout": "zip"}, "choose image, contiguous, shipped"),
        ({"class_shares": (1.0, 1.0)}, "one number for each of tropical depression"),
        ({"class_shares": (0.0, 0.0, 0.0, 0.0)}, "not all 0"),
        ({"class_shares": (1.0, -1.0, 1.0, 1.0)}, "none below 0"),
        ({"class_shares": (1.0, float("nan"), 1.0, 1.0)}, "class shares"),
        ({"seed": -1}, "seed"),
    ],
)
def test_impossible_parameters_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        replace(SMALL, **wrong)


def test_no_workers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least 1"):
        make_years(tmp_path / "set", SMALL, workers=0)
    assert not (tmp_path / "set").exists()


def test_what_a_killed_call_left_goes_with_the_next(tmp_path: Path) -> None:
    code = MAKE.replace(
        "try:",
        "import os, signal\nfrom hpcai500.data.climate import synthetic\n"
        "synthetic.finish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\ntry:",
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path), "image"], check=False)
    assert done.returncode == -9
    assert [path.name.startswith(".hpcai500-part-") for path in tmp_path.iterdir() if path.is_dir()] == [True]
    assert make_years(tmp_path, SMALL, workers=1) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [MANIFEST, "climo_1979.h5", "climo_1980.h5"]
