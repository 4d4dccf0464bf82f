"""Repacking keeps every value, takes no half for a whole, and goes on wherever it was stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from builders.commands import HPCAI500
from builders.data import CONTIGUOUS, LAYOUTS, SHIPPED, boxes_of, damage_chunk, images_of, swapped, write_year

from hpcai500.data.climate import repack as repacking_module
from hpcai500.data.climate.check import check_climate
from hpcai500.data.climate.index import load_climate_index, load_content_fingerprint
from hpcai500.data.climate.repack import FILTERS, Filter, Repacking, RepackReport, compress, only_writer
from hpcai500.data.climate.values import load_contents
from hpcai500.data.climate.years import open_year
from hpcai500.errors import DataError, RunError
from hpcai500.progress import silent

KINDS: tuple[Filter, ...] = ("none", "lzf")


@pytest.fixture(autouse=True)
def several_ranges_a_year(monkeypatch: pytest.MonkeyPatch) -> None:
    """As real years have."""
    monkeypatch.setattr("hpcai500.data.climate.values.BLOCK_BYTES", 1)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_year(tmp_path / "source", 1979, **SHIPPED)
    write_year(tmp_path / "source", 1980, images_of(7, seed=1980), **SHIPPED)
    return tmp_path / "source"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were read only to be compared: the folder's name and the file's."""
    paths: list[str] = []
    original = repacking_module.scan_years

    def scan(years: Any, workers: int) -> Any:
        paths.append(f"{years[0].path.parent.name}/{years[0].year}")
        return original(years, workers)

    monkeypatch.setattr(repacking_module, "scan_years", scan)
    return paths


def repack(source: Path, target: Path, **options: Any) -> RepackReport:
    return Repacking(source, target, workers=1, **options).run()


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def touch(path: Path) -> None:
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def assert_same(old: Path, new: Path) -> None:
    with h5py.File(old) as a, h5py.File(new) as b:
        assert a.keys() == b.keys()
        assert np.array_equal(a["images"][:].view(np.int32), b["images"][:].view(np.int32))
        assert np.array_equal(a["boxes"][:], b["boxes"][:])


def everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_layout_becomes_one_chunk_an_image(
    tmp_path: Path, target: Path, layout: dict[str, Any], kind: Filter
) -> None:
    images = images_of(12)
    images[3, 4, 5, :6] = (np.nan, np.inf, -np.inf, -0.0, 1e-45, 3e38)
    old = write_year(tmp_path / "source", 1979, images, **layout)
    report = repack(tmp_path / "source", target, kind=kind)
    new = open_year(target / "climo_1979.h5")
    assert (new.storage.chunk, new.storage.filters) == ((1, 16, 24, 36), FILTERS[kind])
    assert kind == "lzf" or not (new.storage.addresses % 4096).any(), "uncompressed images begin at pages"
    assert_same(old, new.path)
    assert (report.written, report.kept, report.converted, report.samples) == ((1979,), (), (), 12)
    of_the_repacking = {".hpcai500-climate.json", ".hpcai500-repack.json", ".hpcai500-repack.lock"}
    assert {path.name for path in target.iterdir()} == {"climo_1979.h5", *of_the_repacking}


@pytest.mark.parametrize("kind", KINDS)
def test_the_new_set_has_the_fingerprints_of_the_old(source: Path, target: Path, kind: Filter) -> None:
    report = repack(source, target, kind=kind)
    index = load_climate_index(target)
    assert report.fingerprint == index.fingerprint == load_climate_index(source).fingerprint
    # Without another pass over the values, runs know their statistics.
    assert set(load_contents(index.years)) == {1979, 1980}
    check = check_climate(source, workers=1)
    assert report.content_fingerprint == load_content_fingerprint(index) == check.content_fingerprint


