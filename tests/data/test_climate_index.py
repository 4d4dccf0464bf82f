"""The years of a set: fingerprints, the statistics of their values, what is kept beside them, and a check of it all."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from builders.data import (
    CONTIGUOUS,
    HEIGHT,
    IMAGE_CHUNKS,
    LAYOUTS,
    LZF,
    SHIPPED,
    WIDTH,
    boxes_of,
    damage_chunk,
    images_of,
    swapped,
    write_year,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hpcai500.data.climate import index as index_module
from hpcai500.data.climate import years as years_module
from hpcai500.data.climate.check import CheckReport, as_document, check_climate, report_lines
from hpcai500.data.climate.index import load_climate_index, load_content_fingerprint, open_years, spans, year_paths
from hpcai500.data.climate.values import (
    combined,
    from_document,
    load_contents,
    load_or_measure,
    measure,
    no_values,
    of_planes,
    read_images,
    require_varied,
)
from hpcai500.data.climate.years import Missing, open_year
from hpcai500.errors import DataError, UsageError
from hpcai500.streams import show


def write_set(root: Path, years: tuple[int, ...] = (1980, 1979, 1983), **layout: Any) -> Path:
    for year in years:
        write_year(root, year, **layout)
    return root


def test_years_ascend_and_the_fingerprint_is_that_of_every_layout(tmp_path: Path) -> None:
    indices = [load_climate_index(write_set(tmp_path / name, **layout)) for name, layout in LAYOUTS.items()]
    assert [year.year for year in indices[0].years] == [1979, 1980, 1983]
    assert indices[0].grid == (HEIGHT, WIDTH)
    assert len({index.fingerprint for index in indices}) == 1
    write_year(tmp_path / "lzf", 1983, boxes=boxes_of(12, seed=7))
    assert load_climate_index(tmp_path / "lzf").fingerprint != indices[0].fingerprint


def test_selected_years_are_whole_or_named(tmp_path: Path) -> None:
    index = load_climate_index(write_set(tmp_path))
    assert [year.year for year in index.select(1979, 1980)] == [1979, 1980]
    with pytest.raises(DataError, match="no file for 1981 to 1982, 1984; the set has 1979 to 1980, 1983"):
        index.select(1980, 1984)
    with pytest.raises(DataError, match="the last comes before the first"):
        index.select(1980, 1979)


def test_years_are_written_as_people_do() -> None:
    assert spans([1990, 1979, 1981, 1980]) == "1979 to 1981, 1990"
    assert spans([]) == ""


def test_a_folder_without_years_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no data set at .*nowhere: no such folder"):
        load_climate_index(tmp_path / "nowhere")
    write_set(tmp_path / "inner")
    with pytest.raises(DataError, match=r"no file named like climo_1979.h5; did you mean .*inner\?"):
        load_climate_index(tmp_path)
    shutil.rmtree(tmp_path / "inner")
    (tmp_path / ".climo_1979.h5.part").touch()
    with pytest.raises(DataError, match=r"no file named like climo_1979.h5$"):
        load_climate_index(tmp_path)


def test_years_on_different_grids_are_refused(tmp_path: Path) -> None:
    write_year(tmp_path, 1979)
    write_year(tmp_path, 1980, images_of(2, 12, 36))
    with pytest.raises(DataError, match=r"climo_1980\.h5: images of 12 x 36, but climo_1979.h5 has 24 x 36"):
        load_climate_index(tmp_path)


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        (swapped(boxes_of(12)), "x and y swapped.*hpcai500 data repack ewa .* --convert-boxes"),
        (boxes_of(12) + np.array([0, 0, 0, 0, 9], np.int32) * (boxes_of(12)[..., 4:] == 2), "class other than 0 to 3"),
        (boxes_of(12)[..., [1, 0, 3, 2, 4]], "contradict each other"),
    ],
)
def test_boxes_that_cannot_be_trained_on_are_refused(tmp_path: Path, boxes: np.ndarray[Any, Any], message: str) -> None:
    path = write_year(tmp_path, boxes=np.ascontiguousarray(boxes))
    with pytest.raises(DataError, match=f"{path}: dataset boxes: .*{message}"):
        load_climate_index(tmp_path)


# --- statistics


def moments_by_hand(values: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    flat = values.astype(np.float64).swapaxes(0, 1).reshape(16, -1)
    return flat.mean(axis=1), flat.std(axis=1)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("block_bytes", [1, 2**28])
def test_statistics_are_those_of_all_values_in_every_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: dict[str, Any], block_bytes: int
) -> None:
    monkeypatch.setattr("hpcai500.data.climate.values.BLOCK_BYTES", block_bytes)
    years = load_climate_index(write_set(tmp_path / "set", (1979, 1980), **layout)).years
    found = load_or_measure(years, workers=1)
    whole = combined(found)
    values = np.concatenate([images_of(12, seed=1979), images_of(12, seed=1980)])
    for moment, expected in zip((whole.mean, whole.std), moments_by_hand(values), strict=True):
        np.testing.assert_allclose(moment, expected, rtol=1e-6)
    plain = load_climate_index(write_set(tmp_path / "plain", (1979, 1980))).years
    assert documents(found) == documents(load_or_measure(plain, workers=1)), "to the bit"


def documents(statistics: Iterable[Any]) -> list[Any]:
    return [part.document() for part in statistics]


@given(
    values=arrays.arrays(
        np.float32,
        (6, 3, 2),
        elements=st.floats(-(2.0**99), 2.0**99, width=32) | st.sampled_from([np.nan, np.inf, -np.inf]),
    ),
    cut=st.integers(0, 6),
)
def test_merged_statistics_are_those_of_the_union(values: np.ndarray[Any, Any], cut: int) -> None:
    def of(part: np.ndarray[Any, Any]) -> Any:
        if not part.size:
            return no_values()
        return of_planes(np.broadcast_to(part.reshape(1, 1, -1), (16, 1, part.size)).copy(), Missing())

    union, parts = of(values), of(values[:cut]).merged(of(values[cut:]))
    finite = values[np.isfinite(values)].astype(np.float64)
    assert (parts.count == finite.size).all()
    assert (parts.nan == np.isnan(values).sum()).all()
    assert (parts.infinite == np.isinf(values).sum()).all()
    if finite.size:
        scale = np.abs(finite).max()
        for found in (union, parts):
            np.testing.assert_allclose(found.mean, finite.mean(), rtol=1e-12, atol=1e-12 * scale)
            np.testing.assert_allclose(found.std, finite.std(), rtol=1e-7, atol=1e-12 * scale)
            assert (found.minimum == finite.min()).all()
            assert (found.maximum == finite.max()).all()
    assert from_document(json.loads(json.dumps(parts.document()))).document() == parts.document()


def test_small_deviations_of_large_means_survive() -> None:
    # As surface pressure, whose variance cancels when it is taken as the mean square less the squared mean.
    values = (1e7 + np.random.default_rng(0).integers(-3, 4, (20, 16, 8, 9))).astype(np.float32)
    whole = combined(of_planes(image, Missing()) for image in values)
    _, expected = moments_by_hand(values)
    np.testing.assert_allclose(whole.std, expected, rtol=1e-9)


def test_what_is_measured_is_kept_until_the_file_changes(tmp_path: Path) -> None:
    root = write_set(tmp_path / "set", (1979, 1980))
    index = load_climate_index(root)
    assert load_contents(index.years) == {}
    assert load_content_fingerprint(index) is None
    found = load_or_measure(index.years, workers=1)
    assert documents(content.statistics for content in load_contents(index.years).values()) == documents(found)
    fingerprint = load_content_fingerprint(load_climate_index(root))
    assert len(fingerprint or "") == 64
    changed = images_of(12, seed=1980)
    changed[3, 4, 5, 6] += 1
    write_year(root, 1980, changed)
    assert list(load_contents(load_climate_index(root).years)) == [1979]
    load_or_measure(load_climate_index(root).years, workers=1)
    assert load_content_fingerprint(load_climate_index(root)) not in (None, fingerprint)


@pytest.mark.parametrize("images", [12, 60], ids=["small", "large"])
@pytest.mark.parametrize("is_image", [False, True], ids=["replaced", "image-of-data"])
def test_another_version_with_the_same_size_times_and_boxes_is_measured_again(
    tmp_path: Path, images: int, is_image: bool
) -> None:
    path = write_year(tmp_path / "set", images=images_of(images), **CONTIGUOUS)
    os.utime(path, (0, 0))
    first = documents(load_or_measure(load_climate_index(path.parent).years, workers=1))
    fingerprint, before = load_content_fingerprint(load_climate_index(path.parent)), path.stat()
    boxes = load_climate_index(path.parent).years[0].boxes
    write_year(path.parent, 1979, images_of(images, seed=1), boxes, **CONTIGUOUS)
    os.utime(path, (0, 0))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    if is_image:
        # All times of a file in a SquashFS image are one, which its maker chooses.
        kept = path.parent / ".hpcai500-climate.json"
        kept.write_text(kept.read_text().replace(str(before.st_ctime_ns), str(after.st_ctime_ns)))
    assert load_content_fingerprint(load_climate_index(path.parent)) is None
    assert documents(load_or_measure(load_climate_index(path.parent).years, workers=1)) != first
    assert load_content_fingerprint(load_climate_index(path.parent)) not in (None, fingerprint)


def test_kept_statistics_that_are_damaged_or_that_no_values_have_are_measured_again(tmp_path: Path) -> None:
    years = load_climate_index(write_set(tmp_path / "set", (1979,))).years
    before = documents(load_or_measure(years, workers=1))
    kept = tmp_path / "set/.hpcai500-climate.json"
    whole = json.loads(kept.read_text())
    impossible = [
        ("m2", float("nan")),
        ("m2", -1.0),
        ("mean", float("inf")),
        ("minimum", float("-inf")),
        ("maximum", -1e300),
        ("count", -1),
        ("count", 10**30),
        ("count", 12.0),
        ("nan", 1),
        ("mean", "0"),
        ("mean", None),
        ("missing", -1),
    ]
    damages = [b"", b"[]", b"{}", b"\xff", b"null", b'{"format": "hpcai500 climate content 1"}']
    for name, value in impossible:
        document = copy.deepcopy(whole)
        document["years"]["1979"]["statistics"][name][3] = value
        damages.append(json.dumps(document).encode())
    for damaged in damages:
        kept.write_bytes(damaged)
        assert load_contents(years) == {}, damaged
        assert documents(load_or_measure(years, workers=1)) == before, damaged
        assert list(load_contents(years)) == [1979], damaged


def test_several_processes_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcai500.data.climate.values.BLOCK_BYTES", 1)
    years = load_climate_index(write_set(tmp_path / "set", (1979,), **SHIPPED)).years
    alone, shared = (measure(years, workers=workers)[1979] for workers in (1, 2))
    assert alone.digest == shared.digest
    assert alone.statistics.document() == shared.statistics.document()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            (slice(3, 4), 2, 5, 5, np.nan),
            "climo_1979.h5: channel 2 PSL: values .*: 1 NaN, the first in image 3:.*check ewa .* names the images",
        ),
        ((slice(3, 5), 9, 5, 5, np.inf), "climo_1979.h5: channel 9 U850: values .*: 2 infinite, the first in image 3:"),
    ],
)
def test_channels_that_are_not_finite_are_named_where_they_are_used(
    tmp_path: Path, spoil: tuple[Any, ...], message: str
) -> None:
    images = images_of(12)
    images[spoil[:-1]] = spoil[-1]
    write_year(tmp_path, 1979, images)
    years = load_climate_index(tmp_path).years
    with pytest.raises(DataError, match=message):
        load_or_measure(years, workers=1)
    with pytest.raises(DataError, match=message):
        load_or_measure(years, channels=[4, spoil[1]])
    others = [channel for channel in range(16) if channel != spoil[1]]
    assert len(load_or_measure(years, channels=others)) == 1


# netCDF's fill value of float32, and the same rounded to six digits, as it is often typed.
FILL, TYPED_FILL = 9.969209968386869e36, 9.96921e36


@pytest.mark.parametrize(
    ("attributes", "values", "missing"),
    [
        ({"_FillValue": np.float32(TYPED_FILL)}, [FILL], 1),
        ({"_FillValue": np.array([-999], np.float64)}, [-999, FILL], 1),
        ({"missing_value": np.array([1e20, -888])}, [1e20, -888, FILL], 3),
        ({"_FillValue": np.float32(np.nan), "missing_value": np.int16(-9999)}, [-9999, FILL], 1),
        ({"missing_value": np.float16(-10000)}, [-10000], 1),
        ({}, [FILL, 1e36], 1),
        ({"valid_range": np.array([200.0, 300.1])}, [300.1, 301, 199], 2),
        ({"valid_min": np.float64(200), "valid_max": np.float32(300)}, [200, 199, 301], 2),
        ({"scale_factor": np.float32(1), "add_offset": np.float64(0)}, [1], 0),
        # What no float32 can be is in none.
        ({"_FillValue": 1e300, "valid_max": 1e300}, [3e38], 0),
    ],
)
def test_missing_values_are_those_that_netcdf_names(
    tmp_path: Path, attributes: dict[str, Any], values: list[float], missing: int
) -> None:
    images = np.full((12, 16, 24, 36), 250, np.float32) + images_of(12) % 1
    for place, value in enumerate(values):
        images[4 + place, 2, 3, 5] = value
    with h5py.File(write_year(tmp_path, 1979, images), "r+") as file:
        file["images"].attrs.update(attributes)
    years = load_climate_index(tmp_path).years
    statistics = measure(years, workers=1)[1979].statistics
    expected = np.zeros(16, np.int64)
    expected[2] = missing
    assert (statistics.missing == expected).all()
    assert (statistics.nan + statistics.infinite == 0).all()
    assert statistics.count[2] == images[:, 2].size - missing
    if missing == len(values):
        usual = images[:, 2][np.abs(images[:, 2] - 250.5) <= 0.5].astype(np.float64)
        np.testing.assert_allclose(statistics.mean[2], usual.mean(), rtol=1e-12)


def test_missing_values_are_named_by_check_and_run(tmp_path: Path) -> None:
    images = images_of(12)
    images[3, 1, 5, 7] = images[8, 1, 5, 7] = images[8, 1, 5, 8] = FILL
    with h5py.File(write_year(tmp_path, 1979, images), "r+") as file:
        file["images"].attrs["missing_value"] = np.array([FILL], np.float64)
    [(path, reason)] = reasons(report := check(tmp_path))
    assert path == "climo_1979.h5"
    assert (
        reason == "dataset images, channel PS: 3 missing values in 2 images, the first is 3 (missing are 9.96921e+36)"
    )
    assert as_document(report)["channels"][1]["missing"] == 3
    named = r"climo_1979\.h5: channel 1 PS: values .*: 3 missing \(9\.96921e\+36\), the first in image 3:"
    # From what the check kept, and from the values.
    for _ in range(2):
        with pytest.raises(DataError, match=named):
            load_or_measure(load_climate_index(tmp_path).years, workers=1)
        (tmp_path / ".hpcai500-climate.json").unlink()


def test_the_fill_value_of_hdf5_is_missing_where_chosen(tmp_path: Path) -> None:
    images = images_of(12)
    images[5, 3, 2, 1] = -1e30
    write_year(tmp_path, 1979, images, fillvalue=np.float32(-1e30))
    with pytest.raises(DataError, match=r"channel 3 QREFHT: .*: 1 missing \(9\.96921e\+36, -1e\+30\), .* image 5:"):
        load_or_measure(load_climate_index(tmp_path).years, workers=1)


def test_statistics_are_measured_again_when_other_values_are_missing(tmp_path: Path) -> None:
    images = images_of(12)
    images[5, 3, 2, 1] = -999
    path = write_year(tmp_path, 1979, images)
    before = path.stat()
    years = load_climate_index(tmp_path).years
    load_or_measure(years, workers=1)
    with h5py.File(path, "r+") as file:
        file["images"].attrs["_FillValue"] = np.float32(-999)
    os.truncate(path, before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DataError, match="1 missing"):
        load_or_measure(load_climate_index(tmp_path).years, workers=1)


def test_a_channel_of_one_value_is_refused_only_where_it_is_normalised(tmp_path: Path) -> None:
    images = images_of(12)
    images[:, 7] = 5
    write_year(tmp_path, 1979, images)
    [statistics] = load_or_measure(load_climate_index(tmp_path).years, workers=1)
    for channels in (None, [7], (3, 7)):
        with pytest.raises(DataError, match=r"^the training years: channel 7 TREFHT: all values are 5, .*leave it out"):
            require_varied(statistics, channels, "the training years")
    require_varied(statistics, [6, 8], "the training years")


def test_a_corrupt_chunk_ends_a_measurement(tmp_path: Path) -> None:
    damage_chunk(write_year(tmp_path, **SHIPPED), 300)
    with pytest.raises(
        DataError, match=r"climo_1979.h5: dataset images, images 5 to 9, channel .*, chunk \(1, .*inflate"
    ):
        load_or_measure(load_climate_index(tmp_path).years, workers=1)


# --- tables of chunks


@pytest.fixture
def every_table_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "LONG", 100)


@pytest.mark.usefixtures("every_table_is_long")
def test_long_tables_of_chunks_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_set(tmp_path / "set", (1979, 1980), **SHIPPED)
    first = open_years(root, year_paths(root))
    kept = index_module.load_storages(root)
    assert set(kept) == {"climo_1979.h5", "climo_1980.h5"}
    for year in first:
        identity, storage = kept[year.path.name]
        assert identity == year.identity
        assert vars(storage).keys() == vars(year.storage).keys()
        assert all(np.array_equal(value, vars(year.storage)[name]) for name, value in vars(storage).items())

    listed: list[str] = []
    original = years_module.storage_of
    monkeypatch.setattr(
        years_module, "storage_of", lambda dataset: listed.append(dataset.file.filename) or original(dataset)
    )
    write_year(root, 1980, **LAYOUTS["shuffled"])
    years = open_years(root, year_paths(root))
    assert listed == [str(root / "climo_1980.h5")]
    assert years[1].storage.chunk == LAYOUTS["shuffled"]["chunks"]


@pytest.mark.usefixtures("every_table_is_long")
def test_chunks_are_listed_again_where_only_their_order_changed(tmp_path: Path) -> None:
    values, boxes, layout = images_of(40), boxes_of(40), {"chunks": (1, 1, 24, 36)}
    path = tmp_path / "climo_1979.h5"
    found = []
    for order in (1, -1):
        with h5py.File(path, "w") as file:
            file.create_dataset("boxes", data=boxes)
            images = file.create_dataset("images", values.shape, "<f4", **layout)
            for image in range(len(values))[::order]:
                images[image] = values[image]
        os.utime(path, (0, 0))
        [year] = open_years(tmp_path, [path])
        found.append((path.stat().st_size, year.storage.addresses.tolist()))
        assert np.array_equal(read_images(year, 0, 40), values)
    assert found[0][0] == found[1][0]
    assert found[0][1] != found[1][1]


@pytest.mark.usefixtures("every_table_is_long")
def test_a_damaged_table_of_chunks_is_made_again(tmp_path: Path) -> None:
    root = write_set(tmp_path / "set", (1979,), **SHIPPED)
    [year] = open_years(root, year_paths(root))
    kept = root / index_module.FILE
    whole = kept.read_bytes()
    flipped = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, len(whole), len(whole) // 50)]
    for damaged in (b"", b"PK\x03\x04 damaged", whole[:-1], whole[32:], *flipped):
        kept.write_bytes(damaged)
        assert index_module.load_storages(root) == {}
        [again] = open_years(root, year_paths(root))
        assert np.array_equal(again.storage.addresses, year.storage.addresses)
        assert set(index_module.load_storages(root)) == {"climo_1979.h5"}


def test_short_tables_of_chunks_are_not_kept(tmp_path: Path) -> None:
    root = write_set(tmp_path / "set")
    load_climate_index(root)
    assert not (root / index_module.FILE).exists()
    assert open_year(root / "climo_1979.h5").storage.window == 1


# --- a check finds all that is wrong, and says what the layout costs


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "set"


def check(root: Path, **options: Any) -> CheckReport:
    return check_climate(root, workers=1, **options)


def reasons(report: CheckReport) -> list[tuple[str, str]]:
    return [(found.path, found.reason) for found in report.broken]


def told(report: CheckReport, capsys: pytest.CaptureFixture[str]) -> str:
    """What people read."""
    show(report_lines(report))
    return capsys.readouterr().out


def test_a_good_set_passes_with_its_counts_and_measures_what_runs_need(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    # A run opens no file for its statistics.
    monkeypatch.setattr("hpcai500.data.climate.values.open_hdf5", None)
    assert len(load_or_measure(load_climate_index(root).years)) == 2


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
    assert not report.passed
    assert (report.fingerprint, report.content_fingerprint, report.statistics) == (None, None, None)
    expected = [
        (1979, "dataset images, channel PSL: 2 NaN values in 2 images, the first is 4"),
        (1979, "dataset images, channel V850: 1 infinite values in image 7"),
        (1980, "not an HDF5 file"),
        (1981, "dataset images, images 0 to 4, channel QREFHT, chunk (0, 3, 1, 1): does not inflate"),
        (1981, "dataset images, images 5 to 9, channel PRECT, chunk (1, 0, 0, 2): does not inflate"),
        (1982, "dataset boxes: boxes of a class other than 0 to 3: 1; the first: image 2, row 3: 1 2 5 6 8"),
        (1983, "dataset boxes: the variant with x and y swapped and classes 1 to 4"),
        (1984, "images of 30 x 36, but climo_1979.h5 has 24 x 36"),
        (1985, "missing: no such file"),
        (1986, "missing: no such file"),
    ]
    for (path_found, reason), (year, start) in zip(reasons(report), expected, strict=True):
        assert path_found == f"climo_{year}.h5"
        assert reason.startswith(start)


def test_odd_boxes_and_constant_planes_are_told_and_do_not_fail(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    boxes, images = boxes_of(12), images_of(12)
    boxes[boxes[..., 4] == 2] = -1
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
    out = told(report, capsys)
    outside = "boxes wholly outside the image (not used): 1; the first: image 3, row 5: 30 3 35 6 1"
    assert f"note: climo_1979.h5: {outside}" in out
    assert "note: climo_1979.h5: channel T500: one value only in 3 images, the first is 6" in out
    assert "no year has a box of extratropical cyclone: quality is measured on the other classes only" in out


def test_a_channel_that_is_constant_in_all_training_years_fails(root: Path) -> None:
    for year in (1979, 1980):
        images = images_of(3, seed=year)
        images[:, 14] = 5.5
        write_year(root, year, images)
    assert reasons(check(root)) == [("set", "channel 14 Z200: all values are 5.5 in the training years 1979 to 1980")]


def test_values_that_rot_are_noticed(root: Path) -> None:
    path = write_year(root, **CONTIGUOUS)
    os.utime(path, (0, 0))
    assert check(root).passed
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    # A disk that loses a bit changes no time; here the write did.
    kept = root / ".hpcai500-climate.json"
    kept.write_text(kept.read_text().replace(str(before.st_ctime_ns), str(path.stat().st_ctime_ns)))
    for _ in range(2):
        [(name, reason)] = reasons(check(root))
        assert name == "climo_1979.h5"
        assert reason.startswith("its values changed since the last check, but its size and times did not: ")
        assert "another version of the set with the same times, remove .hpcai500-climate.json" in reason


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
        assert min(cost.single_images_per_second, cost.window_images_per_second, cost.bytes_per_second) > 0
        assert cost.repacked_images_per_second == pytest.approx(cost.bytes_per_second / (16 * 24 * 36 * 4))
    out = told(report, capsys)
    assert "1979 to 1980: an image is in 256 pieces of its file, shared with 4 others; " in out
    assert f"hpcai500 data repack ewa {root} NEW_FOLDER\n" in out
    assert "1981: each image is one uncompressed piece of its file, the fastest layout" in out


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


def test_no_workers_are_refused(root: Path) -> None:
    write_year(root)
    with pytest.raises(UsageError, match="at least 1"):
        check_climate(root, workers=0)
