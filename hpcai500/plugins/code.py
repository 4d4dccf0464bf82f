"""Which code a plug-in is: its files by hash, so that a record says what ran and a change between runs is seen."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hpcai500.plugins.finding import Found, find_plugin

_CODE = (".py", *EXTENSION_SUFFIXES)


def plugin_facts(name: str) -> dict[str, Any] | None:
    """Name, package, version and code of the plug-in of the benchmark `name`; None where there is none."""
    found = find_plugin(name)
    return None if found is None else facts_of(found)


def facts_of(found: Found) -> dict[str, Any]:
    """What records tell of a plug-in; its code is None where it cannot be found."""
    facts = {"name": found.name, "package": found.package, "version": found.version}
    return {**facts, "code_sha256": code_hash(found)}


def code_hash(found: Found) -> str | None:
    """SHA-256 (hex) over names and contents of the code, Python and compiled, of its top-level package, if found."""
    try:
        spec = find_spec(found.entry.module.partition(".")[0])
    except (ImportError, ValueError, AttributeError):
        return None
    files = sorted(_files(spec)) if spec else []
    if not files:
        return None
    digest = hashlib.sha256()
    for name, path in files:
        content = path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _files(spec: ModuleSpec) -> Iterator[tuple[str, Path]]:
    """Name and path of each file of code; a top-level module is one file, a package a folder (or several)."""
    for folder in map(Path, spec.submodule_search_locations or ()):
        yield from (
            (path.relative_to(folder).as_posix(), path)
            for path in folder.rglob("*")
            if path.name.endswith(_CODE) and path.is_file()
        )
    if not spec.submodule_search_locations and spec.origin and Path(spec.origin).is_file():
        yield Path(spec.origin).name, Path(spec.origin)
