"""The software of a node: versions, hashes, container, and the variables that can affect a run.

Versions are read from files and metadata, because importing torch takes seconds.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import hpcai500
from hpcai500 import _core
from hpcai500._core import build_info, cpu_isa
from hpcai500.errors import EnvironmentLacksError
from hpcai500.files import in_scratch
from hpcai500.interpreter import GIVE_CODE, GIVE_LIBRARIES
from hpcai500.layers import Recipe
from hpcai500.plugins import facts_of, installed_plugins
from hpcai500.recipe import editions
from hpcai500.system.accelerator import Torch
from hpcai500.system.checks import Check
from hpcai500.system.container import IMAGE_FILE, Container, find_container, image_description
from hpcai500.system.limits import cpu_quota
from hpcai500.system.looking import Absent, Host, Part, read, run

# ----------------------------------------------------------------------------------------------------
# Installed software: image, package, rules and libraries, by hash and version.


SCHEMA = "hpcai500-version-1"
_PACKAGE = Path(hpcai500.__file__).parent
_DATA_FOLDERS = ("recipes", "docs")
_LIBRARIES = ("torch", "horovod", "numpy", "h5py", "pydantic")
# git reads each file of a checkout, perhaps on a busy file server.
_GIT_SECONDS = 30.0


def version_document(container: Container | None, mpi: str | None, benchmark: str | None = None) -> dict[str, Any]:
    """All versions and hashes; unknown ones are None.

    Args:
        mpi: the result of `mpi.installed_mpi`.
        benchmark: include only the plug-in of this benchmark; None: all.
    """
    torch = installed_torch()
    return {
        "schema": SCHEMA,
        "image": _image(container),
        "package": {
            "version": hpcai500.__version__,
            "revision": _revision(_PACKAGE.parent),
            "code_sha256": code_hash(_PACKAGE),
            "core_sha256": core_hash(),
        },
        "plugins": [facts_of(one) for one in installed_plugins() if benchmark in (None, one.name)],
        "editions": {name: file_hash(_PACKAGE / "editions" / f"{name}.toml") for name in editions()},
        "software": {
            "python": platform.python_version(),
            **{name: installed(name) for name in _LIBRARIES},
            "cuda": torch.cuda if torch else None,
            "mpi": mpi,
        },
    }


def version_lines(document: Mapping[str, Any]) -> Iterator[str]:
    package, image = document["package"], document["image"]
    revision = f", revision {package['revision']}" if package["revision"] else ""
    yield f"hpcai500  {package['version']}{revision}"
    yield f"code      {package['code_sha256']}"
    yield f"core      {package['core_sha256']}"
    for name, digest in document["editions"].items():
        yield f"edition   {name} {digest}"
    for plugin in document["plugins"]:
        yield f"plug-in   {plugin['name']} {plugin['package']} {plugin['version']} {plugin['code_sha256'] or 'unknown'}"
    for name, version in document["software"].items():
        yield f"{name:8}  {version or 'none'}"
    if image is None:
        yield "image     none"
        return
    yield f"image     {image['name']} {image['version'] or ''}".rstrip()
    yield f"content   {image['content_sha256'] or 'unknown'}"
    yield f"file      {image['path'] or 'unknown'} {image['file_sha256'] or ''}".rstrip()
    if image["note"]:
        yield f"          {image['note']}"


def installed(*names: str) -> str | None:
    """The version of the first of these distributions that is installed."""
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None


def installed_torch() -> Torch | None:
    """The torch of this Python, read from its files."""
    try:
        path = Path(str(metadata.distribution("torch").locate_file("torch/version.py")))
    except metadata.PackageNotFoundError:
        return None
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    version = _assigned(text, "__version__") or installed("torch") or "unknown"
    return Torch(version, _assigned(text, "cuda"), _assigned(text, "hip"))


def _assigned(text: str, name: str) -> str | None:
    """The string that the Python source `text` assigns to `name`."""
    found = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return found.group(1) if found else None


def code_hash(folder: Path) -> str:
    """SHA-256 (hex) over names and contents of the Python files of the package in `folder`."""
    digest = hashlib.sha256()
    for path in code_files(folder):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def code_files(folder: Path) -> list[Path]:
    """The Python files of the package in `folder`, in the order in which they are hashed.

    Recipes are left out: they are inside an installed package but outside a checkout's, so their adapters for test
    harnesses, which are not part of a run, would give the same code another hash.
    """
    return [path for path in sorted(folder.rglob("*.py")) if path.relative_to(folder).parts[0] not in _DATA_FOLDERS]


def package_code_hash() -> str:
    return code_hash(_PACKAGE)


def core_hash() -> str:
    """SHA-256 (hex) of the compiled core."""
    return file_hash(Path(_core.__file__))


@cache
def file_hash(path: Path) -> str:
    """SHA-256 (hex) of a file; cached, because images are large and these files do not change during a process."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _image(container: Container | None) -> dict[str, Any] | None:
    """`image.json`, and the file's hash or why there is none; for other images, what is known about them."""
    description = container.description if container else image_description()
    if container is None and description is None:
        return None
    file = container.file if container else None
    return {
        **dict.fromkeys(("name", "version", "content_sha256")),
        **(description or {"name": container.name if container else None}),
        "path": container.path if container else None,
        "file_sha256": file_hash(file) if file else None,
        "note": None if file else _why_no_hash(container),
    }


