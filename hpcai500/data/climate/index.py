"""The years of a set, in order, and their fingerprint, which does not depend on the layout."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcai500.data.climate.values import boxes_digest, content_fingerprint, load_contents
from hpcai500.data.climate.years import (
    BOXES,
    CLASSES,
    FileIdentity,
    RowKind,
    Storage,
    YearFile,
    file_name,
    identity_of,
    odd_rows,
    open_year,
    row_kinds,
    year_of,
)
from hpcai500.data.derived import derived_paths, write_derived
from hpcai500.data.staged import StagedYear, not_staged, read_set, read_years, years_here
from hpcai500.errors import DataError
from hpcai500.files import why_not
from hpcai500.progress import Tracker, silent

# ----------------------------------------------------------------------------------------------------
# Tables of chunks, cached between runs where they are long.
#
# Listing the 131,072 chunks of a shipped year takes a second from a warm local disk, and thousands of scattered reads
# from a cold parallel one. Listing one chunk per image takes milliseconds, and is not cached.
#
# A file begins with the SHA-256 of the rest, a NumPy archive: a wrong address would read wrong values without an error.


FILE = ".hpcai500-chunks"
LONG = 16384
_FORMAT = "hpcai500 climate chunks 2"
_DIGEST_BYTES = 32
_ARRAYS = ("addresses", "sizes", "masks")
_PLAIN = ("shape", "dtype", "kind", "offset", "chunk", "filters", "stored_bytes")
# Raised for an archive that is missing or written by another version. The digest rules out damage.
_OTHER = (OSError, ValueError, LookupError, TypeError)


def load_storages(root: Path) -> dict[str, tuple[FileIdentity, Storage]]:
    """The cached storages of the files in `root`, by name; each is valid for a file of the same identity."""
    for path in derived_paths(root, FILE):
        try:
            content = path.read_bytes()
            digest, archive = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
            if digest != hashlib.sha256(archive).digest():
                return {}
            with np.load(io.BytesIO(archive), allow_pickle=False) as arrays:
                document = json.loads(arrays["header"].tobytes())
                if document["format"] != _FORMAT:
                    return {}
                return {name: _entry(header, name, arrays) for name, header in document["files"].items()}
        except _OTHER:
            continue
    return {}


def store_storages(root: Path, years: Sequence[YearFile]) -> None:
    """Keep the long tables of `years`, for those files in `root` that have not changed since they were opened."""
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
    # NumPy's type stub mistakes the arrays for its keyword allow_pickle.
    np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    archive = stream.getvalue()
    write_derived(root, FILE, hashlib.sha256(archive).digest() + archive)


def _entry(header: dict[str, Any], name: str, arrays: Any) -> tuple[FileIdentity, Storage]:
    identity = FileIdentity(**{field.name: header[field.name] for field in fields(FileIdentity)})
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


# ----------------------------------------------------------------------------------------------------
# The years of a set and their fingerprint.


_INDEX_FORMAT = "hpcai500 climate index 1"


@dataclass(frozen=True)
class ClimateIndex:
    """Years, ascending, all on the same grid.

    `fingerprint` is the SHA-256 (hex) over years, numbers of images, grid and boxes: the same in every layout.
    """

    root: Path
    years: tuple[YearFile, ...]
    fingerprint: str

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of every image, in pixels."""
        return self.years[0].grid

    def select(self, first: int, last: int) -> tuple[YearFile, ...]:
        """The years `first` to `last`, both included. Raises DataError naming those that are missing."""
        by_year = {year.year: year for year in self.years}
        if last < first:
            raise DataError(f"years {first} to {last}: the last comes before the first")
        missing = [year for year in range(first, last + 1) if year not in by_year]
        if missing:
            staged = {year.name for year in read_years(self.root)}
            if (name := file_name(missing[0])) in staged:
                raise not_staged(self.root, name)
            raise DataError(f"{self.root}: no file for {spans(missing)}; the set has {spans(by_year)}")
        return tuple(by_year[year] for year in range(first, last + 1))


def load_climate_index(root: Path | str, *, progress: Tracker = silent) -> ClimateIndex:
    """Open the years of the set at `root`; of a staged folder, those present, with the fingerprint of the whole set.

    Raises:
        DataError: no folder, no years, a file that does not follow the format, years on different grids, boxes of the
            swapped variant or of an unknown class; a staged file that is missing or changed.
    """
    paths = year_paths(Path(root))
    try:
        years = open_years(Path(root), paths, progress)
    except DataError:
        # Another process may have released staged years meanwhile; it takes them off the list first.
        if (here := year_paths(Path(root))) == paths:
            raise
        years = open_years(Path(root), here, progress)
    for year in years:
        if reasons := refusals(year):
            raise DataError(f"{year.path}: {reasons[0]}")
    index = build_index(Path(root), years)
    staged = read_set(index.root)
    return index if staged is None else replace(index, fingerprint=_staged_fingerprint(index, staged.fingerprint))


