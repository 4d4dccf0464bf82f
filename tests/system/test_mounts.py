"""Which mount a path lies on, and whether what is behind it answers. A mount that is really dead: tests/site."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from machines_of_tests import sample

from hpcai500.errors import EnvironmentLacksError
from hpcai500.system.mounts import mount_of, parse_mounts, public, read_mounts, require_reachable, unreachable


def test_the_mount_of_a_folder_is_the_deepest_and_the_last() -> None:
    mounts = parse_mounts(sample("mountinfo.txt"))
    found = {
        path: mount_of(Path(path), mounts)
        for path in ("/home/a", "/scratch/x", "/scratch/with space/y", "/tmp", "/homes")
    }
    assert {path: mount.type if mount else None for path, mount in found.items()} == {
        "/home/a": "nfs4", "/scratch/x": "lustre", "/scratch/with space/y": "fuse.sshfs", "/tmp": "ext4",
        "/homes": "xfs",
    }  # fmt: skip
    assert mount_of(Path("/x"), []) is None


def test_a_kernel_that_tells_no_mounts_has_none(tmp_path: Path) -> None:
    assert read_mounts(tmp_path) == []


def test_who_mounts_and_by_what_password_is_left_out() -> None:
    mounts = {mount.point: mount for mount in parse_mounts(sample("mountinfo.txt"))}
    assert mounts["/scratch/with space"].source == "files.example:/data"
    told = ",".join(mounts["/share"].options)
    assert "hunter2" not in told
    assert "alice" not in told
    assert "iocharset=utf8" in told
    assert public("secretfile=/etc/ceph/x") == "secretfile=[left out]"


def test_whatever_answers_is_reachable_be_it_there_or_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "away").symlink_to("nowhere/at/all")
    (tmp_path / os.fsdecode(b"\xff=\n@")).mkdir()
    os.mkfifo(tmp_path / "fifo")
    there = ["file", "empty", "loop", "away", "fifo", "file/below", "missing/..", "a" * 300, os.fsdecode(b"\xff=\n@")]
    paths = [tmp_path, *(tmp_path / name for name in there), "/dev/fd/0", "/dev/stdin", "", "nul\0", "relative"]
    require_reachable(paths, seconds=60)


def test_as_many_paths_as_a_shell_passes_on_are_touched(tmp_path: Path) -> None:
    assert unreachable((tmp_path / str(number) for number in range(5000)), seconds=60) == []


def test_a_working_directory_that_was_removed_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    require_reachable([".", "x", tmp_path], seconds=60)


def test_what_does_not_answer_in_time_is_named_with_its_mount_and_the_fix(tmp_path: Path) -> None:
    # In no time nothing answers.
    with pytest.raises(EnvironmentLacksError) as caught:
        require_reachable([tmp_path / "a", tmp_path / "b"], seconds=0)
    mount = mount_of(tmp_path, read_mounts())
    assert mount is not None
    assert str(caught.value).startswith(
        f"{tmp_path / 'a'}: does not answer (waited 0 s): {mount.point} ({mount.type}, from {mount.source}) is dead "
        "(and 1 more); see whether what serves it runs"
    )
