"""Folders that are missing, not visible in a container, or cannot be written: what is wrong and the line to type."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from recipes_of_tests import inside, recipe

from hpcai500.files import can_be_made, is_folder, is_there, nearest, scratch_folder
from hpcai500.system import doctor
from hpcai500.system.checks import Check
from hpcai500.system.container import Container, find_container

NOWHERE = Path("/nowhere-hpcai500/imagenet")
ARGUMENTS = ("ic", "--data", str(NOWHERE))


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user can reach: pytest's own are for one."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def as_nobody(ask: Callable[[], Check | str]) -> str:
    """What `ask` says, as a sentence, to a user who is not root: root may write everywhere."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            told = ask()
            os.write(writing, (told.sentence if isinstance(told, Check) else told).encode())
        except Exception as error:  # noqa: BLE001 - the test sees it as what was said
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        told = stream.read()
    os.waitpid(child, 0)
    return told


def test_a_missing_bind_is_told_with_the_line_to_type() -> None:
    check = doctor.data_check(NOWHERE, recipe(), inside(), ARGUMENTS)
    assert check == Check(
        "data",
        "fail",
        "/nowhere-hpcai500/imagenet: not visible inside the container",
        "add --bind /nowhere-hpcai500: apptainer run --bind /nowhere-hpcai500 /apps/hpcai500.sif ic --data "
        "/nowhere-hpcai500/imagenet",
    )


def test_a_folder_that_is_missing_below_a_visible_one_may_be_on_the_host(tmp_path: Path) -> None:
    check = doctor.data_check(tmp_path / "set", None, inside(), ("ic",))
    assert check.detail == f"{tmp_path}/set: no such folder inside the container"
    assert (check.fix or "").startswith(f"add --bind {tmp_path}/set: apptainer run ")


def test_outside_a_container_nobody_is_told_to_bind() -> None:
    check = doctor.data_check(NOWHERE, recipe(), None, ARGUMENTS)
    assert check.sentence == (
        "/nowhere-hpcai500/imagenet: no such folder; give the folder of synthetic-shapes with --data DIR"
    )


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "set.tar").touch()
    check = doctor.data_check(tmp_path / "set.tar", None, inside(), ())
    assert (check.status, check.detail) == ("fail", f"{tmp_path}/set.tar: not a folder")


def test_an_empty_folder_is_no_data_set(tmp_path: Path) -> None:
    assert doctor.data_check(tmp_path, recipe(), None, ()).sentence == (
        f"{tmp_path}: empty; see whether its file system is mounted, or give another --data DIR"
    )


def test_only_a_recipe_with_data_of_its_own_needs_none() -> None:
    assert doctor.data_check(None, recipe(), None, ()).status == "pass"
    check = doctor.data_check(None, recipe("problem.dataset=imagenet-1k"), None, ())
    assert check.sentence == "ic: the recipe trains on imagenet-1k; give its folder with --data DIR"
    assert doctor.data_check(None, None, None, ()).status == "pass"


def test_a_folder_that_is_not_yours_is_no_place_for_a_record(public: Path) -> None:
    public.chmod(0o555)
    assert as_nobody(lambda: doctor.out_check(public / "runs" / "one", None, ())) == (
        f"{public}: you may not write there; give another folder with --out DIR"
    )


def test_data_that_you_may_not_read_is_told(public: Path) -> None:
    private = public / "set"
    private.mkdir(mode=0o000)
    assert as_nobody(lambda: doctor.data_check(private, None, None, ())) == (
        f"{private}: you may not read it; chmod -R u+rX {private}, or ask its owner"
    )


def test_a_record_may_go_below_a_folder_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check = doctor.out_check(Path("runs/one"), None, ())
    assert (check.status, check.detail.partition(",")[0]) == ("pass", f"{tmp_path}/runs/one can be written")
    (tmp_path / "runs").touch()
    assert doctor.out_check(Path("runs/one"), None, ()).detail == f"{tmp_path}/runs: not a folder"


def test_a_file_system_in_memory_does_not_keep_a_containers_record() -> None:
    shared = Path("/dev/shm")
    assert doctor.out_check(shared / "record", None, ()).status == "pass"
    check = doctor.out_check(shared / "record", inside(), ())
    assert check.status == "warn"
    assert "/dev/shm/record lies in memory (tmpfs): the record is gone when the container ends" in check.detail