def _why_no_hash(container: Container | None) -> str:
    if container is None:
        return "not started by Apptainer, so the image file is unknown"
    if container.is_sandbox:
        return "the image is a folder, so it has no SHA-256"
    return f"the image is not visible inside: add --bind {container.path or 'IMAGE'}:/{IMAGE_FILE}:ro"


def _revision(checkout: Path) -> str | None:
    """The commit of the package, with +dirty if files were changed; None if unknown."""
    if description := image_description():
        return description.get("revision")
    git = shutil.which("git")
    if git is None or not (checkout / ".git").exists():
        return None
    here = [git, "-C", str(checkout), "--no-optional-locks"]
    try:
        head = run([*here, "rev-parse", "HEAD"], _GIT_SECONDS)
        changed = run([*here, "status", "--porcelain", "--untracked-files=no"], _GIT_SECONDS)
    except OSError:
        return None
    # git refuses a checkout of another user.
    if head.code != 0 or changed.code != 0:
        return None
    return head.output.strip() + ("+dirty" if changed.output.strip() else "")


# ----------------------------------------------------------------------------------------------------
# Our operators for DALI: a library beside the compiled core. Its name contains the version of DALI that it was built
# for, so that versions can be compared before DALI and the library are loaded.


_PREFIX, _SUFFIX = "libhpcai500_dali-", ".so"
# For CUDA 13 and, in an image for older GPUs, CUDA 12.
DALI_DISTRIBUTIONS = ("nvidia-dali-cuda130", "nvidia-dali-cuda120")
OTHERWISE = "set accelerator.loader=native"


@dataclass(frozen=True)
class DaliPlugin:
    """The library with our operators, and the only version of DALI that can load it."""

    path: Path
    dali: str


def find_plugin(folder: Path | None = None) -> DaliPlugin | None:
    """The library in `folder` (by default beside the compiled core); None if it was not built."""
    folder = folder or Path(_core.__file__).parent
    # There are several only if somebody copied them: use the latest.
    found = sorted(folder.glob(f"{_PREFIX}*{_SUFFIX}"), key=lambda path: path.stat().st_mtime)
    return DaliPlugin(found[-1], found[-1].name.removeprefix(_PREFIX).removesuffix(_SUFFIX)) if found else None


def dali_problem(plugin: DaliPlugin | None, dali: str | None) -> tuple[str, str] | None:
    """(Problem, fix) if this version of DALI cannot load our operators; else None."""
    if dali is None:
        return "DALI is not installed", "run `make dali` in the source tree, which also builds our operators for it"
    if plugin is None:
        return f"hpcai500 was built without its operators for the installed DALI {dali}", "run `make dali`"
    if plugin.dali != dali:
        return (
            f"our operators were built for DALI {plugin.dali}, not for the installed DALI {dali}",
            f"run `make dali` to rebuild them, or install {DALI_DISTRIBUTIONS[0]}=={plugin.dali}",
        )
    return None


def loader_check(recipe: Recipe | None, plugin: DaliPlugin | None, dali: str | None) -> Check:
    """Whether the recipe's loader is installed; `dali` is the installed version, if any."""
    if recipe is None or recipe.accelerator.loader != "dali":
        words = "no recipe given" if recipe is None else recipe.accelerator.loader
        return Check("loader", "pass", words)
    problem = dali_problem(plugin, dali)
    if problem is None:
        return Check("loader", "pass", f"DALI {dali}, with our operators")
    return Check("loader", "fail", f"accelerator.loader is dali, but {problem[0]}", f"{problem[1]}, or {OTHERWISE}")


# ----------------------------------------------------------------------------------------------------
# What affects a process from outside: environment variables, and preloaded libraries.


