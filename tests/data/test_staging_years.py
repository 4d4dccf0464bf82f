"""Climate years on a node's own storage: those that a run names, read as years of the whole set, in every layout."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from member_runs import member_recipe
from sample_years import CONTIGUOUS, LAYOUTS, SHIPPED, images_of, write_year
from staged_sets import interrupting, parts_of, staged

from hpcai500.data.climate.check import check_climate
from hpcai500.data.climate.index import load_climate_index, load_content_fingerprint
from hpcai500.data.climate.repack import Repacking
from hpcai500.data.climate.values import load_contents, load_or_measure, measure, read_images
from hpcai500.data.staging import Order, release, stage
from hpcai500.errors import DataError
from hpcai500.layers import Recipe

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


def test_a_run_gets_the_years_that_its_recipe_names_and_they_are_read_as_years_of_the_set(tmp_path: Path) -> None:
    source = write_set(tmp_path / "source", **SHIPPED)
    report = staged(source, tmp_path / "set", "ewa", recipes=[member()])
    assert (report.pieces, report.needed, report.copied) == (4, 3, 3)
    here, there = (load_climate_index(root) for root in (tmp_path / "set", source))
    assert here.fingerprint == there.fingerprint == report.fingerprint
    assert [year.year for year in here.years] == [1979, 1980, 1981]
    for mine, its in zip(here.years, there.years, strict=False):
        assert mine.identity == its.identity
        assert np.array_equal(read_images(mine, 0, 9), read_images(its, 0, 9))
        assert mine.path.read_bytes() == its.path.read_bytes()


def test_the_fingerprint_of_all_values_is_that_of_the_whole_set(tmp_path: Path) -> None:
    source = write_set(tmp_path / "source")
    staged(source, tmp_path / "set", "ewa", recipes=[member()])
    assert load_content_fingerprint(load_climate_index(tmp_path / "set")) is None
    check_climate(source, workers=1)
    known = load_content_fingerprint(load_climate_index(source))
    staged(source, tmp_path / "set", "ewa", recipes=[member()])
    assert load_content_fingerprint(load_climate_index(tmp_path / "set")) == known is not None


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


def test_a_year_that_was_not_staged_is_named_with_the_line_to_type(tmp_path: Path) -> None:
    source = write_set(tmp_path / "source")
    staged(source, tmp_path / "set", "ewa", recipes=[member()])
    index = load_climate_index(tmp_path / "set")
    with pytest.raises(DataError, match=f"climo_1990.h5 was not staged: .* data stage ewa {source} .* --recipe FILE"):
        index.select(1990, 1990)
    with pytest.raises(DataError, match="no file for 1991"):
        index.select(1991, 1991)


def test_a_part_is_neither_checked_nor_repacked_nor_staged_as_the_whole_set(tmp_path: Path) -> None:
    source = write_set(tmp_path / "source")
    staged(source, tmp_path / "set", "ewa", recipes=[member()])
    told = f"only 3 of 4 years are staged here: give the set itself, {source}"
    with pytest.raises(DataError, match=told):
        check_climate(tmp_path / "set")
    with pytest.raises(DataError, match=told):
        Repacking(tmp_path / "set", tmp_path / "new")
    with pytest.raises(DataError, match=told):
        staged(tmp_path / "set", tmp_path / "other", "ewa")


def test_members_share_years_and_each_release_takes_what_nobody_needs(tmp_path: Path) -> None:
    source, root = write_set(tmp_path / "source"), tmp_path / "set"
    staged(source, root, "ewa", "first", recipes=[member()])
    second = staged(source, root, "ewa", "second")
    assert (second.needed, second.copied) == (4, 1)
    released = release(root, "second")
    assert (released.needed_by, released.removed) == (("first",), 1)
    assert [path.name for path in sorted(root.glob("*.h5"))] == ["climo_1979.h5", "climo_1980.h5", "climo_1981.h5"]
    assert release(root, "first").left == ()
    assert not root.exists()


def test_an_interrupted_staging_of_years_goes_on(tmp_path: Path) -> None:
    source, root = tmp_path / "source", tmp_path / "set"
    for year in (1979, 1980, 1981):
        write_year(source, year, images_of(4, 96, 144, seed=year))
    order = Order("ewa", source, root, "somebody", threads=1)
    with pytest.raises(KeyboardInterrupt):
        stage(order, interrupting(5))
    assert parts_of(root) == []
    assert [year.year for year in load_climate_index(root).years] == [1979]
    assert stage(order).copied == 2
    assert all((root / path.name).read_bytes() == path.read_bytes() for path in source.glob("*.h5"))


def test_a_set_of_which_years_are_missing_yet_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    source = write_set(tmp_path / "source")
    staged(source, tmp_path / "set", "ewa")
    (tmp_path / "set" / "climo_1990.h5").unlink()
    with pytest.raises(
        DataError, match=f"end its staging, with the --recipe and --for of then: hpcai500 data stage ewa {source}"
    ):
        load_climate_index(tmp_path / "set")


def test_a_folder_of_years_in_which_none_is_whole_yet_is_told(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_year(source, 1979, images_of(8, 96, 144))
    with pytest.raises(KeyboardInterrupt):
        stage(Order("ewa", source, tmp_path / "set", "somebody"), interrupting(2))
    told = "all of the staged set is missing: end its staging, with the --recipe and --for of then: hpcai500 data stage"
    with pytest.raises(DataError, match=told):
        load_climate_index(tmp_path / "set")


def test_a_damaged_year_is_found_by_verify_and_copied_anew(tmp_path: Path) -> None:
    source, root = write_set(tmp_path / "source", **CONTIGUOUS), tmp_path / "set"
    staged(source, root, "ewa")
    year = load_climate_index(root).years[2]
    assert year.storage.offset is not None
    with year.path.open("r+b") as stream:
        stream.seek(year.storage.offset + 5 * year.image_bytes + 100)
        stream.write(b"\xff" * 8)
    report = staged(source, root, "ewa", verify=True)
    assert (report.verified, report.damaged, report.copied) == (4, 1, 1)
    assert year.path.read_bytes() == (source / year.path.name).read_bytes()


def test_another_file_in_place_of_a_staged_year_is_not_read_as_it(tmp_path: Path) -> None:
    source, root = write_set(tmp_path / "source"), tmp_path / "set"
    staged(source, root, "ewa")
    write_year(root, 1980, images_of(8, seed=5))
    with pytest.raises(DataError, match=r"climo_1980.h5: not the file that was staged"):
        load_climate_index(root)


def test_a_year_that_changed_at_the_source_is_found(tmp_path: Path) -> None:
    source = write_set(tmp_path / "source")
    staged(source, tmp_path / "set", "ewa", "first", recipes=[member(3)])
    os.utime(source / "climo_1980.h5", (1, 1))
    with pytest.raises(DataError, match=r"climo_1980.h5: changed since the set was listed or staged"):
        staged(source, tmp_path / "set", "ewa", "second", recipes=[member(4)])


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
        with pytest.raises(DataError, match=r"years.json: damaged .*; remove .*, and stage the set again"):
            call()
    assert (tmp_path / "precious.h5").read_text() == "kept"


def test_what_a_killed_staging_has_half_written_is_removed_by_the_next_and_by_a_release(tmp_path: Path) -> None:
    source, root = write_set(tmp_path / "source"), tmp_path / "set"
    staged(source, root, "ewa")
    (root / ".hpcai500-part-3").write_bytes(b"half a year")
    staged(source, root, "ewa", "another")
    assert parts_of(root) == []
    (root / ".hpcai500-part-3").write_bytes(b"half a year")
    assert release(root, None).left == ()
    assert not root.exists()
