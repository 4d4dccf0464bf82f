"""The file that says with which parameters a synthetic set was made: sets of different ones must not mix."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcai500.data.atomic_file import write_unsynced
from hpcai500.errors import DataError

MANIFEST = ".hpcai500-synthetic.json"


def claim_folder(root: Path, parameters: Mapping[str, Any], occupied_by: Sequence[str]) -> None:
    """Make `root` the folder of the set with `parameters` (JSON values), or find that it is.

    Raises:
        DataError: it holds a set with other parameters, or data that are not ours, `occupied_by`.
        OSError: it cannot be made or written.
    """
    manifest = root / MANIFEST
    ours = json.loads(json.dumps(dict(parameters)))
    if manifest.exists():
        found = _read(manifest)
        if found != ours:
            different = [f"{key} {found.get(key)}, not {ours[key]}" for key in ours if found.get(key) != ours[key]]
            raise DataError(
                f"{root} holds a synthetic set made with {'; '.join(different) or 'other parameters'}: "
                "choose another folder, or remove this one first"
            )
        return
    if occupied_by:
        raise DataError(
            f"{root} already has {' and '.join(occupied_by)}, not made by this command: choose another folder"
        )
    root.mkdir(parents=True, exist_ok=True)
    write_unsynced(manifest, (json.dumps(ours, indent=1) + "\n").encode())


def _read(manifest: Path) -> dict[str, object]:
    try:
        found = json.loads(manifest.read_bytes())
    except ValueError as error:
        raise DataError(f"{manifest} is damaged ({error}): remove {manifest.parent} and make the set again") from error
    if not isinstance(found, dict):
        raise DataError(f"{manifest} is damaged (no JSON object): remove {manifest.parent} and make the set again")
    return found
