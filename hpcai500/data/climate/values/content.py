"""What the values of a year are: their digest and statistics, measured once and kept beside the data.

Kept results hold as long as a file keeps its size, its modification time and its boxes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcai500.data.climate.values.moments import ChannelStatistics, combined, from_document
from hpcai500.data.climate.values.scan import ImageScan
from hpcai500.data.climate.year_file import YearFile, identity_of
from hpcai500.data.derived import derived_paths, write_derived

FILE = ".hpcai500-climate.json"
_FORMAT = "hpcai500 climate content 1"
_DAMAGED = (OSError, ValueError, LookupError, TypeError, RecursionError)


@dataclass(frozen=True)
class YearContent:
    """SHA-256 (hex) of a year's values and boxes, the same in every layout; and its statistics."""

    digest: str
    statistics: ChannelStatistics


def content_of(year: YearFile, images: Iterable[ImageScan]) -> YearContent:
    """Return the content of `year` from the scans of all its images, in order."""
    scans = tuple(images)
    assert len(scans) == year.images
    digest = hashlib.sha256(f"{_FORMAT} {year.year} {year.images} {year.height} {year.width}\n".encode())
    for scan in scans:
        digest.update(scan.digest)
    digest.update(boxes_digest(year))
    return YearContent(digest.hexdigest(), combined(scan.statistics for scan in scans))


def content_fingerprint(contents: Mapping[int, YearContent]) -> str:
    """Return the SHA-256 (hex) over the years (keys) and their contents, ascending."""
    lines = [_FORMAT, *(f"{year} {contents[year].digest}" for year in sorted(contents))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def boxes_digest(year: YearFile) -> bytes:
    """Return the SHA-256 of the year's boxes as they lie in the file."""
    return hashlib.sha256(np.ascontiguousarray(year.boxes, "<i4").data).digest()


def load_contents(years: Iterable[YearFile]) -> dict[int, YearContent]:
    """Return the contents that are known of `years`, by year."""
    found: dict[int, YearContent] = {}
    for year in years:
        for path in derived_paths(year.path.parent, FILE):
            try:
                entry = _entries(path)[str(year.year)]
                if entry["key"] == _key(year):
                    found[year.year] = _content(entry, year)
                    break
            except _DAMAGED:
                # A damaged file is one that knows nothing.
                continue
    return found


def store_contents(root: Path, years: Iterable[YearFile], contents: Mapping[int, YearContent]) -> None:
    """Keep `contents` of `years` (files in `root`) for later runs, beside what is known of other years.

    A file that has changed since it was opened is left out.
    """
    entries: dict[str, Any] = {}
    for path in reversed(derived_paths(root, FILE)):
        try:
            entries |= _entries(path)
        except _DAMAGED:
            continue
    for year in years:
        if year.year in contents and identity_of(year.path) == year.identity:
            content = contents[year.year]
            statistics = content.statistics.document()
            entries[str(year.year)] = {"key": _key(year), "digest": content.digest, "statistics": statistics}
    document = {"format": _FORMAT, "years": dict(sorted(entries.items()))}
    write_derived(root, FILE, (json.dumps(document, indent=1) + "\n").encode())


def _entries(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_bytes())
    if document["format"] != _FORMAT:
        return {}
    return dict(document["years"])


def _content(entry: Any, year: YearFile) -> YearContent:
    digest, statistics = entry["digest"], from_document(entry["statistics"])
    if len(bytes.fromhex(digest)) != hashlib.sha256().digest_size:
        raise ValueError("no SHA-256")
    if (statistics.count + statistics.nan + statistics.infinite != year.images * year.height * year.width).any():
        raise ValueError("statistics of another number of values")
    return YearContent(digest, statistics)


def _key(year: YearFile) -> dict[str, Any]:
    return {**asdict(year.identity), "boxes": boxes_digest(year).hex()}
