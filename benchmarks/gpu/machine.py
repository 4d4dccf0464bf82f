"""On what something was measured: device, its clocks and power limit, driver and libraries, and of which source."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hpcai500 import _core
from hpcai500.measure.host import available_cores
from hpcai500.measure.micro import device_name
from hpcai500.system.devices import describe_devices
from hpcai500.system.looking import Host

ROOT = Path(__file__).resolve().parents[2]
_CLOCKS = ("max_sm_hz", "application_sm_hz", "max_memory_hz", "application_memory_hz")
_POWER = ("power_limit_watts", "default_power_limit_watts")


def describe(device: torch.device) -> dict[str, Any]:
    """Facts of the machine as it is now; what cannot be known is None."""
    found: dict[str, Any] = {
        "device": device_name(device),
        "cores": available_cores(),
        "host_processor": device_name(torch.device("cpu")),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if device.type == "cuda" else None,
    }
    if device.type != "cuda":
        return found
    # Which code runs: `-real` is a wheel's; of `-virtual` alone the driver has made its own.
    found["kernels_for"] = _core.cuda_architectures()
    values = describe_devices(Host()).values
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    devices: list[Mapping[str, Any]] = values["devices"] or []
    mine = next((one for one in devices if one["uuid"] == uuid), {})
    software = values["device_software"] or {}
    more = {name: mine.get(name) for name in (*_CLOCKS, *_POWER, "memory_bytes", "mig", "ecc")}
    return {**found, "driver": software.get("driver"), **more}


def slug(name: str) -> str:
    """A device's name as a file's: `NVIDIA H200` -> `nvidia-h200`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def commit(root: Path = ROOT) -> str | None:
    """The commit that lies in `root`, with `+` behind it where files differ from it; None where git knows none."""
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", root, *words], check=True, capture_output=True, text=True).stdout.strip()
