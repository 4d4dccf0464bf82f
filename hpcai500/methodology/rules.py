"""The level that a recipe qualifies for, and the changes that require it (V2.0 sections 3.1 and 5).

A recipe is compared field by field with its edition's reference. The edition's rows give the lowest level that allows
each change, and the recipe has the highest of these. A field that the edition does not know has the level of its layer;
an unknown layer is allowed at no level.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NEVER = "never"
# They select the rules, and have no level themselves.
_NO_LAYER = ("benchmark", "edition")

Tables = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """One field in which a recipe differs from the reference.

    Attributes:
        layer: number of its layer (9 to 1); 0 for a layer that the edition does not know.
        field: `table.key`.
        reference: the reference's value; None if it has no such field.
        value: the recipe's; None if it does not state the field.
        level: the lowest level that allows the change; None if none does.
        section: of the paper; empty for an unknown layer.
        why: the rule in a few words.
    """

    layer: int
    field: str
    reference: Any
    value: Any
    level: str | None
    section: str
    why: str = ""


@dataclass(frozen=True)
class LevelReport:
    """The level of a recipe in an edition.

    Attributes:
        level: the lowest level that the recipe qualifies for; None if no level allows one of its changes.
        changes: all differences from the reference, from layer 9 down.
        absent: fields that were added to the reference after the recipe was written; leaving them out is no change.
        levels: the edition's levels, the strictest first.
    """

    level: str | None
    changes: tuple[Change, ...]
    absent: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()

    @property
    def forcing(self) -> tuple[Change, ...]:
        """The changes that no lower level allows; none at the strictest level."""
        if self.level is not None and self.level == self.levels[0]:
            return ()
        return tuple(change for change in self.changes if change.level == self.level)

    def beyond(self, level: str) -> tuple[Change, ...]:
        """The changes that `level` does not allow; if there are none, the recipe qualifies for it."""
        allowed = self.levels[: self.levels.index(level) + 1]
        return tuple(change for change in self.changes if change.level not in allowed)


def find_level(tables: Tables, rules: Tables) -> LevelReport:
    """The level of the recipe `tables` under `rules` (a `rulebook` with `levels` and `reference`).

    `tables` may have any content: everything unexpected counts as a change.

    Raises:
        KeyError: the rules lack `levels` or `reference`: the edition does not know the benchmark.
    """
    levels, reference = rules["levels"], rules["reference"]
    order = tuple(levels["order"])
    joined = frozenset(rules.get("joined_fields", ()))
    absent = tuple(_absent(tables, levels, reference))
    found = [
        *_changes(tables, levels, reference),
        *(_left_out(name, levels, reference) for name in absent if name not in joined),
    ]
    changes = tuple(sorted(found, key=_place(levels, reference)))
    forced = [change.level for change in changes]
    level = None if None in forced else max(map(str, forced), key=order.index, default=order[0])
    return LevelReport(level, changes, tuple(name for name in absent if name in joined), order)


def same_value(one: Any, other: Any) -> bool:
    """Whether two values of recipes are equal: 8 equals 8.0, but true does not equal 1. There is no tolerance."""
    if isinstance(one, bool) or isinstance(other, bool):
        return isinstance(one, bool) and isinstance(other, bool) and one == other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same_value, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_value(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)


def row_of(levels: Tables, table: str, key: str) -> Mapping[str, Any]:
    """The edition's row for a field: its own, or else that of its layer."""
    row: Mapping[str, Any] = levels.get("fields", {}).get(table, {}).get(key) or levels["layers"][table]
    return row


def level_of(row: Mapping[str, Any], value: Any) -> str | None:
    """The lowest level at which a field with this row may have `value`; None if there is none."""
    named = row.get("values", {})
    level = named[value] if isinstance(value, str) and value in named else row["level"]
    return None if level == NEVER else str(level)


def _changes(tables: Tables, levels: Tables, reference: Tables) -> Iterator[Change]:
    for table, content in tables.items():
        if table in _NO_LAYER:
            continue
        layer = levels["layers"].get(table)
        if layer is None:
            yield Change(0, table, None, content, None, "", "the edition has no such layer")
        elif not isinstance(content, Mapping):
            yield Change(layer["layer"], table, None, content, None, layer["section"], "a layer must be a table")
        else:
            yield from _changes_of_layer(table, content, levels, reference[table])


def _changes_of_layer(table: str, content: Tables, levels: Tables, reference: Tables) -> Iterator[Change]:
    layer = levels["layers"][table]
    for key, value in content.items():
        name = f"{table}.{key}"
        if key not in reference:
            why = "the edition does not know this field: it has the level of its layer"
            yield Change(layer["layer"], name, None, value, level_of(layer, value), layer["section"], why)
        elif not same_value(reference[key], value):
            row = row_of(levels, table, key)
            level = level_of(row, value)
            yield Change(layer["layer"], name, reference[key], value, level, row["section"], row["why"])


def _absent(tables: Tables, levels: Tables, reference: Tables) -> Iterator[str]:
    """Fields of the reference that a recipe does not state."""
    for table in levels["layers"]:
        content = tables.get(table, {})
        if isinstance(content, Mapping):
            yield from (f"{table}.{key}" for key in reference[table] if key not in content)


def _left_out(name: str, levels: Tables, reference: Tables) -> Change:
    """A missing field that every recipe must state. What a run did without it is unknown, so no level allows it."""
    table, _, key = name.partition(".")
    row = row_of(levels, table, key)
    layer = levels["layers"][table]["layer"]
    return Change(layer, name, reference[table][key], None, None, row["section"], "the recipe does not state it")


def _place(levels: Tables, reference: Tables) -> Any:
    """The sort key of changes: from layer 9 down, in a layer by the reference's order, not the recipe's."""
    known: Sequence[str] = [f"{table}.{key}" for table in levels["layers"] for key in reference[table]]
    places = {name: place for place, name in enumerate(known)}
    return lambda change: (-change.layer, places.get(change.field, len(places)), change.field)
