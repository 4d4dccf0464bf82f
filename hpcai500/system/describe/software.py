"""Software of a node that needs no framework to be asked: versions, and the container that it lies in."""

from __future__ import annotations

import os
import platform
import re
import sys
from typing import Any

import hpcai500
from hpcai500._core import build_info, cpu_isa
from hpcai500.errors import EnvironmentLacksError
from hpcai500.system.container import Container, find_container
from hpcai500.system.dali_plugin import DISTRIBUTION, find_plugin
from hpcai500.system.describe.environment import recorded
from hpcai500.system.describe.files import read
from hpcai500.system.describe.part import Absent, Host, Part
from hpcai500.system.versions import installed, installed_torch

# Distributions that compute, move bytes or read data, by what people call them.
_LIBRARIES = {
    "numpy": "numpy", "horovod": "horovod", "h5py": "h5py", "dali": DISTRIBUTION,
    "nccl": "nvidia-nccl-cu13", "cublas": "nvidia-cublas", "triton": "triton", "nvml_binding": "nvidia-ml-py",
}  # fmt: skip


def describe_software(host: Host) -> Part:
    """Who and where this node is, and what runs on it: operating system, libraries, container, variables."""
    container, absent = _container(host)
    torch = installed_torch()
    values = {
        "host": platform.node(),
        "cores_available": len(os.sched_getaffinity(0)),
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
            **{name: installed(distribution) for name, distribution in _LIBRARIES.items()},
            "dali_operators": plugin.dali if (plugin := find_plugin()) else None,
        },
        "container": _facts(container) if container else None,
        "environment": recorded(host.environment),
        "command": sys.orig_argv,
    }
    return Part(values, absent=absent)


def os_name(release: str | None) -> str | None:
    """`Debian GNU/Linux 12 (bookworm)`, of /etc/os-release: that of the container where there is one."""
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)"?$', release or "", re.MULTILINE)
    return found.group(1) if found else None


def _container(host: Host) -> tuple[Container | None, list[Absent]]:
    try:
        return find_container(host.environment, host.root), []
    except EnvironmentLacksError as error:
        return None, [Absent("the container", "image.json of the image", str(error))]


def _facts(container: Container) -> dict[str, Any]:
    """What tells one image from another without reading its file, which rank 0 alone does (`installation`)."""
    description = container.description or {}
    return {
        "program": container.program,
        "image": container.name,
        "content_sha256": description.get("content_sha256"),
        "with_driver": container.has_driver,
    }
