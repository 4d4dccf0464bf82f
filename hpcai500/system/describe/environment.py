"""What changes a process from outside, unseen: variables of its environment, and libraries that were loaded into it."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcai500.interpreter import GIVE_CODE

# Variables of the dynamic linker, Python, libc, compilers' run-time libraries, mathematics, devices and networks.
_RECORDED = re.compile(
    r"(LD|MALLOC|OMP|GOMP|KMP|MKL|DNNL|ONEDNN|OPENBLAS|CUDA|CUBLAS|CUDNN|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|NCCL|GLOO"
    r"|UCX|HOROVOD|OMPI_MCA_(btl|coll|mtl|osc|pml))_\w+"
    r"|PYTHON\w+|FAKETIME\w*|DONT_FAKE\w*|GLIBC_TUNABLES|NVIDIA_TF32_OVERRIDE"
    r"|SLURM_JOB_ID|SLURM_NNODES|HPCAI500_ISA|HPCAI500_NOT_HEEDED"
)
# What may be a secret stays where it is, and so does what names a place of the network or one process.
_KEPT_BACK = re.compile(
    r"TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH|ADDR|HOST|URI|URL|_PORT$|^HOROVOD_(\w+_)?(RANK|SIZE)$", re.IGNORECASE
)
_LONGEST_VALUE = 4096
# By each of these a run may be another one than its recipe and its code say.
_EFFECTS = {
    r"LD_PRELOAD|LD_AUDIT|CUDA_INJECTION\w+|OMP_TOOL_LIBRARIES": "loads code into each process",
    "|".join(GIVE_CODE): "gives Python other code",
    r"NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|(ONEDNN|DNNL)_DEFAULT_FPMATH_MODE|CUBLAS_EMULAT\w+"
    r"|TORCHINDUCTOR_(USE_FAST_MATH|EMULATE\w+|CPP_ENABLE_UNSAFE_MATH\w+)": "changes arithmetic",
    r"FAKETIME\w*|DONT_FAKE\w*": "changes clocks",
}
# <elf.h>
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB = 1, 5


def recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a record keeps; of a long value, its beginning."""
    return {
        name: environment[name][:_LONGEST_VALUE]
        for name in sorted(environment)
        if _RECORDED.fullmatch(name) and not _KEPT_BACK.search(name)
    }


def effects(environment: Mapping[str, str]) -> dict[str, str]:
    """Those of the variables that change arithmetic, clocks or code, each with what it does, in words."""
    return {
        name: effect
        for name, value in environment.items()
        for names, effect in _EFFECTS.items()
        if value and re.fullmatch(names, name)
    }


def preloaded() -> list[str] | None:
    """Paths of the libraries that were loaded into this process before those that its program asks for.

    LD_PRELOAD and /etc/ld.so.preload do that, also where the variable was taken away since. None where it cannot be
    told.
    """
    asked = set(_needed(Path("/proc/self/exe")))
    before: list[str] = []
    for path in _loaded():
        if Path(path).name in asked:
            return before
        # The program itself has no name, and what the kernel adds has no path.
        before += [path] if "/" in path else []
    return None


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


def _needed(program: Path) -> Iterator[str]:
    """Names of the libraries that a 64-bit ELF program of this machine's byte order asks for."""
    with program.open("rb") as file:

        def read(form: str, offset: int) -> tuple[int, ...]:
            file.seek(offset)
            return struct.unpack(form, file.read(struct.calcsize(form)))

        (table,), (size, count) = read("Q", 0x20), read("HH", 0x36)
        # Type, flags, offset in the file, address in memory, another one, bytes in the file.
        segments = [read("IIQQQQ", table + number * size) for number in range(count)]
        (start, length) = next((part[2], part[5]) for part in segments if part[0] == _PT_DYNAMIC)
        entries = [read("qQ", start + at) for at in range(0, length, 16)]
        names = next(value for tag, value in entries if tag == _DT_STRTAB)
        at = next(
            names - part[3] + part[2] for part in segments if part[0] == _PT_LOAD and 0 <= names - part[3] < part[5]
        )
        for tag, value in entries:
            if tag == _DT_NEEDED:
                file.seek(at + value)
                yield file.read(256).partition(b"\0")[0].decode(errors="replace")
