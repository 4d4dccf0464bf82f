"""Recipes as plain tables, field by field: also of versions whose fields this one does not know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcai500.layers import LAYER_NUMBERS
from hpcai500.recipe import Difference


@dataclass(frozen=True)
class Field:
    """One value of a recipe; layer 0 holds what belongs to none (`benchmark`, `edition`)."""

    layer: int
    name: str
    value: Any


def every_field(tables: Mapping[str, Any]) -> list[Field]:
    """All values of a recipe, from layer 9 down; a value that is no table comes by its own name, in layer 0."""
    fields = [
        Field(LAYER_NUMBERS.get(table, 0), f"{table}.{key}" if key else table, value)
        for table, values in tables.items()
        for key, value in (values.items() if isinstance(values, Mapping) else [("", values)])
    ]
    return sorted(fields, key=lambda field: -field.layer)


def table_differences(tables: Mapping[str, Any], reference: Mapping[str, Any]) -> list[Difference]:
    """Fields in which a recipe differs from `reference`, from layer 9 down; a field that one lacks is None there."""
    ours, theirs = ({field.name: field for field in every_field(one)} for one in (tables, reference))
    found = [
        Difference(field.layer, name, _value(theirs, name), _value(ours, name))
        for name, field in (theirs | ours).items()
        if _value(ours, name) != _value(theirs, name)
    ]
    return sorted(found, key=lambda one: -one.layer)


def _value(fields: Mapping[str, Field], name: str) -> Any:
    return fields[name].value if name in fields else None
