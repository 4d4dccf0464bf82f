"""Sets on a node's own storage: the same set, only what is needed, whole after any interruption."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.data import LAYOUTS, SHIPPED, encoded_picture, images_of, picture, settle, write_tree, write_year
from builders.runs import member_recipe
from staged_sets import files_of, interrupting, just_before_copying, parts_of, staged, unlist

from hpcai500.data.climate.check import check_climate
from hpcai500.data.climate.index import load_climate_index
from hpcai500.data.climate.index import load_content_fingerprint as climate_content
from hpcai500.data.climate.repack import Repacking
from hpcai500.data.climate.values import load_contents, load_or_measure, measure, read_images
from hpcai500.data.imagenet.check import check_images
from hpcai500.data.imagenet.index import (
    build_index,
    drawn_for_content,
    load_content_fingerprint,
    load_index,
    make_split,
    pack_index,
)
from hpcai500.data.imagenet.loader import JpegBatches
from hpcai500.data.staged import read_set
from hpcai500.data.staging import Report, StageRequest, release, stage
from hpcai500.errors import DataError, RunError, UsageError
from hpcai500.layers import Recipe
from hpcai500.methodology.sampling import draws, probe
from hpcai500.streams import print_error

YEARS = "problem.training_years=[1979, 1980]", "problem.evaluation_years=[1981, 1981]"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Sixteen training and four validation images."""
    return write_tree(tmp_path / "source", train=8, val=2)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where sets are staged."""
    return tmp_path / "node" / "set"


def images_of_member(out_of_bag: int = 0) -> Recipe:
    return member_recipe("ic", "hyperparameters.seed=7", f"ensemble.out_of_bag_samples={out_of_bag}")


def years_of_member(seed: int = 3) -> Recipe:
    return member_recipe("ewa", *YEARS, f"hyperparameters.seed={seed}", "ensemble.out_of_bag_samples=0")


def write_set(root: Path, *, measured: bool = True, **layout: Any) -> Path:
    """Training years, an evaluation year, and one that no recipe here names; `measured` as by an earlier run."""
    for year in (1979, 1980, 1981, 1990):
        write_year(root, year, images_of(9, seed=year), **layout)
    if measured:
        measure(load_climate_index(root).select(1979, 1981), workers=1)
    return root


# --- images


def test_a_whole_staged_set_is_the_same_set(source: Path, root: Path) -> None:
    check_images(source, workers=1)
    report = staged(source, root)
    here, there = load_index(root), load_index(source)
    assert (here.fingerprint, here.classes, here.train.paths) == (there.fingerprint, there.classes, there.train.paths)
    assert np.array_equal(here.train.labels, there.train.labels)
    assert load_content_fingerprint(here) == load_content_fingerprint(there) is not None
    assert files_of(root) == files_of(source)
    assert (report.copied, report.needed, report.pieces) == (20, 20, 20)
    assert check_images(root, workers=1).passed


def test_a_member_gets_what_it_draws_what_it_is_judged_on_and_what_all_are_evaluated_on(
    source: Path, root: Path
) -> None:
    staged(source, root, recipes=[images_of_member(out_of_bag=3)])
    index = load_index(source)
    wanted = {*draws(16, 7, "bootstrap").tolist(), *probe(16, 3).tolist()}
    assert len(wanted) < 16
    expected = {index.train.paths[sample] for sample in wanted} | set(index.val.paths)
    assert files_of(root).keys() == expected
    assert load_index(root).fingerprint == index.fingerprint
    lines = (root / ".hpcai500-staging/manifest.jsonl").read_text().splitlines()
    listed = {entry["path"]: (entry["bytes"], entry["sha256"]) for entry in map(json.loads, lines)}
    assert listed == {
        path: (len(content), hashlib.sha256(content).hexdigest()) for path, content in files_of(root).items()
    }


def test_a_sample_that_was_not_staged_is_named_with_the_line_to_type(source: Path, root: Path) -> None:
    staged(source, root, recipes=[images_of_member()])
    index = load_index(root)
    missing = next(n for n, path in enumerate(index.train.paths) if not (root / path).exists())
    batches = JpegBatches(index.train, index.root, batch_size=1, threads=1, size=8, mode="centre", resize_shorter=8)
    try:
        with pytest.raises(DataError) as error:
            list(batches.epoch([np.array([missing])], seed=0, epoch=0))
    finally:
        batches.close()
    told = str(error.value)
    assert f"{index.train.paths[missing]} was not staged" in told
    assert f"hpcai500 data stage ic {source} {root} --recipe FILE" in told
    with pytest.raises(DataError, match=f"images are staged here: use the set itself, {source}"):
        check_images(root)


def test_an_interrupted_staging_leaves_nothing_half_written_and_goes_on(tmp_path: Path, root: Path) -> None:
    source = write_tree(tmp_path / "source", train=3, val=1)
    for number, path in enumerate(sorted(source.rglob("*.JPEG"))):
        path.write_bytes(os.urandom(1_500_000 + number))
    order = StageRequest("ic", source, root, "somebody", threads=1)
    with pytest.raises(KeyboardInterrupt):
        stage(order, interrupting(5))
    assert parts_of(root) == []
    whole = files_of(root)
    assert 0 < len(whole) < 8
    assert whole.items() <= files_of(source).items()
    report = stage(order)
    assert 8 - len(whole) <= report.copied <= 8 - len(whole) + 1
    assert files_of(root) == files_of(source)


def test_what_a_killed_staging_was_at_is_cleared_and_counts_for_nothing(source: Path, root: Path) -> None:
    staged(source, root)
    victim = load_index(source).train.paths[3]
    # As `kill -9` leaves it: renamed, not yet noted; and another file not yet whole.
    unlist(root, victim)
    with (root / ".hpcai500-staging/manifest.jsonl").open("ab") as stream:
        stream.write(b'{"path": "train/ca')
    (root / victim).write_bytes(b"half")
    (root / victim).with_name(".hpcai500-part-3").write_bytes(b"hal")
    assert staged(source, root).copied == 1
    assert files_of(root) == files_of(source)
    assert parts_of(root) == []


def test_a_damaged_copy_is_found_by_verify_and_copied_anew(source: Path, root: Path) -> None:
    staged(source, root)
    victim = root / load_index(source).train.paths[5]
    content = victim.read_bytes()
    victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    (root / load_index(source).val.paths[0]).unlink()
    assert staged(source, root).copied == 0
    report = staged(source, root, verify=True)
    assert (report.verified, report.damaged, report.copied) == (20, 2, 2)
    assert files_of(root) == files_of(source)


def test_a_file_that_changed_at_the_source_is_found(source: Path, root: Path) -> None:
    staged(source, root)
    victim = source / load_index(source).train.paths[2]
    content = victim.read_bytes()
    victim.write_bytes(content[:-3] + b"abc")
    with pytest.raises(DataError, match=r"changed since the set was listed or staged.*--release"):
        staged(source, root, verify=True)
    victim.write_bytes(content)
    # Its time is new, and its content what it was.
    assert staged(source, root, verify=True).damaged == 0
    victim.write_bytes(content + b"longer")
    shutil.rmtree(root)
    assert staged(source, root).copied == 20
    assert files_of(root) == files_of(source)


def test_another_version_with_the_same_names_sizes_and_times_is_refused(source: Path, root: Path) -> None:
    for path in source.rglob("*"):
        os.utime(path, (0, 0))
    staged(source, root)
    for path in source.rglob("*.JPEG"):
        content = path.read_bytes()
        path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
        os.utime(path, (0, 0))
    for verify in (False, True):
        with pytest.raises(DataError, match=r"changed since the set was listed or staged.*--release"):
            staged(source, root, verify=verify)


def test_one_file_of_another_version_is_found_by_verify(tmp_path: Path, root: Path) -> None:
    source = write_tree(tmp_path / "source", train=40, val=2)
    staged(source, root)
    # One that is not among the drawn ones.
    index = load_index(source)
    [victim, *_] = set(index.train.paths) - set(drawn_for_content(index))
    before, content = (source / victim).stat(), (source / victim).read_bytes()
    (source / victim).write_bytes(content[:-3] + b"abc")
    os.utime(source / victim, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert staged(source, root).copied == 0
    with pytest.raises(DataError, match=rf"{victim}: changed since the set was listed or staged"):
        staged(source, root, verify=True)


def test_a_set_that_changed_or_another_one_is_refused_with_the_line_to_type(
    source: Path, root: Path, tmp_path: Path
) -> None:
    staged(source, root)
    shutil.copy(source / "train/cat/cat_0.JPEG", source / "train/cat/cat_99.JPEG")
    with pytest.raises(DataError, match=r"has changed since: .* hpcai500 data stage ic .* --release"):
        staged(source, root)
    with pytest.raises(DataError, match="is another set"):
        staged(write_tree(tmp_path / "other", classes=("one", "two")), root)


def test_the_last_release_takes_the_folder_and_nothing_of_others(source: Path, root: Path) -> None:
    staged(source, root)
    assert load_index(root)
    check_images(root, workers=1)
    released = release(root, None)
    assert (released.released, released.removed, released.left) == (("somebody",), 20, ())
    assert list(root.parent.iterdir()) == []
    assert release(root, None).released == ()
    staged(source, root)
    (root / "train/mine.txt").write_text("kept")
    assert release(root, "somebody").left == ("train",)
    assert files_of(root) == {"train/mine.txt": b"kept"}
    with pytest.raises(DataError, match="holds files that staging did not write"):
        staged(source, root)


def test_a_file_that_changes_under_the_copy_is_found(tmp_path: Path, root: Path) -> None:
    source = write_tree(tmp_path / "source", classes=("only",), train=1, val=1)
    for path in source.rglob("*.JPEG"):
        path.write_bytes(os.urandom(3_000_000))
    victim = next((source / "train").rglob("*.JPEG"))

    class Meddler:
        def advance(self, n: int = 1) -> None:
            with victim.open("r+b") as stream:
                stream.seek(2_900_000)
                stream.write(os.urandom(9))

    with pytest.raises(DataError, match="changed since the set was listed or staged"):
        stage(StageRequest("ic", source, root, "somebody", threads=1), lambda *_: nullcontext(Meddler()))
    assert files_of(root) == {}


# --- years, read as years of the whole set


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_whole_staged_set_of_years_is_the_same_set_in_every_layout(tmp_path: Path, root: Path, layout: str) -> None:
    source = write_set(tmp_path / "source", **LAYOUTS[layout])
    check_climate(source, workers=1)
    report = staged(source, root, "ewa")
    here, there = load_climate_index(root), load_climate_index(source)
    assert here.fingerprint == there.fingerprint == report.fingerprint
    assert climate_content(here) == climate_content(there) is not None
    assert files_of(root) == files_of(source)
    assert check_climate(root, workers=1).passed


def test_a_run_gets_the_years_that_its_recipe_names_and_they_are_read_as_years_of_the_set(
    tmp_path: Path, root: Path
) -> None:
    source = write_set(tmp_path / "source", **SHIPPED)
    report = staged(source, root, "ewa", recipes=[years_of_member()])
    assert (report.pieces, report.needed, report.copied) == (4, 3, 3)
    here, there = (load_climate_index(folder) for folder in (root, source))
    assert here.fingerprint == there.fingerprint == report.fingerprint
    assert [year.year for year in here.years] == [1979, 1980, 1981]
    for mine, its in zip(here.years, there.years, strict=False):
        assert mine.identity.of_copy() == its.identity.of_copy()
        assert np.array_equal(read_images(mine, 0, 9), read_images(its, 0, 9))
        assert mine.path.read_bytes() == its.path.read_bytes()
    # The fingerprint of all values is that of the whole set, once it is known.
    assert climate_content(here) is None
    check_climate(source, workers=1)
    staged(source, root, "ewa", recipes=[years_of_member()])
    assert climate_content(load_climate_index(root)) == climate_content(there) is not None


def test_what_is_known_of_the_values_comes_along_and_is_measured_at_the_source_where_nothing_is(
    tmp_path: Path, root: Path
) -> None:
    source = write_set(tmp_path / "source", measured=False)
    staged(source, root, "ewa", recipes=[years_of_member()])
    here, there = load_climate_index(root), load_climate_index(source)
    assert sorted(load_contents(here.years)) == sorted(load_contents(there.years)) == [1979, 1980, 1981]
    years = here.select(1979, 1981)
    for mine, its in zip(load_or_measure(years), load_or_measure(there.select(1979, 1981)), strict=True):
        assert np.array_equal(mine.mean, its.mean)


def test_a_part_is_told_from_the_whole_set_with_the_line_to_type(tmp_path: Path, root: Path) -> None:
    source = write_set(tmp_path / "source")
    staged(source, root, "ewa", recipes=[years_of_member()])
    index = load_climate_index(root)
    with pytest.raises(DataError, match=f"climo_1990.h5 was not staged: .* data stage ewa {source} .* --recipe FILE"):
        index.select(1990, 1990)
    with pytest.raises(DataError, match="no file for 1991"):
        index.select(1991, 1991)
    for use in (
        lambda: check_climate(root),
        lambda: Repacking(root, tmp_path / "new"),
        lambda: staged(root, tmp_path / "other", "ewa"),
    ):
        with pytest.raises(DataError, match=f"only 3 of 4 years are staged here: use the set itself, {source}"):
            use()


def test_members_share_years_and_each_release_takes_what_nobody_needs(tmp_path: Path, root: Path) -> None:
    source = write_set(tmp_path / "source")
    staged(source, root, "ewa", "first", recipes=[years_of_member()])
    second = staged(source, root, "ewa", "second")
    assert (second.needed, second.copied) == (4, 1)
    released = release(root, "second")
    assert (released.needed_by, released.removed) == (("first",), 1)
    assert [path.name for path in sorted(root.glob("*.h5"))] == ["climo_1979.h5", "climo_1980.h5", "climo_1981.h5"]
    # What a killed staging has half written goes with the next, and with a release.
    for call in (lambda: staged(source, root, "ewa", "another"), lambda: release(root, None)):
        (root / ".hpcai500-part-3").write_bytes(b"half a year")
        call()
        assert parts_of(root) == []
    assert not root.exists()


def test_an_interrupted_staging_of_years_goes_on(tmp_path: Path, root: Path) -> None:
    source = tmp_path / "source"
    for year in (1979, 1980, 1981):
        write_year(source, year, images_of(4, 96, 144, seed=year))
    order = StageRequest("ewa", source, root, "somebody", threads=1)
    with pytest.raises(KeyboardInterrupt):
        stage(order, interrupting(2))
    told = "all of the staged set is missing: stage it again, with the same --recipe and --for: hpcai500 data stage"
    with pytest.raises(DataError, match=told):
        load_climate_index(root)
    with pytest.raises(KeyboardInterrupt):
        stage(order, interrupting(5))
    assert parts_of(root) == []
    assert [year.year for year in load_climate_index(root).years] == [1979]
    assert stage(order).copied == 2
    assert files_of(root) == files_of(source)
    (root / "climo_1981.h5").unlink()
    with pytest.raises(DataError, match=f"stage it again, with the same .*: hpcai500 data stage ewa {source}"):
        load_climate_index(root)


def test_a_year_that_is_another_here_or_changed_at_the_source_is_found(tmp_path: Path, root: Path) -> None:
    source = write_set(tmp_path / "source")
    staged(source, root, "ewa", "first", recipes=[years_of_member(3)])
    before = (source / "climo_1980.h5").stat()
    os.utime(source / "climo_1980.h5", (1, 1))
    with pytest.raises(DataError, match=r"climo_1980.h5: changed since the set was listed or staged"):
        staged(source, root, "ewa", "second", recipes=[years_of_member(4)])
    os.utime(source / "climo_1980.h5", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert staged(source, root, "ewa", "second", recipes=[years_of_member(4)])
    boxes = load_climate_index(source).years[1].boxes
    write_year(source, 1980, images_of(len(boxes), seed=6), boxes)
    os.utime(source / "climo_1980.h5", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (source / "climo_1980.h5").stat().st_size == before.st_size
    with pytest.raises(DataError, match=r"climo_1980.h5: changed since the set was listed or staged"):
        staged(source, root, "ewa", "third", recipes=[years_of_member(5)])
    write_year(root, 1980, images_of(8, seed=5))
    with pytest.raises(DataError, match=r"climo_1980.h5: not the file that was staged"):
        load_climate_index(root)


@pytest.mark.parametrize("name", ["../precious.h5", "/etc/passwd", ".."])
def test_a_description_that_names_files_elsewhere_is_told_and_removes_none(
    tmp_path: Path, root: Path, name: str
) -> None:
    source = write_set(tmp_path / "source")
    staged(source, root, "ewa")
    (root.parent / "precious.h5").write_text("kept")
    years = root / ".hpcai500-staging/years.json"
    document = json.loads(years.read_text())
    document["years"][0]["name"] = name
    years.write_text(json.dumps(document))
    for call in (lambda: release(root, None), lambda: staged(source, root, "ewa"), lambda: load_climate_index(root)):
        with pytest.raises(DataError, match=r"years.json: damaged .*; remove .*, and stage the set again"):
            call()
    assert (root.parent / "precious.h5").read_text() == "kept"


# --- folders and files as people really have them, and as nobody should


def test_folders_that_lie_in_each_other_are_refused_also_behind_links(source: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(source)
    before = files_of(source)
    for root, told in (
        (source, "inside the set"),
        (source / "copy", "inside the set"),
        (tmp_path / "link" / "copy", "inside the set"),
        (source / "train" / ".." / "copy", "inside the set"),
        (tmp_path, "contains the set"),
    ):
        with pytest.raises(DataError, match=told):
            staged(source, root)
        assert files_of(source) == before
        assert not (root / ".hpcai500-staging").exists()


def test_a_source_that_is_missing_and_a_destination_that_is_a_file_are_told(source: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        staged(tmp_path / "nowhere", tmp_path / "set")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="not a folder; choose another one"):
        staged(source, tmp_path / "file")
    with pytest.raises(RunError, match="cannot be written: Not a directory"):
        staged(source, tmp_path / "file" / "deeper")
    with pytest.raises(RunError, match="cannot be written: No such file"):
        staged(source, Path("/proc/nowhere/set"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(DataError, match=r"holds files that staging did not write \(thesis.tex\)"):
        staged(source, tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]


def test_links_at_the_source_are_followed_and_files_are_what_is_staged(source: Path, tmp_path: Path) -> None:
    target = (source / "train/cat/cat_0.JPEG").rename(tmp_path / "elsewhere.JPEG")
    (source / "train/cat/cat_0.JPEG").symlink_to(target)
    (source / "train/dog").rename(tmp_path / "dogs")
    (source / "train/dog").symlink_to(tmp_path / "dogs")
    # A destination behind a link is where the link leads.
    (tmp_path / "local").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "local")
    staged(source, tmp_path / "link" / "set")
    root = tmp_path / "local" / "set"
    assert not any(path.is_symlink() for path in root.rglob("*"))
    assert load_index(root).fingerprint == load_index(source).fingerprint
    assert (root / "train/cat/cat_0.JPEG").read_bytes() == target.read_bytes()
    assert len(files_of(root)) == 20


def test_links_in_a_staged_folder_are_not_written_through(source: Path, root: Path) -> None:
    staged(source, root)
    victim = root / load_index(source).train.paths[0]
    precious = root.parent / "precious"
    precious.write_bytes(b"precious")
    victim.unlink()
    victim.symlink_to(precious)
    assert staged(source, root, verify=True).damaged == 1
    assert precious.read_bytes() == b"precious"
    assert files_of(root) == files_of(source)


def test_folders_that_are_links_are_neither_written_through_nor_removed_through(source: Path, root: Path) -> None:
    before = files_of(source)
    for link in ("train", "val/cat"):
        staged(source, root)
        shutil.rmtree(root / link)
        (root / link).symlink_to(source / link)
        (root / ".hpcai500-staging/manifest.jsonl").write_bytes(b"")
        with pytest.raises(RunError, match="a link, expected a folder of images; remove it"):
            staged(source, root)
        release(root, None)
        assert files_of(source) == before
        (root / link).unlink()
        shutil.rmtree(root)


def test_a_description_that_leads_out_of_the_folder_removes_nothing_there(source: Path, tmp_path: Path) -> None:
    staged(source, tmp_path / "set")
    index = load_index(source)
    outside = tmp_path / "set" / index.train.paths[0].rpartition("/")[2]
    outside.write_text("precious")
    paths = tuple(f"train/../{path.rpartition('/')[2]}" for path in index.train.paths)
    train = make_split("train", paths, index.train.sizes_bytes.copy(), 0 * index.train.labels)
    forged = build_index(tmp_path, ("..", *index.classes[1:]), train, index.val, {})
    (tmp_path / "set/.hpcai500-staging/index.npz").write_bytes(pack_index(forged, {}))
    release(tmp_path / "set", None)
    assert outside.read_text() == "precious"


def test_names_with_newlines_and_names_that_are_no_text_are_staged_and_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_tree(tmp_path / "source")
    odd = [b"a\nb.JPEG", b"\xff\xfe.JPEG", b"-rf.JPEG", b"x" * 250 + b".JPEG"]
    for number, name in enumerate(odd):
        Path(os.fsdecode(os.fsencode(source / "train/cat") + b"/" + name)).write_bytes(
            encoded_picture(picture(50 + number))
        )
    settle(source)
    report = staged(source, tmp_path / "set")
    assert report.copied == 14
    assert files_of(tmp_path / "set") == files_of(source)
    assert load_index(tmp_path / "set").fingerprint == load_index(source).fingerprint
    release(tmp_path / "set", None)
    victim = Path(source / "train/cat/a\nb.JPEG")
    with pytest.raises(DataError) as error:
        stage(
            StageRequest("ic", source, tmp_path / "set", "somebody"),
            just_before_copying(lambda: victim.write_bytes(b"longer or shorter")),
        )
    print_error(error.value)
    (line,) = capsys.readouterr().err.splitlines()
    assert "a\\nb.JPEG" in line


def test_a_folder_whose_name_is_no_text_is_reported_as_json(source: Path, tmp_path: Path, call: Any) -> None:
    root = os.fsdecode(os.fsencode(tmp_path) + b"/set\xff")
    assert json.loads(call("stage", "ic", source, root, "--json")[0])["root"] == root


def test_what_lies_in_the_place_of_a_file_is_told_and_neither_waited_for_nor_removed(source: Path, root: Path) -> None:
    staged(source, root)
    victim = load_index(source).val.paths[0]
    (root / victim).unlink()
    (root / victim).mkdir()
    (root / victim / "mine").write_text("kept")
    with pytest.raises(RunError, match="a folder, expected a file; remove it"):
        staged(source, root, verify=True)
    assert release(root, None).left == ("val",)
    assert (root / victim / "mine").read_text() == "kept"
    shutil.rmtree(root)
    request = StageRequest("ic", source, root, "somebody")
    with pytest.raises(DataError, match=rf"{source / victim}: cannot be read: No such file or directory; check"):
        stage(request, just_before_copying((source / victim).unlink))
    shutil.rmtree(root)
    os.mkfifo(source / victim)
    with pytest.raises(DataError, match="not a regular file; replace it by the file"):
        staged(source, root)


def test_a_source_that_may_only_be_read_is_left_as_it_is(source: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in source.rglob("*")}
    for folder in (source, *(path for path in source.rglob("*") if path.is_dir())):
        folder.chmod(0o555)
    load_index(source)
    try:
        staged(source, tmp_path / "set")
        assert files_of(tmp_path / "set") == files_of(source)
        ours = {path: path.stat().st_mtime_ns for path in source.rglob("*") if not path.name.startswith(".hpcai500")}
        assert ours == before
    finally:
        for folder in (source, *(path for path in source.rglob("*") if path.is_dir())):
            folder.chmod(0o755)


@pytest.mark.parametrize("name", ["", "x" * 201, "\n" * 70])
def test_a_name_that_no_file_could_have_is_refused(source: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="--for: expected a name"):
        staged(source, tmp_path / "set", name=name)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("name", ["..", "../../../etc/passwd", "a/b", ".", "a b\n", "\udcff", "%2e%2e"])
def test_any_other_name_stays_inside(source: Path, tmp_path: Path, name: str) -> None:
    staged(source, tmp_path / "set", name=name)
    assert len(list((tmp_path / "set/.hpcai500-staging/names").iterdir())) == 1
    assert release(tmp_path / "set", name).released == (name,)
    assert not (tmp_path / "set").exists()


def test_a_damaged_description_is_told_with_what_to_do(source: Path, root: Path) -> None:
    staged(source, root)
    description = root / ".hpcai500-staging/set.json"
    whole, other = description.read_bytes(), b'{"format": "hpcai500 staging %d"}'
    for content in (b"", b"{}", b"[]", other % 1, other % 2, b"\xff", b"null"):
        description.write_bytes(content)
        for call in (read_set, load_index, lambda root: staged(source, root), lambda root: release(root, None)):
            with pytest.raises(DataError, match=r"damaged .*; remove .*, and stage the set again"):
                call(root)
    description.write_bytes(whole)
    (root / ".hpcai500-staging/names/somebody.json").write_bytes(b"{}")
    with pytest.raises(DataError, match=r"somebody.json: damaged .*; remove"):
        staged(source, root)


def test_a_folder_of_another_user_is_not_staged_into(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name can be guessed, and what lies there would be trained on."""
    (tmp_path / "set").mkdir()
    if os.geteuid() == 0:
        os.chown(tmp_path / "set", 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(UsageError, match=r"belongs to another user \(uid \d+\): choose a folder of your own"):
        staged(source, tmp_path / "set")


def test_a_set_that_cannot_be_read_is_not_called_damaged(source: Path) -> None:
    # In place of one that this user may not read: root, who may run this, may read all.
    (source / ".hpcai500-staging" / "set.json").mkdir(parents=True)
    with pytest.raises(DataError) as error:
        load_index(source)
    assert str(error.value).endswith("set.json: cannot be read: Is a directory; check permissions and mount")


# --- folders that the version before this one has staged


@dataclass(frozen=True)
class Old:
    """A set, and its copy as the version before has left it: `one` and `two` need all of it."""

    benchmark: str
    source: Path
    root: Path

    def staged(self, name: str) -> Report:
        return staged(self.source, self.root, self.benchmark, name)


@pytest.fixture(params=["ic", "ewa"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Old:
    made = Old(request.param, tmp_path / "old", tmp_path / "set")
    if made.benchmark == "ic":
        write_tree(made.source)
    for year in (1979, 1980) if made.benchmark == "ewa" else ():
        write_year(made.source, year, images_of(9, seed=year))
    for name in ("one", "two"):
        made.staged(name)
    fingerprint = (load_index if made.benchmark == "ic" else load_climate_index)(made.source).fingerprint
    state = made.root / ".hpcai500-staging"
    (state / "manifest.jsonl").unlink()
    (state / "digests.bin").write_bytes(np.random.default_rng(0).bytes(32 * 20))
    (state / "part").mkdir()
    document = {
        "format": "hpcai500 staging 1", "benchmark": made.benchmark, "source": str(made.source),
        "fingerprint": fingerprint, "pieces": 20, "boot": "an earlier one",
    }  # fmt: skip
    (state / "set.json").write_text(json.dumps(document))
    entries = [
        {"name": path.name, "size_bytes": path.stat().st_size, "mtime_ns": 1, "first": 10 * at, "images": 9,
         "window": 1}
        for at, path in enumerate(sorted(made.root.glob("*.h5")))
    ]  # fmt: skip
    if entries:
        (state / "years.json").write_text(json.dumps({"format": "hpcai500 staging 1", "years": entries}))
    return made


def test_an_old_folder_is_not_read_and_told_in_one_line_with_what_to_type(old: Old, tmp_path: Path) -> None:
    line = rf"hpcai500 data stage {old.benchmark} {old.source} {old.root} --release"
    with pytest.raises(DataError, match=rf"staged by an older version: release it \({line}\)"):
        (load_index if old.benchmark == "ic" else load_climate_index)(old.root)
    with pytest.raises(DataError, match=rf"staged by an older version: release it \({line}\)"):
        old.staged("one")
    # Nor is it staged over with another set.
    release(old.root, "two")
    before = files_of(old.root)
    other = write_tree(tmp_path / "other", classes=("cow", "dog"))
    with pytest.raises(DataError, match="staged by an older version: release it"):
        staged(other, old.root, "ic", "one")
    assert files_of(old.root) == before


def test_the_release_of_an_old_folder_takes_it_and_nothing_of_others(old: Old, call: Any) -> None:
    (old.root / "mine.txt").write_text("kept")
    call("stage", old.benchmark, old.source, old.root, "--release")
    assert files_of(old.root) == {"mine.txt": b"kept"}
    (old.root / "mine.txt").unlink()
    old.staged("somebody")
    assert files_of(old.root) == files_of(old.source)


def test_an_old_folder_goes_with_the_last_name_also_where_its_source_is_gone(old: Old) -> None:
    before = files_of(old.root)
    assert (release(old.root, "one").needed_by, files_of(old.root)) == (("two",), before)
    shutil.rmtree(old.source)
    released = release(old.root, "two")
    assert (released.removed, released.left) == (len(before), ())
    assert not old.root.exists()


def test_an_old_folder_is_staged_over_where_nobody_else_needs_it(old: Old) -> None:
    release(old.root, "two")
    report = old.staged("one")
    assert report.copied == report.pieces
    assert files_of(old.root) == files_of(old.source)