def test_a_read_only_place_is_told_apart_from_one_of_somebody_else(
    public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The checks of the site see the real thing: here, a folder that cannot be written stands for a read-only mount.
    monkeypatch.setattr(doctor, "is_read_only", lambda folder: True)
    public.chmod(0o555)
    assert as_nobody(lambda: doctor.out_check(public / "a", None, ())).endswith(
        "on a file system that is read-only; give another folder with --out DIR"
    )
    assert as_nobody(lambda: doctor.out_check(NOWHERE, inside(), ("ic",))) == (
        f"{NOWHERE}: not visible inside the container; add --bind /nowhere-hpcai500: apptainer run --bind "
        "/nowhere-hpcai500 /apps/hpcai500.sif ic"
    )
    # /usr lies with `/`, as an image's folders do, and /dev is mounted on its own.
    assert as_nobody(lambda: doctor.out_check(Path("/usr/a"), inside(), ("ic",))) == (
        "/usr: lies in the image, which is read-only; give --out with a folder of the host: apptainer run --bind DIR "
        "/apps/hpcai500.sif ic --out DIR"
    )
    again = as_nobody(lambda: doctor.out_check(Path("/usr/a"), inside(), ("ic", "--out", "/usr/a", "--set", "a.b=c")))
    assert again.endswith("apptainer run --bind DIR /apps/hpcai500.sif ic --set a.b=c --out DIR")
    assert as_nobody(lambda: doctor.out_check(Path("/usr/a"), inside(), ("ic", "--out=/usr/a"))).endswith(
        "ic --out DIR"
    )
    assert as_nobody(lambda: doctor.out_check(Path("/dev/a"), inside(), ("ic",))) == (
        "/dev: read-only inside the container; bind it without :ro: --bind /dev"
    )


def test_little_space_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_LEAST_FREE_BYTES", 10**18)
    check = doctor.out_check(tmp_path, None, ())
    assert check.status == "warn"
    assert "GB left: checkpoints may not fit" in check.detail


@pytest.mark.parametrize(
    ("container", "fix"),
    [
        (None, "set TMPDIR to a folder"),
        (inside(), "apptainer run --bind /nowhere-hpcai500/tmp …, or --env TMPDIR=/tmp"),
    ],
)
def test_a_tmpdir_that_is_not_there_is_a_warning(container: object, fix: str) -> None:
    check = doctor.temporary_check({"TMPDIR": "/nowhere-hpcai500/tmp"}, container, Path())  # type: ignore[arg-type]
    assert check.status == "warn"
    assert check.detail == "TMPDIR=/nowhere-hpcai500/tmp: it is not there: temporary files go to /tmp"
    assert (check.fix or "").startswith(fix)


def test_a_temporary_folder_that_can_be_written_is_fine(tmp_path: Path) -> None:
    assert doctor.temporary_check({"TMPDIR": str(tmp_path)}, None, Path()).status == "pass"
    assert doctor.temporary_check({}, None, Path()).detail == "/tmp can be written"


def test_where_no_temporary_file_can_be_written_no_run_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("hpcai500.files._USUAL", (str(tmp_path / "file"),))
    check = doctor.temporary_check({"TMPDIR": "/nowhere-hpcai500/tmp"}, None, tmp_path / "file" / "record")
    assert check.status == "fail"
    assert check.detail == "TMPDIR=/nowhere-hpcai500/tmp: it is not there, and no other folder can be written"


def test_little_shared_memory_is_a_warning_for_several_ranks_only() -> None:
    assert doctor.shared_memory_check(64 * 2**20, 1, None).status == "pass"
    assert doctor.shared_memory_check(2**30, 8, None).status == "pass"
    check = doctor.shared_memory_check(64 * 2**20, 8, inside())
    assert (check.status, check.detail) == ("warn", "/dev/shm has 64 MiB: NCCL and MPI need more for 8 ranks")
    assert doctor.shared_memory_check(None, 8, None).status == "skip"


def test_the_nearest_folder_that_is_there_is_found(tmp_path: Path) -> None:
    assert nearest(tmp_path / "a" / "b") == tmp_path
    assert nearest(NOWHERE) == Path("/")
    assert doctor.is_read_only(Path("/sys")) == bool(os.statvfs("/sys").f_flag & os.ST_RDONLY)


@pytest.fixture
def locked(public: Path) -> Path:
    """A folder that is there, below one that may not be searched."""
    below = public / "locked" / "a"
    below.mkdir(parents=True)
    below.parent.chmod(0o700)
    return below


def test_below_a_folder_that_may_not_be_searched_nothing_is_seen_and_nothing_fails(locked: Path) -> None:
    assert as_nobody(lambda: str((is_there(locked), is_folder(locked)))) == "(False, False)"
    assert as_nobody(lambda: str(nearest(locked / "run"))) == str(locked.parent)
    assert as_nobody(lambda: str(can_be_made(locked / "run"))) == "False"


def test_a_record_below_a_folder_that_may_not_be_searched_is_told(locked: Path) -> None:
    assert as_nobody(lambda: doctor.out_check(locked / "run", None, ())) == (
        f"{locked.parent}: you may not write there; give another folder with --out DIR"
    )


@pytest.mark.parametrize("container", [None, inside()])
def test_data_below_a_folder_that_may_not_be_searched_is_not_said_to_be_missing(
    locked: Path, container: Container | None
) -> None:
    assert as_nobody(lambda: doctor.data_check(locked, None, container, ())) == (
        f"{locked}: may not be read by this user (Permission denied); ask the owner of {locked.parent}, or give "
        "another folder with --data DIR"
    )


def test_temporary_files_go_elsewhere_where_tmpdir_may_not_be_searched(locked: Path) -> None:
    def writes() -> str:
        with scratch_folder({"TMPDIR": str(locked)}, locked / "run") as folder:
            return str(Path(folder).parent)

    assert as_nobody(writes) == "/tmp"
    said = as_nobody(lambda: doctor.temporary_check({"TMPDIR": str(locked)}, None, locked / "run"))
    assert said.startswith(f"TMPDIR={locked}: it may not be written by this user: temporary files go to /tmp; ")


def test_an_image_below_a_folder_that_may_not_be_searched_is_one_that_cannot_be_seen(locked: Path) -> None:
    def file() -> str:
        found = find_container({"APPTAINER_CONTAINER": str(locked / "hpcai500.sif")})
        return f"{found and found.file} {found and found.is_sandbox}"

    assert as_nobody(file) == "None False"
