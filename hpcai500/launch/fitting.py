"""A recipe and the ranks that there are: what the recipe leaves open follows the ranks, what it states must agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcai500.errors import RecipeError, UsageError
from hpcai500.layers import Recipe
from hpcai500.recipe import find_recipe, is_shipped
from hpcai500.toml_source import parse_tables, read_source

Field = tuple[str, str]
_FIELDS = _NODES, _PER_NODE, _BACKEND = (
    ("hardware", "nodes"),
    ("hardware", "accelerators_per_node"),
    ("communication", "backend"),
)


@dataclass(frozen=True)
class World:
    """The ranks that there are, or are asked for.

    Attributes:
        size: how many.
        nodes: on how many nodes; None where their launcher does not say.
        backend: the backend of the recipe where it names none and there are several ranks.
        source: who says so, for messages: `--procs 2`, `mpirun`.
        fix: what to do about it where a recipe asks for another number.
    """

    size: int
    nodes: int | None
    backend: str
    source: str
    fix: str


def fitting_overrides(name: str | Path, overrides: Sequence[str], world: World) -> list[str]:
    """Overrides (`table.key=value`) that fit the recipe `name`, changed by `overrides`, to `world`.

    The reference recipe of a benchmark states nothing: its one rank is only where a difference begins.

    Raises:
        RecipeError: there is no such recipe.
        UsageError: it states another number of ranks.
    """
    stated = _stated(find_recipe(name), overrides)
    nodes, per_node = _whole(stated.get(_NODES)), _whole(stated.get(_PER_NODE))
    changes: dict[Field, Any] = {}
    if _NODES not in stated:
        nodes = changes[_NODES] = _nodes(world, per_node)
    if _PER_NODE not in stated:
        per_node = changes[_PER_NODE] = max(1, world.size // (nodes or 1))
    if nodes is not None and per_node is not None and nodes * per_node != world.size:
        raise UsageError(
            f"{world.source}: {in_words(world.size)}, but the recipe's hardware is {nodes} x {per_node} (nodes x "
            f"accelerators_per_node): {world.fix}"
        )
    if _BACKEND not in stated:
        changes[_BACKEND] = "local" if world.size == 1 else world.backend
    return [f"{table}.{key}={value}" for (table, key), value in changes.items()]


def require_full_rows(recipe: Recipe, size: int, local_size: int | None) -> None:
    """Refuse a 2D torus whose rows `size` ranks do not fill, before any of them starts.

    Args:
        local_size: ranks on this host, where that is known.

    Raises:
        RecipeError: a row is a node and nodes have different numbers of ranks, or a stated row does not divide them.
    """
    way = recipe.communication
    if way.topology != "torus" or size == 1 or recipe.programming.stages > 1:
        return
    if way.torus_columns == 0 and local_size is not None and size % local_size:
        raise RecipeError(
            f"communication.torus_columns: 0 makes a row of each node, but this one has {local_size} of the {size} "
            "ranks, so that others have another number: start as many on each node, or state the ranks of a row"
        )
    if way.torus_columns and size % way.torus_columns:
        raise RecipeError(
            f"communication.torus_columns: {size} ranks do not fill rows of {way.torus_columns}: use one of "
            f"{', '.join(str(count) for count in range(1, size + 1) if size % count == 0)}"
        )


def _stated(path: Path, overrides: Sequence[str]) -> Mapping[Field, Any]:
    """The fields of interest that the file or a --set gives a value to. What cannot be read is told by load_recipe."""
    stated: dict[Field, Any] = {}
    if path.name != "reference.toml" or not is_shipped(path):
        try:
            tables = parse_tables(read_source(path, RecipeError), RecipeError)
        except RecipeError:
            tables = {}
        for table, values in tables.items():
            # What is no table must reach load_recipe as it is.
            fields = (
                values if isinstance(values, dict) else dict.fromkeys(key for name, key in _FIELDS if name == table)
            )
            stated |= {(table, key): value for key, value in fields.items()}
    for text in overrides:
        target, _, value = text.partition("=")
        table, _, key = target.strip().partition(".")
        stated[table, key] = value.strip()
    return stated


def _whole(value: Any) -> int | None:
    """None for what is not stated, or is no number: load_recipe says that."""
    return int(value) if str(value).isdecimal() else None


def _nodes(world: World, per_node: int | None) -> int:
    if world.nodes is not None:
        return world.nodes
    if per_node is None:
        raise UsageError(
            f"{world.source}: {in_words(world.size)}, and nothing tells on how many nodes: set LOCAL_WORLD_SIZE for "
            "each rank, or add --set hardware.nodes=N"
        )
    return max(1, world.size // per_node)


def in_words(size: int) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{size} rank{'s' if size > 1 else ''}"
