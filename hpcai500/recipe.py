"""Recipes: load, override, check, hash, compare. A recipe file is a difference from its benchmark's reference."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from hpcai500.editions import editions, load_edition
from hpcai500.errors import RecipeError
from hpcai500.layers import LAYER_NUMBERS, RECIPE_TYPES, Recipe
from hpcai500.plugins.benchmarks import known_benchmarks, not_known, recipe_type
from hpcai500.plugins.loading import load_plugin, usable_plugins
from hpcai500.toml_source import Source, explain, merged, parse_tables, read_source

_PACKAGE = Path(__file__).parent
# The table that makes a recipe one of an ensemble, and the file that states all of it.
ENSEMBLE = "ensemble"
# What a plug-in's reference recipe states itself; for the rest it begins with the reference of `ic`.
_OWN_TABLES = ("benchmark", "edition", "problem", "workload")


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
    """The file of `name`: a path, or the short name of a recipe that comes with hpcai500 or a plug-in (`ic/smoke`).

    Raises:
        RecipeError: neither exists.
        EnvironmentLacksError: it is of a plug-in that cannot be used.
    """
    path = Path(name)
    if path.is_file():
        return path
    shipped = recipes_folder() / f"{name}.toml"
    if shipped.is_file():
        return shipped
    benchmark, slash, stem = str(name).partition("/")
    plugin = load_plugin(benchmark) if slash else None
    if plugin is not None and (plugin.recipes / f"{stem}.toml").is_file():
        return plugin.recipes / f"{stem}.toml"
    known = ", ".join(shipped_recipes())
    raise RecipeError(f"{name}: no such recipe file; the recipes that come with hpcai500 are {known}")


def shipped_recipes() -> list[str]:
    """Short names of the recipes that come with hpcai500 and with its plug-ins.

    What else lies in their folder (site files) is none.
    """
    folders = {name: recipes_folder() / name for name in RECIPE_TYPES}
    folders |= {found.name: plugin.recipes for found, plugin in usable_plugins()}
    return sorted(f"{name}/{path.stem}" for name, folder in folders.items() for path in folder.glob("*.toml"))


def is_shipped(path: Path) -> bool:
    """Whether a recipe file came with hpcai500 or a plug-in: who is named `ic/smoke` finds it on any node."""
    folders = chain([recipes_folder()], (plugin.recipes for _, plugin in usable_plugins()))
    return any(path.resolve().is_relative_to(folder.resolve()) for folder in folders)


def default_recipe(benchmark: str, *, has_data: bool) -> str:
    """What a command runs that names none: the reference with the data set, otherwise a small run on made data.

    A plug-in without `smoke.toml` has the reference for both.
    """
    plugin = None if has_data else load_plugin(benchmark)
    is_small = not has_data and (plugin is None or (plugin.recipes / "smoke.toml").is_file())
    return f"{benchmark}/{'smoke' if is_small else 'reference'}"


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
    if benchmark is None:
        known = ", ".join(known_benchmarks())
        raise RecipeError(
            f'{path}: benchmark: expected one of {known}, is missing; begin the file with benchmark = "ic"'
        )
    if not isinstance(benchmark, str) or recipe_type(benchmark) is None:
        raise RecipeError(f"{path}: benchmark: {not_known(benchmark)}")
    changes = [_override(text) for text in overrides]
    overridden = frozenset((table, key) for change in changes for table, keys in change.items() for key in keys)
    base = _reference_tables(benchmark)
    if any(ENSEMBLE in change for change in (tables, *changes)):
        base = merged(base, {ENSEMBLE: ensemble_reference(benchmark)})
    ruled_by = {} if edition is None else {"edition": edition}
    return _validate(merged(base, tables, *changes, ruled_by), replace(source, overrides=overridden))


def ensemble_reference(benchmark: str) -> dict[str, Any]:
    """The table [ensemble] of the benchmark's `ensemble.toml`.

    What a plug-in does not say there is as in that of `ic`; it votes in the first of the ways that it knows.
    """
    plugin = load_plugin(benchmark)
    if plugin is None:
        table: dict[str, Any] = _shipped(benchmark, ENSEMBLE)[ENSEMBLE]
        return table
    first = {"vote": plugin.recipe.votes[0], "strata": plugin.recipe.strata[0]}
    own = _tables_of(plugin.recipes / f"{ENSEMBLE}.toml") if (plugin.recipes / f"{ENSEMBLE}.toml").is_file() else {}
    return merged(_shipped("ic", ENSEMBLE)[ENSEMBLE], first, own.get(ENSEMBLE, {}))


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


def _reference_tables(benchmark: str) -> dict[str, Any]:
    """The benchmark's reference; a plug-in's begins with that of `ic`: layers gain fields that it cannot know."""
    reference = _shipped(benchmark, "reference")
    if benchmark in RECIPE_TYPES:
        return reference
    base = {name: table for name, table in _shipped("ic", "reference").items() if name not in _OWN_TABLES}
    return merged(base, reference)


def _shipped(benchmark: str, name: str) -> dict[str, Any]:
    plugin = load_plugin(benchmark)
    return _tables_of((plugin.recipes if plugin else recipes_folder() / benchmark) / f"{name}.toml")


def _tables_of(path: Path) -> dict[str, Any]:
    return parse_tables(read_source(path, RecipeError), RecipeError)


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
    kind = recipe_type(str(tables.get("benchmark")))
    if kind is None:
        raise RecipeError(f"{source.name}: benchmark: {not_known(tables.get('benchmark'))}")
    try:
        recipe = kind.model_validate(tables)
    except ValidationError as error:
        raise RecipeError(*explain(kind, source, error)) from error
    if recipe.edition not in editions():
        raise RecipeError(f"{source.name}: edition: expected one of {', '.join(editions())}, got {recipe.edition!r}")
    if recipe.ensemble is not None and ENSEMBLE not in load_edition(recipe.edition):
        raise RecipeError(
            f'{source.name}: [ensemble]: edition {recipe.edition} knows no ensembles: edition = "v3.0" does'
        )
    return recipe