def test_attributes_links_and_other_datasets_are_copied(source: Path, target: Path) -> None:
    with h5py.File(source / "climo_1979.h5", "r+") as file:
        file.attrs["title"] = "CAM5"
        file["images"].attrs["channels"] = ["PRECT", "PS"]
        file["boxes"].attrs["scale"] = np.float32(0.25)
        file["latitude"] = np.linspace(-90, 90, 24)
        file["images"].attrs["reference"] = file["boxes"].ref
        # Links that lead nowhere stay links.
        file["soft"] = h5py.SoftLink("/gone")
        file["external"] = h5py.ExternalLink("gone.h5", "/latitude")
    repack(source, target)
    with h5py.File(target / "climo_1979.h5") as file:
        assert file.attrs["title"] == "CAM5"
        assert file["images"].attrs["channels"].tolist() == ["PRECT", "PS"]
        assert file["boxes"].attrs["scale"] == np.float32(0.25)
        assert file["latitude"].shape == (24,)
        assert "reference" not in file["images"].attrs
        assert file.get("soft", getlink=True).path == "/gone"
        assert file.get("external", getlink=True).filename == "gone.h5"
        assert np.array_equal(file["images"][:], images_of(12, seed=1979))


@pytest.mark.parametrize("kind", KINDS)
def test_missing_values_stay_missing(tmp_path: Path, target: Path, kind: Filter) -> None:
    images = images_of(12)
    images[3, 1, 5, 7], images[4, 2, 0, 0], images[5, 2, 0, 0] = 1e20, -888, 7e30
    path = write_year(tmp_path / "source", 1979, images, fillvalue=np.float32(7e30))
    with h5py.File(path, "r+") as file:
        file["images"].attrs["_FillValue"] = np.float32(1e20)
        file["images"].attrs["missing_value"] = np.array([-888])
    repack(tmp_path / "source", target, kind=kind)
    new = open_year(target / "climo_1979.h5")
    assert new.missing == open_year(path).missing
    assert load_contents([new])[1979].statistics.missing.tolist() == [0, 1, 2] + [0] * 13
    # A file made before its source named them is no copy of it.
    with h5py.File(path, "r+") as file:
        file["images"].attrs["missing_value"] = np.array([-777])
    with pytest.raises(DataError, match=r"climo_1979\.h5: differs from a repacked"):
        repack(tmp_path / "source", target, kind=kind)


def test_a_compressed_chunk_is_what_h5py_writes(tmp_path: Path) -> None:
    for image in (images_of(1)[0], np.zeros((16, 24, 36), np.float32)):
        with h5py.File(tmp_path / "peer.h5", "w") as file:
            options = {"chunks": (1, 16, 24, 36), "shuffle": True, "compression": "lzf"}
            dataset = file.create_dataset("images", data=image[None], **options)
            file.flush()
            mask, content = dataset.id.read_direct_chunk((0, 0, 0, 0))
        assert compress(image) == (mask, content)


def test_only_the_years_asked_for_are_repacked(source: Path, target: Path) -> None:
    assert repack(source, target, years=(1980, 1980)).written == (1980,)
    assert visible(target) == ["climo_1980.h5"]
    report = repack(source, target)
    assert (report.written, report.kept) == ((1979,), (1980,))
    with pytest.raises(DataError, match="no file for 1981; the set has 1979 to 1980"):
        repack(source, target, years=(1980, 1981))