# Variables of the dynamic linker, Python, libc, compilers' run-time libraries, mathematics, files, devices, networks.
_RECORDED = re.compile(
    r"(LD|MALLOC|OMP|GOMP|KMP|MKL|DNNL|ONEDNN|OPENBLAS|ATEN|CUDA|CUBLAS|CUDNN|TORCH|TORCHDYNAMO|TORCHINDUCTOR|PYTORCH"
    r"|TRITON|HDF5|NCCL|GLOO|UCX|FI|HOROVOD|OMPI_MCA_(btl|coll|mtl|osc|pml))_\w+"
    r"|PYTHON\w+|DONT_FAKE\w*|GLIBC_TUNABLES|SLURM_JOB_ID|SLURM_NNODES|HPCAI500_ISA|HPCAI500_NOT_HEEDED"
)
# Recorded variables that do not affect speed: our Python ignores PYTHON*.
_TUNES_NOTHING = re.compile(r"(PYTHON|SLURM_|HPCAI500_)\w+|LD_LIBRARY_PATH")
# Not recorded: possible secrets, network addresses, and values of a single process.
_KEPT_BACK = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|KEY|CREDENTIAL|AUTH|ADDR|HOST|URI|URL|_PORT$|^HOROVOD_(\w+_)?(RANK|SIZE)$",
    re.IGNORECASE,
)
_LONGEST_VALUE = 4096
# Each of these can change a run without a change of recipe or code, so all are recorded. Matched against NAME=VALUE.
_EFFECTS = {
    r"LD_PRELOAD|LD_AUDIT|(CUDA|NVTX)_INJECTION\w+|OMP_TOOL_LIBRARIES|DALI_PRELOAD_PLUGINS"
    r"|NCCL_(NET|TUNER|PROFILER|ENV)_PLUGIN(?!=none$)|UCX_MODULE_DIR|FI_PROVIDER_PATH"
    r"|(OMPI|PMIX|PRTE)_MCA_\w*component_path|HDF5_(PLUGIN_PATH|VOL_CONNECTOR|DRIVER)"
    r"|TRITON_(PTXAS_PATH|OVERRIDE_DIR|KERNEL_OVERRIDE(?!=0$))|" + "|".join(GIVE_LIBRARIES): "loads code",
    "|".join(GIVE_CODE): "gives Python other code",
    r"NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|(ONEDNN|DNNL)_DEFAULT_FPMATH_MODE|CUBLAS_EMULAT\w+"
    r"|TORCHINDUCTOR_(USE_FAST_MATH|EMULATE\w+|CPP_ENABLE_UNSAFE_MATH\w+)|TRITON_F32_DEFAULT": "changes arithmetic",
    r"(TORCHDYNAMO|TORCH_COMPILE)_DISABLE(?!=0$)": "changes what the recipe says",
    r"FAKETIME\w*|DONT_FAKE\w*": "changes clocks",
}
# Variables by which OpenMP (GNU's, LLVM's, Intel's) binds threads to cores. OMP_PLACES alone does it, too.
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_BIND_NOTHING = ("", "false", "none", "disabled")
# Variables that make the dynamic linker load libraries that a program does not need.
_LOAD_MORE = ("LD_PRELOAD", "LD_AUDIT")
_PRELOAD_FILE = Path("/etc/ld.so.preload")
# `libm.so.6 => /lib/libm.so.6 (0x00007f…)`; without the arrow where the name is a path.
_TRACED = re.compile(r"\s*(?:(\S+) => )?(/.*) \(0x[0-9a-f]+\)")
_TRACE_SECONDS = 10.0


def recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that go into a record, long values truncated; without those that name our temporary folder."""
    return {
        name: value[:_LONGEST_VALUE]
        for name, value in sorted(environment.items())
        if _effect(name, value) or (_RECORDED.fullmatch(name) and not _KEPT_BACK.search(name))
        if not in_scratch(value)
    }


def effects(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that change arithmetic, clocks or code, with their effect."""
    return {name: effect for name, value in environment.items() if (effect := _effect(name, value))}


def tuning(environment: Mapping[str, str]) -> set[str]:
    """Variables that legitimately affect speed."""
    return {name for name in environment.keys() - effects(environment).keys() if not _TUNES_NOTHING.fullmatch(name)}


def binding(environment: Mapping[str, str]) -> list[str]:
    """Variables that bind OpenMP's threads to cores."""
    if environment.get("OMP_PROC_BIND", "").strip().lower() == "false":
        return [name for name in ("KMP_AFFINITY",) if _binds(environment, name)]
    return [name for name in _BINDING if _binds(environment, name)]


