"""Whether all hosts have the same software: what a run would refuse, and what makes results hard to compare."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence

import torch

from hpcai500.comm.identity import code_facts
from hpcai500.measure.preflight.everyone import listed
from hpcai500.system.checks import Check
from hpcai500.system.driver import find_traces
from hpcai500.system.preflight import VERSIONS

_KERNEL, _DRIVER, _CUDA = "kernel", "NVIDIA driver", "CUDA of torch"
# A run says that they differ, and goes on.
_MAY_DIFFER = (_KERNEL, _DRIVER, _CUDA)
_SHOWN_CHARACTERS = 12
_HASH_CHARACTERS = 64

Facts = Mapping[str, str | None]


def version_facts() -> dict[str, str | None]:
    """What this rank runs on; None is not compared."""
    return {
        **code_facts(),
        _DRIVER: find_traces().kernel_module,
        _CUDA: torch.version.cuda,
        _KERNEL: platform.release(),
    }


def judge_versions(facts: Sequence[Facts], hosts: Sequence[str]) -> Check:
    """Whether the `facts` of all ranks, on `hosts`, agree."""
    differing = {name: groups for name in facts[0] if len(groups := _groups(name, facts, hosts)) > 1}
    if not differing:
        return Check(VERSIONS, "pass", _alike(facts[0], len(set(hosts))))
    refused = [name for name in differing if name not in _MAY_DIFFER]
    told = "; ".join(
        f"{name}: {', '.join(f'{_shown(value)} on {listed(where)}' for value, where in differing[name].items())}"
        for name in refused or differing
    )
    if refused:
        fix = "start every rank from one installation or image, on a file system that all hosts share"
        return Check(VERSIONS, "fail", told, fix)
    fix = "have the same system installed on all hosts, or leave out those that differ"
    return Check(VERSIONS, "warn", f"{told}: hosts may differ in speed", fix)


def _groups(name: str, facts: Sequence[Facts], hosts: Sequence[str]) -> dict[str, list[str]]:
    """Hosts by value, the value that most ranks have first."""
    groups: dict[str, list[str]] = {}
    for own, host in zip(facts, hosts, strict=True):
        if (value := own.get(name)) is not None:
            groups.setdefault(value, []).append(host)
    return dict(sorted(groups.items(), key=lambda it: -len(it[1])))


def _alike(facts: Facts, hosts: int) -> str:
    names = {"version of hpcai500": "hpcai500", "version of torch": "torch", _DRIVER: "driver", _KERNEL: _KERNEL}
    shown = [f"{short} {facts[name]}" for name, short in names.items() if facts.get(name)]
    where = f"the same on {hosts} hosts: " if hosts > 1 else ""
    return f"{where}{', '.join(shown)}, code {_shown(facts.get('code') or 'unknown')}"


def _shown(value: str) -> str:
    return value[:_SHOWN_CHARACTERS] if len(value) == _HASH_CHARACTERS else value
