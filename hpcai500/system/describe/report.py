"""A system's description for people: the six parts of V2.0 section 5.3.3, what is unknown, and how nodes differ."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpcai500.methodology.node_differences import NodeDifference
from hpcai500.system.describe.hardware_rows import link_rows, processor_rows
from hpcai500.system.describe.software_rows import network_rows, operating_system_rows, software_rows, system_rows

_TITLES = (
    "CPUs and AI accelerators of a node",
    "connections within a node",
    "operating system of a node",
    "run-time software of a node",
    "connections between nodes",
    "run-time software of the system",
)
_WIDTH = 22
_TEXT_WIDTH = 96


def system_lines(document: Mapping[str, Any], differences: Sequence[NodeDifference]) -> Iterator[str]:
    """The table; `document` is a system.json."""
    nodes = document.get("nodes") or []
    if not nodes:
        yield "no node is described"
        return
    odd = {host for difference in differences for host in difference.outliers}
    node = next((one for one in nodes if str(one.get("host")) not in odd), nodes[0])
    yield f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}; this is {node.get('host')}"
    parts = (
        processor_rows(node),
        link_rows(node),
        operating_system_rows(node),
        software_rows(node),
        network_rows(node),
        system_rows(nodes, document.get("installation")),
    )
    for number, (title, rows) in enumerate(zip(_TITLES, parts, strict=True), start=1):
        yield ""
        yield f"{number}. {title}"
        yield from _table(rows)
    yield from _unknown(node.get("absent") or [], node.get("slow_seconds") or {})
    yield from difference_lines(differences, len(nodes))


def difference_lines(differences: Sequence[NodeDifference], nodes: int) -> Iterator[str]:
    """How nodes differ; nothing for one node."""
    if nodes < 2:
        return
    yield ""
    if not differences:
        yield f"All {nodes} nodes are alike."
        return
    heavy = [one for one in differences if one.matters]
    light = [one for one in differences if not one.matters]
    if heavy:
        yield f"NODES DIFFER in {len(heavy)} field{'s' if len(heavy) > 1 else ''} that may change speed or results:"
        yield from (f"  !! {one.sentence()}" for one in heavy)
    if light:
        yield "Nodes differ in what seldom matters:"
        yield from (f"  {one.sentence()}" for one in light)


def _table(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    listed = list(rows)
    width = max([_WIDTH, *(len(name) for name, _ in listed)])
    before = None
    for name, text in listed:
        # Rows of one name, and lines of one text, stand below each other. A matrix keeps its spaces.
        for line in textwrap.wrap(text, _TEXT_WIDTH, break_on_hyphens=False) if len(text) > _TEXT_WIDTH else [text]:
            yield f"  {'' if name == before else name:{width}}  {line}".rstrip()
            before = name


def _unknown(absent: Sequence[Mapping[str, str]], slow: Mapping[str, float]) -> Iterator[str]:
    if absent:
        yield ""
        yield "Unknown, and who would tell it"
        yield from _table((one["what"], f"{one['tool']}: {one['reason']}") for one in absent)
    for name, seconds in slow.items():
        yield f"SLOW: to look at {name} took {seconds:.1f} s"
