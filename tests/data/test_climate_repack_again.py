"""A repacking that finds something in its folder keeps what is right, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from sample_years import SHIPPED, boxes_of, images_of, swapped, write_year

from hpcai500.data.climate import repack as repack_year
from hpcai500.data.climate.repack import Filter, Repacking, RepackReport, only_writer
from hpcai500.errors import DataError, RunError
from hpcai500.progress import silent


@pytest.fixture(autouse=True)
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    # Several ranges a year, as real ones have.
    monkeypatch.setattr("hpcai500.data.climate.values.BLOCK_BYTES", 1)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_year(tmp_path / "source", 1979, **SHIPPED)
    return tmp_path / "source"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read only to be compared."""
    paths: list[Path] = []
    original = repack_year.scan_years
    monkeypatch.setattr(
        repack_year, "scan_years", lambda years, workers: paths.append(years[0].path) or original(years, workers)
    )
    return paths


def repack(source: Path, target: Path, **options: Any) -> RepackReport:
    return Repacking(source, target, workers=1, **options).run()


def touch(path: Path) -> None:
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("swap", [False, True])
def test_a_year_made_from_other_values_is_never_kept(tmp_path: Path, target: Path, swap: bool) -> None:
    boxes = swapped(boxes_of(12)) if swap else boxes_of(12)
    write_year(tmp_path / "source", 1979, images_of(12), boxes, **SHIPPED)
    repack(tmp_path / "source", target, convert_boxes=swap)
    made = (target / "climo_1979.h5").read_bytes()
    changed = images_of(12)
    changed[7, 5, 3, 2] += 1
    write_year(tmp_path / "source", 1979, changed, boxes, **SHIPPED)
    for _ in range(2):
        with pytest.raises(
            DataError, match=r"target/climo_1979\.h5: not what .*source/climo_1979\.h5 becomes; remove it"
        ):
            repack(tmp_path / "source", target, convert_boxes=swap)
    assert (target / "climo_1979.h5").read_bytes() == made


@pytest.mark.parametrize("swap", [False, True])
def test_a_source_that_was_only_copied_again_is_compared_once(
    tmp_path: Path, target: Path, swap: bool, compared: list[Path]
) -> None:
    path = write_year(tmp_path / "source", boxes=swapped(boxes_of(12)) if swap else None, **SHIPPED)
    for times in range(3):
        report = repack(tmp_path / "source", target, convert_boxes=swap)
        assert (report.written, report.kept) == (((1979,), ()) if times == 0 else ((), (1979,)))
    assert compared == []
    touch(path)
    for _ in range(2):
        assert repack(tmp_path / "source", target, convert_boxes=swap).kept == (1979,)
        # What the new file holds is known since it was written.
        assert compared == [path]
    touch(target / "climo_1979.h5")
    assert repack(tmp_path / "source", target, convert_boxes=swap).kept == (1979,)
    assert compared == [path, path, target / "climo_1979.h5"]


def test_a_call_that_was_killed_right_after_renaming_is_trusted(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch, compared: list[Path]
) -> None:
    def killed(folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(repack_year, "sync_folder", killed)
        with pytest.raises(KeyboardInterrupt):
            repack(source, target)
    assert repack(source, target).kept == (1979,)
    assert compared == []


def test_a_damaged_year_is_told_to_be_removed_not_copied(source: Path, target: Path) -> None:
    repack(source, target)
    made = target / "climo_1979.h5"
    made.write_bytes(made.read_bytes()[:-5000])
    with pytest.raises(DataError, match=r"not what .* becomes; remove it, or choose another folder$"):
        repack(source, target)


@pytest.mark.parametrize("kind", ["none", "lzf"])
def test_a_plan_and_an_estimate_change_nothing(source: Path, target: Path, kind: Filter) -> None:
    target.mkdir()
    # As a call leaves it that was killed.
    (target / ".climo_1979.h5.part").write_bytes(b"half")
    before = everything(target)
    assert Repacking(source, target, kind=kind, workers=1).estimate().images == 12
    assert everything(target) == before
    assert repack(source, target, kind=kind).written == (1979,)
    before = everything(target)
    assert Repacking(source, target, kind=kind, workers=1).estimate().images == 0
    assert everything(target) == before


def test_two_repackings_never_write_into_one_folder(source: Path, target: Path) -> None:
    planned = Repacking(source, target, workers=1)
    target.mkdir()
    with only_writer(target), pytest.raises(RunError, match=f"^{target}: another repacking writes there: wait for it"):
        planned.run()
    assert repack(source, target).written == (1979,)
    # Its plan is older than what the other one wrote.
    assert planned.run().kept == (1979,)


def test_a_file_that_rots_before_it_is_read_back_is_never_kept(source: Path, target: Path) -> None:
    def spoil(total: int, description: str, unit: str) -> Any:
        if "verifying" in description:
            (target / ".climo_1979.h5.part").write_bytes(b"rotten")
        return silent(total, description, unit)

    with pytest.raises(RunError, match=r"\.part: no longer the file that was written: .* writes this year anew$"):
        repack(source, target, progress=spoil)
    assert repack(source, target).written == (1979,)


def test_links_that_lead_nowhere_stay_links(source: Path, target: Path) -> None:
    with h5py.File(source / "climo_1979.h5", "r+") as file:
        file["soft"] = h5py.SoftLink("/gone")
        file["external"] = h5py.ExternalLink("gone.h5", "/latitude")
    repack(source, target)
    with h5py.File(target / "climo_1979.h5") as file:
        assert file.get("soft", getlink=True).path == "/gone"
        assert file.get("external", getlink=True).filename == "gone.h5"
        assert np.array_equal(file["images"][:], images_of(12, seed=1979))
