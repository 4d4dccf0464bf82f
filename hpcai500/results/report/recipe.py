"""The recipe of a run: what differs from the reference first, by the papers' nine layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcai500.errors import UsageError
from hpcai500.recipe import recipes_folder, reference_recipe
from hpcai500.recipe_tables import every_field, table_differences
from hpcai500.results.report.blocks import Block, Cell, Fold, Section, Table, Text
from hpcai500.results.report.reading import Subject
from hpcai500.results.report.words import listed, short

_MOST_ROWS, _MOST_LETTERS = 300, 100


def recipe_section(subject: Subject) -> Section:
    """Differences from the reference of its benchmark, and every field."""
    tables = subject.record.tables
    benchmark = str(tables.get("benchmark"))
    reference = _reference(benchmark)
    blocks: list[Block] = []
    if reference is None:
        blocks.append(Text(f"This installation has no reference recipe of {short(benchmark, 60)}.", "flag"))
    else:
        blocks += _differences(tables, reference, benchmark)
    fields = every_field(tables)
    rows = [(str(field.layer), field.name, listed(field.value)) for field in fields[:_MOST_ROWS]]
    table = Table("The resolved recipe", ("layer", "field", "value"), rows, [0], max(0, len(fields) - _MOST_ROWS))
    blocks.append(Fold(f"The whole recipe, {len(fields)} fields", [table]))
    return Section("Recipe", blocks)


def _differences(tables: Mapping[str, Any], reference: Mapping[str, Any], benchmark: str) -> list[Block]:
    found = table_differences(tables, reference)
    name = f"the reference of {benchmark}"
    if not found:
        return [Text(f"Every field is as in {name}.", "good")]
    rows = [
        (
            Cell(f"{one.layer}{' !' if one.layer == 9 else ''}", "bad" if one.layer == 9 else ""),
            one.field,
            short(listed(one.reference), _MOST_LETTERS),
            short(listed(one.value), _MOST_LETTERS),
        )
        for one in found[:_MOST_ROWS]
    ]
    said = f"{len(found)} fields differ from {name}."
    if any(one.layer == 9 for one in found):
        said += " Layer 9 (marked !) is the problem itself: what differs there cannot be ranked."
    caption = "Fields that differ, from layer 9 (problem) down to layer 1 (hardware)"
    return [
        Text(said),
        Table(caption, ("layer", "field", "reference", "this run"), rows, [0], max(0, len(found) - _MOST_ROWS)),
    ]


def _reference(benchmark: str) -> Mapping[str, Any] | None:
    if not benchmark.isidentifier() or not (recipes_folder() / benchmark / "reference.toml").is_file():
        return None
    try:
        return reference_recipe(benchmark).model_dump(mode="json")
    except UsageError:
        # A site's own folder of recipes may be older than this version; the page comes without.
        return None
