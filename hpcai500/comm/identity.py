"""Checks before the clock starts: all ranks have the same code, versions, recipe and data, and each its own GPU."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

import hpcai500
from hpcai500.comm.communicator import Communicator
from hpcai500.errors import EnvironmentLacksError, UsageError
from hpcai500.hosts import name_ranks
from hpcai500.plugins import plugin_facts
from hpcai500.system.container import image_description
from hpcai500.system.software import core_hash, package_code_hash

CODE = "code"
CORE = "compiled core"
IMAGE = "image"
VERSION = "version of hpcai500"
TORCH = "version of torch"
PYTHON = "version of Python"
RECIPE = "recipe"
PLUGIN = "plug-in"
PLUGIN_CODE = "code of the plug-in"
DATA = "data fingerprint"
CONTENT = "data content"

_SAME_SOFTWARE = "start every rank from one installation, on a file system or in an image that all hosts share"
_SAME_FILES = "give every rank the same files: stage them again on that host, or put --data on a shared file system"
_FIXES = {
    CODE: _SAME_SOFTWARE,
    CORE: _SAME_SOFTWARE,
    IMAGE: "start every rank from the same image file: copy it to that host again, or keep it on a shared file system",
    VERSION: _SAME_SOFTWARE,
    TORCH: _SAME_SOFTWARE,
    PYTHON: _SAME_SOFTWARE,
    PLUGIN: _SAME_SOFTWARE,
    PLUGIN_CODE: _SAME_SOFTWARE,
    RECIPE: "give every rank the same --recipe and --set",
    DATA: _SAME_FILES,
    CONTENT: _SAME_FILES,
}
# Differences that a message names.
_MOST_DIFFERENCES = 4
_SHOWN_CHARACTERS = 12


@cache
def code_facts() -> Mapping[str, str | None]:
    """Facts of this process's software: SHA-256 of hpcai500's Python files and of its compiled core; versions; image.

    An image is identified by the hash of its content from build time, because hashing its file takes seconds.
    """
    return {
        CODE: package_code_hash(),
        CORE: core_hash(),
        IMAGE: _image_content(),
        VERSION: hpcai500.__version__,
        TORCH: torch.__version__,
        PYTHON: platform.python_version(),
    }


def plugin_code(benchmark: str) -> Mapping[str, str | None]:
    """Version and code of the plug-in that provides `benchmark`; empty for a built-in one."""
    found = plugin_facts(benchmark)
    if found is None:
        return {}
    return {PLUGIN: f"{found['package']} {found['version']}", PLUGIN_CODE: found["code_sha256"]}


def require_same(communicator: Communicator, facts: Mapping[str, str | None]) -> None:
    """Refuse ranks whose `facts` differ. All ranks of the job call it together; it costs one small exchange.

    `facts` are values by readable names; for the names in this module, the error gives advice. Unknown values (None: a
    content fingerprint that a rank never computed) are not compared.

    Raises:
        UsageError: ranks differ (on all ranks).
    """
    everyone: list[dict[str, str | None]] = communicator.gather_objects(dict(facts))
    differences = list(_differences(everyone, communicator.hosts))
    if differences:
        more = len(differences) - _MOST_DIFFERENCES
        shown = differences[:_MOST_DIFFERENCES] + ([f"and {more} more differences"] if more > 0 else [])
        raise UsageError("; ".join(shown))


def _differences(everyone: list[dict[str, str | None]], hosts: tuple[str, ...]) -> Iterator[str]:
    """One sentence for each fact, host and value that differs from that of the first rank with a value."""
    for name in dict.fromkeys(name for facts in everyone for name in facts):
        known = [(rank, value) for rank, facts in enumerate(everyone) if (value := facts.get(name)) is not None]
        groups: dict[tuple[str, str], list[int]] = {}
        for rank, value in known:
            if value != known[0][1]:
                groups.setdefault((hosts[rank], value), []).append(rank)
        for (host, value), ranks in groups.items():
            first, expected = known[0]
            yield (
                f"{name_ranks(ranks)} on host {host} {'has' if len(ranks) == 1 else 'have'} another {name} "
                f"({_shown(value)} instead of {_shown(expected)} on rank {first}, host {hosts[first]}): "
                f"{_FIXES.get(name, 'make them equal')}"
            )


def _shown(value: str) -> str:
    is_hash = len(value) == hashlib.sha256().digest_size * 2
    return f"{value[:_SHOWN_CHARACTERS]}..." if is_hash else value


def _image_content() -> str:
    """An image's content hash or revision; `none` outside an image, so that ranks inside and outside one differ."""
    description = image_description()
    return "none" if description is None else str(description.get("content_sha256") or description.get("revision"))


# ----------------------------------------------------------------------------------------------------
# A GPU for each rank.


@dataclass(frozen=True)
class Gpu:
    """Which GPU of a host a rank computes on.

    Attributes:
        uuid: as NVML writes it, but without `GPU-`; None if torch does not say.
        place: equal for ranks that NCCL would refuse as duplicates: the PCI address, which all parts of a GPU (MIG)
            share; else the UUID or the number.
    """

    uuid: str | None
    place: str


def gpu_of(device: torch.device) -> Gpu | None:
    """The GPU of this rank; None on a CPU."""
    if device.type != "cuda":
        return None
    # torch's stubs lack most of it.
    facts: Any = torch.cuda.get_device_properties(device)
    uuid = str(facts.uuid).removeprefix("GPU-").lower() if hasattr(facts, "uuid") else None
    # Not every version of torch tells the address.
    if not all(hasattr(facts, f"pci_{part}_id") for part in ("domain", "bus", "device")):
        return Gpu(uuid, uuid or str(device.index))
    return Gpu(uuid, f"{facts.pci_domain_id:04x}:{facts.pci_bus_id:02x}:{facts.pci_device_id:02x}")


def require_own_gpus(device: torch.device, world: Communicator) -> None:
    """Refuse two ranks on one GPU, which NCCL would refuse at its first call. All ranks call it together.

    Raises:
        EnvironmentLacksError: two ranks share a GPU (on all ranks).
    """
    gpu = gpu_of(device)
    if gpu is None or world.size == 1:
        return
    users: dict[tuple[str, str], list[int]] = {}
    for rank, place in enumerate(world.gather_objects(gpu.place)):
        users.setdefault((world.hosts[rank], place), []).append(rank)
    shared = next(((host, place, ranks) for (host, place), ranks in users.items() if ranks[1:]), None)
    if shared:
        host, place, ranks = shared
        raise EnvironmentLacksError(
            f"{name_ranks(ranks)} on host {host} have one GPU ({place}), and NCCL needs one for each rank: let the "
            "launcher show each rank a GPU of its own, or all GPUs to all ranks (check CUDA_VISIBLE_DEVICES and srun's "
            "--gpus-per-task; two MIG parts of a GPU count as one), or start fewer ranks"
        )
