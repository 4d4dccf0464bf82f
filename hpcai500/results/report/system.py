"""The nodes of a run: what differs between them first, then the typical one by the parts of V2.0 section 5.3.3."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcai500.methodology.node_differences import NodeDifference, node_differences
from hpcai500.results.report.blocks import Block, Cell, Fold, Row, Section, Table, Text, Tone
from hpcai500.results.report.reading import Subject
from hpcai500.results.report.words import count, is_number, listed, number, quantity, short, table, tables
from hpcai500.system.describe.hardware_rows import link_rows, processor_rows
from hpcai500.system.describe.software_rows import network_rows, operating_system_rows, software_rows, system_rows

_MOST_HOSTS, _MOST_FIELDS, _MOST_DIFFERENCES, _MOST_VARIANTS = 6, 500, 60, 6
_DEPTH = 6
# Shown elsewhere, or as long as a page.
_LONG = {"raw", "torch_build", "Flags"}


def system_section(subject: Subject) -> Section:
    """Differences, the parts of a typical node, and every field of it."""
    nodes = tables(subject.record.system.get("nodes"))
    if not nodes:
        return Section("System", [Text("The record says nothing of its machine.", "flag")])
    differences = node_differences(nodes) if len(nodes) > 1 else []
    odd = {host for difference in differences for host in difference.outliers}
    typical = next((node for node in nodes if str(node.get("host")) not in odd), nodes[0])
    host = short(typical.get("host", "?"), 60)
    blocks: list[Block] = [_sentence(len(nodes), differences)]
    blocks += [_difference_table(differences)] if differences else []
    blocks.append(_part_table(typical, subject, host))
    blocks.append(Fold(f"Every field of node {host}", [_field_table(typical, host)], printed=False))
    return Section("System", blocks)


def _sentence(nodes: int, differences: Sequence[NodeDifference]) -> Text:
    if nodes == 1:
        return Text("One node.")
    heavy = sum(difference.matters for difference in differences)
    if heavy:
        return Text(
            f"{nodes:,} nodes, which differ in {count(heavy, 'field')} that may change speed or results.", "flag"
        )
    if differences:
        return Text(f"{nodes:,} nodes, which differ only in what seldom matters.")
    return Text(f"{nodes:,} nodes, alike in all that was looked at.", "good")


def _difference_table(differences: Sequence[NodeDifference]) -> Table:
    rows: list[Row] = []
    for difference in differences[:_MOST_DIFFERENCES]:
        tone: Tone = "flag" if difference.matters else "soft"
        for index, variant in enumerate(difference.variants[:_MOST_VARIANTS]):
            name = f"{'⚠ ' if difference.matters else ''}{short(difference.field, 80)}" if index == 0 else ""
            hosts = ", ".join(short(host, 40) for host in variant.nodes[:_MOST_HOSTS])
            more = len(variant.nodes) - _MOST_HOSTS
            where = f"{hosts} and {more:,} more" if more > 0 else hosts
            rows.append((Cell(name, tone), short(listed(variant.value), 200), f"{len(variant.nodes):,}", where))
    caption = "Fields in which nodes differ, the commonest value first; ⚠ may change speed or results"
    left_out = max(0, len(differences) - _MOST_DIFFERENCES)
    return Table(caption, ("field", "value", "nodes", "which"), rows, (2,), left_out)


def _part_table(node: Mapping[str, Any], subject: Subject, host: str) -> Table:
    rows: list[Row] = []
    system = subject.record.system
    parts = {
        "Processors and accelerators of a node": processor_rows(node),
        "Connections within a node": link_rows(node),
        "Operating system of a node": operating_system_rows(node),
        "Software of a node": software_rows(node),
        "Connections between nodes": network_rows(node),
        "Software of the system": system_rows(tables(system.get("nodes")), system.get("installation")),
    }
    for title, lines in parts.items():
        rows.append((title,))
        rows += [(name, short(text)) for name, text in lines]
    return Table(f"Node {host}, by the six parts of V2.0 section 5.3.3", ("", ""), rows)


def _field_table(node: Mapping[str, Any], host: str) -> Table:
    rows = list(_flat(node, "", _DEPTH))
    left_out = max(0, len(rows) - _MOST_FIELDS)
    return Table(f"Node {host}", ("field", "value"), rows[:_MOST_FIELDS], left_out=left_out)


def _flat(value: Mapping[str, Any], above: str, depth: int) -> Iterator[tuple[str, str]]:
    for key, inner in value.items():
        name = f"{above}{short(key, 80)}"
        if key in _LONG:
            continue
        if table(inner) and depth:
            yield from _flat(inner, f"{name}.", depth - 1)
        elif tables(inner) and depth:
            for index, one in enumerate(tables(inner)):
                yield from _flat(one, f"{name}[{index}].", depth - 1)
        elif is_number(inner) and str(key).endswith("bytes"):
            yield name, quantity(number(inner), "B")
        else:
            yield name, listed(inner)
