"""The NVIDIA driver as a program meets it: device files, the kernel module, and the library that talks to both."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LIBRARY = "libcuda.so.1"
_PROBE = Path(__file__).with_name("driver_probe.py")
# Without the persistence daemon, a node of eight devices takes a good part of this.
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Traces:
    """What shows that this host has an NVIDIA device, whether or not a program can use it."""

    devices: tuple[str, ...] = ()
    kernel_module: str | None = None

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return bool(self.devices) or self.kernel_module is not None

    @property
    def words(self) -> str:
        """What was seen."""
        module = [f"kernel module {self.kernel_module}"] if self.kernel_module else []
        return ", ".join([*self.devices, *module])


@dataclass(frozen=True)
class Driver:
    """What the driver's library answered.

    Attributes:
        loaded: whether the library is there and can be loaded.
        version: the newest CUDA that it supports, as 1000 * major + 10 * minor.
        code: what cuInit returned (CUresult); 0 is success.
        devices: how many it lets this process use.
        reason: why it did not answer.
        silent: whether it had not answered when patience ended: it may be slow, and in order.
    """

    loaded: bool
    version: int | None = None
    code: int | None = None
    devices: int | None = None
    reason: str | None = None
    silent: bool = False

    @property
    def cuda(self) -> str:
        """`13.0`."""
        return "unknown" if self.version is None else f"{self.version // 1000}.{self.version % 1000 // 10}"


def find_traces(root: Path = Path("/")) -> Traces:
    """The devices of the host below `root`."""
    devices = [path.name for path in (root / "dev").glob("nvidia[0-9]*")]
    path = root / "proc" / "driver" / "nvidia" / "version"
    module: str | None = None
    if path.is_file():
        found = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", path.read_text())
        module = found.group() if found else "of an unknown version"
    return Traces(tuple(f"/dev/{name}" for name in sorted(devices)), module)


def ask_driver(
    environment: Mapping[str, str], library: str = LIBRARY, patience_seconds: float = _PATIENCE_SECONDS
) -> Driver:
    """Ask the driver's `library` in a process of its own (see driver_probe.py)."""
    command = [sys.executable, "-I", "-S", str(_PROBE), library]
    try:
        answer = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=patience_seconds
        )
    except subprocess.TimeoutExpired:
        return Driver(loaded=True, reason=f"it did not answer within {patience_seconds:g} s", silent=True)
    if answer.returncode < 0:
        return Driver(loaded=True, reason=f"{signal.Signals(-answer.returncode).name} ended the process that asked it")
    if answer.returncode > 0:
        return Driver(loaded=True, reason=(answer.stderr.strip().splitlines() or ["it does not answer"])[-1])
    return Driver(**json.loads(answer.stdout))
