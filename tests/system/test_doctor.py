"""The checks that only look: folders, the container, cores and memory. They tell what is wrong, and what to type."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from fakes.machines import DGX_NODES, adapter, gpu_node, link, pci_device, tree
from recipes_of_tests import IMAGE, inside, recipe

from hpcai500.errors import EnvironmentLacksError
from hpcai500.files import can_be_made, exists, is_folder, nearest, scratch_folder
from hpcai500.hosts import LauncherName, Placement
from hpcai500.interpreter import without_code
from hpcai500.recipe import load_recipe
from hpcai500.system import doctor
from hpcai500.system.checks import Check
from hpcai500.system.container import Container, find_container, short_image
from hpcai500.system.limits import CpuQuota, cpu_quota, memory_limit

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


@pytest.mark.parametrize(
    ("benchmark", "link", "target", "bound"),
    [
        ("ic", "set", "hidden/set", "hidden/set"),
        ("ic", "set/train", "hidden/train", "hidden/train"),
        ("ic", "set/train/n1", "hidden/train/n1", "hidden/train"),
        ("ewa", "set/climo_1979.h5", "hidden/climo_1979.h5", "hidden"),
    ],
)
def test_where_a_link_leads_out_of_the_container_its_target_is_what_to_bind(
    tmp_path: Path, benchmark: str, link: str, target: str, bound: str
) -> None:
    data, arguments = tmp_path / "set", (benchmark, "--data", str(tmp_path / "set"))
    (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
    if benchmark == "ic" and link != "set":
        (data / "val").mkdir()
    (tmp_path / link).symlink_to(tmp_path / target)
    wanted = load_recipe(f"{benchmark}/smoke", [])
    check = doctor.data_check(data, wanted, OURS, arguments)
    assert (check.status, str(check.fix).split(": ")[0]) == ("fail", f"add --bind {tmp_path}/{bound}")
    assert check.detail.startswith(f"{tmp_path}/{link}: leads to {tmp_path}/{target}, ")
    for split in ("train", "val"):
        (tmp_path / target / split).mkdir(parents=True)
    assert doctor.data_check(data, wanted, OURS, arguments).status == "pass"


def test_a_file_and_an_empty_folder_are_no_data_set(tmp_path: Path) -> None:
    assert doctor.data_check(tmp_path, recipe(), None, ()).sentence == (
        f"{tmp_path}: empty; check whether its file system is mounted, or give another --data DIR"
    )
    (tmp_path / "set.tar").touch()
    check = doctor.data_check(tmp_path / "set.tar", None, OURS, ())
    assert (check.status, check.detail) == ("fail", f"{tmp_path}/set.tar: a file, not a folder")


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


def test_srun_that_gives_a_lone_rank_one_of_two_cores_is_told() -> None:
    """As `srun -c1` in a job with two CPUs a task."""
    check = doctor.cores_check(1, 2, 1, "srun")
    assert (check.status, "since Slurm 22.05" in (check.fix or "")) == ("warn", True)
    assert doctor.cores_check(1, 2, 2, "srun").status == "pass"


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


V1, V2 = ("3:cpu,cpuacct:/job_7/step_0", "cpu"), ("0::/job_7/step_0", "")


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        (V2, {"job_7/step_0/cpu.max": "max 100000"}, None),
        (V2, {"job_7/step_0/cpu.max": "50000 100000"}, 0.5),
        (V2, {"job_7/step_0/cpu.max": "max 100000", "job_7/cpu.max": "300000 200000"}, 1.5),
        (V2, {"job_7/step_0/cpu.max": "400000 100000", "cpu.max": "200000 100000"}, 2.0),
        (V1, {"job_7/step_0/cpu.cfs_quota_us": "-1", "job_7/step_0/cpu.cfs_period_us": "100000"}, None),
        (V1, {"job_7/cpu.cfs_quota_us": "250000", "job_7/cpu.cfs_period_us": "100000"}, 2.5),
    ],
)
def test_the_smallest_cpu_quota_of_the_control_groups_counts(
    tmp_path: Path, groups: tuple[str, str], files: dict[str, str], cores: float | None
) -> None:
    line, mounted = groups
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(f"{line}\n")
    for name, text in files.items():
        file = tmp_path / "sys" / "fs" / "cgroup" / mounted / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    found = cpu_quota(tmp_path)
    assert (found.cores if found else None) == cores


@pytest.mark.parametrize(
    "stat",
    [
        "nr_periods 90\nnr_throttled 60\nthrottled_time 7500000000\n",
        "usage_usec 12\nnr_periods 90\nnr_throttled 60\nthrottled_usec 7500000\nnr_bursts 0\n",
    ],
)
def test_both_versions_of_control_groups_tell_how_often_they_stopped(tmp_path: Path, stat: str) -> None:
    (tmp_path / "cpu.stat").write_text(stat)
    found = CpuQuota(0.5, tmp_path / "cpu.stat").throttling()
    assert found == {"periods": 90, "throttled_periods": 60, "throttled_seconds": pytest.approx(7.5)}


@pytest.mark.parametrize(
    ("quota", "status"), [(None, "pass"), (0.5, "warn"), (3.5, "warn"), (4.0, "pass"), (64.0, "pass")]
)
def test_a_cpu_quota_below_the_cores_is_a_warning(quota: float | None, status: str) -> None:
    check = doctor.cores_check(4, 8, 1, "none", quota)
    assert check.status == status
    assert check.detail.startswith("4 of 8 cores")
    assert (f"a CPU quota allows the time of {quota} cores" in check.detail) == (status == "warn")


def test_memory_is_said_and_never_judged_but_for_what_ranks_share() -> None:
    assert doctor.memory_check(None, 10**11).detail == "100 GB"
    assert doctor.memory_check(2**63 - 4096, 10**11).detail == "100 GB"
    assert doctor.memory_check(8 * 10**9, 10**11).detail == "8 GB for this job, of 100 GB"
    assert doctor.shared_memory_check(64 * 2**20, 1, None).status == "pass"
    assert doctor.shared_memory_check(2**30, 1, None, read_only=True).status == "pass"
    read_only = doctor.shared_memory_check(2**30, 2, None, read_only=True)
    assert (read_only.status, read_only.fix) == ("warn", "mount it writable")
    assert doctor.shared_memory_check(2**30, 8, None).status == "pass"
    check = doctor.shared_memory_check(64 * 2**20, 8, OURS)
    assert (check.status, check.detail) == ("warn", "/dev/shm has 64 MiB: NCCL and MPI need more for 8 ranks")
    # Without --contain it is the host's that is too small.
    assert (check.fix or "").startswith("mount a larger one on the host")
    assert doctor.shared_memory_check(None, 8, None).status == "skip"


@pytest.mark.parametrize(
    ("settings", "ranks", "world_size", "memory_gb", "detail", "fix"),
    [
        ((), 1, 1, 11, "12 GB on a host with 1 rank, which has 11 GB: 12 bytes for each of 1000 million weights",
         "use a host with more memory, or a smaller model"),
        ((), 2, 4, 23, "24 GB on a host with 2 ranks", "use fewer ranks on each host, or a smaller model"),
        (("programming.stages=4",), 2, 4, 5, "6 GB on a host with 2 ranks", "use more hosts, or a smaller model"),
    ],
)  # fmt: skip
def test_a_model_that_a_host_cannot_hold_fails_with_what_it_needs(
    settings: tuple[str, ...], ranks: int, world_size: int, memory_gb: int, detail: str, fix: str
) -> None:
    ways = ("communication.backend=torch", f"hardware.accelerators_per_node={world_size}") if world_size > 1 else ()
    stages = ("programming.parallel_mode=model",) if settings else ()
    its = recipe(*ways, *stages, *settings)
    check = doctor.model_memory_check(its, 10**9, ranks, world_size, memory_gb * 10**9)
    assert (check.status, check.fix) == ("fail", fix)
    assert detail in check.detail
    assert doctor.model_memory_check(its, 10**9, ranks, world_size, (memory_gb + 1) * 10**9).status == "pass"
    on_gpu = its.model_copy(update={"accelerator": its.accelerator.model_copy(update={"device": "cuda"})})
    assert doctor.model_memory_check(on_gpu, 10**9, ranks, world_size, 1).status == "skip"


# --- cores near GPUs; the made-up machine has 8 of them, at NUMA nodes 3, 3, 1, 1, 7, 7, 5, 5


ALL = range(256)


def affinity(
    root: Path, launcher: LauncherName, cores: Iterable[int] = ALL, local_rank: int = 0, **environment: str
) -> Check:
    """The check of a rank of eight on a CUDA device."""
    placement = Placement(local_rank, 8, local_rank, 8, launcher, None, None)
    return doctor.affinity_check("cuda", environment, placement, 8, cores, root)


def test_a_rank_far_from_its_gpu_is_told_with_what_to_type(tmp_path: Path) -> None:
    root = gpu_node(tmp_path)
    assert affinity(root, "srun", range(16)) == Check(
        "affinity", "warn", "GPU 0 is at NUMA node 3, but its rank's cores are at 0",
        "srun --cpu-bind=map_ldom:3,3,1,1,7,7,5,5 (on whole nodes), docs/launching.md",
    )  # fmt: skip
    check = affinity(root, "mpirun", range(64), local_rank=7)
    assert check.detail == "GPU 7 is at NUMA node 5, but its rank's cores are at 0, 1, 2, 3"
    assert check.fix is not None
    assert "nodes=(3 3 1 1 7 7 5 5); exec numactl -N ${nodes[$OMPI_COMM_WORLD_LOCAL_RANK]} hpcai500" in check.fix
    check = affinity(root, "srun", range(16), CUDA_VISIBLE_DEVICES="2")
    assert (check.status, check.fix) == (
        "warn", "srun --gpu-bind=single:1 gives each task one of the GPUs nearest to its cores",
    )  # fmt: skip


def test_a_rank_near_its_gpu_passes_even_if_it_has_other_cores_too(tmp_path: Path) -> None:
    root = gpu_node(tmp_path)
    check = affinity(root, "srun", range(48, 64))
    assert (check.status, check.detail) == ("pass", "GPU 0 is at NUMA node 3, cores of its rank at 3")
    assert affinity(root, "mpirun", ALL, local_rank=3).status == "pass"
    # Slurm has given this task GPU 4, which is the only one that it sees.
    assert affinity(root, "srun", range(112, 128), local_rank=2, CUDA_VISIBLE_DEVICES="4").status == "pass"


@pytest.mark.parametrize("launcher", ["none", "torchrun", "horovodrun"])
def test_where_hpcai500_binds_the_ranks_only_missing_cores_are_told(tmp_path: Path, launcher: LauncherName) -> None:
    root = gpu_node(tmp_path)
    check = affinity(root, launcher)
    assert check.sentence == "each rank gets cores near its GPU: at NUMA nodes 3, 3, 1, 1, 7, 7, 5, 5"
    check = affinity(root, launcher, range(64))
    assert (check.status, check.detail) == ("warn", "GPU 4 is at NUMA node 7, but its rank's cores are at 0, 1, 2, 3")
    assert (check.fix or "").startswith("request whole nodes")
    # The process of a rank has only that rank's cores.
    bound = affinity(root, launcher, range(16, 32), local_rank=2, HPCAI500_RENDEZVOUS="n1:1")
    assert (bound.status, bound.detail) == ("pass", "GPU 2 is at NUMA node 1, cores of its rank at 1")


def test_cores_and_gpus_are_not_compared_where_there_is_nothing_to_compare(tmp_path: Path) -> None:
    alone = Placement(0, 1, 0, 1, "none", None, None)
    for device in ("cpu", None):
        skipped = doctor.affinity_check(device, {}, alone, 1, ALL, tmp_path), doctor.gpudirect_check(device, tmp_path)
        assert [(check.status, check.detail) for check in skipped] == [("skip", "only for jobs on CUDA devices")] * 2
    skipped = affinity(tmp_path, "srun"), doctor.gpudirect_check("cuda", tmp_path)
    assert [(check.status, check.detail) for check in skipped] == [("skip", "this host has no NVIDIA device")] * 2
    unknown = gpu_node(tmp_path / "unknown", dict.fromkeys(DGX_NODES, -1))
    assert affinity(unknown, "srun").sentence == "the NUMA nodes of the GPUs are unknown"
    check = affinity(gpu_node(tmp_path / "mig"), "srun", CUDA_VISIBLE_DEVICES="MIG-1")
    assert (check.status, check.detail.partition(":")[0]) == ("skip", "CUDA's order of the GPUs is unknown")
    two = affinity(tmp_path / "mig", "srun", local_rank=5, CUDA_VISIBLE_DEVICES="0,1")
    assert (two.status, two.detail) == ("skip", "8 ranks, but 2 visible GPUs")


# --- direct copies between GPUs and adapters


@pytest.fixture
def dgx(tmp_path: Path) -> Path:
    """The machine with two adapters; no module and no setting that GPUDirect needs or dislikes."""
    root = gpu_node(tmp_path)
    adapter(root, "mlx5_0", "0000:0c:00.0", 3)
    adapter(root, "mlx5_1", "0000:4b:00.0", 1, layer="Ethernet")
    return root


SEEN = "8 GPUs at NUMA nodes 1, 3, 5, 7, 2 active RDMA adapters at NUMA nodes 1, 3"


def test_adapters_read_gpus_by_nvidias_module_or_the_older_one(dgx: Path) -> None:
    check = doctor.gpudirect_check("cuda", dgx)
    assert (check.status, check.detail.partition(": ")[0]) == (
        "warn", f"{SEEN}; neither nvidia_peermem nor DMA-BUF is available",
    )  # fmt: skip
    assert (check.fix or "").startswith("as root at each boot: modprobe nvidia-peermem")
    for module in ("nv_peer_mem", "nvidia_peermem"):
        (dgx / "sys/module" / module).mkdir(parents=True)
        check = doctor.gpudirect_check("cuda", dgx)
        assert (check.status, check.detail) == ("pass", f"{SEEN}, {module}")


@pytest.mark.parametrize(("kernel", "status"), [("5.11.0", "warn"), ("5.12.0-1", "pass"), ("6.8.0-45-generic", "pass")])
def test_or_by_dma_buf_which_needs_the_open_modules_and_a_new_kernel(dgx: Path, kernel: str, status: str) -> None:
    open_modules = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"
    tree(dgx, {"proc/driver/nvidia/version": open_modules, "proc/sys/kernel/osrelease": f"{kernel}\n"})
    assert doctor.gpudirect_check("cuda", dgx).status == status


def test_without_adapters_only_copies_between_gpus_count(tmp_path: Path) -> None:
    check = doctor.gpudirect_check("cuda", gpu_node(tmp_path / "eight"))
    assert (check.status, check.detail) == ("pass", "8 GPUs at NUMA nodes 1, 3, 5, 7, no active RDMA adapter")
    check = doctor.gpudirect_check("cuda", gpu_node(tmp_path / "one", {"0000:07:00.0": 0}))
    assert (check.status, check.detail) == ("skip", "one GPU, and no active InfiniBand or RoCE adapter")


@pytest.mark.parametrize(
    ("kind", "architecture", "status"),
    [("DMA-FQ", "x86_64", "warn"), ("identity", "x86_64", "pass"), ("DMA", "aarch64", "pass")],
)
def test_an_iommu_that_translates_is_told_on_the_machines_that_it_slows(
    tmp_path: Path, kind: str, architecture: str, status: str
) -> None:
    root = gpu_node(tmp_path)
    for address, node in DGX_NODES.items():
        # Each switch is one group: access control is off.
        tree(root, {f"sys/kernel/iommu_groups/{node}/type": f"{kind}\n"})
        link(root, f"{pci_device(root, address, node)}/iommu_group", f"sys/kernel/iommu_groups/{node}")
    check = doctor.gpudirect_check("cuda", root, architecture)
    assert (check.status, "iommu=pt" in (check.fix or "")) == (status, status == "warn")


def test_access_control_is_told_where_it_separates_devices_of_one_switch(dgx: Path) -> None:
    (dgx / "sys/module/nvidia_peermem").mkdir(parents=True)
    pci_device(dgx, "0000:07:00.0", 3, group="40")
    # A device on another switch may be in another group.
    pci_device(dgx, "0000:47:00.0", 1, group="50")
    assert doctor.gpudirect_check("cuda", dgx).status == "pass"
    pci_device(dgx, "0000:0c:00.0", 3, group="41")
    check = doctor.gpudirect_check("cuda", dgx)
    assert (check.status, check.detail) == (
        "warn",
        f"{SEEN}; PCIe access control (ACS) separates 0000:07:00.0 and 0000:0c:00.0, which are on one switch",
    )


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
