"""Recipes: load, override, check, hash, compare. A recipe file is a difference from its benchmark's reference."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from hpcai500.editions import editions, load_edition
from hpcai500.errors import RecipeError
from hpcai500.layers import LAYER_NUMBERS, RECIPE_TYPES, Recipe
from hpcai500.toml_source import Source, explain, merged, parse_tables, read_source

_PACKAGE = Path(__file__).parent
# The table that makes a recipe one of an ensemble, and the file that states all of it.
ENSEMBLE = "ensemble"


@dataclass(frozen=True)
class Difference:
    """One field in which a recipe differs from another one."""

    layer: int
    field: str
    reference: Any
    value: Any


def recipes_folder() -> Path:
    """The folder of the recipes that come with hpcai500: in the installed package, or beside it in a checkout."""
    installed, checkout = _PACKAGE / "recipes", _PACKAGE.parent / "recipes"
    return installed if installed.is_dir() else checkout


def find_recipe(name: str | Path) -> Path:
    """The file of `name`: a path, or the short name of a recipe that comes with hpcai500 (`ic/smoke`).

    Raises:
        RecipeError: neither exists.
    """
    path = Path(name)
    if path.is_file():
        return path
    shipped = recipes_folder() / f"{name}.toml"
    if shipped.is_file():
        return shipped
    known = ", ".join(shipped_recipes())
    raise RecipeError(f"{name}: no such recipe file; the recipes that come with hpcai500 are {known}")


def shipped_recipes() -> list[str]:
    """Short names of the recipes that come with hpcai500; what else lies in their folder (site files) is none."""
    return sorted(f"{name}/{path.stem}" for name in RECIPE_TYPES for path in (recipes_folder() / name).glob("*.toml"))


def load_recipe(name: str | Path, overrides: Sequence[str] = (), edition: str | None = None) -> Recipe:
    """The resolved recipe: the benchmark's reference, changed by the file `name`, changed by `overrides`.

    A recipe with the table [ensemble], or with an override in it, has the benchmark's `ensemble.toml` for what it does
    not say there.

    Args:
        name: a TOML file, or the short name of a shipped recipe.
        overrides: `table.key=value` each, as given to `--set`; the value is TOML, or a bare string.
        edition: of the rules, instead of the one that the file names.

    Raises:
        RecipeError: with file, line, table, key and the allowed values, a line for each mistake.
    """
    path = find_recipe(name)
    source = read_source(path, RecipeError)
    tables = parse_tables(source, RecipeError)
    benchmark = tables.get("benchmark")
    if not isinstance(benchmark, str) or benchmark not in RECIPE_TYPES:
        fix = 'is missing; begin the file with benchmark = "ic"' if benchmark is None else f"got {benchmark!r}"
        raise RecipeError(f"{path}: benchmark: expected one of {', '.join(RECIPE_TYPES)}, {fix}")
    changes = [_override(text) for text in overrides]
    overridden = frozenset((table, key) for change in changes for table, keys in change.items() for key in keys)
    base = _shipped(benchmark, "reference")
    if any(ENSEMBLE in change for change in (tables, *changes)):
        base = merged(base, {ENSEMBLE: _shipped(benchmark, ENSEMBLE)[ENSEMBLE]})
    ruled_by = {} if edition is None else {"edition": edition}
    return _validate(merged(base, tables, *changes, ruled_by), replace(source, overrides=overridden))


def ensemble_reference(benchmark: str) -> dict[str, Any]:
    """The table [ensemble] of the benchmark's `ensemble.toml`."""
    table: dict[str, Any] = _shipped(benchmark, ENSEMBLE)[ENSEMBLE]
    return table


def reference_recipe(benchmark: str) -> Recipe:
    """The reference recipe of `benchmark`."""
    return load_recipe(f"{benchmark}/reference")


def parse_resolved(text: str, name: str) -> Recipe:
    """A recipe from resolved TOML `text` (a record's `recipe.toml`): nothing is filled in from anywhere."""
    source = Source(name, text)
    return _validate(parse_tables(source, RecipeError), source)


def to_toml(recipe: Recipe) -> str:
    """The resolved recipe as TOML: every field, nothing implicit."""
    return tomli_w.dumps(recipe.model_dump(mode="json"))


def recipe_hash(recipe: Recipe) -> str:
    """SHA-256 (hex) of the resolved recipe; formatting and comments of its file do not change it."""
    return tables_hash(recipe.model_dump(mode="json"))


def tables_hash(tables: Mapping[str, Any]) -> str:
    """`recipe_hash` of a resolved recipe in plain tables, whether or not this version knows all its fields."""
    canonical = json.dumps(tables, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


def differences(recipe: Recipe, reference: Recipe) -> list[Difference]:
    """Fields in which `recipe` differs from `reference`, from layer 9 down to 1."""
    ours, theirs = recipe.model_dump(mode="json"), reference.model_dump(mode="json")
    return [
        Difference(number, f"{table}.{key}", theirs[table].get(key), value)
        for table, number in LAYER_NUMBERS.items()
        for key, value in ours[table].items()
        if theirs[table].get(key) != value
    ]


def _shipped(benchmark: str, name: str) -> dict[str, Any]:
    return parse_tables(read_source(recipes_folder() / benchmark / f"{name}.toml", RecipeError), RecipeError)


def _override(text: str) -> dict[str, Any]:
    target, equals, value = text.partition("=")
    table, dot, key = target.strip().partition(".")
    if not (equals and dot and table and key):
        raise RecipeError(f"--set {text}: expected table.key=value, for example --set problem.epochs=2")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()  # a bare word: --set accelerator.device=cpu needs no quotes
    return {table: {key: parsed}}


def _validate(tables: Mapping[str, Any], source: Source) -> Recipe:
    kind = RECIPE_TYPES.get(str(tables.get("benchmark")))
    if kind is None:
        raise RecipeError(
            f"{source.name}: benchmark: expected one of {', '.join(RECIPE_TYPES)}, got {tables.get('benchmark')!r}"
        )
    try:
        recipe = kind.model_validate(tables)
    except ValidationError as error:
        raise RecipeError(explain(kind, source, error)) from error
    if recipe.edition not in editions():
        raise RecipeError(f"{source.name}: edition: expected one of {', '.join(editions())}, got {recipe.edition!r}")
    if recipe.ensemble is not None and ENSEMBLE not in load_edition(recipe.edition):
        raise RecipeError(
            f'{source.name}: [ensemble]: edition {recipe.edition} knows no ensembles: edition = "v3.0" does'
        )
    return recipe
