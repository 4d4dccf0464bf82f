"""Folders and files as people really have them, and as nobody should."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from image_tree import encoded, pixels, settle, write_tree
from staged_sets import files_of, staged

from hpcai500.data.imagenet.index import build_index, load_index, make_split, pack_index
from hpcai500.data.staged import read_set
from hpcai500.data.staging import release
from hpcai500.errors import DataError, RunError, UsageError
from hpcai500.streams import tell


@pytest.fixture(autouse=True)
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "source")


def test_folders_that_lie_in_each_other_are_refused_also_behind_links(source: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(source)
    for root, told in (
        (source, "inside the set"),
        (source / "copy", "inside the set"),
        (tmp_path / "link" / "copy", "inside the set"),
        (source / "train" / ".." / "copy", "inside the set"),
        (tmp_path, "lies in it"),
    ):
        before = files_of(source)
        with pytest.raises(DataError, match=told):
            staged(source, root)
        assert files_of(source) == before
        assert not (root / ".hpcai500-staging").exists()


def test_a_source_that_is_missing_and_a_destination_that_is_a_file_are_told(source: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        staged(tmp_path / "nowhere", tmp_path / "set")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="no folder; give another one"):
        staged(source, tmp_path / "file")
    with pytest.raises(RunError, match="cannot be written: Not a directory"):
        staged(source, tmp_path / "file" / "deeper")
    with pytest.raises(RunError, match="cannot be written: No such file"):
        staged(source, Path("/proc/nowhere/set"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(DataError, match=r"holds files that staging did not put there \(thesis.tex\)"):
        staged(source, tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]


def test_links_at_the_source_are_followed_and_files_are_what_is_staged(source: Path, tmp_path: Path) -> None:
    target = (source / "train/cat/cat_0.JPEG").rename(tmp_path / "elsewhere.JPEG")
    (source / "train/cat/cat_0.JPEG").symlink_to(target)
    (source / "train/dog").rename(tmp_path / "dogs")
    (source / "train/dog").symlink_to(tmp_path / "dogs")
    staged(source, tmp_path / "set")
    assert not (tmp_path / "set/train/cat/cat_0.JPEG").is_symlink()
    assert not (tmp_path / "set/train/dog").is_symlink()
    assert load_index(tmp_path / "set").fingerprint == load_index(source).fingerprint
    assert (tmp_path / "set/train/cat/cat_0.JPEG").read_bytes() == target.read_bytes()


def test_a_destination_behind_a_link_is_staged_where_the_link_leads(source: Path, tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "local")
    staged(source, tmp_path / "link" / "set")
    assert files_of(tmp_path / "local" / "set") == files_of(source)


def test_links_in_a_staged_folder_are_not_written_through(source: Path, tmp_path: Path) -> None:
    staged(source, tmp_path / "set")
    victim = load_index(source).train.paths[0]
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "set" / victim).unlink()
    (tmp_path / "set" / victim).symlink_to(tmp_path / "precious")
    assert staged(source, tmp_path / "set", verify=True).damaged == 1
    assert (tmp_path / "precious").read_bytes() == b"precious"
    assert files_of(tmp_path / "set") == files_of(source)


def test_folders_that_are_links_are_neither_written_through_nor_removed_through(source: Path, tmp_path: Path) -> None:
    before, root = files_of(source), tmp_path / "set"
    for link, target in (("train", source / "train"), ("val/cat", source / "val/cat")):
        staged(source, root)
        shutil.rmtree(root / link)
        (root / link).symlink_to(target)
        (root / ".hpcai500-staging/manifest.jsonl").write_bytes(b"")
        with pytest.raises(RunError, match="a link where a folder of images belongs; remove it"):
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
    forged = build_index(tmp_path, ("..", *index.classes[1:]), train, index.val, 0)
    (tmp_path / "set/.hpcai500-staging/index.npz").write_bytes(pack_index(forged, {}))
    release(tmp_path / "set", None)
    assert outside.read_text() == "precious"


def test_names_with_newlines_and_names_that_are_no_text_are_staged_and_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_tree(tmp_path / "source")
    odd = [b"a\nb.JPEG", b"\xff\xfe.JPEG", b"-rf.JPEG", b"x" * 250 + b".JPEG"]
    for number, name in enumerate(odd):
        Path(os.fsdecode(os.fsencode(source / "train/cat") + b"/" + name)).write_bytes(encoded(pixels(50 + number)))
    settle(source)
    report = staged(source, tmp_path / "set")
    assert report.copied == 14
    assert files_of(tmp_path / "set") == files_of(source)
    assert load_index(tmp_path / "set").fingerprint == load_index(source).fingerprint
    Path(source / "train/cat/a\nb.JPEG").write_bytes(b"longer or shorter")
    release(tmp_path / "set", None)
    with pytest.raises(DataError) as error:
        staged(source, tmp_path / "set")
    tell(error.value)
    (line,) = capsys.readouterr().err.splitlines()
    assert "a\\nb.JPEG" in line


def test_a_folder_whose_name_is_no_text_is_reported_as_json(tmp_path: Path) -> None:
    source = write_tree(tmp_path / "source")
    root = os.fsencode(tmp_path) + b"/set\xff"
    command = [*map(os.fsencode, (sys.executable, "-m", "hpcai500.data", "stage", "ic", source)), root, b"--json"]
    ended = subprocess.run(command, capture_output=True, check=True)
    assert os.fsencode(json.loads(ended.stdout)["root"]) == root


def test_a_folder_in_place_of_a_file_is_told_and_not_removed(source: Path, tmp_path: Path) -> None:
    staged(source, tmp_path / "set")
    victim = tmp_path / "set" / load_index(source).val.paths[0]
    victim.unlink()
    victim.mkdir()
    (victim / "mine").write_text("kept")
    with pytest.raises(RunError, match="a folder where an image belongs; remove it"):
        staged(source, tmp_path / "set", verify=True)
    assert release(tmp_path / "set", None).left == ("val",)
    assert (victim / "mine").read_text() == "kept"


def test_a_pipe_in_place_of_a_source_file_is_told_and_waited_for_by_nobody(source: Path, tmp_path: Path) -> None:
    victim = source / load_index(source).train.paths[0]
    victim.unlink()
    os.mkfifo(victim)
    with pytest.raises(DataError, match="no file; put the file itself"):
        staged(source, tmp_path / "set")


def test_a_source_file_that_is_gone_is_told(source: Path, tmp_path: Path) -> None:
    victim = source / load_index(source).train.paths[0]
    time = victim.parent.stat().st_mtime_ns
    victim.unlink()
    # By the folder's time, the cached index is as good as new.
    os.utime(victim.parent, ns=(time, time))
    with pytest.raises(DataError, match=rf"{victim}: cannot be read: No such file or directory; check"):
        staged(source, tmp_path / "set")


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


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b'{"format": "hpcai500 staging 1"}', b'{"format": "hpcai500 staging 2"}', b"\xff", b"null"],
)
def test_a_damaged_description_is_told_with_what_to_do(source: Path, tmp_path: Path, content: bytes) -> None:
    staged(source, tmp_path / "set")
    (tmp_path / "set/.hpcai500-staging/set.json").write_bytes(content)
    for call in (read_set, load_index, lambda root: staged(source, root), lambda root: release(root, None)):
        with pytest.raises(DataError, match=r"damaged .*; remove .*, and stage the set again"):
            call(tmp_path / "set")


def test_a_damaged_name_is_told(source: Path, tmp_path: Path) -> None:
    staged(source, tmp_path / "set")
    (tmp_path / "set/.hpcai500-staging/names/somebody.json").write_bytes(b"{}")
    with pytest.raises(DataError, match=r"somebody.json: damaged .*; remove"):
        staged(source, tmp_path / "set")


def test_a_folder_of_another_user_is_not_staged_into(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name can be guessed, and what lies there would be trained on."""
    (tmp_path / "set").mkdir()
    if os.geteuid() == 0:
        os.chown(tmp_path / "set", 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(UsageError, match=r"belongs to another user \(uid \d+\): stage into a folder of your own"):
        staged(source, tmp_path / "set")


def test_a_set_that_cannot_be_read_is_not_called_damaged(source: Path) -> None:
    # In place of one that this user may not read: root, who may run this, may read all.
    (source / ".hpcai500-staging" / "set.json").mkdir(parents=True)
    with pytest.raises(DataError) as error:
        load_index(source)
    assert str(error.value).endswith("set.json: cannot be read: Is a directory; check permissions and mount")