def _staged_fingerprint(index: ClimateIndex, fingerprint: str) -> str:
    """Check that the years here belong to the staged set, and return its `fingerprint`."""
    described = {year.name: year for year in read_years(index.root)}
    for year in index.years:
        recorded = described[year.path.name]
        # Not every file system keeps times as exactly as the source.
        if replace(as_staged(year), mtime_ns=recorded.mtime_ns) != recorded:
            raise DataError(f"{year.path}: not the file that was staged; release the folder, and stage the set again")
    return fingerprint


def as_staged(year: YearFile) -> StagedYear:
    """What a staged folder records of a year."""
    identity, boxes = year.identity, boxes_digest(year).hex()
    return StagedYear(
        year.path.name,
        identity.size_bytes,
        identity.mtime_ns,
        identity.drawn,
        year.images,
        year.height,
        year.width,
        boxes,
    )


def build_index(root: Path, years: Sequence[YearFile]) -> ClimateIndex:
    """The index of `years`, ascending. Raises DataError when their grids differ."""
    first = years[0]
    for year in years:
        if year.grid != first.grid:
            raise DataError(
                f"{year.path}: images of {year.height} x {year.width}, but {first.path.name} has {first.height} x "
                f"{first.width}; a set has one grid"
            )
    digest = hashlib.sha256(f"{_INDEX_FORMAT}\n".encode())
    for year in years:
        digest.update(f"{year.year} {year.images} {year.height} {year.width}\n".encode() + boxes_digest(year))
    return ClimateIndex(root, tuple(years), digest.hexdigest())


def load_content_fingerprint(index: ClimateIndex) -> str | None:
    """The fingerprint of all values from an earlier check, repack or measurement; None without one.

    The files must still have the same identities. For a partly staged set, it is the fingerprint recorded for the whole
    set.
    """
    staged, contents = read_set(index.root), load_contents(index.years)
    if len(contents) == (len(index.years) if staged is None else staged.files):
        return content_fingerprint(contents)
    return None if staged is None else staged.content_fingerprint


def year_paths(root: Path) -> tuple[Path, ...]:
    """The files of the years in `root`, ascending; of a staged folder, those that are complete.

    Raises DataError when there are none.
    """
    if here := years_here(root):
        return here
    if why := why_not("folder", root):
        raise DataError(f"no data set at {root}: {why}")
    try:
        paths = sorted(path for path in root.iterdir() if year_of(path.name) is not None)
    except OSError as error:
        raise DataError(f"no data set at {root}: {error.strerror}") from error
    if not paths:
        deeper = next(root.glob(f"*/{file_name(0)[:-7]}*.h5"), None)
        hint = f"; did you mean {deeper.parent}?" if deeper else ""
        raise DataError(f"no data set at {root}: no file named like {file_name(1979)}{hint}")
    return tuple(paths)


def open_years(
    root: Path,
    paths: Sequence[Path],
    progress: Tracker = silent,
    on_error: Callable[[Path, DataError], None] | None = None,
) -> tuple[YearFile, ...]:
    """Open the files at `paths`, in `root`.

    Raises DataError when a file does not follow the format. With `on_error`, that is called instead, and the other
    files are returned.
    """
    known = load_storages(root)
    listed = False
    years = []
    with progress(len(paths), "opening years", "files") as bar:
        for path in paths:
            bar.advance()
            try:
                kept = known.get(path.name)
                years.append(open_year(path, kept))
            except DataError as error:
                if on_error is None:
                    raise
                on_error(path, error)
                continue
            is_known = kept is not None and years[-1].storage is kept[1]
            listed = listed or (not is_known and years[-1].storage.addresses.size >= LONG)
    if listed:
        store_storages(root, years)
    return tuple(years)


def refusals(year: YearFile) -> tuple[str, ...]:
    """Why the boxes of `year` cannot be trained on, a line each."""
    if year.variant.name == "swapped":
        return (
            f"dataset {BOXES}: the variant with x and y swapped and classes 1 to {len(CLASSES)} "
            f"({year.variant.evidence}); convert it: "
            f"hpcai500 data repack ewa {year.path.parent} NEW_FOLDER --convert-boxes",
        )
    if year.variant.name == "ambiguous":
        return (
            f"dataset {BOXES}: the order of the columns and the numbers of the classes contradict each other "
            f"({year.variant.evidence}); compare it with the set's documentation, and correct the file",
        )
    odd = odd_rows(year.boxes, row_kinds(year.boxes, year.height, year.width))
    return tuple(f"dataset {BOXES}: {rows}" for rows in odd if rows.kind is RowKind.UNKNOWN_CLASS)


def spans(years: Sequence[int] | dict[int, YearFile]) -> str:
    """Years for people: "1979 to 1983, 1990"."""
    ordered = sorted(years)
    runs: list[list[int]] = []
    for year in ordered:
        if runs and year == runs[-1][-1] + 1:
            runs[-1].append(year)
        else:
            runs.append([year])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