def test_boxes_are_converted_only_when_asked_and_never_when_ambiguous(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "source"
    write_year(source, 1979, boxes=swapped(boxes_of(12)))
    write_year(source, 1980)
    with pytest.raises(DataError, match=r"climo_1979\.h5: dataset boxes: x and y are swapped.* add --convert-boxes"):
        repack(source, target)
    assert repack(source, target, convert_boxes=True).converted == (1979,)
    years = load_climate_index(target).years
    assert np.array_equal(years[0].boxes, boxes_of(12))
    assert np.array_equal(years[1].boxes, boxes_of(12, seed=1980))
    assert repack(source, target, convert_boxes=True).kept == (1979, 1980)
    write_year(source, 1979, boxes=np.ascontiguousarray(boxes_of(12)[..., [1, 0, 3, 2, 4]]))
    with pytest.raises(DataError, match=r"unknown variant .*classes 0, 1, 2, 3 count from 0"):
        repack(source, tmp_path / "other", convert_boxes=True)


def test_a_set_is_never_repacked_into_itself_behind_a_link_either(source: Path) -> None:
    link = source.parent / "link"
    link.symlink_to(source)
    for place, message in ((source, "is the source"), (link, "is the source"), (source / "new", "inside the")):
        with pytest.raises(DataError, match=message):
            repack(source, place)


def test_files_of_others_are_not_touched(source: Path, target: Path) -> None:
    other = write_year(target, 1979, images_of(12, seed=5), boxes_of(12, seed=5)).read_bytes()
    with pytest.raises(DataError, match=r"target/climo_1979\.h5: differs from a repacked .*source/climo_1979\.h5"):
        repack(source, target)
    assert (target / "climo_1979.h5").read_bytes() == other
    (target / "climo_1979.h5").unlink()
    os.link(source / "climo_1979.h5", target / "climo_1979.h5")
    with pytest.raises(DataError, match="the same file as"):
        repack(source, target)


def test_a_disk_without_room_is_refused_before_it_starts(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repacking_module, "_free_bytes", lambda folder: 10_000)
    with pytest.raises(DataError, match=r"repacking needs 5\.\d+ MB, but 0\.01 MB are free"):
        Repacking(source, target, workers=1).estimate()
    assert not target.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_the_estimate_is_of_what_is_written(tmp_path: Path, target: Path, kind: Filter) -> None:
    write_year(tmp_path / "source", 1979, images_of(20, 96, 144), chunks=(5, 1, 24, 36))
    repacking = Repacking(tmp_path / "source", target, kind=kind, workers=1)
    expected = repacking.estimate()
    assert not target.exists()
    stored = repacking.run().stored_bytes
    assert expected.images == 20
    assert stored <= expected.write_bytes <= 1.2 * stored + 2**21
    assert expected.needed_bytes >= expected.write_bytes
    assert expected.seconds > 0
    assert Repacking(tmp_path / "source", target, kind=kind, workers=1).estimate().images == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [0, 1, 4])
def test_years_that_are_done_are_not_done_again(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch, kind: Filter, after: int
) -> None:
    written: list[tuple[int, int]] = []
    original, most = repacking_module._write_range, after

    def write(task: Any) -> Any:
        if len(written) == most:
            raise KeyboardInterrupt
        written.append((task.year.year, task.first))
        return original(task)

    monkeypatch.setattr(repacking_module, "_write_range", write)
    with pytest.raises(KeyboardInterrupt):
        repack(source, target, kind=kind)
    done = (1979,) if after == 4 else ()
    assert visible(target) == [f"climo_{year}.h5" for year in done]
    # Half a year is no use to the next call, and as large as a year.
    assert not list(target.glob(".climo*"))
    written.clear()
    most = 100
    assert repack(source, target, kind=kind).kept == done
    assert written == [(1979, 0), (1979, 5), (1979, 10), (1980, 0), (1980, 5)][3 * len(done) :]
    assert_same(source / "climo_1979.h5", target / "climo_1979.h5")


def test_what_an_earlier_version_left_half_done_is_removed(source: Path, target: Path) -> None:
    (target / ".climo_1979.h5.spool").mkdir(parents=True)
    (target / ".climo_1979.h5.spool" / "000000.lzf").write_bytes(b"half")
    for suffix in ("part", "journal"):
        (target / f".climo_1979.h5.{suffix}").write_bytes(b"half")
    repack(source, target)
    (target / ".climo_1980.h5.journal").write_bytes(b"killed before it was removed")
    assert repack(source, target).kept == (1979, 1980)
    assert not list(target.glob(".climo*"))
    assert_same(source / "climo_1979.h5", target / "climo_1979.h5")


