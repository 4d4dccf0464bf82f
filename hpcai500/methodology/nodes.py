"""Compares the nodes of a system: in what they differ, and which is the slowest over all runs."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from hpcai500.methodology.communication import median_without, stragglers

# ----------------------------------------------------------------------------------------------------
# In which fields of system.json the nodes of a job differ, although they should be alike.
#
# What must differ (names, addresses, serial numbers, free space) is not compared, nor what a node does not report.


# Where hardly any two nodes have the same value, only the commonest values are kept.
_MOST_VARIANTS = 16
# Firmware reserves a little memory, and not the same amount on each node.
_MEMORY_TOLERANCE = 0.02
_MEMORY = re.compile(r"(memory_bytes|memory\.total_bytes|file_systems\.\w+\.total_bytes)$")
# Either each node has its own value, or another field says the same.
_OWN = re.compile(
    r"^(host|schema|command|raw|absent|slow_seconds|kernel_build|processor\.model|topology\.devices)\b"
    r"|\.(uuid|pci|free_bytes|path|source)$"
    # Links go to a slower generation while a device idles.
    r"|\.pcie\.(generation|transfers_per_second)$"
    r"|^cpu\.(?!Model name$|Stepping$|Flags$)"
    r"|^environment\.CUDA_VISIBLE_DEVICES$"
)
# Differences that are reported, but seldom change results or speed. The size of a ZFS file system shrinks as others
# fill its pool.
_MINOR = re.compile(
    r"^(machine|disks|topology)\b|^processor\.microcode$|firmware$|\.board$|^kernel_settings\.(tuned_profile|psi)$"
    r"|^limits\.(?!locked_memory|open_files)|^file_systems\.((temporary|out)\b|data\.total_bytes$)|^driver\.modules\b|^network\b.*\.duplex$"
)
# Compared as a whole: how often each value occurs, links between devices, modules.
_WHOLE = re.compile(
    r"^(device_links|memory\.modules|kernel_settings\.(governor|frequency_driver|energy_preference|scaling_m.._hz))$"
)
_OWN_OPTION = re.compile(r"^(addr|clientaddr|mountaddr|lowerdir|upperdir|workdir)=")


@dataclass(frozen=True)
class Variant:
    """One value of a field, and the nodes that have it."""

    value: Any
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class NodeDifference:
    """A field in which nodes differ.

    Attributes:
        field: its path in a node's document, such as `devices[0-3].power_limit_watts`.
        matters: whether it is likely to change speed or results.
        variants: the commonest first; of very many, only the commonest.
    """

    field: str
    matters: bool
    variants: tuple[Variant, ...]

    @property
    def outliers(self) -> tuple[str, ...]:
        """Nodes that do not have the commonest value."""
        return tuple(node for variant in self.variants[1:] for node in variant.nodes)

    def document(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        """Such as `devices[0].ecc: true on n1, n2, n3; false on n4`."""
        texts = _distinguished([_text(variant.value) for variant in self.variants])
        parts = [f"{text} on {_named(one.nodes)}" for text, one in zip(texts, self.variants, strict=True)]
        return f"{self.field}: {'; '.join(parts)}"


def node_differences(nodes: Sequence[Mapping[str, Any]]) -> list[NodeDifference]:
    """Fields in which `nodes` (the documents of system.json) differ; those that matter first."""
    hosts = [str(node.get("host")) for node in nodes]
    flat = [compared_fields(node) for node in nodes]
    found: dict[tuple[Any, ...], list[str]] = {}
    for path in dict.fromkeys(path for fields in flat for path in fields):
        variants = _variants(path, hosts, [fields.get(path) for fields in flat])
        if len(variants) > 1:
            found.setdefault((re.sub(r"\[\d+\]", "[]", path), variants), []).append(path)
    differences = [
        NodeDifference(
            _joined(paths),
            not _MINOR.search(paths[0]),
            tuple(Variant(json.loads(value), names) for value, names in variants),
        )
        for (_, variants), paths in found.items()
    ]
    return sorted(differences, key=lambda difference: not difference.matters)


def compared_fields(node: Mapping[str, Any]) -> dict[str, str]:
    """Each field of the document `node` that `node_differences` compares, with its value as JSON."""
    return dict(_fields("", _compared(node)))


def _compared(node: Mapping[str, Any]) -> dict[str, Any]:
    """`node` without virtual interfaces that are not on top of a physical one: containers create some on every node.

    Of accelerators only the number of usable ones is kept: `devices` has the rest. In a virtual machine the memory of
    NUMA nodes is dropped: a hypervisor provides it only when it is used.
    """
    interfaces, accelerators, numa = node.get("network"), node.get("accelerators"), node.get("numa")
    if numa and (node.get("processor") or {}).get("hypervisor"):
        numa = [{**one, "memory_bytes": None} for one in numa]
    kept = [one for one in interfaces if one.get("is_physical") or one.get("over")] if interfaces else interfaces
    usable = len(accelerators) if accelerators and node.get("devices") else accelerators
    return {**node, "network": kept, "accelerators": usable, "numa": numa}


def _fields(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Each field below `path` with its value as JSON; unknown values are left out."""
    if value is None or _OWN.search(path):
        return
    if isinstance(value, Mapping) and not _WHOLE.search(path):
        if path == "environment":
            yield path, json.dumps(sorted(key for key in value if not _OWN.search(f"{path}.{key}")))
        for key, one in value.items():
            yield from _fields(f"{path}.{key}" if path else key, one)
    elif isinstance(value, list) and value and isinstance(value[0], Mapping) and not _WHOLE.search(path):
        yield from _list_fields(path, value)
    elif path.endswith(".options"):
        yield path, json.dumps(sorted(option for option in value if not _OWN_OPTION.match(option)))
    else:
        yield path, json.dumps(value, sort_keys=True)


