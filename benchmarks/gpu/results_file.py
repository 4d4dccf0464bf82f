"""The results of one device: a JSON file that grows part by part; what a part measured before, a new measurement
replaces, and all other parts stay.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcai500.errors import UsageError
from hpcai500.files import write_atomically

SCHEMA = "hpcai500-gpu-benchmarks/1"


def read(path: Path) -> dict[str, Any] | None:
    """The document at `path`; None where there is no file.

    Raises:
        UsageError: something else lies there.
    """
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(
            f"{path}: is no JSON document ({error}); move it away, or name another file: -o FILE"
        ) from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise UsageError(f"{path}: holds no results of `make bench-gpu`; name another file: -o FILE")
    return found


def merge(before: Mapping[str, Any] | None, device: str, name: str, part: Mapping[str, Any]) -> dict[str, Any]:
    """`before` with `part` under its name.

    A part that failed does not replace one that was measured: it is kept beside it, as `last_error`.

    Raises:
        UsageError: `before` is of another device, or holds a measurement that a quick look would replace.
    """
    if before is not None and before["device"] != device:
        raise UsageError(
            f"the results are of {before['device']}, but this is {device}: numbers of two devices do not go into one "
            "file; name another one: -o FILE"
        )
    parts = dict(before["parts"]) if before else {}
    old = parts.get(name)
    if part["quick"] and old and not old["quick"]:
        raise UsageError(
            f"{name} was measured, and --quick measures nothing: leave it out, or name another file: -o FILE"
        )
    if part["error"] and old and not old["error"]:
        parts[name] = {**old, "last_error": {key: part[key] for key in ("error", "date", "commit")}}
    else:
        parts[name] = dict(part)
    return {"schema": SCHEMA, "device": device, "parts": dict(sorted(parts.items()))}


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write `document`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())