def _binds(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").strip().lower() not in _BIND_NOTHING


def _effect(name: str, value: str) -> str | None:
    text = f"{name}={value}"
    return next((effect for names, effect in _EFFECTS.items() if re.fullmatch(f"({names})=.+", text, re.DOTALL)), None)


def preloaded() -> list[str] | None:
    """Paths of libraries that were loaded into this process although its program does not need them.

    They come from LD_PRELOAD and /etc/ld.so.preload, and are found even if the variable was removed since, or a library
    has the name of one that the program needs. None if unknown.
    """
    try:
        loaded = [path for path in _loaded() if "/" in path]  # not the program itself, nor the kernel's vDSO
    except OSError:  # no dynamic linker
        loaded = []
    if not loaded:
        return []  # a static program
    own = _needed()
    last = max((at for at, path in enumerate(loaded) if path in own), default=None)
    return None if last is None else [path for path in loaded[:last] if path not in own]


def _needed() -> set[str]:
    """Paths of the libraries that this process's program needs, directly or through other libraries."""
    environment = {name: value for name, value in os.environ.items() if name not in _LOAD_MORE}
    try:
        listing = _PRELOAD_FILE.read_text(encoding="utf-8", errors="replace") if _PRELOAD_FILE.exists() else ""
        # glibc's linker lists the libraries without running the program; another linker runs it.
        command = [str(Path("/proc/self/exe").readlink()), "-I", "-S", "-c", ""]
        traced = run(command, _TRACE_SECONDS, {**environment, "LD_TRACE_LOADED_OBJECTS": "1"})
    except OSError:
        return set()
    more = set(re.sub("#.*", "", listing).replace(":", " ").split())
    found = filter(None, map(_TRACED.fullmatch, traced.output.splitlines()))
    return {path for name, path in (line.groups() for line in found) if (name or path) not in more}


def _loaded() -> list[str]:
    """Libraries of this process in the order of loading (dl_iterate_phdr(3))."""

    class Info(ctypes.Structure):
        _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))

    found: list[str] = []

    def note(info: ctypes._Pointer[Info], size: int, data: int | None) -> int:
        found.append((info.contents.name or b"").decode(errors="replace"))
        return 0

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
    ctypes.CDLL(None).dl_iterate_phdr(callback(note), None)
    return found


# ----------------------------------------------------------------------------------------------------
# The software of this node.


# Distributions for computation, communication and reading, by their usual names.
_SOFTWARE_LIBRARIES = {
    "numpy": ("numpy",), "horovod": ("horovod",), "h5py": ("h5py",), "dali": DALI_DISTRIBUTIONS,
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"), "cublas": ("nvidia-cublas", "nvidia-cublas-cu12"),
    "triton": ("triton",), "nvml_binding": ("nvidia-ml-py",),
}  # fmt: skip


def describe_software(host: Host) -> Part:
    """Name of this node, and its software: operating system, libraries, container, variables."""
    container, absent = _container(host)
    torch = installed_torch()
    values = {
        "host": platform.node(),
        "cores_available": len(os.sched_getaffinity(0)),
        "cpu_quota_cores": quota.cores if (quota := cpu_quota(host.root)) else "unlimited",
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "kernel_build": platform.version(),
        "operating_system": os_name(read(host.root / "etc/os-release")),
        "python": platform.python_version(),
        "software": {
            "hpcai500": hpcai500.__version__,
            "core": build_info(),
            "core_isa": cpu_isa(),
            "torch": torch.version if torch else None,
            "cuda": torch.cuda if torch else None,
            "c_library": " ".join(platform.libc_ver()) or None,
            **{name: installed(*distributions) for name, distributions in _SOFTWARE_LIBRARIES.items()},
            "dali_operators": plugin.dali if (plugin := find_plugin()) else None,
        },
        "container": _facts(container) if container else None,
        "environment": recorded(host.environment),
        "command": sys.orig_argv,
    }
    return Part(values, absent=absent)


def os_name(release: str | None) -> str | None:
    """`Debian GNU/Linux 12 (bookworm)`, from /etc/os-release; in a container, that of the container."""
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)"?$', release or "", re.MULTILINE)
    return found.group(1) if found else None


def _container(host: Host) -> tuple[Container | None, list[Absent]]:
    try:
        return find_container(host.environment, host.root), []
    except EnvironmentLacksError as error:
        return None, [Absent("the container", "image.json of the image", str(error))]


def _facts(container: Container) -> dict[str, Any]:
    """What identifies the image without hashing its file; only rank 0 does that (`installation`)."""
    description = container.description or {}
    return {
        "program": container.program,
        "image": container.name,
        "content_sha256": description.get("content_sha256"),
        "with_driver": container.has_driver,
    }