def _list_fields(path: str, values: list[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Members by name if names are unique, else by index; and their names or their number."""
    names = [one.get("name") for one in values]
    are_names = None not in names and len(set(names)) == len(names)
    yield path, json.dumps(names if are_names else len(values))
    for index, one in enumerate(values):
        yield from _fields(f"{path}.{one['name']}" if are_names else f"{path}[{index}]", one)


def _variants(path: str, hosts: Sequence[str], values: Sequence[str | None]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    known = [(host, value) for host, value in zip(hosts, values, strict=True) if value is not None]
    if _MEMORY.search(path):
        known = _rounded(known)
    nodes: dict[str, list[str]] = {}
    for host, value in known:
        nodes.setdefault(value, []).append(host)
    ordered = sorted(nodes.items(), key=lambda one: -len(one[1]))
    return tuple((value, tuple(names)) for value, names in ordered[:_MOST_VARIANTS])


def _rounded(known: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Replace amounts near the median by the median."""
    middle = median(float(value) for _, value in known) if known else 0.0
    near = _MEMORY_TOLERANCE * middle
    return [(host, str(round(middle)) if abs(float(value) - middle) <= near else value) for host, value in known]


def _joined(paths: Sequence[str]) -> str:
    """`devices[0].ecc`, `devices[1].ecc`, `devices[3].ecc` -> `devices[0-1,3].ecc`."""
    found = [re.search(r"\[(\d+)\]", path) for path in paths]
    if len(paths) == 1 or any(one is None for one in found):
        return paths[0]
    numbers = [int(one.group(1)) for one in found if one]
    return re.sub(r"\[\d+\]", f"[{_ranges(numbers)}]", paths[0], count=1)


def _ranges(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _named(nodes: Sequence[str], most: int = 4) -> str:
    more = f" and {len(nodes) - most} more" if len(nodes) > most else ""
    return ", ".join(nodes[:most]) + more


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _distinguished(texts: Sequence[str], longest: int = 60) -> list[str]:
    """`texts`; long ones, such as processor flags, keep only the words that are not in all of them."""
    if max(map(len, texts)) > longest:
        common = set.intersection(*(set(text.split()) for text in texts))
        texts = [" ".join(word for word in text.split() if word not in common) or "none of these" for text in texts]
    return [text if len(text) <= longest else f"{text[: longest - 1]}…" for text in texts]


# ----------------------------------------------------------------------------------------------------
# The slowest node of a system, over all of its runs.


@dataclass(frozen=True)
class SlowestNode:
    """The node with the longest steps, not counting time in which it waits for others.

    Attributes:
        name: its host name, or the name of a rank where only one node ran.
        slowdown: its time over the median of the others, less 1; median over the runs.
        slowest_in: number of runs in which it was the slowest.
        straggler_in: number of runs in which it was a straggler (methodology/communication.py).
        runs: number of runs in which it was compared with others.
        nodes: number of nodes that were compared.
    """

    name: str
    slowdown: float
    slowest_in: int
    straggler_in: int
    runs: int
    nodes: int


def slowest_node(runs: Sequence[Mapping[str, float]]) -> SlowestNode | None:
    """The slowest of the nodes in `runs`, each of which has every node's seconds in a step, without waiting for others.

    Runs of fewer than two nodes are left out; None if no other run is left.
    """
    compared = [dict(run) for run in runs if len(run) > 1 and min(run.values()) > 0]
    if not compared:
        return None
    slowdowns: dict[str, list[float]] = defaultdict(list)
    slowest: dict[str, int] = defaultdict(int)
    straggling: dict[str, int] = defaultdict(int)
    for run in compared:
        ordered = sorted(run.values())
        for name, seconds in run.items():
            others = median_without(ordered, bisect_left(ordered, seconds))
            slowdowns[name].append(seconds / others - 1)
        slowest[max(run, key=lambda name: run[name])] += 1
        names = list(run)
        for position in stragglers(list(run.values())):
            straggling[names[position]] += 1
    worst = max(slowdowns, key=lambda name: median(slowdowns[name]))
    return SlowestNode(
        name=worst,
        slowdown=median(slowdowns[worst]),
        slowest_in=slowest[worst],
        straggler_in=straggling[worst],
        runs=len(slowdowns[worst]),
        nodes=len(slowdowns),
    )
