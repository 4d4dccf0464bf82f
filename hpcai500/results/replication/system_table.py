"""The system of a submission beside this machine, row by row."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcai500.campaign.outcome import ODD
from hpcai500.results.submission.claim import plain
from hpcai500.system.container import find_container
from hpcai500.system.describe.hardware_rows import memory, processors
from hpcai500.system.describe.node import describe_node
from hpcai500.system.mpi import installed_mpi
from hpcai500.system.versions import version_document

System = Mapping[str, Any]


@dataclass(frozen=True)
class Beside:
    """One fact of both."""

    what: str
    theirs: str
    here: str

    @property
    def differs(self) -> bool:
        """Whether it is not the same."""
        return self.theirs != self.here


def this_system() -> dict[str, Any]:
    """A `system.json` of this machine and installation; takes about a second."""
    installation = version_document(find_container(os.environ), installed_mpi(os.environ))
    return {"nodes": [describe_node({})], "installation": installation}


def side_by_side(theirs: System, here: System) -> list[Beside]:
    """What a submission's `system.json` says, beside this machine's; what is not told is `unknown`."""
    return [Beside(what, _told(fact, theirs), _told(fact, here)) for what, fact in _FACTS.items()]


def _told(fact: Callable[[System], Any], system: System) -> str:
    try:
        found = fact(system)
    except ODD:
        # The one is a stranger's, the other may be older or newer than what is asked for.
        found = None
    return "unknown" if found is None else plain(str(found))


def _accelerators(system: System) -> str:
    names = [str(device["name"]) for device in system["nodes"][0]["accelerators"]]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none"


def _package(name: str) -> Callable[[System], Any]:
    return lambda system: system["installation"]["package"][name]


def _software(name: str) -> Callable[[System], Any]:
    return lambda system: system["nodes"][0]["software"][name]


_FACTS: Mapping[str, Callable[[System], Any]] = {
    "processors of a node": lambda system: processors(system["nodes"][0]),
    "memory of a node": lambda system: memory(system["nodes"][0]),
    "accelerators of a node": _accelerators,
    "operating system": lambda system: system["nodes"][0]["operating_system"],
    "kernel": lambda system: system["nodes"][0]["kernel"],
    "hpcai500": _package("version"),
    "its code (SHA-256)": _package("code_sha256"),
    "its core (SHA-256)": _package("core_sha256"),
    "image (SHA-256 of its content)": lambda system: system["installation"]["image"]["content_sha256"],
    "torch": _software("torch"),
    "CUDA": _software("cuda"),
    "cuDNN": _software("cudnn"),
}
