"""What a folder that `hpcai500 data stage` made says of itself: which set it is, and what of it is there.

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

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcai500.errors import DataError
from hpcai500.files import write_atomically, write_unsynced

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
    write_document(state_folder(root) / SET, {"format": _FORMAT, **asdict(staged)})


def write_document(path: Path, document: dict[str, Any]) -> None:
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
    write_document(state_folder(root) / YEARS, {"format": _FORMAT, "years": [asdict(year) for year in years]})


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
