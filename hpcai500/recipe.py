"""Recipes and editions: load, override, check, hash and compare recipes, and load the rules that they are checked by.

A recipe file is a difference from its benchmark's reference. The rules of an edition are one TOML file, which only
this module reads.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from hpcai500.errors import RecipeError
from hpcai500.files import is_folder, similar_path
from hpcai500.layers import LAYER_NUMBERS, RECIPE_TYPES, Recipe
from hpcai500.methodology.conduct import ranks_of, ranks_per_replica
from hpcai500.plugins import (
    PERHAPS_MISSING,
    known_benchmarks,
    load_plugin,
    may_be_benchmark,
    not_known,
    recipe_type,
    usable_plugins,
)
from hpcai500.toml_source import Source, explain, merged, parse_tables, read_source

# ----------------------------------------------------------------------------------------------------
# Editions.


_EDITIONS = Path(__file__).parent / "editions"


def editions() -> list[str]:
    """Names of all editions, oldest first."""
    return sorted(path.stem for path in _EDITIONS.glob("v*.toml"))


@cache
def load_edition(name: str) -> dict[str, Any]:
    """The rules of edition `name`: its file, merged over the edition that it extends.

    Raises:
        RecipeError: no such edition.
    """
    if name not in editions():
        raise RecipeError(f"edition: expected one of {', '.join(editions())}, got {name!r}")
    rules = tomllib.loads((_EDITIONS / f"{name}.toml").read_text(encoding="utf-8"))
    return merged(load_edition(rules["extends"]), rules) if "extends" in rules else rules


def benchmark_rules(edition: str, benchmark: str) -> dict[str, Any]:
    """The rules of `edition` for `benchmark`; empty for a plug-in's benchmark, which no edition has."""
    rules: dict[str, Any] = load_edition(edition)["benchmarks"].get(benchmark, {})
    return rules


# ----------------------------------------------------------------------------------------------------
# Recipes.


_PACKAGE = Path(__file__).parent
# The table of an ensemble's recipe, and the stem of the file that states all its fields.
ENSEMBLE = "ensemble"
# A plug-in's reference must state these tables itself; the others default to those of `ic`.
_OWN_TABLES = ("benchmark", "edition", "problem", "workload")


@dataclass(frozen=True)
class Difference:
    """A field in which two recipes differ."""

    layer: int
    field: str
    reference: Any
    value: Any


def recipes_folder() -> Path:
    """The folder of the shipped recipes: in the installed package, or beside it in a checkout."""
    installed, checkout = _PACKAGE / "recipes", _PACKAGE.parent / "recipes"
    return installed if installed.is_dir() else checkout


