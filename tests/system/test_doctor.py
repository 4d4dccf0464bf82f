"""The checks that only look: folders, the container, cores and memory. They tell what is wrong, and what to type."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from recipes_of_tests import IMAGE, inside, recipe

from hpcai500.errors import EnvironmentLacksError
from hpcai500.files import can_be_made, exists, is_folder, nearest, scratch_folder
from hpcai500.hosts import LauncherName
from hpcai500.interpreter import without_code
from hpcai500.system import doctor
from hpcai500.system.checks import Check
from hpcai500.system.container import Container, find_container, short_image
from hpcai500.system.looking import memory_limit

NOWHERE = Path("/nowhere-hpcai500/imagenet")
TMPDIR = {"TMPDIR": "/nowhere-hpcai500/tmp"}
OURS = inside()
RUN = "apptainer run --bind"


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user can reach: pytest's own are for one."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def locked(public: Path) -> Path:
    """A folder that is there, below one that may not be searched."""
    below = public / "locked" / "a"
    below.mkdir(parents=True)
    below.parent.chmod(0o700)
    return below


def as_nobody(*asked: Callable[[], Check | str]) -> list[str]:
    """What each of `asked` says, as a sentence, to a user who is not root: root may write everywhere."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            told = [one.sentence if isinstance(one, Check) else one for one in (ask() for ask in asked)]
            os.write(writing, json.dumps(told).encode())
        except Exception as error:  # noqa: BLE001 - the test sees it as what was said
            os.write(writing, json.dumps([repr(error)]).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        told = stream.read()
    os.waitpid(child, 0)
    return json.loads(told)  # type: ignore[no-any-return]


# --- the folder of the data


def test_data_that_is_not_there_is_told_with_the_bind_to_type_inside_a_container_only(tmp_path: Path) -> None:
    arguments = ("ic", "--data", str(NOWHERE))
    assert doctor.data_check(NOWHERE, recipe(), OURS, arguments) == Check(
        "data", "fail", f"{NOWHERE}: not visible inside the container",
        f"add --bind /nowhere-hpcai500: {RUN} /nowhere-hpcai500 /apps/hpcai500.sif ic --data {NOWHERE}",
    )  # fmt: skip
    assert doctor.data_check(NOWHERE, recipe(), None, arguments).sentence == (
        f"{NOWHERE}: no such folder; give the folder of synthetic-shapes with --data DIR"
    )
    # Below a folder that is visible, it may be on the host.
    assert doctor.data_check(tmp_path / "set", None, OURS, ("ic",)).sentence.startswith(
        f"{tmp_path}/set: no such folder inside the container; add --bind {tmp_path}/set: apptainer run "
    )


def test_a_file_and_an_empty_folder_are_no_data_set(tmp_path: Path) -> None:
    assert doctor.data_check(tmp_path, recipe(), None, ()).sentence == (
        f"{tmp_path}: empty; check whether its file system is mounted, or give another --data DIR"
    )
    (tmp_path / "set.tar").touch()
    check = doctor.data_check(tmp_path / "set.tar", None, OURS, ())
    assert (check.status, check.detail) == ("fail", f"{tmp_path}/set.tar: not a folder")


def test_only_a_recipe_with_data_of_its_own_needs_none() -> None:
    assert doctor.data_check(None, recipe(), None, ()).status == "pass"
    assert doctor.data_check(None, None, None, ()).status == "pass"
    check = doctor.data_check(None, recipe("problem.dataset=imagenet-1k"), None, ())
    assert check.sentence == "ic: the recipe trains on imagenet-1k; give its folder with --data DIR"


# --- the folder of the record


def test_a_record_may_go_below_a_folder_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check = doctor.out_check(Path("runs/one"), None, ())
    assert (check.status, check.detail.partition(",")[0]) == ("pass", f"{tmp_path}/runs/one is writable")
    (tmp_path / "runs").touch()
    assert doctor.out_check(Path("runs/one"), None, ()).detail == f"{tmp_path}/runs: not a folder"
    monkeypatch.setattr(doctor, "_LEAST_FREE_BYTES", 10**18)
    check = doctor.out_check(tmp_path, None, ())
    assert check.status == "warn"
    assert "GB left: checkpoints may not fit" in check.detail


@pytest.mark.parametrize(("free", "status"), [(5e9, "pass"), (0.9e9, "warn"), (0.7e9, "fail")])
def test_a_disk_says_how_much_a_run_needs(tmp_path: Path, free: float, status: str) -> None:
    check = doctor.space_check(tmp_path / "runs", int(free), 200 * 10**6)
    assert check.status == status
    assert f"{tmp_path} has " in check.detail
    assert "a run needs 1 GB: 4 checkpoints of 200 MB, 200 MB for the rest" in check.detail
    assert (check.fix is None) == (status == "pass")


def test_a_file_system_in_memory_does_not_keep_a_containers_record() -> None:
    record = Path("/dev/shm/record")
    assert doctor.out_check(record, None, ()).status == "pass"
    check = doctor.out_check(record, OURS, ())
    assert check.status == "warn"
    assert f"{record} is in memory (tmpfs): the record is lost when the container or the node stops" in check.detail


def test_a_read_only_place_is_told_apart_from_one_of_somebody_else(
    public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The checks of the site see the real thing: here, a folder that cannot be written stands for a read-only mount.
    monkeypatch.setattr(doctor, "is_read_only", lambda folder: True)
    public.chmod(0o555)
    places: list[tuple[Path, Container | None, tuple[str, ...]]] = [
        (public / "a", None, ()),
        (NOWHERE, OURS, ("ic",)),
        # /usr lies with `/`, as an image's folders do, and /dev is mounted on its own.
        (Path("/usr/a"), OURS, ("ic",)),
        (Path("/usr/a"), OURS, ("ic", "--out", "/usr/a", "--set", "a.b=c")),
        (Path("/usr/a"), OURS, ("ic", "--out=/usr/a")),
        (Path("/dev/a"), OURS, ("ic",)),
    ]
    first, *others = as_nobody(*(lambda place=place: doctor.out_check(*place) for place in places))
    assert first.endswith("on a read-only file system; give another folder with --out DIR")
    image = "/usr: in the image, which is read-only; give --out with a folder of the host:"
    assert others == [
        f"{NOWHERE}: not visible inside the container; add --bind /nowhere-hpcai500: {RUN} /nowhere-hpcai500 "
        "/apps/hpcai500.sif ic",
        f"{image} {RUN} DIR /apps/hpcai500.sif ic --out DIR",
        f"{image} {RUN} DIR /apps/hpcai500.sif ic --set a.b=c --out DIR",
        f"{image} {RUN} DIR /apps/hpcai500.sif ic --out DIR",
        "/dev: read-only inside the container; bind it without :ro: --bind /dev",
    ]


# --- another user's folders


def test_what_another_user_may_not_read_or_write_is_told(public: Path) -> None:
    private = public / "set"
    private.mkdir(mode=0o000)
    public.chmod(0o555)
    assert as_nobody(
        lambda: doctor.data_check(private, None, None, ()), lambda: doctor.out_check(public / "runs/one", None, ())
    ) == [
        f"{private}: no permission to read it; chmod -R u+rX {private}, or ask its owner",
        f"{public}: no permission to write there; give another folder with --out DIR",
    ]


def test_below_a_folder_that_may_not_be_searched_nothing_is_seen_and_nothing_fails(locked: Path) -> None:
    image = {"APPTAINER_CONTAINER": str(locked / "hpcai500.sif")}

    def writes() -> str:
        with scratch_folder({"TMPDIR": str(locked)}, locked / "run") as folder:
            return str(Path(folder).parent)

    def file() -> str:
        found = find_container(image)
        return f"{found and found.file} {found and found.is_sandbox}"

    *seen, data, bound, temporary = as_nobody(
        lambda: str((exists(locked), is_folder(locked))),
        lambda: str(nearest(locked / "run")),
        lambda: str(can_be_made(locked / "run")),
        writes,
        file,
        lambda: doctor.out_check(locked / "run", None, ()),
        lambda: doctor.data_check(locked, None, None, ()),
        lambda: doctor.data_check(locked, None, OURS, ()),
        lambda: doctor.temporary_check({"TMPDIR": str(locked)}, None, locked / "run"),
    )
    refused = f"{locked.parent}: no permission to write there; give another folder with --out DIR"
    assert seen == ["(False, False)", str(locked.parent), "False", "/tmp", "None False", refused]
    assert data == bound == (
        f"{locked}: not readable by this user (Permission denied); ask the owner of {locked.parent}, or give "
        "another folder with --data DIR"
    )  # fmt: skip
    assert temporary.startswith(
        f"TMPDIR={locked}: not writable by this user: temporary files go to /tmp; "
    )  # fmt: skip


def test_the_nearest_folder_that_is_there_is_found(tmp_path: Path) -> None:
    assert nearest(tmp_path / "a" / "b") == tmp_path
    assert nearest(NOWHERE) == Path("/")
    assert doctor.is_read_only(Path("/sys")) == bool(os.statvfs("/sys").f_flag & os.ST_RDONLY)


# --- temporary files


@pytest.mark.parametrize(
    ("container", "fix"),
    [(None, "set TMPDIR to a folder"), (OURS, f"{RUN} {TMPDIR['TMPDIR']} …, or --env TMPDIR=/tmp")],
)
def test_a_tmpdir_that_is_not_there_is_a_warning(container: Container | None, fix: str) -> None:
    check = doctor.temporary_check(TMPDIR, container, Path())
    assert check.status == "warn"
    assert check.detail == "TMPDIR=/nowhere-hpcai500/tmp: it does not exist: temporary files go to /tmp"
    assert (check.fix or "").startswith(fix)


def test_where_no_temporary_file_can_be_written_no_run_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.temporary_check({"TMPDIR": str(tmp_path)}, None, Path()).status == "pass"
    assert doctor.temporary_check({}, None, Path()).detail == "/tmp is writable"
    (tmp_path / "file").touch()
    monkeypatch.setattr("hpcai500.files._USUAL", (str(tmp_path / "file"),))
    check = doctor.temporary_check(TMPDIR, None, tmp_path / "file" / "record")
    assert check.status == "fail"
    assert check.detail == "TMPDIR=/nowhere-hpcai500/tmp: it does not exist, and no other folder is writable"


# --- cores and memory


@pytest.mark.parametrize(
    ("launcher", "fix"),
    [
        ("srun", "srun --cpus-per-task=N"),
        ("mpirun", "mpirun --bind-to none"),
        ("none", "request more from the scheduler"),
    ],
)
def test_one_core_of_many_is_told_with_the_launchers_own_option(launcher: LauncherName, fix: str) -> None:
    check = doctor.cores_check(1, 64, 4, launcher)
    assert (check.status, check.detail.partition(" for")[0]) == ("warn", "1 of 64 cores")
    assert (check.fix or "").startswith(fix)


@pytest.mark.parametrize(("available", "total", "ranks"), [(2, 64, 4), (1, 2, 1), (1, 64, 64), (1, 1, 1), (64, 64, 1)])
def test_a_fair_share_of_the_cores_is_fine(available: int, total: int, ranks: int) -> None:
    assert doctor.cores_check(available, total, ranks, "mpirun").status == "pass"


def test_the_smallest_limit_of_the_control_groups_counts(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) is None
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("1:cpu:/\n0::/job_7/step_0\n")
    step = tmp_path / "sys" / "fs" / "cgroup" / "job_7" / "step_0"
    step.mkdir(parents=True)
    (step / "memory.max").write_text("max\n")
    assert memory_limit(tmp_path) is None
    (step.parent / "memory.max").write_text("64000000000\n")
    assert memory_limit(tmp_path) == 64_000_000_000
    # The first version of control groups.
    (tmp_path / "proc" / "self" / "cgroup").write_text("4:memory:/slurm/job_7\n3:cpuset:/\n")
    job = tmp_path / "sys" / "fs" / "cgroup" / "memory" / "slurm" / "job_7"
    job.mkdir(parents=True)
    (job / "memory.limit_in_bytes").write_text("8000000000\n")
    assert memory_limit(tmp_path) == 8_000_000_000


def test_memory_is_said_and_never_judged_but_for_what_ranks_share() -> None:
    assert doctor.memory_check(None, 10**11).detail == "100 GB"
    assert doctor.memory_check(2**63 - 4096, 10**11).detail == "100 GB"
    assert doctor.memory_check(8 * 10**9, 10**11).detail == "8 GB for this job, of 100 GB"
    assert doctor.shared_memory_check(64 * 2**20, 1, None).status == "pass"
    assert doctor.shared_memory_check(2**30, 8, None).status == "pass"
    check = doctor.shared_memory_check(64 * 2**20, 8, OURS)
    assert (check.status, check.detail) == ("warn", "/dev/shm has 64 MiB: NCCL and MPI need more for 8 ranks")
    assert doctor.shared_memory_check(None, 8, None).status == "skip"


# --- the container as Apptainer tells of it: variables as seen with 1.4.5, files in a folder that stands for `/`


STARTED = {
    "APPTAINER_CONTAINER": "/apps/hpcai500.sif",
    "APPTAINER_NAME": "hpcai500.sif",
    "APPTAINER_COMMAND": "run",
    "APPTAINER_BIND": "",
    "SINGULARITY_CONTAINER": "/apps/hpcai500.sif",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root folder as an image has it: with an empty file to bind on, and a place for its description."""
    (tmp_path / ".singularity.d" / "libs").mkdir(parents=True)
    (tmp_path / "share" / "hpcai500").mkdir(parents=True)
    (tmp_path / "image.sif").touch()
    return tmp_path


def started(root: Path, **changes: str) -> Container:
    found = find_container(STARTED | changes, root, root)
    assert found is not None
    return found


def test_outside_there_is_none(tmp_path: Path) -> None:
    assert find_container({"HOME": "/root"}, tmp_path, tmp_path) is None
    assert doctor.container_check(None, read_only=True).status == "pass"
    assert doctor.image_check(None, ["ic"]).fix is None


def test_an_image_of_ours_is_named_by_what_it_says_of_itself(root: Path) -> None:
    assert doctor.container_check(started(root), read_only=False).detail == (
        "apptainer, hpcai500.sif, writable; not an image of hpcai500"
    )
    description = root / "share" / "hpcai500" / "image.json"
    description.write_text(json.dumps(IMAGE))
    container = started(root)
    assert (container.name, container.action, container.file) == ("hpcai500-cpu 0.1.0", "run", None)
    check = doctor.container_check(container, read_only=True)
    assert check.detail == "apptainer, hpcai500-cpu 0.1.0, content cacacacacaca, read-only"
    for damaged in ("{", "[]", "\xff"):
        description.write_text(damaged)
        with pytest.raises(EnvironmentLacksError, match=r"image\.json.*: download or build the image again"):
            started(root)


def test_a_container_is_known_without_variables_and_singularity_by_its_own_name(root: Path) -> None:
    assert find_container({}, root, root) == Container("apptainer")
    container = find_container({"SINGULARITY_CONTAINER": "/apps/old.sif"}, root, root)
    assert container is not None
    assert container.line(["--nv"], ["ic"]) == "singularity run --nv /apps/old.sif ic"


def test_the_file_that_was_bound_for_it_comes_before_the_path_on_the_host(root: Path) -> None:
    check = doctor.image_check(started(root), ["ic", "--data", "/scratch/my data"])
    assert (check.status, check.fix) == (
        "warn", f"{RUN} /apps/hpcai500.sif:/image.sif:ro /apps/hpcai500.sif ic --data '/scratch/my data'",
    )  # fmt: skip
    (root / "apps").mkdir()
    for path in (root / "apps" / "hpcai500.sif", root / "image.sif"):
        path.write_bytes(b"an image")
        assert started(root).file == path
        assert doctor.image_check(started(root), ["ic"]).status == "pass"


def test_a_folder_as_image_has_no_hash_and_needs_no_bind(root: Path) -> None:
    (root / "apps" / "hpcai500.sif").mkdir(parents=True)
    container = started(root)
    assert doctor.image_check(container, ["ic"]).status == "pass"
    assert "a folder (sandbox)" in doctor.container_check(container, read_only=True).detail


def test_the_line_to_type_keeps_what_is_known_of_the_start(root: Path) -> None:
    (root / ".singularity.d" / "libs" / "libcuda.so.1").touch()
    container = started(root, APPTAINER_COMMAND="exec", APPTAINER_BIND="/data")
    assert container.line(["--bind", "/scratch"], ["ic"]) == (
        "apptainer exec --nv --bind /scratch /apps/hpcai500.sif hpcai500 ic (in addition to your --bind options)"
    )
    assert short_image({"name": "a", "version": "1", "content_sha256": None, "file_sha256": "ab" * 32}) == (
        "a 1, file abababababab"
    )
    assert short_image({"name": "site.sif", "version": None, "content_sha256": None}) == "site.sif"


@pytest.mark.parametrize(
    ("environment", "detail"),
    [
        ({"PYTHONPATH": "/home/me/lib", "PYTHONHOME": "/usr"},
         "PYTHONPATH, PYTHONHOME are set but ignored: packages on them are not used"),
        ({"PYTHONPATH": "/home/me/lib", "OPENSSL_CONF": "/x.cnf"},
         "PYTHONPATH is set but ignored: packages on it are not used"),
        ({"OPENSSL_CONF": "/x.cnf"}, "packages of the installation only"),
        ({"PYTHONPATH": "", "PYTHONSTARTUP": "/x.py"}, "packages of the installation only"),
        ({}, "packages of the installation only"),
    ],
)  # fmt: skip
def test_packages_that_are_not_heeded_are_told(environment: dict[str, str], detail: str) -> None:
    within, outside = (doctor.python_check(container, without_code(environment)) for container in (OURS, None))
    assert within.status == outside.status == ("warn" if "ignored" in detail else "pass")
    assert outside.detail.startswith(detail)
