"""What changes a process from outside, unseen: variables of its environment, and libraries that were loaded into it."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from hpcai500.interpreter import GIVE_CODE, GIVE_LIBRARIES
from hpcai500.scratch import in_scratch

# Variables of the dynamic linker, Python, libc, compilers' run-time libraries, mathematics, files, devices, networks.
_RECORDED = re.compile(
    r"(LD|MALLOC|OMP|GOMP|KMP|MKL|DNNL|ONEDNN|OPENBLAS|ATEN|CUDA|CUBLAS|CUDNN|TORCH|TORCHDYNAMO|TORCHINDUCTOR|PYTORCH"
    r"|TRITON|HDF5|NCCL|GLOO|UCX|FI|HOROVOD|OMPI_MCA_(btl|coll|mtl|osc|pml))_\w+"
    r"|PYTHON\w+|DONT_FAKE\w*|GLIBC_TUNABLES|SLURM_JOB_ID|SLURM_NNODES|HPCAI500_ISA|HPCAI500_NOT_HEEDED"
)
# Of these, what tunes nothing: our Pythons ignore theirs.
_TUNES_NOTHING = re.compile(r"(PYTHON|SLURM_|HPCAI500_)\w+|LD_LIBRARY_PATH")
# What may be a secret stays where it is, and so does what names a place of the network or one process.
_KEPT_BACK = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|KEY|CREDENTIAL|AUTH|ADDR|HOST|URI|URL|_PORT$|^HOROVOD_(\w+_)?(RANK|SIZE)$",
    re.IGNORECASE,
)
_LONGEST_VALUE = 4096
# Each of these can change a run without a trace in recipe or code: NAME=VALUE. All are recorded.
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
# Without these the dynamic linker loads what a program asks for, and nothing else.
_LOAD_MORE = ("LD_PRELOAD", "LD_AUDIT")
_PRELOAD_FILE = Path("/etc/ld.so.preload")
# `libm.so.6 => /lib/libm.so.6 (0x00007f…)`; without the arrow where the name is a path.
_TRACED = re.compile(r"\s*(?:(\S+) => )?(/.*) \(0x[0-9a-f]+\)")
_TRACE_SECONDS = 10.0


def recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a record keeps; of a long value, its beginning.

    What leads to a folder for temporary files of this process was set by itself.
    """
    return {
        name: value[:_LONGEST_VALUE]
        for name, value in sorted(environment.items())
        if _effect(name, value) or (_RECORDED.fullmatch(name) and not _KEPT_BACK.search(name))
        if not in_scratch(value)
    }


def effects(environment: Mapping[str, str]) -> dict[str, str]:
    """Those of the variables that change arithmetic, clocks or code, each with what it does, in words."""
    return {name: effect for name, value in environment.items() if (effect := _effect(name, value))}


def tuning(environment: Mapping[str, str]) -> set[str]:
    """Those of the recorded variables that make runs faster or slower by legitimate code."""
    return {name for name in environment.keys() - effects(environment).keys() if not _TUNES_NOTHING.fullmatch(name)}


def _effect(name: str, value: str) -> str | None:
    told = f"{name}={value}"
    return next((effect for names, effect in _EFFECTS.items() if re.fullmatch(f"({names})=.+", told, re.DOTALL)), None)


def preloaded() -> list[str] | None:
    """Paths of the libraries that were loaded with this process's program, and that the program does not ask for.

    LD_PRELOAD and /etc/ld.so.preload do that, also where the variable was taken away since, and where a library has the
    name of one that the program asks for. None where it cannot be told.
    """
    try:
        loaded = [path for path in _loaded() if "/" in path]  # the program has no name, what the kernel adds no path
    except OSError:  # no dynamic linker in it
        loaded = []
    if not loaded:
        return []  # a static program
    own = _asked_for()
    last = max((at for at, path in enumerate(loaded) if path in own), default=None)
    return None if last is None else [path for path in loaded[:last] if path not in own]


def _asked_for() -> set[str]:
    """Paths of the libraries that this process's program asks for, and of those that these ask for."""
    environment = {name: value for name, value in os.environ.items() if name not in _LOAD_MORE}
    try:
        listing = _PRELOAD_FILE.read_text(encoding="utf-8", errors="replace") if _PRELOAD_FILE.exists() else ""
        # The linker tells what it would load, and the program does not run. Another linker than glibc's lets it run.
        traced = subprocess.run(
            [Path("/proc/self/exe").readlink(), "-I", "-S", "-c", ""],
            env={**environment, "LD_TRACE_LOADED_OBJECTS": "1"}, stdin=subprocess.DEVNULL, capture_output=True,
            encoding="utf-8", errors="replace", timeout=_TRACE_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return set()
    more = set(re.sub("#.*", "", listing).replace(":", " ").split())
    found = filter(None, map(_TRACED.fullmatch, traced.stdout.splitlines()))
    return {path for name, path in (line.groups() for line in found) if (name or path) not in more}


def _loaded() -> list[str]:
    """Libraries of this process, in the order in which they were loaded (dl_iterate_phdr(3))."""

    class Info(ctypes.Structure):
        _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))

    found: list[str] = []

    def note(info: ctypes._Pointer[Info], size: int, data: int | None) -> int:
        found.append((info.contents.name or b"").decode(errors="replace"))
        return 0

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
    ctypes.CDLL(None).dl_iterate_phdr(callback(note), None)
    return found
