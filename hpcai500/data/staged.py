"""What a folder that `hpcai500 data stage` made says of itself: which set it is, what of it is there, and who needs it.

    DEST/.hpcai500-staging/
        lock             held by whoever changes anything here
        set.json         which set this is
        index.npz        ic: the index of the whole set
        years.json       ewa: the years of the whole set
        manifest.jsonl   a line for each file that is here whole: path, bytes, SHA-256
        names/           who needs which files
        progress.json    how far the staging is that holds the lock

Readers of data sets import this module; `staging` writes what it reads.
"""

from __future__ import annotations

import base64
import json
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
from hpcai500.files import write_atomically, write_unsynced
from hpcai500.system.process import is_gone

Marks = npt.NDArray[np.bool_]

FOLDER = ".hpcai500-staging"
LOCK, SET, INDEX, YEARS, MANIFEST = "lock", "set.json", "index.npz", "years.json", "manifest.jsonl"
NAMES, PROGRESS = "names", "progress.json"
_FORMAT = "hpcai500 staging 2"
# It kept parts of years in files with holes, and digests of its own kind.
_OLD_FORMAT = "hpcai500 staging 1"
# What a description raises that is damaged.
DAMAGED = (ValueError, KeyError, TypeError, AttributeError)

# ----------------------------------------------------------------------------------------------------
# Which set it is.


@dataclass(frozen=True)
class StagedSet:
    """Which set a folder holds copies of.

    Attributes:
        benchmark: `ic` or `ewa`.
        source: folder that they were copied from.
        fingerprint: of the whole set (hex).
        files: that the whole set has.
        content_fingerprint: ewa: of all values of the whole set (hex); None where it is not known.
    """

    benchmark: str
    source: str
    fingerprint: str
    files: int
    content_fingerprint: str | None = None

    def command(self, root: Path) -> str:
        """What stages this set in `root`."""
        return f"hpcai500 data stage {self.benchmark} {self.source} {root}"


def state_folder(root: Path) -> Path:
    """Where a staged folder keeps what is no data."""
    return root / FOLDER


def is_staged(root: Path) -> bool:
    """Whether `root` was made by `hpcai500 data stage`."""
    return (root / FOLDER / SET).is_file()


def read_set(root: Path) -> StagedSet | None:
    """Which set is staged in `root`; None where nothing is.

    Raises:
        DataError: it cannot be read, or an older version has staged it.
    """
    found = read_any_set(root)
    if found is None:
        return None
    staged, is_old = found
    if is_old:
        raise staged_by_older(root, staged)
    return staged


def read_any_set(root: Path) -> tuple[StagedSet, bool] | None:
    """As `read_set`, and whether an older version has staged it, of which nothing but source and names can be used."""
    path = state_folder(root) / SET
    with _if_there(path, root):
        document = json.loads(path.read_bytes())
        form = document.pop("format")
        if form == _OLD_FORMAT:
            old = StagedSet(document["benchmark"], document["source"], document["fingerprint"], document["pieces"])
            return old, True
        if form != _FORMAT:
            raise ValueError("another format")
        return StagedSet(**document), False
    return None


def write_set(root: Path, staged: StagedSet) -> None:
    """Say which set is staged in `root`. Raises OSError when the disk is full."""
    _write_document(state_folder(root) / SET, {"format": _FORMAT, **asdict(staged)})


def _write_document(path: Path, document: dict[str, Any]) -> None:
    """Write JSON, whole or not at all. Raises OSError when the disk is full."""
    write_unsynced(path, (json.dumps(document) + "\n").encode())


# ----------------------------------------------------------------------------------------------------
# The years of a set, ewa.


@dataclass(frozen=True)
class StagedYear:
    """A file of the whole set, here or not.

    Attributes:
        name: of the file.
        size_bytes, mtime_ns: of it at the source.
        images, height, width: of its images.
        boxes: SHA-256 (hex) of its boxes.
    """

    name: str
    size_bytes: int
    mtime_ns: int
    images: int
    height: int
    width: int
    boxes: str


def read_years(root: Path) -> tuple[StagedYear, ...]:
    """The years of the whole set; none where `root` is no staged folder, or holds no years. Raises DataError."""
    documents = _year_documents(root)
    try:
        return tuple(StagedYear(**document) for document in documents)
    except DAMAGED as error:
        raise damaged(state_folder(root) / YEARS, root, error) from error


def year_names(root: Path) -> tuple[str, ...]:
    """The files of the years of the whole set, also of a folder that an older version has staged. Raises DataError."""
    return tuple(str(document["name"]) for document in _year_documents(root))


def write_years(root: Path, years: Sequence[StagedYear]) -> None:
    """Describe the years of the whole set. Raises OSError."""
    _write_document(state_folder(root) / YEARS, {"format": _FORMAT, "years": [asdict(year) for year in years]})


