"""The years of a set, its fingerprints, and what is kept beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sample_years import HEIGHT, LAYOUTS, SHIPPED, WIDTH, boxes_of, damage_chunk, images_of, swapped, write_year

from hpcai500.data.climate import index
from hpcai500.data.climate import index as index_module
from hpcai500.data.climate.index import load_climate_index, load_content_fingerprint, open_years, spans, year_paths
from hpcai500.data.climate.values import (
    combined,
    from_document,
    load_contents,
    load_or_measure,
    measure,
    no_values,
    of_planes,
    require_varied,
)
from hpcai500.data.climate.years import open_year
from hpcai500.errors import DataError


@pytest.fixture(autouse=True)
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))


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
    with pytest.raises(DataError, match="no file for 1981 to 1982, 1984; there are 1979 to 1980, 1983"):
        index.select(1980, 1984)
    with pytest.raises(DataError, match="the last comes before the first"):
        index.select(1980, 1979)


def test_years_are_written_as_people_do() -> None:
    assert spans([1990, 1979, 1981, 1980]) == "1979 to 1981, 1990"
    assert spans([]) == ""


def test_a_folder_without_years_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no data set at .*nowhere: No such file"):
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
    whole = combined(load_or_measure(years, workers=1))
    values = np.concatenate([images_of(12, seed=1979), images_of(12, seed=1980)])
    expected_mean, expected_std = moments_by_hand(values)
    np.testing.assert_allclose(whole.mean, expected_mean, rtol=1e-6)
    np.testing.assert_allclose(whole.std, expected_std, rtol=1e-6)
    plain = load_climate_index(write_set(tmp_path / "plain", (1979, 1980))).years
    measure(plain, workers=1)
    bits = [[part.document() for part in load_or_measure(each)] for each in (years, plain)]
    assert bits[0] == bits[1]


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
        return of_planes(np.broadcast_to(part.reshape(1, 1, -1), (16, 1, part.size)).copy())

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
    whole = combined(of_planes(image) for image in values)
    _, expected = moments_by_hand(values)
    np.testing.assert_allclose(whole.std, expected, rtol=1e-9)


def test_what_is_measured_is_kept_until_the_file_changes(tmp_path: Path) -> None:
    root = write_set(tmp_path / "set", (1979, 1980))
    index = load_climate_index(root)
    assert load_contents(index.years) == {}
    assert load_content_fingerprint(index) is None
    found = load_or_measure(index.years, workers=1)
    kept = load_contents(index.years).values()
    assert [content.statistics.document() for content in kept] == [part.document() for part in found]
    fingerprint = load_content_fingerprint(load_climate_index(root))
    assert len(fingerprint or "") == 64
    changed = images_of(12, seed=1980)
    changed[3, 4, 5, 6] += 1
    write_year(root, 1980, changed)
    assert list(load_contents(load_climate_index(root).years)) == [1979]
    load_or_measure(load_climate_index(root).years, workers=1)
    assert load_content_fingerprint(load_climate_index(root)) not in (None, fingerprint)


@pytest.mark.parametrize("damaged", [b"", b"[]", b"{}", b"\xff", b"null", b'{"format": "hpcai500 climate content 1"}'])
def test_damaged_statistics_are_measured_again(tmp_path: Path, damaged: bytes) -> None:
    years = load_climate_index(write_set(tmp_path / "set", (1979,))).years
    before = load_or_measure(years, workers=1)
    (tmp_path / "set/.hpcai500-climate.json").write_bytes(damaged)
    assert load_contents(years) == {}
    assert [part.document() for part in load_or_measure(years)] == [part.document() for part in before]


@pytest.mark.parametrize(
    ("name", "value"),
    [
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
    ],
)
def test_statistics_that_no_values_have_are_measured_again(tmp_path: Path, name: str, value: Any) -> None:
    years = load_climate_index(write_set(tmp_path / "set", (1979,))).years
    [before] = load_or_measure(years, workers=1)
    path = tmp_path / "set/.hpcai500-climate.json"
    document = json.loads(path.read_text())
    document["years"]["1979"]["statistics"][name][3] = value
    path.write_text(json.dumps(document))
    assert load_contents(years) == {}
    assert load_or_measure(years, workers=1)[0].document() == before.document()


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
            "climo_1979.h5: channel 2 PSL: 1 values are NaN.*check ewa .* names the images",
        ),
        ((slice(3, 5), 9, 5, 5, np.inf), "climo_1979.h5: channel 9 U850: 2 values are NaN or infinite"),
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


def test_long_tables_of_chunks_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (index_module, index):
        monkeypatch.setattr(module, "LONG", 100)
    root = write_set(tmp_path / "set", (1979, 1980), **SHIPPED)
    first = open_years(root, year_paths(root))
    kept = index.load_storages(root)
    assert set(kept) == {"climo_1979.h5", "climo_1980.h5"}
    for year in first:
        identity, storage = kept[year.path.name]
        assert identity == year.identity
        assert vars(storage).keys() == vars(year.storage).keys()
        assert all(np.array_equal(value, vars(year.storage)[name]) for name, value in vars(storage).items())

    opened: list[object] = []
    original = index_module.open_year
    monkeypatch.setattr(index_module, "open_year", lambda path, known: opened.append(known) or original(path, known))
    write_year(root, 1980, **LAYOUTS["shuffled"])
    years = open_years(root, year_paths(root))
    assert [known is None for known in opened] == [False, True]
    assert years[1].storage.chunk == LAYOUTS["shuffled"]["chunks"]


def test_a_damaged_table_of_chunks_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (index_module, index):
        monkeypatch.setattr(module, "LONG", 100)
    root = write_set(tmp_path / "set", (1979,), **SHIPPED)
    [year] = open_years(root, year_paths(root))
    whole = (root / index.FILE).read_bytes()
    flipped = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, len(whole), len(whole) // 50)]
    for damaged in (b"", b"PK\x03\x04 damaged", whole[:-1], whole[32:], *flipped):
        (root / index.FILE).write_bytes(damaged)
        assert index.load_storages(root) == {}
        [again] = open_years(root, year_paths(root))
        assert np.array_equal(again.storage.addresses, year.storage.addresses)
        assert set(index.load_storages(root)) == {"climo_1979.h5"}


def test_short_tables_of_chunks_are_not_kept(tmp_path: Path) -> None:
    root = write_set(tmp_path / "set")
    load_climate_index(root)
    assert not (root / index.FILE).exists()
    assert open_year(root / "climo_1979.h5").storage.window == 1
