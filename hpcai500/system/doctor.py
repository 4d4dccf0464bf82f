"""All checks of what a run needs, for `hpcai500 doctor` and before every run.

Each check says how to fix the problem; in a container, it gives the command to type.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import combinations, islice
from pathlib import Path

from hpcai500.errors import DataError, EnvironmentLacksError, HpcAi500Error, UsageError
from hpcai500.files import exists, is_folder, nearest, why_not, writable_folder
from hpcai500.hosts import RENDEZVOUS, LauncherName, Placement, find_placement
from hpcai500.interpreter import NOT_HEEDED
from hpcai500.layers import Recipe
from hpcai500.streams import say
from hpcai500.system.accelerator import NAME as ACCELERATOR
from hpcai500.system.accelerator import Driver, Machine, Torch, accelerator_check, ask_driver, find_traces
from hpcai500.system.checks import DISK, MODEL_MEMORY, Check
from hpcai500.system.container import IMAGE_FILE, TOP_OF_SET, Container, find_container, links_of, short_image
from hpcai500.system.devices import PCI_DEVICES, PciDevice, gpus_of, visible_gpus
from hpcai500.system.limits import cpu_quota, memory_limit
from hpcai500.system.looking import link_name, numbers_of, read
from hpcai500.system.mounts import mount_of, read_mounts, require_reachable, unreachable
from hpcai500.system.mpi import Ranks, installed_mpi, process_manager_check
from hpcai500.system.network import infiniband_ports
from hpcai500.system.node import numa_nodes
from hpcai500.system.software import DALI_DISTRIBUTIONS, binding, find_plugin, installed, installed_torch, loader_check
from hpcai500.text import count, size

# ----------------------------------------------------------------------------------------------------
# The folders that a run reads and writes: whether they exist, can be written, and have space.


DATA = "data"
OUT = "out"
TEMPORARY = "temporary"
# A few checkpoints of ResNet-50 with its momentum (205 MB each), and the rest of a record.
_LEAST_FREE_BYTES = 2 * 10**9
# Docker's default of 64 MiB is too small for the messages between ranks of a node.
_LEAST_SHARED_BYTES = 256 * 2**20
# True: the user gave a folder in the image; False: the user started in one.
_IN_THE_IMAGE = {True: "give --out with a folder of the host", False: "start in a folder of the host, or add --out DIR"}


def data_check(
    data: Path | None, recipe: Recipe | None, container: Container | None, arguments: Sequence[str]
) -> Check:
    """Whether the data set's folder exists and is readable; its content is read later."""
    if data is None:
        return _no_data_named(recipe)
    if unseen := _unseen_data(data, recipe, container, arguments):
        return unseen
    if not os.access(data, os.R_OK | os.X_OK):
        fix = f"chmod -R u+rX {shlex.quote(str(data))}, or ask its owner"
        return Check(DATA, "fail", f"{data}: no permission to read it", fix)
    if not any(data.iterdir()):
        fix = "check whether its file system is mounted, or give another --data DIR"
        return Check(DATA, "fail", f"{data}: empty", fix)
    if wrong := _wrong_content(data, recipe):
        return wrong
    return Check(DATA, "pass", f"{data} is readable")


def _unseen_data(
    data: Path, recipe: Recipe | None, container: Container | None, arguments: Sequence[str]
) -> Check | None:
    """The error if no folder is visible at `data`."""
    dataset = f"the folder of {recipe.problem.dataset}" if recipe else "the folder of the data set"
    if reason := _why_hidden(data):
        fix = f"ask the owner of {nearest(data)}, or give another folder with --data DIR"
        return Check(DATA, "fail", f"{data}: not readable by this user ({reason})", fix)
    if container and (hidden := _hidden(data, recipe.benchmark if recipe else None, container, arguments)):
        return hidden
    if why := why_not("folder", data):
        return Check(DATA, "fail", f"{data}: {why}", f"give {dataset} with --data DIR")
    return None


def require_visible(data: Path, benchmark: str, arguments: Sequence[str]) -> None:
    """Raise DataError, with what to bind, if the set or a link in it leads to where this container shows nothing."""
    container = find_container(os.environ)
    if container and (hidden := _hidden(data, benchmark, container, arguments)):
        raise DataError(hidden.sentence)


def _hidden(data: Path, benchmark: str | None, container: Container, arguments: Sequence[str]) -> Check | None:
    if _why_hidden(data):
        return None
    if not exists(data):
        return _not_visible(DATA, data, container, arguments)
    links = links_of(data, benchmark)
    return next((_not_visible(DATA, it, container, arguments, shown) for it, shown in links if not exists(it)), None)


