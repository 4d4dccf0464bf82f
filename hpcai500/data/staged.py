"""The state of a folder made by `hpcai500 data stage`: which set it holds, which files are complete, who needs them.

    DEST/.hpcai500-staging/
        lock             held by the process that changes anything here
        set.json         which set this is
        index.npz        ic: the index of the whole set
        years.json       ewa: the years of the whole set
        manifest.jsonl   a line for each complete file: path, bytes, SHA-256
        names/           who needs which files
        progress.json    progress of the staging that holds the lock

Readers of data sets import this module; `staging` writes these files.
"""

from __future__ import annotations

import base64
import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from hpcai500.errors import DataError, UsageError
from hpcai500.files import as_utf8, from_utf8, write_atomically, write_unsynced
from hpcai500.system.process import is_gone

Marks = npt.NDArray[np.bool_]

FOLDER = ".hpcai500-staging"
LOCK, SET, INDEX, YEARS, MANIFEST = "lock", "set.json", "index.npz", "years.json", "manifest.jsonl"
NAMES, PROGRESS = "names", "progress.json"
_FORMAT = "hpcai500 staging 2"
# It stored parts of years in sparse files, with other digests.
_OLD_FORMAT = "hpcai500 staging 1"
# Raised by a damaged file of the state folder.
DAMAGED = (ValueError, KeyError, TypeError, AttributeError)

# ----------------------------------------------------------------------------------------------------
# The set of a staged folder.


@dataclass(frozen=True)
class StagedSet:
    """The set of a staged folder.

    Attributes:
        benchmark: `ic` or `ewa`.
        source: folder that the files are copied from.
        fingerprint: of the whole set (hex).
        files: number of files of the whole set.
        content_fingerprint: ewa: of all values of the whole set (hex); None if unknown.
    """

    benchmark: str
    source: str
    fingerprint: str
    files: int
    content_fingerprint: str | None = None

    def command(self, root: Path) -> str:
        """The command that stages this set in `root`."""
        return f"hpcai500 data stage {self.benchmark} {self.source} {root}"


def state_folder(root: Path) -> Path:
    """The folder for the state of a staged folder."""
    return root / FOLDER


def is_staged(root: Path) -> bool:
    """Whether `root` was made by `hpcai500 data stage`."""
    return (root / FOLDER / SET).is_file()


def read_set(root: Path) -> StagedSet | None:
    """The set that is staged in `root`, or None.

    Raises:
        DataError: it cannot be read, or an older version staged it.
    """
    found = read_any_set(root)
    if found is None:
        return None
    staged, is_old = found
    if is_old:
        raise staged_by_older(root, staged)
    return staged


def read_any_set(root: Path) -> tuple[StagedSet, bool] | None:
    """As `read_set`, and whether an older version staged it: then only source and names can be used."""
    path = state_folder(root) / SET
    with _if_present(path, root):
        document = json.loads(path.read_bytes())
        form, source = document.pop("format"), from_utf8(document["source"])
        if form == _OLD_FORMAT:
            old = StagedSet(document["benchmark"], source, document["fingerprint"], document["pieces"])
            return old, True
        if form != _FORMAT:
            raise ValueError("unknown format")
        return StagedSet(**document | {"source": source}), False
    return None


def write_set(root: Path, staged: StagedSet) -> None:
    """Record which set is staged in `root`. Raises OSError when the disk is full."""
    document = asdict(staged) | {"source": as_utf8(staged.source)}
    _write_document(state_folder(root) / SET, {"format": _FORMAT, **document})


def _write_document(path: Path, document: dict[str, Any]) -> None:
    """Write JSON atomically. Raises OSError when the disk is full."""
    write_unsynced(path, (json.dumps(document) + "\n").encode())


# ----------------------------------------------------------------------------------------------------
# The years of a set (ewa).


@dataclass(frozen=True)
class StagedYear:
    """A file of the whole set, staged or not.

    Attributes:
        size_bytes, mtime_ns, drawn: of the file at the source, as in its identity.
        images, height, width: number and size of its images.
        boxes: SHA-256 (hex) of its boxes.
    """

    name: str
    size_bytes: int
    mtime_ns: int
    drawn: str
    images: int
    height: int
    width: int
    boxes: str


def read_years(root: Path) -> tuple[StagedYear, ...]:
    """The years of the whole set; empty if `root` is not a staged folder with years. Raises DataError."""
    documents = _year_documents(root)
    try:
        return tuple(StagedYear(**document) for document in documents)
    except DAMAGED as error:
        raise damaged(state_folder(root) / YEARS, root, error) from error


def year_names(root: Path) -> tuple[str, ...]:
    """The file names of the whole set, also of a folder that an older version staged. Raises DataError."""
    return tuple(str(document["name"]) for document in _year_documents(root))


def write_years(root: Path, years: Sequence[StagedYear]) -> None:
    """Record the years of the whole set. Raises OSError."""
    _write_document(state_folder(root) / YEARS, {"format": _FORMAT, "years": [asdict(year) for year in years]})


def years_here(root: Path) -> tuple[Path, ...]:
    """The complete files of years in `root`, ascending; empty if `root` is not a staged folder with years.

    Raises:
        DataError: a listed file is missing, or no file is complete yet.
    """
    staged = read_set(root)
    if staged is None or staged.benchmark != "ewa":
        return ()
    years, listed = read_years(root), read_manifest(root)
    paths = tuple(root / year.name for year in years if year.name in listed)
    if any(not path.exists() for path in paths):
        # Another process may have released them meanwhile; it takes them off the list first.
        listed = read_manifest(root)
        paths = tuple(path for path in paths if path.name in listed)
    missing = next((path.name for path in paths if not path.exists()), None)
    if missing is not None or not paths:
        raise DataError(
            f"{root}: {missing or 'all'} of the staged set is missing: stage it again, with the same --recipe and "
            f"--for: {staged.command(root)} --verify"
        )
    return paths


def _year_documents(root: Path) -> list[dict[str, Any]]:
    path = state_folder(root) / YEARS
    with _if_present(path, root):
        documents = json.loads(path.read_bytes())["years"]
        # Files of these names are written and removed, so they must be plain names.
        if invalid := [one["name"] for one in documents if one["name"] in ("", ".", "..") or "/" in one["name"]]:
            raise ValueError(f"{invalid[0]!r} is not a valid file name")
        return list(documents)
    return []


# ----------------------------------------------------------------------------------------------------
# The complete files: each is listed once it is complete and on the disk, and taken off the list before it is removed.


def read_manifest(root: Path) -> dict[str, str]:
    """SHA-256 (hex) of each complete file, by its path below `root`.

    Raises:
        DataError: it cannot be read.
    """
    path = state_folder(root) / MANIFEST
    with _if_present(path, root):
        # After the last newline there may be part of a line, of a process that was killed.
        complete, _, _ = path.read_bytes().rpartition(b"\n")
        entries = [json.loads(line) for line in complete.splitlines()]
        return {from_utf8(entry["path"]): str(entry["sha256"]) for entry in entries}
    return {}


def write_manifest(root: Path, lines: Sequence[bytes]) -> None:
    """Replace the manifest by these lines. Raises OSError; it is then unchanged."""
    write_atomically(state_folder(root) / MANIFEST, b"".join(lines))


def manifest_line(path: str, size_bytes: int, sha256: str) -> bytes:
    """The line of a complete file."""
    return (json.dumps({"path": as_utf8(path), "bytes": size_bytes, "sha256": sha256}) + "\n").encode("ascii")


def require_whole(root: Path) -> None:
    """Raise DataError if `root` is a staged folder with only a part of its set, for commands that need all of it."""
    staged = read_set(root)
    if staged is None:
        return
    here = len(read_manifest(root))
    if here < staged.files:
        unit = "images" if staged.benchmark == "ic" else "years"
        raise DataError(
            f"{root}: only {here} of {staged.files} {unit} are staged here: use the set itself, {staged.source}"
        )


# ----------------------------------------------------------------------------------------------------
# Who needs which files: a document for each name, so that shared files are kept as long as one name needs them.


_MOST_CHARACTERS = 200


@dataclass(frozen=True, eq=False)
class Need:
    """The files that one name needs.

    Attributes:
        name: of a member, or any other name.
        key: hash of recipes and set: the same key needs the same files.
        owner: token of a process at whose end the need ends; "" if it lasts until it is released.
        complete: whether all files have been complete.
        size_bytes: of the files.
        marks: which files.
    """

    name: str
    key: str
    owner: str
    complete: bool
    size_bytes: int
    marks: Marks

    @property
    def is_abandoned(self) -> bool:
        """Whether its owner has ended without releasing it."""
        return is_gone(self.owner)


def need_path(root: Path, name: str) -> Path:
    """The document of a name. Raises UsageError for a name that is empty or too long."""
    quoted = quote(os.fsencode(name), safe="")
    if not name or len(quoted) > _MOST_CHARACTERS:
        raise UsageError(f"--for: expected a name of 1 to {_MOST_CHARACTERS} plain characters, got {name[:40]!r}")
    return state_folder(root) / NAMES / f"{quoted}.json"


def write_need(root: Path, need: Need) -> None:
    """Record what a name needs, replacing its earlier need. Raises OSError, UsageError."""
    path = need_path(root, need.name)
    path.parent.mkdir(exist_ok=True)
    marks = base64.b64encode(zlib.compress(np.packbits(need.marks).tobytes(), 1)).decode("ascii")
    document = {
        "name": as_utf8(need.name),
        "key": need.key,
        "owner": need.owner,
        "complete": need.complete,
        "size_bytes": need.size_bytes,
        "time_ms": time.time_ns() // 10**6,
        "pieces": len(need.marks),
        "marks": marks,
    }
    _write_document(path, document)


def read_need(root: Path, name: str) -> Need | None:
    """What a name needs, or None. Raises DataError, UsageError."""
    path = need_path(root, name)
    return _read_need(path) if path.is_file() else None


def read_needs(root: Path) -> dict[str, Need]:
    """What all names need. Raises DataError."""
    needs = [_read_need(path) for path in sorted((state_folder(root) / NAMES).glob("*.json"))]
    return {need.name: need for need in needs}


def needed_by(needs: Mapping[str, Need], files: int) -> Marks:
    """Which of a set's files are needed by at least one of `needs`."""
    marks = np.zeros(files, np.bool_)
    for need in needs.values():
        marks |= need.marks
    return marks


def _read_need(path: Path) -> Need:
    try:
        document = json.loads(path.read_bytes())
        files = int(document["pieces"])
        packed = np.frombuffer(zlib.decompress(base64.b64decode(document["marks"])), np.uint8)
        marks = np.unpackbits(packed, count=files).astype(np.bool_)
        return Need(
            name=from_utf8(document["name"]),
            key=document["key"],
            owner=document["owner"],
            complete=bool(document["complete"]),
            size_bytes=int(document["size_bytes"]),
            marks=marks,
        )
    except (OSError, zlib.error, *DAMAGED) as error:
        raise damaged(path, path.parents[2], error) from error


# ----------------------------------------------------------------------------------------------------
# Errors.


def not_staged(root: Path, what: str) -> DataError:
    """The error for a file, `what`, that is needed but was not staged."""
    staged = read_set(root)
    assert staged is not None
    return DataError(
        f"{root}: {what} was not staged: stage the files of this run by {staged.command(root)} --recipe FILE, or the "
        "whole set without --recipe"
    )


def staged_by_older(root: Path, staged: StagedSet) -> DataError:
    """The error for a folder that was staged by an older version in another format."""
    return DataError(
        f"{root}: staged by an older version: release it ({staged.command(root)} --release), and stage it again"
    )


@contextmanager
def _if_present(path: Path, root: Path) -> Iterator[None]:
    """Leave the block if `path`, in the state folder of `root`, is missing; raise DataError if it is unreadable."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; check permissions and mount") from error
    except DAMAGED as error:
        raise damaged(path, root, error) from error


def damaged(path: Path, root: Path, error: Exception) -> DataError:
    """The error for a damaged file in the state folder."""
    return DataError(f"{path}: damaged ({error}); remove {root}, and stage the set again")