@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_does_not_keep_what_is_written_is_found_out(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch, kind: Filter
) -> None:
    original = repacking_module._verified

    def spoiled(job: Any, scans: Any, workers: int) -> Any:
        damage_chunk(job.part, 7, 100)
        return original(job, scans, workers)

    monkeypatch.setattr(repacking_module, "_verified", spoiled)
    with pytest.raises(RunError, match=r"image 7 does not read back as written|image 7, channels PRECT") as caught:
        repack(source, target, kind=kind)
    assert str(caught.value).endswith("run the same command again to rewrite this year")
    assert "copy" not in str(caught.value)
    assert visible(target) == []


def test_a_file_that_rots_before_it_is_read_back_is_never_kept(source: Path, target: Path) -> None:
    def spoil(total: int, description: str, unit: str) -> Any:
        if "verifying" in description:
            (target / ".climo_1979.h5.part").write_bytes(b"rotten")
        return silent(total, description, unit)

    with pytest.raises(RunError, match=r"\.part: not the file that was written: .* rewrite this year$"):
        repack(source, target, progress=spoil)
    assert repack(source, target).written == (1979, 1980)


def test_a_corrupt_source_is_named(source: Path, target: Path) -> None:
    damage_chunk(source / "climo_1980.h5", 20)
    with pytest.raises(DataError, match=r"source/climo_1980\.h5: dataset images, images 0 to 4, .*does not inflate"):
        repack(source, target)
    assert visible(target) == ["climo_1979.h5"]


COMMAND = """
import resource, sys
from pathlib import Path
from hpcai500.data.climate import values
from hpcai500.data.climate.repack import Repacking
from hpcai500.errors import RunError
from hpcai500.progress import silent

def progress(total, description, unit):
    # From here on, no file may grow beyond the limit: as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), resource.RLIM_INFINITY))
    return silent(total, description, unit)

values.BLOCK_BYTES = 1
job = Repacking(Path(sys.argv[1]), Path(sys.argv[2]), kind=sys.argv[3], workers=1)
job._progress = progress
try:
    job.run()
except RunError as error:
    print(error)
"""


# The file is refused when it is laid out, or once chunks are put into it.
@pytest.mark.parametrize(("kind", "limit"), [("none", 300_000), ("lzf", 300_000), ("lzf", 1_100_000)])
def test_a_full_disk_is_one_line_and_years_that_are_done_stay(
    source: Path, target: Path, kind: Filter, limit: int
) -> None:
    command = [sys.executable, "-c", COMMAND, str(source), str(target), kind, str(limit)]
    write_year(source, 1978, images_of(5, seed=1978), **SHIPPED)
    repack(source, target, kind=kind, years=(1978, 1978))
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == (
        f"{target}: cannot be written: File too large; finished years are kept: make room, and run the same command "
        "again\n"
    )
    assert result.stderr == ""
    assert visible(target) == ["climo_1978.h5"]
    assert not list(target.glob(".climo*"))
    report = repack(source, target, kind=kind)
    assert (report.written, report.kept) == ((1979, 1980), (1978,))
    assert_same(source / "climo_1979.h5", target / "climo_1979.h5")