def _wrong_content(data: Path, recipe: Recipe | None) -> Check | None:
    """The error if `data` is not a data set of the recipe; a run would find out only after it began its record."""
    if recipe is None or recipe.benchmark not in _LAYOUTS:
        return None
    layout = _LAYOUTS[recipe.benchmark]
    missing = next((pattern for pattern in TOP_OF_SET[recipe.benchmark] if not any(data.glob(pattern))), None)
    if missing is None:
        return None
    fix = f"give the folder of {recipe.problem.dataset} with --data DIR: it has {layout}"
    return Check(DATA, "fail", f"{data}: has no {missing}", fix)


# The whole layout of a data set, for messages.
_LAYOUTS = {"ic": "train/<class>/*.JPEG and val/<class>/*.JPEG", "ewa": "climo_YYYY.h5, a file for each year"}


def _no_data_named(recipe: Recipe | None) -> Check:
    if recipe is None:
        return Check(DATA, "pass", "none given")
    dataset = recipe.problem.dataset
    if recipe.problem.is_synthetic:
        return Check(DATA, "pass", f"{dataset}: made by hpcai500")
    return Check(DATA, "fail", f"{recipe.benchmark}: the recipe trains on {dataset}", "give its folder with --data DIR")


def out_check(out: Path, container: Container | None, arguments: Sequence[str]) -> Check:
    """Whether the record can be written to `out`; `out` may not exist yet."""
    folder = nearest(out)
    other = "give another folder with --out DIR"
    if not is_folder(folder):
        return Check(OUT, "fail", f"{folder}: not a folder", other)
    if os.access(folder, os.W_OK | os.X_OK):
        return _lasting(out, folder, container) or _space(out, folder)
    if not is_read_only(folder):
        return Check(OUT, "fail", f"{folder}: no permission to write there", other)
    if container is None:
        return Check(OUT, "fail", f"{folder}: on a read-only file system", other)
    return _read_only_inside(out, folder, container, arguments)


def _read_only_inside(out: Path, folder: Path, container: Container, arguments: Sequence[str]) -> Check:
    root = Path("/")
    if folder == root and out.absolute() != root:
        # The folder is missing in the container, but may exist on the host.
        return _not_visible(OUT, out, container, arguments)
    if folder.stat().st_dev != root.stat().st_dev:
        fix = f"bind it without :ro: --bind {shlex.quote(str(folder))}"
        return Check(OUT, "fail", f"{folder}: read-only inside the container", fix)
    # A relative path works if the command starts in a writable folder.
    options = ["--bind", "DIR"] if out.is_absolute() else ["--bind", "DIR", "--pwd", "DIR"]
    arguments = _with_out(arguments, "DIR") if out.is_absolute() else arguments
    return Check(
        OUT,
        "fail",
        f"{folder}: in the image, which is read-only",
        f"{_IN_THE_IMAGE[out.is_absolute()]}: {container.line(options, arguments)}",
    )


def _with_out(arguments: Sequence[str], folder: str) -> list[str]:
    """`arguments` with another --out in place of the given one."""
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--out":
            next(words, None)
        elif not word.startswith("--out="):
            kept.append(word)
    return [*kept, "--out", folder]


def temporary_check(environment: Mapping[str, str], container: Container | None, out: Path) -> Check:
    """Whether the folder for temporary files is writable; if not, a run uses another one."""
    name = "TMPDIR" if environment.get("TMPDIR") else "/tmp"  # noqa: S108 - this folder itself is checked
    folder = temporary_folder(environment)
    if is_folder(folder) and os.access(folder, os.W_OK | os.X_OK):
        return Check(TEMPORARY, "pass", f"{folder} is writable")
    found = exists(folder) or _why_hidden(folder)
    why = "not writable by this user" if found else "it does not exist"
    place = f"TMPDIR={folder}" if name == "TMPDIR" else name
    fix = "set TMPDIR to a folder that exists on every node"
    if container:
        fix = f"{container.program} {container.action} --bind {shlex.quote(str(folder))} …, or --env TMPDIR=/tmp"
    if instead := writable_folder(environment, out):
        return Check(TEMPORARY, "warn", f"{place}: {why}: temporary files go to {instead}", fix)
    return Check(TEMPORARY, "fail", f"{place}: {why}, and no other folder is writable", fix)


def temporary_folder(environment: Mapping[str, str]) -> Path:
    """Where programs put temporary files by default."""
    return Path(environment.get("TMPDIR") or "/tmp")  # noqa: S108


