"""What some tests need of this machine: DALI and our operators for it, Horovod, MPI, promtool, compilers for Arm.

`make test ARGS=…` installs what the named files mention of these.
"""

from __future__ import annotations

import platform
import shutil
from importlib.util import find_spec

import pytest

from hpcai500.system.software import find_plugin

# What DALI has wheels for. On such a machine a missing one is no excuse: `make test` installs it.
_PROCESSORS = ("x86_64", "aarch64")


def _why_not() -> str | None:
    if platform.machine() not in _PROCESSORS:
        return f"DALI has no wheel for this processor, {platform.machine()}"
    try:
        found = find_spec("nvidia.dali")
    except ModuleNotFoundError:
        found = None
    if found is None or find_plugin() is None:
        return "DALI or our operators for it are missing: make dali"
    return None


needs_dali = pytest.mark.skipif(_why_not() is not None, reason=str(_why_not()))

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: scripts/bootstrap --with metrics"
)

_HAS_HOROVOD = find_spec("horovod") is not None
needs_horovod = pytest.mark.skipif(not _HAS_HOROVOD, reason="no Horovod: make horovod")
needs_mpi = pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun: make horovod")
needs_horovod_and_mpi = pytest.mark.skipif(
    not _HAS_HOROVOD or shutil.which("mpirun") is None, reason="no Horovod with MPI: make horovod"
)


def _why_no_cross() -> str | None:
    if platform.machine() != "x86_64":
        return "this is no x86-64 processor"
    missing = [name for name in ("aarch64-linux-gnu-g++", "qemu-aarch64-static") if shutil.which(name) is None]
    if missing and shutil.which("apt-get") is None:
        return "this system's packages have no C++ compiler for 64-bit Arm"
    return f"{missing[0]} is not installed: scripts/bootstrap --with cross" if missing else None


needs_cross = pytest.mark.skipif(_why_no_cross() is not None, reason=str(_why_no_cross()))
