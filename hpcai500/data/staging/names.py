"""Who needs which pieces: a file for each name, so that what several need is kept once and as long as one needs it."""

from __future__ import annotations

import base64
import json
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np

from hpcai500.data.staging.digests import Marks
from hpcai500.data.staging.layout import NAMES, state_folder, write_document
from hpcai500.errors import DataError, UsageError
from hpcai500.system.process import is_gone

_MOST_CHARACTERS = 200


@dataclass(frozen=True, eq=False)
class Need:
    """What one name needs.

    Attributes:
        name: of a member, or of anybody.
        key: names recipes and set: the same key needs the same pieces.
        owner: token of a process with whose end the need ends; "" where it lasts until it is released.
        complete: whether all of it was here once.
        size_bytes: of them.
        marks: which pieces.
    """

    name: str
    key: str
    owner: str
    complete: bool
    size_bytes: int
    marks: Marks

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody is left who would release it."""
        return is_gone(self.owner)


def path_of(root: Path, name: str) -> Path:
    """The file of a name.

    Raises:
        UsageError: no file could be called so.
    """
    quoted = quote(name, safe="", errors="surrogateescape")
    if not name or len(quoted) > _MOST_CHARACTERS:
        raise UsageError(f"--for: expected a name of 1 to {_MOST_CHARACTERS} plain characters, got {name[:40]!r}")
    return state_folder(root) / NAMES / f"{quoted}.json"


def write_need(root: Path, need: Need) -> None:
    """Note what a name needs, in place of what it needed. Raises OSError, UsageError."""
    path = path_of(root, need.name)
    path.parent.mkdir(exist_ok=True)
    marks = base64.b64encode(zlib.compress(np.packbits(need.marks).tobytes(), 1)).decode("ascii")
    document = {
        "name": need.name,
        "key": need.key,
        "owner": need.owner,
        "complete": need.complete,
        "size_bytes": need.size_bytes,
        "time_ms": time.time_ns() // 10**6,
        "pieces": len(need.marks),
        "marks": marks,
    }
    write_document(path, document)


def read_need(root: Path, name: str) -> Need | None:
    """What a name needs; None where it needs nothing. Raises DataError, UsageError."""
    path = path_of(root, name)
    return _read(path) if path.is_file() else None


def read_needs(root: Path) -> dict[str, Need]:
    """What all names need. Raises DataError."""
    needs = [_read(path) for path in sorted((state_folder(root) / NAMES).glob("*.json"))]
    return {need.name: need for need in needs}


def needed_by(needs: Mapping[str, Need], pieces: int) -> Marks:
    """The pieces that at least one of them needs."""
    marks = np.zeros(pieces, np.bool_)
    for need in needs.values():
        marks |= need.marks
    return marks


def _read(path: Path) -> Need:
    try:
        document = json.loads(path.read_bytes())
        pieces = int(document["pieces"])
        packed = np.frombuffer(zlib.decompress(base64.b64decode(document["marks"])), np.uint8)
        marks = np.unpackbits(packed, count=pieces).astype(np.bool_)
        return Need(
            name=document["name"],
            key=document["key"],
            owner=document["owner"],
            complete=bool(document["complete"]),
            size_bytes=int(document["size_bytes"]),
            marks=marks,
        )
    except (OSError, ValueError, KeyError, TypeError, zlib.error) as error:
        root = path.parents[2]
        raise DataError(f"{path}: damaged ({error}); remove {root}, and stage the set again") from error