def shared_memory_check(
    size_bytes: int | None, ranks: int, container: Container | None, *, read_only: bool = False
) -> Check:
    """Whether /dev/shm has room for the messages between the ranks of a node."""
    if size_bytes is None:
        return Check("shared memory", "skip", "/dev/shm does not exist")  # noqa: S108
    found = f"/dev/shm has {size_bytes / 2**20:.0f} MiB"  # noqa: S108
    if ranks < 2 or (size_bytes >= _LEAST_SHARED_BYTES and not read_only):
        return Check("shared memory", "pass", found)
    fix = "mount it writable" if read_only else "mount a larger one"
    found = "/dev/shm is read-only" if read_only else found  # noqa: S108
    if container:
        # With --contain it is the container's own, else the host's; from inside they look alike.
        bind = f"{container.program} {container.action} --bind /dev/shm …"
        fix += f" on the host; if the host has one, omit --contain, or {bind}"
    need = "need it" if read_only else "need more"
    return Check("shared memory", "warn", f"{found}: NCCL and MPI {need} for {ranks} ranks", fix)


def is_read_only(folder: Path) -> bool:
    """Whether the file system of `folder` is mounted read-only."""
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def _lasting(out: Path, folder: Path, container: Container | None) -> Check | None:
    """A warning if the record would be lost with the container."""
    if container is None:
        return None
    in_image = folder.stat().st_dev == Path("/").stat().st_dev
    mount = mount_of(folder.resolve(), read_mounts())
    if in_image or (mount and mount.type == "tmpfs"):
        where = "the container's writable layer" if in_image else "memory (tmpfs)"
        return Check(
            OUT,
            "warn",
            f"{out.absolute()} is in {where}: the record is lost when the container or the node stops",
            f"{container.program} {container.action} --bind DIR … --out DIR, with a folder of the host",
        )
    return None


