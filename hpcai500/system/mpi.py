"""Which MPI a program would load here."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

# Open MPI 3 to 5; then MPICH and all that keep to its binary interface (Intel, MVAPICH, Cray's).
_LIBRARIES = ("libmpi.so.40", "libmpi.so.12")
_PROBE = Path(__file__).with_name("mpi_probe.py")
_PATIENCE_SECONDS = 30.0


def installed_mpi(environment: Mapping[str, str]) -> str | None:
    """`Open MPI 4.1.4`; None where there is none, or it does not say.

    A site may bind its own MPI over that of an image: so the library itself is asked, in a process of its own.
    """
    command = [sys.executable, "-I", "-S", str(_PROBE), *_LIBRARIES]
    try:
        answer = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=_PATIENCE_SECONDS
        )
    except subprocess.TimeoutExpired:
        return None
    return short_name(answer.stdout) if answer.returncode == 0 and answer.stdout.strip() else None


def short_name(version: str) -> str:
    """`Open MPI 4.1.4`, of what MPI_Get_library_version says; of another MPI, the first line."""
    line = version.splitlines()[0]
    found = re.match(r"Open MPI v([\w.]+)", line)
    return f"Open MPI {found.group(1)}" if found else " ".join(line.split())
