"""A check of climate years finds all that is wrong, and says what the layout costs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_years import (
    CONTIGUOUS,
    IMAGE_CHUNKS,
    LAYOUTS,
    LZF,
    SHIPPED,
    boxes_of,
    damage_chunk,
    images_of,
    swapped,
    write_year,
)

from hpcai500.data.climate.check import CheckReport, as_document, check_climate, report_lines
from hpcai500.data.climate.index import load_climate_index, load_content_fingerprint
from hpcai500.data.climate.values import load_or_measure
from hpcai500.errors import DataError, UsageError
from hpcai500.streams import show


@pytest.fixture(autouse=True)
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "set"


def check(root: Path, **options: Any) -> CheckReport:
    return check_climate(root, workers=1, **options)


def reasons(report: CheckReport) -> list[tuple[str, str]]:
    return [(found.path, found.reason) for found in report.broken]


def test_a_good_set_passes_with_its_counts(root: Path) -> None:
    write_year(root, 1979, **SHIPPED)
    write_year(root, 1980, images_of(7, seed=1980), **IMAGE_CHUNKS)
    report = check(root)
    assert report.passed
    assert [(year.file.year, year.file.images) for year in report.years] == [(1979, 12), (1980, 7)]
    expected = [boxes_of(12, seed=1979), boxes_of(7, seed=1980)]
    for year, boxes in zip(report.years, expected, strict=True):
        assert list(year.class_counts) == [int((boxes[..., 4] == label).sum()) for label in range(4)]
        assert (year.odd_rows, year.channels, year.faults) == ((), (), ())
    assert report.class_counts == tuple(np.sum([year.class_counts for year in report.years], axis=0))
    index = load_climate_index(root)
    assert report.fingerprint == index.fingerprint
    assert report.content_fingerprint == load_content_fingerprint(index)
    values = np.concatenate([images_of(12, seed=1979), images_of(7, seed=1980)]).astype(np.float64)
    assert report.statistics is not None
    np.testing.assert_allclose(report.statistics.std, values.std(axis=(0, 2, 3)), rtol=1e-9)


def test_a_check_measures_what_runs_need(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_year(root)
    check(root)
    monkeypatch.setattr("hpcai500.data.climate.values.open_hdf5", None)
    assert len(load_or_measure(load_climate_index(root).years)) == 1


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_content_fingerprint_is_that_of_every_layout(tmp_path: Path, layout: dict[str, Any]) -> None:
    write_year(tmp_path / "plain")
    write_year(tmp_path / "other", **layout)
    plain, other = check(tmp_path / "plain"), check(tmp_path / "other")
    assert plain.content_fingerprint == other.content_fingerprint
    changed = images_of(12, seed=1979)
    changed[5, 6, 7, 8] = np.nextafter(changed[5, 6, 7, 8], np.float32(np.inf))
    write_year(tmp_path / "other", images=changed, **layout)
    different = check(tmp_path / "other")
    assert different.fingerprint == plain.fingerprint
    assert different.content_fingerprint != plain.content_fingerprint


def test_everything_that_is_wrong_is_listed(root: Path) -> None:
    images = images_of(12)
    images[4, 2, 1, 1] = images[9, 2, 3, 3] = np.nan
    images[7, 11, 0, 0] = -np.inf
    write_year(root, 1979, images)
    write_year(root, 1980).write_bytes(b"no year")
    path = write_year(root, 1981, **SHIPPED)
    damage_chunk(path, 16 * 3 + 5)
    damage_chunk(path, 16 * 16 + 2)
    boxes = boxes_of(12)
    boxes[2, 3] = (1, 2, 5, 6, 8)
    write_year(root, 1982, boxes=boxes)
    write_year(root, 1983, boxes=swapped(boxes_of(12)))
    write_year(root, 1984, images_of(2, 30, 36))
    report = check(root, training=(1979, 1986))
    found = reasons(report)
    assert not report.passed
    assert (report.fingerprint, report.content_fingerprint, report.statistics) == (None, None, None)
    expected = [
        ("climo_1979.h5", "dataset images, channel PSL: 2 NaN values in 2 images, the first is 4"),
        ("climo_1979.h5", "dataset images, channel V850: 1 infinite values in image 7"),
        ("climo_1980.h5", "not an HDF5 file"),
        ("climo_1981.h5", "dataset images, images 0 to 4, channel QREFHT, chunk (0, 3, 1, 1): does not inflate"),
        ("climo_1981.h5", "dataset images, images 5 to 9, channel PRECT, chunk (1, 0, 0, 2): does not inflate"),
        ("climo_1982.h5", "dataset boxes: boxes of a class other than 0 to 3: 1; the first: image 2, row 3: 1 2 5 6 8"),
        ("climo_1983.h5", "dataset boxes: the variant with x and y swapped and classes 1 to 4"),
        ("climo_1984.h5", "images of 30 x 36, but climo_1979.h5 has 24 x 36"),
        ("climo_1985.h5", "missing: no such file"),
        ("climo_1986.h5", "missing: no such file"),
    ]
    assert len(found) == len(expected)
    for (path_found, reason), (path_expected, start) in zip(found, expected, strict=True):
        assert path_found == path_expected
        assert reason.startswith(start)


def test_odd_boxes_and_constant_planes_are_told_and_do_not_fail(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    boxes, images = boxes_of(12), images_of(12)
    boxes[3, 4:8] = ((-2, 3, 5, 6, 1), (30, 3, 35, 6, 1), (5, 3, 5, 6, 1), (1, 2, 3, 4, -1))
    images[6:9, 5] = 280
    write_year(root, images=images, boxes=boxes)
    report = check(root)
    assert report.passed
    assert [(odd.kind.name, odd.rows, odd.first_image, odd.first_row) for odd in report.years[0].odd_rows] == [
        ("CLIPPED", 1, 3, 4),
        ("OUTSIDE", 1, 3, 5),
        ("EMPTY", 1, 3, 6),
        ("PARTLY_UNUSED", 1, 3, 7),
    ]
    constant = report.years[0].channels[0]
    assert (constant.channel, constant.oddity, constant.images, constant.first_image) == (5, "constant", 3, 6)
    show(report_lines(report))
    out = capsys.readouterr().out
    assert (
        "note: climo_1979.h5: boxes wholly outside the image (not used): 1; the first: image 3, row 5: 30 3 35 6 1"
        in out
    )
    assert "note: climo_1979.h5: channel T500: one value only in 3 images, the first is 6" in out


def test_a_channel_that_is_constant_in_all_training_years_fails(root: Path) -> None:
    for year in (1979, 1980):
        images = images_of(3, seed=year)
        images[:, 14] = 5.5
        write_year(root, year, images)
    assert reasons(check(root)) == [("set", "channel 14 Z200: all values are 5.5 in the training years 1979 to 1980")]


def test_values_that_rot_are_noticed(root: Path) -> None:
    path = write_year(root, **CONTIGUOUS)
    assert check(root).passed
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(2):
        assert reasons(check(root)) == [
            ("climo_1979.h5", "its values are not those of the last check, though its size and time are")
        ]


def test_only_the_training_years_make_the_statistics(root: Path) -> None:
    for year in (1979, 1980, 1981):
        write_year(root, year)
    report = check(root, training=(1980, 1981))
    assert report.training_years == (1980, 1981)
    assert report.statistics is not None
    assert report.statistics.count[0] == 2 * 12 * 24 * 36


def test_each_layout_is_measured_and_the_fix_is_a_command(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for year, layout in ((1979, SHIPPED), (1980, SHIPPED), (1981, IMAGE_CHUNKS), (1982, LZF)):
        write_year(root, year, **layout)
    report = check(root)
    assert [(cost.years, cost.chunks_per_image, cost.window, cost.repacked) for cost in report.costs] == [
        ((1979, 1980), 256, 5, False),
        ((1981,), 1, 1, True),
        ((1982,), 1, 1, False),
    ]
    for cost in report.costs:
        rates = (cost.single_images_per_second, cost.window_images_per_second, cost.bytes_per_second)
        assert all(rate > 0 for rate in rates)
        assert cost.repacked_images_per_second == pytest.approx(cost.bytes_per_second / (16 * 24 * 36 * 4))
    show(report_lines(report))
    out = capsys.readouterr().out
    assert "1979 to 1980: an image is in 256 pieces of its file, shared with 4 others; " in out
    assert f"hpcai500 data repack ewa {root} NEW_FOLDER\n" in out
    assert "1981: an image is one uncompressed piece of its file, as it should be" in out


def test_the_json_document_has_the_keys_that_others_build_on(root: Path) -> None:
    boxes = boxes_of(12)
    boxes[3, 6] = (30, 3, 35, 6, 1)
    images = images_of(12)
    images[2, 0, 0, 0] = np.nan
    write_year(root, 1979, images, boxes, **SHIPPED)
    damage_chunk(write_year(root, 1980, **SHIPPED), 0)
    document = json.loads(json.dumps(as_document(check(root, training=(1979, 1979))), allow_nan=False))
    assert document["verdict"] == "fail"
    assert document["samples"] == {"1979": 12, "1980": 12}
    assert document["classes"] == 4
    assert [found["path"] for found in document["broken"]] == ["climo_1979.h5", "climo_1980.h5"]
    assert len(document["fingerprint"]) == 64
    assert document["content_fingerprint"] is None
    year = document["years"][0]
    assert (year["height"], year["width"], year["variant"]) == (24, 36, "shipped")
    assert year["storage"]["chunk"] == [5, 1, 6, 9]
    assert year["storage"]["filters"] == ["deflate"]
    assert year["odd_boxes"] == [
        {"kind": "outside", "boxes": 1, "first_image": 3, "first_row": 6, "values": [30, 3, 35, 6, 1]}
    ]
    assert year["odd_channels"] == [{"channel": "PRECT", "kind": "nan", "images": 1, "values": 1, "first_image": 2}]
    assert document["years"][1]["faults"][0]["chunk"] == [0, 0, 0, 0]
    assert document["boxes"][1]["class"] == "tropical cyclone"
    assert document["boxes"][1]["height"].keys() == {"p5", "median", "p95"}
    assert document["training_years"] == [1979]
    assert document["channels"][1]["name"] == "PS"
    assert document["channels"][0]["nan"] == 1
    assert document["input"][0]["chunks_per_image"] == 256


def test_no_set_ends_the_check(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no data set at"):
        check(tmp_path / "none")


def test_no_workers_are_refused(root: Path) -> None:
    write_year(root)
    with pytest.raises(UsageError, match="at least 1"):
        check_climate(root, workers=0)


def test_a_class_without_boxes_is_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    boxes = boxes_of(12)
    boxes[boxes[..., 4] == 2] = -1
    write_year(root, boxes=boxes)
    show(report_lines(check(root)))
    said = "no year has a box of extratropical cyclone: quality is measured on the other classes only"
    assert said in capsys.readouterr().out
