"""Which file a repacked year was made from: kept in its folder, so that a source that has changed since is noticed."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcai500.data.climate.values.content import boxes_digest
from hpcai500.data.climate.year_file import YearFile
from hpcai500.files import write_atomically

FILE = ".hpcai500-repack.json"
_FORMAT = "hpcai500 repack origins 1"


def is_made_from(new: YearFile, source: YearFile) -> bool:
    """Whether it is known that `new` was made from `source`, and that both are the files of then."""
    return _read(new.path.parent).get(new.path.name) == _entry(new, source)


def note_origin(new: YearFile, source: YearFile) -> None:
    """Keep that `new` was made from `source`, or has the same values. Raises OSError when the disk is full."""
    folder = new.path.parent
    entries = _read(folder) | {new.path.name: _entry(new, source)}
    document = {"format": _FORMAT, "files": dict(sorted(entries.items()))}
    write_atomically(folder / FILE, (json.dumps(document, indent=1) + "\n").encode())


def _entry(new: YearFile, source: YearFile) -> dict[str, Any]:
    return {"file": asdict(new.identity), "source": {**asdict(source.identity), "boxes": boxes_digest(source).hex()}}


def _read(folder: Path) -> dict[str, Any]:
    try:
        document = json.loads((folder / FILE).read_bytes())
        return dict(document["files"]) if document["format"] == _FORMAT else {}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        # What cannot be read says nothing: values are then compared.
        return {}