def years_here(root: Path) -> tuple[Path, ...]:
    """The files of years that are here whole, ascending; none where `root` holds no years.

    Raises:
        DataError: a file is gone, or none is here yet.
    """
    staged = read_set(root)
    if staged is None or staged.benchmark != "ewa":
        return ()
    years, listed = read_years(root), read_manifest(root)
    paths = tuple(root / year.name for year in years if year.name in listed)
    if any(not path.exists() for path in paths):
        # Somebody's release may have taken them meanwhile: they are taken from the list first.
        listed = read_manifest(root)
        paths = tuple(path for path in paths if path.name in listed)
    gone = next((path.name for path in paths if not path.exists()), None)
    if gone is not None or not paths:
        raise DataError(
            f"{root}: {gone or 'all'} of the staged set is missing: end its staging, with the --recipe and --for of "
            f"then: {staged.command(root)} --verify"
        )
    return paths


def _year_documents(root: Path) -> list[dict[str, Any]]:
    path = state_folder(root) / YEARS
    with _if_there(path, root):
        documents = json.loads(path.read_bytes())["years"]
        # Files of these names are written to, and removed.
        if strange := [one["name"] for one in documents if one["name"] in ("", ".", "..") or "/" in one["name"]]:
            raise ValueError(f"{strange[0]!r} is no name of a file in it")
        return list(documents)
    return []


# ----------------------------------------------------------------------------------------------------
# Which files are here: each is listed when it is whole and on the disk, and taken from the list before it is removed.


def read_manifest(root: Path) -> dict[str, str]:
    """SHA-256 (hex) of each file that is here whole, by its path below `root`.

    Raises:
        DataError: it cannot be read.
    """
    path = state_folder(root) / MANIFEST
    with _if_there(path, root):
        # What follows the last line is half a one, of a process that was killed.
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        entries = [json.loads(line) for line in whole.splitlines()]
        return {str(entry["path"]): str(entry["sha256"]) for entry in entries}
    return {}


def write_manifest(root: Path, lines: Sequence[bytes]) -> None:
    """Begin it anew with these lines. Raises OSError; it is then unchanged."""
    write_atomically(state_folder(root) / MANIFEST, b"".join(lines))


def manifest_line(path: str, size_bytes: int, sha256: str) -> bytes:
    """The line of a file that is here whole."""
    return (json.dumps({"path": path, "bytes": size_bytes, "sha256": sha256}) + "\n").encode("ascii")


def require_whole(root: Path) -> None:
    """Raise DataError where `root` is a staged folder with a part of its set: no measurement may take that for all."""
    staged = read_set(root)
    if staged is None:
        return
    here = len(read_manifest(root))
    if here < staged.files:
        unit = "images" if staged.benchmark == "ic" else "years"
        raise DataError(
            f"{root}: only {here} of {staged.files} {unit} are staged here: give the set itself, {staged.source}"
        )


# ----------------------------------------------------------------------------------------------------
# Who needs which files: a document for each name, so that what several need is kept as long as one needs it.


_MOST_CHARACTERS = 200


@dataclass(frozen=True, eq=False)
class Need:
    """What one name needs.

    Attributes:
        name: of a member, or of anybody.
        key: names recipes and set: the same key needs the same files.
        owner: token of a process with whose end the need ends; "" where it lasts until it is released.
        complete: whether all of it was here once.
        size_bytes: of them.
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
        """Whether nobody is left who would release it."""
        return is_gone(self.owner)


def need_path(root: Path, name: str) -> Path:
    """The document of a name. Raises UsageError where no file could be called so."""
    quoted = quote(name, safe="", errors="surrogateescape")
    if not name or len(quoted) > _MOST_CHARACTERS:
        raise UsageError(f"--for: expected a name of 1 to {_MOST_CHARACTERS} plain characters, got {name[:40]!r}")
    return state_folder(root) / NAMES / f"{quoted}.json"


def write_need(root: Path, need: Need) -> None:
    """Note what a name needs, in place of what it needed. Raises OSError, UsageError."""
    path = need_path(root, need.name)
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
    _write_document(path, document)


def read_need(root: Path, name: str) -> Need | None:
    """What a name needs; None where it needs nothing. Raises DataError, UsageError."""
    path = need_path(root, name)
    return _read_need(path) if path.is_file() else None


def read_needs(root: Path) -> dict[str, Need]:
    """What all names need. Raises DataError."""
    needs = [_read_need(path) for path in sorted((state_folder(root) / NAMES).glob("*.json"))]
    return {need.name: need for need in needs}


def needed_by(needs: Mapping[str, Need], files: int) -> Marks:
    """Which of a set's files at least one of them needs."""
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
            name=document["name"],
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
    """What to raise where `what` of a staged folder is asked for, and not here."""
    staged = read_set(root)
    assert staged is not None
    return DataError(
        f"{root}: {what} was not staged: stage what this run reads: {staged.command(root)} --recipe FILE; or without "
        "--recipe, all of the set"
    )


def staged_by_older(root: Path, staged: StagedSet) -> DataError:
    """What to raise where a folder was staged by a version that wrote other files."""
    return DataError(
        f"{root}: staged by an older version: release it ({staged.command(root)} --release), and stage it again"
    )


@contextmanager
def _if_there(path: Path, root: Path) -> Iterator[None]:
    """End the block where `path`, a part of the description of `root`, is missing; DataError where it is unreadable."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; check permissions and mount") from error
    except DAMAGED as error:
        raise damaged(path, root, error) from error


def damaged(path: Path, root: Path, error: Exception) -> DataError:
    """What to raise where a staged folder's own description cannot be read."""
    return DataError(f"{path}: damaged ({error}); remove {root}, and stage the set again")
