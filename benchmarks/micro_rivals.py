"""What the ceilings are judged by: STREAM's copy, compiled here; likwid-bench, where it is installed; other GEMMs."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

# The Copy kernel of STREAM (McCalpin 1995): doubles, one parallel loop, arrays touched first by those who copy them.
STREAM = """
#include <stddef.h>
void touch(double *restrict a, double *restrict c, size_t n) {
#pragma omp parallel for
    for (size_t j = 0; j < n; j++) { a[j] = 1.0 + (double)(j % 1000003); c[j] = 0.0; }
}
void copy(const double *restrict a, double *restrict c, size_t n) {
#pragma omp parallel for
    for (size_t j = 0; j < n; j++) c[j] = a[j];
}
"""
FLAGS = ["-O3", "-march=native", "-fopenmp"]


class Stream:
    """STREAM's copy of `size` bytes by `threads` threads, in this process."""

    def __init__(self, folder: Path, size: int, threads: int) -> None:
        source, library = folder / "stream.c", folder / "stream.so"
        source.write_text(STREAM)
        subprocess.run(["gcc", *FLAGS, "-shared", "-fPIC", "-o", library, source], check=True)
        self._code = ctypes.CDLL(str(library))
        self._count = ctypes.c_size_t(size // 8)
        # Untouched until the loop that copies them touches them: each page is then near its thread.
        self._arrays = [np.empty(size // 8) for _ in range(2)]
        self._pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in self._arrays]
        ctypes.CDLL("libgomp.so.1").omp_set_num_threads(threads)
        self._code.touch(*self._pointers, self._count)

    def copy(self) -> None:
        """One pass."""
        self._code.copy(*self._pointers, self._count)

    def check(self) -> None:
        """What was copied is there."""
        assert np.array_equal(*self._arrays)


def likwid_copy(size: int, threads: int) -> Callable[[], float] | None:
    """Bytes a second of likwid-bench's non-temporal copy over two arrays of `size`; None where it is not installed."""
    program = shutil.which("likwid-bench")
    if program is None:
        return None
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    kernel = "copy_mem_avx512" if "avx512f" in flags else "copy_mem_avx" if "avx" in flags else "copy_mem_sse"
    # Its working set is both arrays together; one iteration is one pass of them.
    command = [program, "-t", kernel, "-w", f"N:{2 * size // 10**6}MB:{threads}", "-i", "6"]

    def rate() -> float:
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = re.search(r"^MByte/s:\s+([\d.]+)", output, re.MULTILINE)
        assert found, output
        return float(found.group(1)) * 1e6

    return rate


def gemm_rivals(left: torch.Tensor, right: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """What users call, and what micro does not try under another name."""
    rivals: dict[str, Callable[[], Any]] = {
        "torch.matmul": lambda: left @ right,
        "torch.bmm": lambda: torch.bmm(left[None], right[None]),
        "torch.einsum": lambda: torch.einsum("mk,kn->mn", left, right),
        "nn.Linear": torch.nn.Linear(*right.shape, bias=False, dtype=right.dtype).requires_grad_(False).forward,
    }
    linear = rivals.pop("nn.Linear")
    rivals["nn.Linear"] = lambda: linear(left)
    if left.dtype != torch.float32:
        return rivals
    ours, theirs = left.numpy(), right.numpy()
    rivals["numpy @"] = lambda: ours @ theirs
    try:
        from scipy.linalg.blas import sgemm  # comes with scikit-learn, in the test extra
    except ImportError:
        return rivals
    fortran = np.asfortranarray(ours), np.asfortranarray(theirs)
    rivals["scipy sgemm"] = lambda: sgemm(1.0, *fortran)
    return rivals