def _space(out: Path, folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    if free < _LEAST_FREE_BYTES:
        return Check(
            OUT,
            "warn",
            f"{folder} has {free / 1e9:.2g} GB left: checkpoints may not fit",
            "free some space, or give another folder with --out DIR",
        )
    return Check(OUT, "pass", f"{out.absolute()} is writable, {free / 1e9:.3g} GB free")


def _not_visible(
    name: str, path: Path, container: Container, arguments: Sequence[str], folder: Path | None = None
) -> Check:
    """The failure if a path, which may exist on the host, is not visible in the container.

    `folder` is what shows it; None: the path, or where it leads.
    """
    path = path.absolute()
    target = Path(os.path.realpath(path))
    folder = folder or target
    top = Path(*folder.parts[:2])
    bound = folder if exists(top) else top
    if target != path:
        what = f"leads to {target}, which is not visible"
    else:
        what = "no such folder" if exists(top) else "not visible"
    return Check(
        name,
        "fail",
        f"{path}: {what} inside the container",
        f"add --bind {shlex.quote(str(bound))}: {container.line(['--bind', str(bound)], arguments)}",
    )


def _why_hidden(path: Path) -> str | None:
    """Why this user cannot find out whether `path` exists; None if they can."""
    try:
        path.exists()
    except PermissionError as error:
        return error.strerror
    return None


# ----------------------------------------------------------------------------------------------------
# Whether the record of a whole run fits on its disk.


# The last two checkpoints and the first at the target are kept; the next one is allocated before its epoch.
CHECKPOINTS = 4
# Events, system, pictures, traces and power samples of a long run on many ranks.
RECORD_BYTES = 200 * 10**6
# Other users need some space, too.
_MARGIN = 1.2


def space_check(out: Path, free_bytes: int, checkpoint_bytes: int) -> Check:
    """Whether `free_bytes` suffice for the record `out` with checkpoints of `checkpoint_bytes` each."""
    checkpoints = CHECKPOINTS * checkpoint_bytes
    needed = checkpoints + RECORD_BYTES
    detail = (
        f"{nearest(out)} has {size(free_bytes)} free; a run needs {size(needed)}: {CHECKPOINTS} "
        f"checkpoints of {size(checkpoint_bytes)}, {size(RECORD_BYTES)} for the rest"
    )
    fix = "free some space, or give another folder with --out DIR"
    if free_bytes < checkpoints:
        return Check(DISK, "fail", detail, fix)
    if free_bytes < _MARGIN * needed:
        return Check(DISK, "warn", f"{detail}: little is left for other users", fix)
    return Check(DISK, "pass", detail)


def free_bytes(out: Path) -> int:
    """Free space for this user at `out`, which may not exist yet."""
    return shutil.disk_usage(nearest(out)).free


# ----------------------------------------------------------------------------------------------------
# The container, its image and the Python in it.


def container_check(container: Container | None, *, read_only: bool) -> Check:
    """Whether this process runs in a container, and in which image; `read_only`: whether `/` is read-only."""
    if container is None:
        return Check("container", "pass", "none: installed on this machine")
    kind = "a folder (sandbox)" if container.is_sandbox else "read-only" if read_only else "writable"
    if container.description is None:
        return Check("container", "pass", f"{container.program}, {container.name}, {kind}; not an image of hpcai500")
    return Check("container", "pass", f"{container.program}, {short_image(container.description)}, {kind}")


def image_check(container: Container | None, arguments: Sequence[str]) -> Check:
    """Whether the record can contain the hash of the image's file."""
    if container is None:
        return Check("image", "pass", "none")
    if container.file is not None:
        return Check(
            "image", "pass", f"{container.path or container.file} is visible: its SHA-256 goes into the record"
        )
    if container.is_sandbox:
        return Check("image", "pass", f"{container.path} is a folder, so it has no SHA-256")
    bind = ["--bind", f"{container.path or 'IMAGE'}:/{IMAGE_FILE}:ro"]
    return Check(
        "image",
        "warn",
        f"{container.path or 'the image'} is not visible inside: the record will lack the SHA-256 of its file",
        container.line(bind, arguments),
    )


def python_check(container: Container | None, environment: Mapping[str, str]) -> Check:
    """Whether packages may be missing because the command line ignores variables such as PYTHONPATH."""
    if names := [name for name in environment.get(NOT_HEEDED, "").split(", ") if name.startswith("PYTHON")]:
        is_set, it = ("is set", "it") if len(names) == 1 else ("are set", "them")
        return Check(
            "python",
            "warn",
            f"{', '.join(names)} {is_set} but ignored: packages on {it} are not used (docs/launching.md)",
            f"install them where hpcai500 is installed, or unset {it}",
        )
    return Check("python", "pass", "packages of the image only" if container else "packages of the installation only")


# ----------------------------------------------------------------------------------------------------
# Whether the communication library of a recipe is installed.


def backend_check(recipe: Recipe | None, horovod: str | None) -> Check:
    """Whether the backend is installed; `horovod` is its installed version, if any. Each rank finds out if it loads."""
    backend = recipe.communication.backend if recipe else None
    if backend != "horovod":
        words = {None: "no recipe given", "local": "none: one rank", "torch": "torch.distributed"}
        return Check("backend", "pass", words[backend])
    if horovod is None:
        return Check(
            "backend",
            "fail",
            "communication.backend is horovod, but Horovod is not installed",
            "run `make horovod` in the source tree, or use --set communication.backend=torch",
        )
    return Check("backend", "pass", f"Horovod {horovod}")


# ----------------------------------------------------------------------------------------------------
# Cores and memory that scheduler and container allow this process to use.


# On a smaller machine, a single core may be intended; not so where srun left it to a rank that could have more.
_LEAST_NODE_CORES = 4
_FIXES: dict[LauncherName, str] = {
    "srun": "srun --cpus-per-task=N --cpu-bind=cores … (since Slurm 22.05, srun does not inherit it from sbatch)",
    "mpirun": "mpirun --bind-to none …, or --map-by ppr:RANKS:node:PE=N",
}


def cores_check(
    available: int, total: int, local_size: int, launcher: LauncherName, quota_cores: float | None = None
) -> Check:
    """Whether this process may use more than one core of a large node, and all of its time.

    `available` of the node's `total` cores are usable; `local_size` ranks are on the node. `quota_cores`: the time that
    its control groups allow, if they limit it.
    """
    found = f"{available} of {total} cores"
    if quota_cores is not None and quota_cores < available:
        return Check(
            "cores",
            "warn",
            f"{found}, but a CPU quota allows the time of {quota_cores:.3g} cores: the kernel stops all threads when "
            "it is used up",
            "raise the quota (docker --cpus, limits of a pod, CPUQuota of systemd; cpu.max of the control group)",
        )
    is_small = total < _LEAST_NODE_CORES and launcher != "srun"
    if available > 1 or is_small or local_size * 2 > total:
        return Check("cores", "pass", found)
    fix = _FIXES.get(launcher, "request more from the scheduler (`sbatch --cpus-per-task=N`), or see `taskset -p $$`")
    return Check("cores", "warn", f"{found} for this rank: decoding and training share one core", fix)


def threads_check(environment: Mapping[str, str]) -> Check:
    """Whether a variable binds OpenMP's threads to cores; jobs ignore it."""
    names = binding(environment)
    if not names:
        return Check("threads", "pass", "no variable binds them to cores")
    found = ", ".join(f"{name}={environment[name]}" for name in names)
    ignored = "is ignored: it" if len(names) == 1 else "are ignored: they"
    return Check(
        "threads",
        "warn",
        f"{found} {ignored} would bind a rank's main thread, and all threads that it starts, to one core",
        f"unset {' '.join(names)}, and bind ranks by their launcher (docs/launching.md)",
    )


def memory_check(limit_bytes: int | None, total_bytes: int) -> Check:
    """The amount of memory; it always passes, because no amount is required."""
    if limit_bytes is None or limit_bytes >= total_bytes:
        return Check("memory", "pass", f"{total_bytes / 1e9:.3g} GB")
    return Check("memory", "pass", f"{limit_bytes / 1e9:.3g} GB for this job, of {total_bytes / 1e9:.3g} GB")


# A weight, its gradient and one number of the optimizer, in float32; Adam has two.
_BYTES_A_WEIGHT = 12


def host_memory_bytes() -> int:
    """What this job may use of the host's memory."""
    total = _total_memory_bytes()
    return min(memory_limit() or total, total)


def _total_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def model_memory_check(recipe: Recipe, weights: int, ranks: int, world_size: int, memory_bytes: int) -> Check:
    """Whether a model of `weights` fits into `memory_bytes` of a host that has `ranks` of the job's `world_size`.

    Only what every training holds counts: no activations, batches or libraries.
    """
    if recipe.accelerator.device != "cpu":
        return Check(MODEL_MEMORY, "skip", "only for jobs on CPUs")
    parts = world_size if recipe.is_sharded else recipe.programming.stages
    needed = _BYTES_A_WEIGHT * weights * ranks // parts
    detail = (
        f"training needs at least {size(needed)} on a host with {count(ranks, 'rank')}, which has "
        f"{size(memory_bytes)}: {_BYTES_A_WEIGHT} bytes for each of {weights / 1e6:.4g} million weights"
    )
    if parts > 1:
        detail += f", divided among {parts} ranks"
    if needed <= memory_bytes:
        return Check(MODEL_MEMORY, "pass", detail)
    instead = "more hosts" if parts > 1 else "fewer ranks on each host" if ranks > 1 else "a host with more memory"
    return Check(MODEL_MEMORY, "fail", detail, f"use {instead}, or a smaller model")


# ----------------------------------------------------------------------------------------------------
# GPUs: whether the cores of ranks are near them, and whether copies between them and adapters can be direct.


AFFINITY, GPUDIRECT = "affinity", "gpudirect"
_ROOT = Path("/")
_NOT_ON_GPUS = "only for jobs on CUDA devices"
_NO_GPU = "this host has no NVIDIA device"
# RDMA adapters that GPUDirect RDMA knows: InfiniBand, and RoCE.
_LAYERS = ("InfiniBand", "Ethernet")
# The kernel modules that let an adapter read and write a GPU's memory: NVIDIA's, and the older one of Mellanox.
_PEER_MEMORY = ("nvidia_peermem", "nv_peer_mem")
_DMA_BUF_KERNEL = (5, 12)
# Types of IOMMU groups where the IOMMU translates addresses; with `identity` (iommu=pt) it does not.
_TRANSLATED = ("DMA", "DMA-FQ")


def affinity_check(
    device: str | None,
    environment: Mapping[str, str],
    placement: Placement,
    ranks: int,
    cores: Iterable[int],
    root: Path = _ROOT,
    *,
    is_rank: bool = False,
) -> Check:
    """Whether this process, which may use `cores`, or the ranks that it will start, have cores near their GPUs.

    `device` is the recipe's accelerator.device; `ranks` will be on this host. `is_rank`: this process computes, so its
    cores are those of one rank.
    """
    gpus = visible_gpus(environment, root)
    numa = {one["node"]: numbers_of(one["cpus"] or "") for one in numa_nodes(root) or []}
    nodes = [gpu.numa_node for gpu in gpus[:ranks] if gpu.numa_node in numa]
    if reason := _no_affinity(device, gpus, nodes, ranks, root):
        return Check(AFFINITY, "skip", reason)
    # Our own process of a rank has that rank's cores; torchrun's process, which starts it, has all.
    is_bound = is_rank or placement.launcher in ("srun", "mpirun", "hpcai500") or RENDEZVOUS in environment
    mine = placement.local_rank if is_bound and len(gpus) > 1 else 0
    if mine >= len(nodes):
        return Check(AFFINITY, "skip", f"{ranks} ranks, but {count(len(gpus), 'visible GPU')}")
    own = sorted(node for node, its in numa.items() if its & set(cores))
    for number in [mine] if is_bound else range(len(nodes)):
        if nodes[number] not in own:
            detail = f"GPU {number} is at NUMA node {nodes[number]}, but its rank's cores are at {_list(own)}"
            return Check(AFFINITY, "warn", detail, _nearer(placement.launcher, nodes, ranks))
    if is_bound or ranks == 1:
        return Check(AFFINITY, "pass", f"GPU {mine} is at NUMA node {nodes[mine]}, cores of its rank at {_list(own)}")
    if environment.get("HPCAI500_AFFINITY") == "none":
        return Check(AFFINITY, "pass", "HPCAI500_AFFINITY=none: ranks share all cores")
    return Check(AFFINITY, "pass", f"each rank gets cores near its GPU: at NUMA nodes {_list(nodes)}")


def affinity_of_rank(environment: Mapping[str, str] = os.environ) -> Check:
    """The check of a rank on a CUDA device, by its own process."""
    placement = find_placement(environment)
    cores = os.sched_getaffinity(0)
    return affinity_check("cuda", environment, placement, placement.local_size or 1, cores, is_rank=True)


def _no_affinity(
    device: str | None, gpus: Sequence[PciDevice], nodes: Sequence[int | None], ranks: int, root: Path
) -> str | None:
    """Why nothing can be said about cores and GPUs; None if it can."""
    if device != "cuda":
        return _NOT_ON_GPUS
    if not gpus_of(root):
        return _NO_GPU
    if not gpus:
        return "CUDA's order of the GPUs is unknown: MIG, UUIDs in CUDA_VISIBLE_DEVICES, or different models"
    # Where each rank sees its own GPU only, there are fewer than ranks.
    if len(nodes) < min(len(gpus), ranks):
        return "the NUMA nodes of the GPUs are unknown"
    return None


def _nearer(launcher: LauncherName, nodes: Sequence[int | None], ranks: int) -> str:
    """What to type so that local rank N gets cores of NUMA node `nodes[N]`."""
    if launcher == "srun" and len(nodes) == 1 < ranks:
        return "srun --gpu-bind=single:1 gives each task one of the GPUs nearest to its cores"
    if len(nodes) > 1 and launcher == "srun":
        return f"srun --cpu-bind=map_ldom:{','.join(map(str, nodes))} (on whole nodes), docs/launching.md"
    if len(nodes) > 1 and launcher == "mpirun":
        return (
            f"mpirun --bind-to none … bash -c 'nodes=({' '.join(map(str, nodes))}); exec numactl -N "
            "${nodes[$OMPI_COMM_WORLD_LOCAL_RANK]} hpcai500 …'"
        )
    return "request whole nodes (`sbatch --exclusive`), or cores near the GPUs (`--gres-flags=enforce-binding`)"


def gpudirect_check(device: str | None, root: Path = _ROOT, architecture: str = platform.machine()) -> Check:
    """Whether GPUs can exchange data with each other and with RDMA adapters directly, as far as any user can see."""
    if device != "cuda":
        return Check(GPUDIRECT, "skip", _NOT_ON_GPUS)
    gpus = gpus_of(root)
    ports = [it for it in infiniband_ports(root) if it["state"] == "Active" and it["link_layer"] in _LAYERS]
    if not gpus:
        return Check(GPUDIRECT, "skip", _NO_GPU)
    if len(gpus) == 1 and not ports:
        return Check(GPUDIRECT, "skip", "one GPU, and no active InfiniBand or RoCE adapter")
    modules = [name for name in _PEER_MEMORY if (root / "sys/module" / name).is_dir()]
    way = modules[0] if modules else "DMA-BUF" if _has_dma_buf(root) else None
    adapters = [PciDevice(port["pci"], port["numa_node"]) for port in ports]
    detail = f"{_at(gpus, 'GPU')}, {_at(adapters, 'active RDMA adapter')}"
    problems = [
        *([_NO_PEER_MEMORY] if ports and way is None else []),
        *_diverted([*gpus, *adapters], root, architecture),
    ]
    if not problems:
        return Check(GPUDIRECT, "pass", f"{detail}{f', {way}' if ports else ''}")
    return Check(
        GPUDIRECT, "warn", "; ".join([detail, *(what for what, _ in problems)]), "; ".join(fix for _, fix in problems)
    )


_NO_PEER_MEMORY = (
    "neither nvidia_peermem nor DMA-BUF is available: data between GPUs and adapters go through host memory",
    "as root at each boot: modprobe nvidia-peermem (or NVIDIA's open kernel modules with Linux 5.12 or later)",
)


def _has_dma_buf(root: Path) -> bool:
    """Whether kernel and driver have DMA-BUF; NVIDIA's open kernel modules begin with driver 515, of CUDA 11.7."""
    found = re.match(r"(\d+)\.(\d+)", read(root / "proc/sys/kernel/osrelease") or "")
    is_new = found is not None and (int(found.group(1)), int(found.group(2))) >= _DMA_BUF_KERNEL
    return is_new and "Open Kernel Module" in (read(root / "proc/driver/nvidia/version") or "")


def _diverted(devices: Sequence[PciDevice], root: Path, architecture: str) -> Iterator[tuple[str, str]]:
    """Settings that send direct copies through the processor, each with its fix."""
    folders = {one.pci: root / PCI_DEVICES / one.pci for one in devices if one.pci}
    types = {read(folder / "iommu_group/type") for folder in folders.values()}
    # On ARM, GPUs and the IOMMU are built to work together.
    if architecture == "x86_64" and types & {*_TRANSLATED}:
        yield (
            "the IOMMU translates the addresses of these devices: direct copies are slow, or hang",
            "boot with iommu=pt, or turn VT-d or AMD-Vi off in the BIOS",
        )
    for one, other in combinations(folders, 2):
        groups = {link_name(folders[pci] / "iommu_group") for pci in (one, other)}
        if len(groups) == 2 and None not in groups and _share_switch(folders[one], folders[other]):
            yield (
                f"PCIe access control (ACS) separates {one} and {other}, which are on one switch",
                "turn ACS off in the BIOS, or with setpci (NCCL's guide: PCI Access Control Services)",
            )
            return


def _share_switch(one: Path, other: Path) -> bool:
    """Whether two PCI devices are below one switch: they have a root port and the port of a switch in common."""
    pairs = zip(one.resolve().parents[::-1], other.resolve().parents[::-1], strict=False)
    common = [above.name for above, same in pairs if above == same]
    return sum(1 for name in common if re.fullmatch(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", name)) >= 2


def _at(devices: Sequence[PciDevice], what: str) -> str:
    """`8 GPUs at NUMA nodes 1, 3`, `no active adapter`."""
    if not devices:
        return f"no {what}"
    nodes = sorted({device.numa_node for device in devices if device.numa_node is not None})
    where = f" at {'NUMA nodes' if nodes[1:] else 'NUMA node'} {_list(nodes)}" if nodes else ""
    return f"{count(len(devices), what)}{where}"


def _list(numbers: Sequence[int | None]) -> str:
    return ", ".join(map(str, numbers))


# ----------------------------------------------------------------------------------------------------
# All checks together.


@dataclass(frozen=True)
class Subject:
    """The run to check.

    Attributes:
        recipe: None if only the machine is checked.
        data: folder of the data set; None if synthetic data is used.
        out: folder of the record, or the one in which it will be made.
        arguments: what the user typed after `hpcai500`, for the suggested command.
    """

    recipe: Recipe | None = None
    data: Path | None = None
    out: Path = Path()
    arguments: Sequence[str] = ()


def examine(subject: Subject, environment: Mapping[str, str] = os.environ) -> list[Check]:
    """All checks, in the order in which problems should be fixed."""
    recipe, arguments = subject.recipe, subject.arguments
    container = find_container(environment)
    folders: Mapping[str, Path | None] = {
        DATA: subject.data,
        OUT: subject.out,
        TEMPORARY: temporary_folder(environment),
    }
    dead = {one.path: one for one in unreachable(str(path) for path in folders.values() if path is not None)}

    def unless_dead(name: str, check: Callable[[], Check]) -> Check:
        found = dead.get(str(folders[name]))
        return Check(name, "fail", found.detail, found.fix) if found else check()

    # The fallback for temporary files.
    work = Path("/") if str(subject.out) in dead else subject.out
    return [
        container_check(container, read_only=is_read_only(Path("/"))),
        image_check(container, arguments),
        python_check(container, environment),
        unless_dead(DATA, lambda: data_check(subject.data, recipe, container, arguments)),
        unless_dead(OUT, lambda: out_check(subject.out, container, arguments)),
        unless_dead(TEMPORARY, lambda: temporary_check(environment, container, work)),
        backend_check(recipe, installed("horovod")),
        loader_check(recipe, find_plugin(), installed(*DALI_DISTRIBUTIONS)),
        process_manager_check(
            Ranks(environment, read(Path("/proc/self/cgroup")) or "", lambda: installed_mpi(environment), container),
            recipe,
        ),
        accelerator_check(
            recipe.accelerator.device if recipe else None,
            machine(environment, container, installed_torch(), arguments),
        ),
        *_capacity(environment, recipe, container),
    ]


def machine(
    environment: Mapping[str, str], container: Container | None, torch: Torch | None, arguments: Sequence[str]
) -> Machine:
    """This machine, for the check of the accelerator."""

    @cache
    def ask() -> Driver:
        return ask_driver(environment)

    return Machine(torch, find_traces(), ask, container, arguments)


def require_healthy(subject: Subject) -> None:
    """Refuse to start `subject` if it cannot run; warnings go to stderr.

    Raises:
        DataError: its data set is missing.
        EnvironmentLacksError: the machine or the container lacks something, or a folder does not respond.
    """
    require_reachable([*([subject.data] if subject.data else []), subject.out])
    checks = examine(subject)
    for check in checks:
        if check.status == "warn":
            _warn(check.sentence)
    if errors := _errors(subject, checks):
        more = f" (and {len(errors) - 1} more: see `{_doctor_line(subject)}`)" if errors[1:] else ""
        raise _kind_of(errors[0])(f"{errors[0].sentence}{more}")


def _errors(subject: Subject, checks: Iterable[Check]) -> list[Check]:
    """The failed ones of `checks`: first what the user typed, then the device, without which no run starts."""
    first = [*([DATA] if subject.data else []), OUT, ACCELERATOR]
    failed = [check for check in checks if check.status == "fail"]
    return sorted(failed, key=lambda it: first.index(it.name) if it.name in first else len(first))


def _kind_of(error: Check) -> type[HpcAi500Error]:
    return DataError if error.name == DATA else EnvironmentLacksError


@contextmanager
def paths_and_device_first(subject: Subject) -> Iterator[None]:
    """Where the block refuses the ranks of `subject`, report first a wrong path and a missing device.

    Raises:
        DataError, EnvironmentLacksError: instead of the block's UsageError.
    """
    try:
        yield
    except UsageError:
        worse = next((it for it in _errors(subject, examine(subject)) if it.name in (DATA, OUT, ACCELERATOR)), None)
        if worse:
            raise _kind_of(worse)(worse.sentence) from None
        raise


# What doctor takes of the options of other commands; those after which a value follows.
_VALUED, _FLAGS = ("--recipe", "--data", "--out", "--set", "--procs"), ("--oversubscribe",)


def _doctor_line(subject: Subject) -> str:
    """The command that shows all checks of `subject`; the user may have typed `profile` or `scale`."""
    kept = ["doctor", *([subject.recipe.benchmark] if subject.recipe else [])]
    words = iter(subject.arguments)
    for word in words:
        if word in _VALUED:
            kept += [word, *islice(words, 1)]
        elif word in _FLAGS or word.partition("=")[0] in _VALUED:
            kept.append(word)
    container = find_container(os.environ)
    return container.line([], kept) if container else shlex.join(["hpcai500", *kept])


def why_no_device(
    environment: Mapping[str, str], torch: Torch, arguments: Sequence[str], *, by_recipe: bool = True
) -> str:
    """Why this process's torch finds no CUDA device, and what to do about it.

    `arguments` are those of `hpcai500`, for the suggested command. `by_recipe`: whether a recipe needs the device.
    """
    around = machine(environment, find_container(environment), torch, arguments)
    found = accelerator_check("cuda" if by_recipe else None, around)
    if found.status != "pass":
        return found.sentence
    context = "accelerator.device is cuda, but " if by_recipe else ""
    return f"{context}torch finds no device, although the driver does ({found.detail}): see `dmesg`"


def _capacity(environment: Mapping[str, str], recipe: Recipe | None, container: Container | None) -> list[Check]:
    try:
        placement = find_placement(environment)
    except UsageError:
        placement = Placement(0, 1, 0, 1, "none", None, None)  # the check of the launcher reports it
    device, cores = recipe.accelerator.device if recipe else None, os.sched_getaffinity(0)
    ranks = max(placement.local_size or 1, recipe.hardware.accelerators_per_node if recipe else 1)
    quota = cpu_quota()
    shared = Path("/dev/shm")  # noqa: S108
    return [
        cores_check(len(cores), os.cpu_count() or 1, ranks, placement.launcher, quota.cores if quota else None),
        threads_check(environment),
        affinity_check(device, environment, placement, ranks, cores),
        gpudirect_check(device),
        memory_check(memory_limit(), _total_memory_bytes()),
        shared_memory_check(
            shutil.disk_usage(shared).total if shared.is_dir() else None,
            ranks,
            container,
            read_only=shared.is_dir() and is_read_only(shared),
        ),
    ]


@cache
def _warn(sentence: str) -> None:
    """Print it once: a series of runs is on one machine."""
    say(f"warning: {sentence}")