def find_recipe(name: str | Path) -> Path:
    """The file of `name`: a path, or the short name of a recipe of hpcai500 or a plug-in (`ic/smoke`).

    Raises:
        RecipeError: no such recipe.
        EnvironmentLacksError: its plug-in cannot be used.
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
    if re.fullmatch(r"[\w-]+/[\w-]+", str(name)) and _may_be_missing(benchmark):
        raise RecipeError(f"{name}: no such recipe file; {benchmark} {PERHAPS_MISSING}")
    known = shipped_recipes()
    near = difflib.get_close_matches(str(name), known, n=1)
    meant = near[0] if near else similar_path(path, "file")
    hint = f"did you mean {meant}? " if meant else ""
    what = "a folder, not a recipe file" if is_folder(path) else "no such recipe file"
    raise RecipeError(f"{name}: {what}; {hint}hpcai500 comes with {', '.join(known)}")


def _may_be_missing(benchmark: str) -> bool:
    """Whether `benchmark` is perhaps a plug-in that is not installed, and neither a folder nor a misspelt benchmark."""
    near = difflib.get_close_matches(benchmark, known_benchmarks())
    return not near and may_be_benchmark(benchmark) and not Path(benchmark).is_dir()


def shipped_recipes() -> list[str]:
    """Short names of the recipes of hpcai500 and of plug-ins."""
    folders = {name: recipes_folder() / name for name in RECIPE_TYPES}
    folders |= {found.name: plugin.recipes for found, plugin in usable_plugins()}
    return sorted(f"{name}/{path.stem}" for name, folder in folders.items() for path in folder.glob("*.toml"))


def is_shipped(path: Path) -> bool:
    """Whether a recipe file is part of hpcai500 or a plug-in, so that its short name works on any node."""
    folders = chain([recipes_folder()], (plugin.recipes for _, plugin in usable_plugins()))
    return any(path.resolve().is_relative_to(folder.resolve()) for folder in folders)


def default_recipe(benchmark: str, *, has_data: bool) -> str:
    """The default recipe of a command: the reference if there is data, else `smoke`, a small run on synthetic data.

    A plug-in without `smoke.toml` uses the reference for both.
    """
    plugin = None if has_data else load_plugin(benchmark)
    is_small = not has_data and (plugin is None or (plugin.recipes / "smoke.toml").is_file())
    return f"{benchmark}/{'smoke' if is_small else 'reference'}"


def load_recipe(name: str | Path, overrides: Sequence[str] = (), edition: str | None = None) -> Recipe:
    """The resolved recipe: the benchmark's reference, changed by the file `name`, changed by `overrides`.

    `name` is a TOML file or the short name of a shipped recipe. If the file or an override has the table [ensemble],
    the benchmark's `ensemble.toml` provides its missing fields.

    Args:
        overrides: each `table.key=value`, as given to `--set`; the value is TOML, or a bare string.
        edition: replaces the edition of the file.

    Raises:
        RecipeError: with file, line, table, key and the allowed values; one line for each error.
    """
    path = find_recipe(name)
    source = read_source(path, RecipeError)
    tables = parse_tables(source, RecipeError)
    benchmark = tables.get("benchmark")
    if benchmark is None:
        known = ", ".join(known_benchmarks())
        raise RecipeError(f'{path}: benchmark: missing, expected one of {known}; begin the file with benchmark = "ic"')
    if not isinstance(benchmark, str) or recipe_type(benchmark) is None:
        raise RecipeError(f"{path}: benchmark: {not_known(benchmark)}")
    changes = [_override(text) for text in overrides]
    overridden = frozenset((table, key) for change in changes for table, keys in change.items() for key in keys)
    base = _reference_tables(benchmark)
    if any(ENSEMBLE in change for change in (tables, *changes)):
        base = merged(base, {ENSEMBLE: ensemble_reference(benchmark)})
    edition_table = {} if edition is None else {"edition": edition}
    return _validate(merged(base, tables, *changes, edition_table), replace(source, overrides=overridden))


def ensemble_reference(benchmark: str) -> dict[str, Any]:
    """The table [ensemble] of the benchmark's `ensemble.toml`.

    For a plug-in, missing fields default to those of `ic`, and vote and strata to the first that it allows.
    """
    plugin = load_plugin(benchmark)
    if plugin is None:
        table: dict[str, Any] = _shipped(benchmark, ENSEMBLE)[ENSEMBLE]
        return table
    first = {"vote": plugin.recipe.votes[0], "strata": plugin.recipe.strata[0]}
    own = _tables_of(plugin.recipes / f"{ENSEMBLE}.toml") if (plugin.recipes / f"{ENSEMBLE}.toml").is_file() else {}
    return merged(_shipped("ic", ENSEMBLE)[ENSEMBLE], first, own.get(ENSEMBLE, {}))


def reference_recipe(benchmark: str) -> Recipe:
    return load_recipe(f"{benchmark}/reference")


def parse_resolved(text: str, name: str) -> Recipe:
    """A recipe from resolved TOML `text` (a record's `recipe.toml`), which states every field."""
    source = Source(name, text)
    return _validate(parse_tables(source, RecipeError), source)


def read_resolved(path: Path) -> Recipe:
    """As `parse_resolved`, for the file `path`."""
    source = read_source(path, RecipeError)
    return _validate(parse_tables(source, RecipeError), source)


def to_toml(recipe: Recipe) -> str:
    """The resolved recipe as TOML: every field, nothing implicit."""
    return tomli_w.dumps(recipe.model_dump(mode="json"))


def recipe_hash(recipe: Recipe) -> str:
    """SHA-256 (hex) of the resolved recipe; formatting and comments of its file do not change it."""
    return tables_hash(recipe.model_dump(mode="json"))


def global_batch(tables: Mapping[str, Any]) -> int:
    """Samples of one update over all replicas of the model, from a resolved recipe in plain tables."""
    policy, hardware = tables["hyperparameters"], tables["hardware"]
    replicas = ranks_of(hardware) // ranks_per_replica(tables["programming"])
    return int(policy["batch_size"] * policy["accumulation_steps"] * replicas)


def tables_hash(tables: Mapping[str, Any]) -> str:
    """`recipe_hash` of a resolved recipe in plain tables, whether or not this version knows all its fields."""
    canonical = json.dumps(tables, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _reference_tables(benchmark: str) -> dict[str, Any]:
    """The benchmark's reference; a plug-in's is merged over that of `ic`, which has fields newer than the plug-in."""
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
        raise RecipeError(f'{source.name}: [ensemble]: edition {recipe.edition} has no ensembles; use edition = "v3.0"')
    return recipe


# ----------------------------------------------------------------------------------------------------
# Recipes as plain tables, also of versions with unknown fields.


@dataclass(frozen=True)
class Field:
    """One value of a recipe; layer 0 has fields outside the layers (`benchmark`, `edition`)."""

    layer: int
    name: str
    value: Any


def every_field(tables: Mapping[str, Any]) -> list[Field]:
    """All values of a recipe, from layer 9 down to 0."""
    fields = [
        Field(LAYER_NUMBERS.get(table, 0), f"{table}.{key}" if key else table, value)
        for table, values in tables.items()
        for key, value in (values.items() if isinstance(values, Mapping) else [("", values)])
    ]
    return sorted(fields, key=lambda field: -field.layer)


def table_differences(tables: Mapping[str, Any], reference: Mapping[str, Any]) -> list[Difference]:
    """Fields in which a recipe differs from `reference`, from layer 9 down; a missing field counts as None."""
    ours, theirs = ({field.name: field for field in every_field(one)} for one in (tables, reference))
    found = [
        Difference(field.layer, name, _value(theirs, name), _value(ours, name))
        for name, field in (theirs | ours).items()
        if _value(ours, name) != _value(theirs, name)
    ]
    return sorted(found, key=lambda one: -one.layer)


def _value(fields: Mapping[str, Field], name: str) -> Any:
    return fields[name].value if name in fields else None


# ----------------------------------------------------------------------------------------------------
# The rulebook of one benchmark.


def rulebook(edition: str, benchmark: str) -> dict[str, Any]:
    """The rules of `benchmark` under `edition`, with its `levels` and the tables of the `reference` recipe added.

    Empty for a plug-in's benchmark, which no edition has. If the hash of the installed reference differs from that in
    the edition, `reference_error` takes the place of `reference`, so that no result is checked by a changed one.

    Raises:
        RecipeError: no such edition, or its reference recipe is missing or cannot be read.
    """
    rules = benchmark_rules(edition, benchmark)
    name = rules.get("reference_recipe")
    if name is None:
        return rules
    reference = load_recipe(name).model_dump(mode="json")
    levels = load_edition(edition)["levels"]
    expected = {find_recipe(name): (rules["reference_sha256"], tables_hash(reference))}
    joined = list(rules["joined_fields"])
    if "ensemble_sha256" in rules:
        table = ensemble_reference(benchmark)
        expected[find_recipe(f"{benchmark}/{ENSEMBLE}")] = rules["ensemble_sha256"], tables_hash(table)
        reference[ENSEMBLE] = table
        # A recipe of one model lacks the table.
        joined += [f"{ENSEMBLE}.{key}" for key in table]
    changed = next((path for path, (pinned, found) in expected.items() if pinned != found), None)
    if changed is not None:
        error = (
            f"{changed}: not the reference of edition {edition}: its hash differs, so no level can be determined; "
            "restore the file, or install hpcai500 again"
        )
        return {**rules, "levels": levels, "reference_error": error}
    return {**rules, "joined_fields": joined, "levels": levels, "reference": reference}
