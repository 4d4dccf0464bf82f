"""Names of files in place of the scratch folders that they were read in, which mean nothing to anyone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

Places = Mapping[Path, Path]


def renamed_text(text: str, places: Places) -> str:
    """`text` with each folder of `places` by its other name."""
    for folder, name in places.items():
        text = text.replace(str(folder), str(name))
    return text


def renamed_path(path: Path, places: Places) -> Path:
    """`path`, which may be in one of the folders."""
    for folder, name in places.items():
        if path.is_relative_to(folder):
            return name / path.relative_to(folder)
    return path


def renamed(value: Any, places: Places) -> Any:
    """`value` with the names of texts and paths in it, through tuples and data classes; other things stay as they are.

    What records say is in mappings and lists, and is not touched.
    """
    if isinstance(value, str):
        return renamed_text(value, places)
    if isinstance(value, Path):
        return renamed_path(value, places)
    if isinstance(value, tuple):
        return tuple(renamed(one, places) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        old = {one.name: getattr(value, one.name) for one in fields(value) if one.init}
        new = {name: renamed(one, places) for name, one in old.items()}
        changed = {name: one for name, one in new.items() if one is not old[name] and one != old[name]}
        return replace(value, **changed) if changed else value
    return value
