"""Recipes: load, override, check, hash, compare. A recipe file is a difference from its benchmark's reference."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hpcai500.editions import editions
from hpcai500.errors import RecipeError
from hpcai500.layers import LAYER_NUMBERS, RECIPE_TYPES, Recipe

_PACKAGE = Path(__file__).parent


_HEADER = re.compile(r"""\s*\[\s*["']?([\w-]+)["']?\s*\]""")
_KEY = re.compile(r"""\s*([\w."'\s-]+?)\s*=""")


@dataclass(frozen=True)
class Source:
    """Where the text of a recipe came from, so that an error can name the line."""

    name: str
    text: str
    overrides: frozenset[tuple[str, str]] = frozenset()

    def place(self, location: Sequence[str | int]) -> str:
        """What the user should look at to mend `location`: a `--set`, or file and line."""
        keys = [part for part in location if isinstance(part, str)]
        if not keys and self.overrides:
            return f"{self.name} with {', '.join(f'--set {table}.{key}' for table, key in sorted(self.overrides))}"
        for table, key in sorted(self.overrides):
            # An unknown table has no key that could be blamed.
            if keys[:1] == [table] and keys[1:2] in ([key], []):
                return f"--set {table}.{key}"
        line = self.line_of(location)
        return f"{self.name}:{line}" if line else self.name

    def line_of(self, location: Sequence[str | int]) -> int | None:
        """Line number (from 1) of `location` = (table, key, …), or of its table, or None."""
        keys = [part for part in location if isinstance(part, str)]
        table, found = "", None
        for number, line in enumerate(self.text.splitlines(), 1):
            if header := _HEADER.match(line):
                table = header.group(1)
                if keys and table == keys[0]:
                    found = found or number
            elif key := _KEY.match(line):
                parts = [*filter(None, [table]), *(part.strip(" \"'") for part in key.group(1).split("."))]
                if parts[:2] == keys[:2]:
                    return number
                if keys and parts[0] == keys[0] and not table:
                    found = found or number
        return found


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
    known = sorted(str(p.relative_to(recipes_folder()).with_suffix("")) for p in recipes_folder().glob("*/*.toml"))
    raise RecipeError(f"{name}: no such recipe file; the recipes that come with hpcai500 are {', '.join(known)}")


def load_recipe(name: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The resolved recipe: the benchmark's reference, changed by the file `name`, changed by `overrides`.

    Args:
        name: a TOML file, or the short name of a shipped recipe.
        overrides: `table.key=value` each, as given to `--set`; the value is TOML, or a bare string.

    Raises:
        RecipeError: with file, line, table, key and the allowed values, a line for each mistake.
    """
    path = find_recipe(name)
    source = Source(str(path), _read(path))
    tables = _parse(source)
    benchmark = tables.get("benchmark")
    if not isinstance(benchmark, str) or benchmark not in RECIPE_TYPES:
        raise RecipeError(f"{path}: benchmark: expected one of {', '.join(RECIPE_TYPES)}, got {benchmark!r}")
    reference_path = recipes_folder() / benchmark / "reference.toml"
    reference = _parse(Source(str(reference_path), _read(reference_path)))
    changes = [_override(text) for text in overrides]
    overridden = frozenset((table, key) for change in changes for table, keys in change.items() for key in keys)
    return _validate(_merge(reference, tables, *changes), replace(source, overrides=overridden))


def reference_recipe(benchmark: str) -> Recipe:
    """The reference recipe of `benchmark`."""
    return load_recipe(f"{benchmark}/reference")


def parse_resolved(text: str, name: str) -> Recipe:
    """A recipe from resolved TOML `text` (a record's `recipe.toml`): nothing is filled in from anywhere."""
    source = Source(name, text)
    return _validate(_parse(source), source)


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


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not a text file in UTF-8 ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error


def _parse(source: Source) -> dict[str, Any]:
    try:
        return tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{source.name}: not valid TOML: {error}") from error


def _merge(base: Mapping[str, Any], *changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for change in changes:
        for key, value in change.items():
            both_tables = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
            merged[key] = _merge(merged[key], value) if both_tables else value
    return merged


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
        raise RecipeError("\n".join(_explain(kind, source, error))) from error
    if recipe.edition not in editions():
        raise RecipeError(f"{source.name}: edition: expected one of {', '.join(editions())}, got {recipe.edition!r}")
    return recipe


def _explain(kind: type[Recipe], source: Source, error: ValidationError) -> Iterator[str]:
    for detail in error.errors(include_url=False):
        location = detail["loc"]
        table, *keys = [str(part) for part in location] or [""]
        name = f"[{table}] {'.'.join(keys)}: " if keys else f"{table}: " if table else ""
        yield f"{source.place(location)}: {name}{_what_is_wrong(kind, table, keys, detail)}"


def _what_is_wrong(kind: type[Recipe], table: str, keys: Sequence[str], detail: ErrorDetails) -> str:
    fields = _fields(kind, table) if keys else list(kind.model_fields)
    match detail["type"]:
        case "extra_forbidden":
            key = keys[-1] if keys else table
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            return f"unknown {'key' if keys else 'table or key'}; {hint}allowed: {', '.join(fields)}"
        case "missing":
            return "is missing"
        case "value_error":
            return str(detail["ctx"]["error"])
        case "model_type" | "model_attributes_type":
            return f"expected a table, got {detail['input']!r}"
        case "literal_error":
            return f"expected {detail['ctx']['expected']}, got {detail['input']!r}"
        case _:
            return f"{detail['msg'].lower().replace('input should be', 'expected')}, got {detail['input']!r}"


def _fields(kind: type[Recipe], table: str) -> list[str]:
    field = kind.model_fields.get(table)
    model = field.annotation if field else None
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []
