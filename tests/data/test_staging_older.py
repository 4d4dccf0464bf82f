"""Folders that the version before this one has staged: told, released, and staged over where nobody needs them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from image_tree import write_tree
from sample_years import images_of, write_year
from staged_sets import files_of, staged

from hpcai500.data.climate.index import load_climate_index
from hpcai500.data.imagenet.index import load_index
from hpcai500.data.staging import release
from hpcai500.errors import DataError


@pytest.fixture(autouse=True)
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))


def images(tmp_path: Path) -> tuple[Path, Path]:
    """A set, and its copy as the version before has left it: `one` and `two` need all of it."""
    source, root = write_tree(tmp_path / "source"), tmp_path / "set"
    for name in ("one", "two"):
        staged(source, root, name=name)
    make_old(root, "ic", source, load_index(source).fingerprint, 20)
    return source, root


def years(tmp_path: Path) -> tuple[Path, Path]:
    source, root = tmp_path / "source", tmp_path / "set"
    for year in (1979, 1980):
        write_year(source, year, images_of(9, seed=year))
    for name in ("one", "two"):
        staged(source, root, "ewa", name)
    make_old(root, "ewa", source, load_climate_index(source).fingerprint, 20)
    entries = [
        {
            "name": path.name,
            "size_bytes": path.stat().st_size,
            "mtime_ns": 1,
            "first": 10 * at,
            "images": 9,
            "window": 1,
        }
        for at, path in enumerate(sorted(root.glob("*.h5")))
    ]
    years = {"format": "hpcai500 staging 1", "years": entries}
    (root / ".hpcai500-staging/years.json").write_text(json.dumps(years))
    return source, root


def make_old(root: Path, benchmark: str, source: Path, fingerprint: str, pieces: int) -> None:
    state = root / ".hpcai500-staging"
    (state / "manifest.jsonl").unlink()
    (state / "digests.bin").write_bytes(np.random.default_rng(0).bytes(32 * pieces))
    (state / "part").mkdir()
    document = {
        "format": "hpcai500 staging 1", "benchmark": benchmark, "source": str(source), "fingerprint": fingerprint,
        "pieces": pieces, "boot": "an earlier one",
    }  # fmt: skip
    (state / "set.json").write_text(json.dumps(document))


Makes = Callable[[Path], tuple[Path, Path]]
BOTH = pytest.mark.parametrize("make", [images, years])


@BOTH
def test_it_is_not_read_and_told_in_one_line_with_what_to_type(make: Makes, tmp_path: Path) -> None:
    source, root = make(tmp_path)
    load, benchmark = (load_index, "ic") if make is images else (load_climate_index, "ewa")
    told = rf"staged by an older version: release it \(hpcai500 data stage {benchmark} {source} {root} --release\)"
    with pytest.raises(DataError, match=told):
        load(root)
    with pytest.raises(DataError, match=told):
        staged(source, root, benchmark, "one")


@BOTH
def test_the_release_it_names_takes_it_and_nothing_of_others(make: Makes, tmp_path: Path) -> None:
    source, root = make(tmp_path)
    (root / "mine.txt").write_text("kept")
    benchmark = "ic" if make is images else "ewa"
    command = [sys.executable, "-m", "hpcai500.data", "stage", benchmark, str(source), str(root), "--release"]
    subprocess.run(command, check=True, capture_output=True)
    assert files_of(root) == {"mine.txt": b"kept"}
    (root / "mine.txt").unlink()
    staged(source, root, benchmark)
    assert files_of(root) == files_of(source)


@BOTH
def test_it_goes_with_the_last_name(make: Makes, tmp_path: Path) -> None:
    _, root = make(tmp_path)
    before = files_of(root)
    assert (release(root, "one").needed_by, files_of(root)) == (("two",), before)
    assert release(root, "two").removed == len(before)
    assert not root.exists()


@BOTH
def test_it_is_staged_over_where_nobody_else_needs_it(make: Makes, tmp_path: Path) -> None:
    source, root = make(tmp_path)
    release(root, "two")
    report = staged(source, root, "ic" if make is images else "ewa", "one")
    assert report.copied == report.pieces
    assert files_of(root) == files_of(source)


def test_one_whose_source_is_gone_is_released(tmp_path: Path) -> None:
    source, root = images(tmp_path)
    shutil.rmtree(source)
    assert release(root, None).left == ()
    assert not root.exists()


def test_it_is_not_staged_over_with_another_set(tmp_path: Path) -> None:
    _, root = images(tmp_path)
    release(root, "two")
    before = files_of(root)
    other = write_tree(tmp_path / "other", classes=("cow", "dog"))
    with pytest.raises(DataError, match="staged by an older version: release it"):
        staged(other, root, "ic", "one")
    assert files_of(root) == before
