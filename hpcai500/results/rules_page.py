"""An edition's rules as a table: what each field is, and the lowest level at which it may change.

python -m hpcai500.results.rules_page docs/rules.md      # write the table of docs/rules.md anew
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from hpcai500.editions import editions, load_edition
from hpcai500.files import write_atomically
from hpcai500.layers import RECIPE_TYPES
from hpcai500.methodology.rules import row_of

BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
EDITION = "v2.0"


def rules_lines(edition: str = EDITION) -> Iterator[str]:
    """The rules of `edition` in Markdown: what is fixed for each benchmark, then a table for each layer."""
    rules = load_edition(edition)
    levels = rules["levels"]
    benchmarks = rules["benchmarks"]
    keys = dict.fromkeys(key for fixed in benchmarks.values() for key in fixed)
    yield f"Edition {edition}" + (f", which extends {rules['extends']}" if "extends" in rules else "") + "."
    yield ""
    yield f"| fixed | {' | '.join(benchmarks)} |"
    yield f"|---|{'---|' * len(benchmarks)}"
    for key in keys:
        if key != "joined_fields":
            yield f"| `{key}` | {' | '.join(_cell(fixed.get(key)) for fixed in benchmarks.values())} |"
    for table in sorted(levels["layers"], key=lambda name: -levels["layers"][name]["layer"]):
        yield from _layer_lines(table, levels)
    if edition == EDITION:
        yield from _newer_lines(levels)


def _newer_lines(levels: Mapping[str, Any]) -> Iterator[str]:
    """Tables that only newer editions rule."""
    for name in editions():
        newer = load_edition(name)["levels"]
        for table in newer["layers"].keys() - levels["layers"].keys():
            yield from _layer_lines(table, newer, f", from edition {name} on")


def _layer_lines(table: str, levels: Mapping[str, Any], since: str = "") -> Iterator[str]:
    layer = levels["layers"][table]
    yield ""
    yield f"### Layer {layer['layer']}: {table}{since}"
    yield ""
    said, at = layer["why"], _at(layer, levels["order"])
    yield f"{said[0].upper()}{said[1:]} ({layer['section']}). A field without a rule of its own may change: {at}."
    yield ""
    yield "| field | may change | rule | section | what it is |"
    yield "|---|---|---|---|---|"
    for name, meaning in _fields(table):
        row = row_of(levels, table, name)
        why = row["why"] if row is not layer else ""
        yield f"| `{name}` | {_at(row, levels['order'])} | {why} | {row['section']} | {meaning} |"


def page_with_table(page: str) -> str:
    """`page` with the table between its marks written anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n" + "\n".join(rules_lines()) + f"\n\n{END}{after}"


def _fields(table: str) -> Iterator[tuple[str, str]]:
    """Name and meaning of every field of a layer; where benchmarks differ, with the one that the meaning is of."""
    found: dict[tuple[str, str], list[str]] = {}
    for benchmark, recipe in RECIPE_TYPES.items():
        annotation = recipe.model_fields[table].annotation
        # A table that a recipe may lack is a union with None.
        layer = next(one for one in (annotation, *get_args(annotation)) if isinstance(one, type))
        assert issubclass(layer, BaseModel)
        for name, field in layer.model_fields.items():
            found.setdefault((name, field.description or ""), []).append(benchmark)
    for (name, meaning), of in found.items():
        yield name, meaning if len(of) == len(RECIPE_TYPES) else f"{meaning} ({', '.join(of)})"


def _at(row: Mapping[str, Any], order: Sequence[str]) -> str:
    """Where a field may change, in words."""
    named: dict[str, list[str]] = {}
    for value, level in row.get("values", {}).items():
        named.setdefault(level, []).append(f"`{value}`")
    exceptions = (f"to {', '.join(values)}: {_from(level, order)}" for level, values in named.items())
    return "; ".join([_from(row["level"], order), *exceptions])


def _from(level: str, order: Sequence[str]) -> str:
    if level not in order:
        return level
    return "at every level" if level == order[0] else "at " + " and ".join(order[order.index(level) :])


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def main(page: Path) -> None:
    """Write the table of `page` anew."""
    write_atomically(page, page_with_table(page.read_text(encoding="utf-8")).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