def test_killed_at_any_time_it_goes_on(tmp_path: Path, target: Path) -> None:
    for year in (1979, 1980, 1981):
        write_year(tmp_path / "source", year, images_of(60, 48, 72, seed=year), **SHIPPED)
    command = [*HPCAI500, "data", "repack", "ewa", str(tmp_path / "source"), str(target), "--json"]
    for seen in (".climo_1979.h5.part", "climo_1979.h5", ".climo_1981.h5.part"):
        process = subprocess.Popen(
            [*command, "--workers", "1"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        limit = time.monotonic() + 600
        while process.poll() is None and not (target / seen).exists():
            assert time.monotonic() < limit
            time.sleep(0.001)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        for name in visible(target):
            assert_same(tmp_path / "source" / name, target / name)
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    document = json.loads(result.stdout)
    assert (document["samples"], sorted(document["written"] + document["kept"])) == (180, [1979, 1980, 1981])
    assert 1979 in document["kept"]
    assert not list(target.glob(".climo*"))
    for year in (1979, 1980, 1981):
        assert_same(tmp_path / "source" / f"climo_{year}.h5", target / f"climo_{year}.h5")


# --- in a folder that holds something already


@pytest.mark.parametrize("layout", [SHIPPED, CONTIGUOUS], ids=["shipped", "contiguous"])
@pytest.mark.parametrize("swap", [False, True])
def test_a_year_made_from_other_values_is_never_kept(
    tmp_path: Path, target: Path, swap: bool, layout: dict[str, Any]
) -> None:
    boxes = swapped(boxes_of(12)) if swap else boxes_of(12)
    os.utime(write_year(tmp_path / "source", 1979, images_of(12), boxes, **layout), (0, 0))
    repack(tmp_path / "source", target, convert_boxes=swap)
    made = (target / "climo_1979.h5").read_bytes()
    changed = images_of(12)
    changed[7, 5, 3, 2] += 1
    # With the same time and, where it is not compressed, the same size.
    os.utime(write_year(tmp_path / "source", 1979, changed, boxes, **layout), (0, 0))
    told = r"target/climo_1979\.h5: differs from a repacked .*source/climo_1979\.h5; remove it"
    for _ in range(2):
        with pytest.raises(DataError, match=told):
            repack(tmp_path / "source", target, convert_boxes=swap)
    assert (target / "climo_1979.h5").read_bytes() == made


@pytest.mark.parametrize("swap", [False, True])
def test_a_source_that_was_only_copied_again_is_compared_once(
    tmp_path: Path, target: Path, swap: bool, compared: list[str]
) -> None:
    source = tmp_path / "source"
    path = write_year(source, boxes=swapped(boxes_of(12)) if swap else None, **SHIPPED)
    assert repack(source, target, convert_boxes=swap).written == (1979,)
    for _ in range(2):
        report = repack(source, target, convert_boxes=swap)
        assert (report.written, report.kept) == ((), (1979,))
    assert compared == []
    touch(path)
    for _ in range(2):
        assert repack(source, target, convert_boxes=swap).kept == (1979,)
        # What the new file holds is known since it was written.
        assert compared == ["source/1979"]
    touch(target / "climo_1979.h5")
    assert repack(source, target, convert_boxes=swap).kept == (1979,)
    assert compared == ["source/1979", "source/1979", "target/1979"]


def test_a_call_that_was_killed_right_after_renaming_is_trusted(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch, compared: list[str]
) -> None:
    def killed(folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(repacking_module, "sync_folder", killed)
        with pytest.raises(KeyboardInterrupt):
            repack(source, target)
    report = repack(source, target)
    assert (report.kept, report.written, compared) == ((1979,), (1980,), [])


def test_a_damaged_year_is_told_to_be_removed_not_copied(source: Path, target: Path) -> None:
    repack(source, target)
    made = target / "climo_1979.h5"
    made.write_bytes(made.read_bytes()[:-5000])
    with pytest.raises(DataError, match=r"differs from a repacked .*; remove it, or choose another folder$"):
        repack(source, target)


@pytest.mark.parametrize("kind", KINDS)
def test_an_estimate_changes_nothing(source: Path, target: Path, kind: Filter) -> None:
    target.mkdir()
    # As a call leaves it that was killed.
    (target / ".climo_1979.h5.part").write_bytes(b"half")
    for images in (19, 0):
        before = everything(target)
        assert Repacking(source, target, kind=kind, workers=1).estimate().images == images
        assert everything(target) == before
        if images:
            assert repack(source, target, kind=kind).written == (1979, 1980)


def test_two_repackings_never_write_into_one_folder(source: Path, target: Path) -> None:
    planned = Repacking(source, target, workers=1)
    target.mkdir()
    with (
        only_writer(target),
        pytest.raises(RunError, match=f"^{target}: another repacking is writing there: wait for it"),
    ):
        planned.run()
    assert repack(source, target).written == (1979, 1980)
    # Its plan is older than what the other one wrote.
    assert planned.run().kept == (1979, 1980)
