"""The machine as the job sees it: what `system.json` says of this node."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hpcai500
from hpcai500._core import build_info, cpu_isa


def available_cores() -> int:
    """Cores that this process may run on: a scheduler may have given it fewer than the node has."""
    return len(os.sched_getaffinity(0))


def boot_id() -> str | None:
    """Which start of which machine this is: clocks of two processes can be compared when they share it."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.is_file() else None


def capture_node() -> dict[str, Any]:
    """Hardware, operating system and software of this node; unknown is None."""
    return {
        "host": platform.node(),
        "cpu": _lscpu(),
        "cores_available": available_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "accelerators": _accelerators(),
        "kernel": platform.release(),
        "operating_system": _os_name(),
        "python": platform.python_version(),
        "software": {
            "hpcai500": hpcai500.__version__,
            "core": build_info(),
            "core_isa": cpu_isa(),
            "torch": torch.__version__,
            "torch_build": torch.__config__.show(),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "numpy": np.__version__,
        },
        "environment": {key: os.environ[key] for key in sorted(os.environ) if key.startswith(_RECORDED_VARIABLES)},
        "command": sys.orig_argv,
    }


# What changes how threads, devices and messages behave; nothing that could hold a secret.
_RECORDED_VARIABLES = ("OMP_", "GOMP_", "MKL_", "CUDA_VISIBLE", "NCCL_", "SLURM_JOB_ID", "SLURM_NNODES", "HPCAI500_ISA")


def _lscpu() -> Any:
    if shutil.which("lscpu") is None:
        return None
    # The path is the system's own tool.
    listing = subprocess.run(["lscpu", "--json"], capture_output=True, text=True, check=False)  # noqa: S607
    if listing.returncode != 0:
        return None
    fields = json.loads(listing.stdout)["lscpu"]
    return {entry["field"].rstrip(":"): entry["data"] for entry in _flatten(fields)}


def _flatten(fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [found for entry in fields for found in (entry, *_flatten(entry.get("children", []))) if found.get("data")]


def _accelerators() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [
        {"name": device.name, "memory_bytes": device.total_memory, "multiprocessors": device.multi_processor_count}
        for device in properties
    ]


def _os_name() -> str | None:
    release = Path("/etc/os-release")
    if not release.is_file():
        return None
    pairs = (line.partition("=") for line in release.read_text().splitlines())
    return next((value.strip('"') for key, _, value in pairs if key == "PRETTY_NAME"), None)
