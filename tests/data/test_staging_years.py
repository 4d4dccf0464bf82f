"""Climate years on a node's own storage: sparse copies that are read as the set itself, in every layout."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from member_runs import member_recipe
from sample_years import CONTIGUOUS, IMAGE_CHUNKS, LAYOUTS, SHIPPED, images_of, write_year
from staged_sets import interrupting, parts_of, staged

from hpcai500.data.climate.check import check_climate
from hpcai500.data.climate.index import load_climate_index, load_content_fingerprint
from hpcai500.data.climate.loader import ClimateBatches
from hpcai500.data.climate.values import load_contents, load_or_measure, measure, read_images
from hpcai500.data.climate.years import YearFile, storage_of
from hpcai500.data.staging.reading import images_here
from hpcai500.data.staging.releasing import release
from hpcai500.data.staging.staging import Order, stage
from hpcai500.data.staging.year_extents import YearExtents
from hpcai500.errors import DataError
from hpcai500.layers import Recipe
from hpcai500.methodology.sampling import draws

YEARS = "problem.training_years=[1979, 1980]", "problem.evaluation_years=[1981, 1981]"


@pytest.fixture(autouse=True)
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))


def write_set(root: Path, *, measured: bool = True, **layout: Any) -> Path:
    """Training years, an evaluation year, and one that no recipe here names; `measured` as by an earlier run."""
    for year in (1979, 1980, 1981, 1990):
        write_year(root, year, images_of(9, seed=year), **layout)
    if measured:
        measure(load_climate_index(root).select(1979, 1981), workers=1)
    return root


def member(seed: int = 3) -> Recipe:
    return member_recipe("ewa", *YEARS, f"hyperparameters.seed={seed}", "ensemble.out_of_bag_samples=0")


def batches_of(years: list[YearFile], samples: list[tuple[int, int]]) -> np.ndarray[Any, Any]:
    files = [(year.path, year.storage) for year in years]
    batches = ClimateBatches(files, np.array(samples), batch_size=len(samples), threads=1)
    try:
        (batch,) = batches.epoch([np.arange(len(samples))], seed=0, epoch=0)
        return batch.images.numpy().copy()
    finally:
        batches.close()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_whole_staged_set_is_the_same_set_in_every_layout(tmp_path: Path, layout: str) -> None:
    source = write_set(tmp_path / "source", **LAYOUTS[layout])
    check_climate(source, workers=1)
    report = staged(source, tmp_path / "set", "ewa")
    here, there = load_climate_index(tmp_path / "set"), load_climate_index(source)
    assert here.fingerprint == there.fingerprint == report.fingerprint
    assert load_content_fingerprint(here) == load_content_fingerprint(there) is not None
    for year in there.years:
        assert (tmp_path / "set" / year.path.name).read_bytes() == year.path.read_bytes()
    assert check_climate(tmp_path / "set", workers=1).passed


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_member_gets_the_images_that_it_draws_and_holes_for_the_others(tmp_path: Path, layout: str) -> None:
    source = write_set(tmp_path / "source", **LAYOUTS[layout])
    recipe = member()
    staged(source, tmp_path / "set", "ewa", recipes=[recipe])
    here, there = (load_climate_index(root) for root in (tmp_path / "set", source))
    assert here.fingerprint == there.fingerprint
    window = there.years[0].storage.window
    drawn = np.zeros(18, np.bool_)
    drawn[draws(18, 3, "bootstrap")] = True
    for number, year in enumerate(here.years):
        wanted = (drawn[:9], drawn[9:], np.ones(9, np.bool_), np.zeros(9, np.bool_))[number]
        whole = np.repeat([wanted[at : at + window].any() for at in range(0, 9, window)], window)[:9]
        marks = images_here(year.path)
        assert marks is not None
        assert marks.tolist() == whole.tolist()
        for image in np.flatnonzero(whole).tolist():
            assert np.array_equal(read_images(year, image, 1), read_images(there.years[number], image, 1))
        assert year.path.stat().st_size == there.years[number].path.stat().st_size


def test_what_is_known_of_the_values_comes_along_and_is_measured_at_the_source_where_nothing_is(
    tmp_path: Path,
) -> None:
    source = write_set(tmp_path / "source", measured=False)
    staged(source, tmp_path / "set", "ewa", recipes=[member()])
    here, there = load_climate_index(tmp_path / "set"), load_climate_index(source)
    assert sorted(load_contents(here.years)) == sorted(load_contents(there.years)) == [1979, 1980, 1981]
    years = here.select(1979, 1981)
    for mine, its in zip(load_or_measure(years), load_or_measure(there.select(1979, 1981)), strict=True):
        assert np.array_equal(mine.mean, its.mean)
    with pytest.raises(DataError, match=r"images of climo_1990.h5 are staged here: give the set itself"):
        load_or_measure(here.select(1990, 1990))
    with pytest.raises(DataError, match="are staged here: give the set itself"):
        check_climate(tmp_path / "set")


def test_an_image_that_was_not_staged_is_named_and_never_read_as_zeros(tmp_path: Path) -> None:
    source = write_set(tmp_path / "source", **IMAGE_CHUNKS)
    staged(source, tmp_path / "set", "ewa", recipes=[member()])
    years = list(load_climate_index(tmp_path / "set").select(1979, 1980))
    marks = images_here(years[1].path)
    assert marks is not None
    missing, there = int(np.argmin(marks)), int(np.argmax(marks))
    assert not marks[missing]
    told = f"image {missing} of climo_1980.h5 was not staged: .* data stage ewa {source} .* --recipe FILE"
    with pytest.raises(DataError, match=told):
        batches_of(years, [(0, int(np.argmax(images_here(years[0].path)))), (1, missing)])  # type: ignore[arg-type]
    with pytest.raises(DataError, match=told):
        read_images(years[1], missing, 1)
    assert np.array_equal(batches_of(years, [(1, there)])[0], read_images(years[1], there, 1)[0])


def test_a_second_member_fills_holes_while_the_first_one_reads_and_takes_them_back(tmp_path: Path) -> None:
    source = write_set(tmp_path / "source")
    root = tmp_path / "set"
    first = staged(source, root, "ewa", "first", recipes=[member(3)])
    before = load_climate_index(root).years
    second = staged(source, root, "ewa", "second", recipes=[member(4)])
    assert 0 < second.copied < second.needed < first.total
    # A file that is being filled is the one that it was: what is kept of its values stays good.
    assert [year.identity for year in load_climate_index(root).years] == [year.identity for year in before]
    used = (root / "climo_1979.h5").stat().st_blocks
    assert release(root, "second").others == ("first",)
    marks = images_here(root / "climo_1979.h5")
    assert marks is not None
    drawn = np.zeros(18, np.bool_)
    drawn[draws(18, 3, "bootstrap")] = True
    assert marks.tolist() == drawn[:9].tolist()
    assert (root / "climo_1979.h5").stat().st_blocks < used
    there = load_climate_index(source).years[0]
    for image in np.flatnonzero(marks).tolist():
        assert np.array_equal(read_images(before[0], image, 1), read_images(there, image, 1))
    assert release(root, "first").left == ()
    assert not root.exists()


def test_an_interrupted_staging_of_years_goes_on(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_year(source, 1979, images_of(12, 96, 144))
    order = Order("ewa", source, tmp_path / "set", "somebody", threads=1)
    with pytest.raises(KeyboardInterrupt):
        stage(order, interrupting(4))
    marks = images_here(tmp_path / "set" / "climo_1979.h5")
    assert marks is not None
    assert 0 < marks.sum() < 12
    report = stage(order)
    assert report.copied == 12 - marks.sum()
    assert (tmp_path / "set" / "climo_1979.h5").read_bytes() == (source / "climo_1979.h5").read_bytes()
    assert parts_of(tmp_path / "set") == []


def test_a_set_of_which_years_are_missing_yet_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    source = write_set(tmp_path / "source")
    staged(source, tmp_path / "set", "ewa")
    (tmp_path / "set" / "climo_1990.h5").unlink()
    with pytest.raises(DataError, match=f"end its staging: hpcai500 data stage ewa {source}"):
        load_climate_index(tmp_path / "set")


def test_damage_in_a_hole_free_file_is_found_by_verify_and_mended(tmp_path: Path) -> None:
    source = write_set(tmp_path / "source", **CONTIGUOUS)
    root = tmp_path / "set"
    staged(source, root, "ewa", "first", recipes=[member(3)])
    staged(source, root, "ewa", "second", recipes=[member(4)])
    year = load_climate_index(root).years[2]
    assert year.storage.offset is not None
    with year.path.open("r+b") as stream:
        stream.seek(year.storage.offset + 5 * year.image_bytes + 100)
        stream.write(b"\xff" * 8)
        stream.seek(0)
        stream.write(b"\0")
    report = staged(source, root, "ewa", "first", recipes=[member(3)], verify=True)
    # All of a file whose head is damaged, also what only the second one needs; and of nothing else.
    assert (report.damaged, report.copied) == (10, 10)
    assert year.path.read_bytes() == (source / year.path.name).read_bytes()


def test_a_year_that_changed_at_the_source_is_found(tmp_path: Path) -> None:
    source = write_set(tmp_path / "source")
    staged(source, tmp_path / "set", "ewa", "first", recipes=[member(3)])
    os.utime(source / "climo_1980.h5", (1, 1))
    with pytest.raises(DataError, match=r"climo_1980.h5: changed since the set was listed or staged"):
        staged(source, tmp_path / "set", "ewa", "second", recipes=[member(4)])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_images_and_the_rest_are_all_bytes_of_a_file_and_each_byte_once(tmp_path: Path, layout: str) -> None:
    path = write_year(tmp_path, 1979, **LAYOUTS[layout])
    with h5py.File(path) as file:
        extents = YearExtents(storage_of(file["images"]), path.stat().st_size)
    seen = np.zeros(path.stat().st_size, np.int64)
    for window in range(extents.windows):
        for start, size in extents.window(window):
            seen[start : start + size] += 1
        assert sum(size for _, size in extents.window(window)) == extents.window_bytes()[window]
    for start, size in extents.rest:
        seen[start : start + size] += 1
    assert (seen == 1).all()


def test_chunks_that_were_never_written_take_nothing(tmp_path: Path) -> None:
    path = tmp_path / "climo_1979.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("images", (4, 16, 8, 8), "<f4", chunks=(1, 16, 8, 8))
        dataset[2] = 1.0
        extents = YearExtents(storage_of(dataset), 10**6)
    assert extents.window_bytes().tolist() == [0, 0, 16 * 8 * 8 * 4, 0]
    assert extents.window(1) == ()


def test_windows_are_what_images_share(tmp_path: Path) -> None:
    source = write_set(tmp_path / "source", **SHIPPED)
    report = staged(source, tmp_path / "set", "ewa", recipes=[member()])
    # Each of 4 files is 2 windows of 5 images and all the rest; of 1990 only that is needed.
    assert (report.total, report.needed) == (12, 10)


@pytest.mark.parametrize("name", ["../precious.h5", "/etc/passwd", ".."])
def test_a_description_that_names_files_elsewhere_is_told_and_removes_none(tmp_path: Path, name: str) -> None:
    source, root = write_set(tmp_path / "source"), tmp_path / "set"
    staged(source, root, "ewa")
    (tmp_path / "precious.h5").write_text("kept")
    years = root / ".hpcai500-staging/years.json"
    document = json.loads(years.read_text())
    document["years"][0]["name"] = name
    years.write_text(json.dumps(document))
    for call in (lambda: release(root, None), lambda: staged(source, root, "ewa"), lambda: load_climate_index(root)):
        with pytest.raises(DataError, match="what is staged there cannot be told"):
            call()
    assert (tmp_path / "precious.h5").read_text() == "kept"
