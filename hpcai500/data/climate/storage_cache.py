"""Tables of chunks, kept between runs where they are long.

The 131,072 chunks of a year as it ships take a second to list from a warm local disk, and thousands of scattered reads
from a cold parallel one; one chunk an image takes milliseconds, and is not kept.

A file begins with the SHA-256 of the rest, an archive of NumPy's: a wrong address would be other values, and no error.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hpcai500.data.climate.storage import Storage
from hpcai500.data.climate.year_file import FileIdentity, YearFile, identity_of
from hpcai500.data.derived import derived_paths, write_derived

FILE = ".hpcai500-chunks"
LONG = 16384
_FORMAT = "hpcai500 climate chunks 2"
_DIGEST_BYTES = 32
_ARRAYS = ("addresses", "sizes", "masks")
_PLAIN = ("shape", "dtype", "kind", "offset", "chunk", "filters", "stored_bytes")
# What an archive of another version of this module, or one that is gone, raises: its bytes are those that were written.
_OTHER = (OSError, ValueError, LookupError, TypeError)


def load_storages(root: Path) -> dict[str, tuple[FileIdentity, Storage]]:
    """Return what is kept of the files in `root`, by name; it holds for a file of the same identity."""
    for path in derived_paths(root, FILE):
        try:
            return _read(path)
        except _OTHER:
            continue
    return {}


def store_storages(root: Path, years: Sequence[YearFile]) -> None:
    """Keep the long tables of `years`, files in `root` that have not changed since they were opened."""
    kept = [year for year in years if year.storage.addresses.size >= LONG and identity_of(year.path) == year.identity]
    headers = {
        year.path.name: {**asdict(year.identity), **{name: getattr(year.storage, name) for name in _PLAIN}}
        for year in kept
    }
    text = json.dumps({"format": _FORMAT, "files": headers}).encode()
    arrays = {"header": np.frombuffer(text, np.uint8)}
    for year in kept:
        arrays |= {f"{year.path.name}/{name}": getattr(year.storage, name) for name in _ARRAYS}
    stream = io.BytesIO()
    # NumPy's stub takes the arrays for its keyword allow_pickle.
    np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    archive = stream.getvalue()
    write_derived(root, FILE, _digest(archive) + archive)


def _digest(archive: bytes) -> bytes:
    return hashlib.sha256(archive).digest()


def _read(path: Path) -> dict[str, tuple[FileIdentity, Storage]]:
    content = path.read_bytes()
    digest, archive = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if digest != _digest(archive):
        return {}
    with np.load(io.BytesIO(archive), allow_pickle=False) as arrays:
        document = json.loads(arrays["header"].tobytes())
        if document["format"] != _FORMAT:
            return {}
        return {name: _entry(header, name, arrays) for name, header in document["files"].items()}


def _entry(header: dict[str, Any], name: str, arrays: Any) -> tuple[FileIdentity, Storage]:
    identity = FileIdentity(header["size_bytes"], header["mtime_ns"])
    return identity, Storage(
        shape=tuple(header["shape"]),
        dtype=str(header["dtype"]),
        kind=header["kind"],
        offset=header["offset"],
        chunk=tuple(header["chunk"]),
        filters=tuple(header["filters"]),
        addresses=arrays[f"{name}/addresses"],
        sizes=arrays[f"{name}/sizes"],
        masks=arrays[f"{name}/masks"],
        stored_bytes=header["stored_bytes"],
    )
