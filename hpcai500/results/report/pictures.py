"""What the last evaluation saw, small enough to lie in the page."""

from __future__ import annotations

import base64
import hashlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path

from hpcai500.results.report.blocks import Block, Picture, Section, Text
from hpcai500.results.report.reading import Subject
from hpcai500.results.report.words import short

_MOST_PICTURES, _MOST_BYTES = 2, 32 * 2**20
# Decoded, 120 MB; a file of a few kB can claim far more.
_MOST_PIXELS = 40_000_000
_WIDEST, _QUALITY = 1200, 82


def picture_section(subject: Subject) -> Section | None:
    """The record's pictures, if it has any and they are those that its events name."""
    blocks = list(_pictures(subject))
    return Section("Pictures", blocks) if blocks else None


def _pictures(subject: Subject) -> Iterator[Block]:
    named = {str(value["file"]): value.get("sha256") for value in subject.values("picture") if value.get("file")}
    for name, content_hash in list(named.items())[-_MOST_PICTURES:]:
        content = _content(subject.path, name)
        if content is None:
            yield Text(f"{short(name, 120)}: not in the record.", "soft")
        elif hashlib.sha256(content).hexdigest() != content_hash:
            yield Text(f"{short(name, 120)}: not the picture that the events name: it was changed.", "bad")
        else:
            yield _shown(name, content)


def _content(record: Path, name: str) -> bytes | None:
    """The file `name` of the record; None where it is missing, outside of the record, or too large for a page."""
    path = record / name
    try:
        inside = path.resolve().is_relative_to(record.resolve())
        if not inside or not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        return path.read_bytes()
    except (OSError, ValueError, RuntimeError):
        # A name of 300 characters, one with a null byte, a loop of links.
        return None


def _shown(name: str, content: bytes) -> Block:
    try:
        small = _small(content)
    except Exception as error:  # noqa: BLE001 - Pillow raises a dozen types for damaged files, SyntaxError among them
        return Text(f"{short(name, 120)}: cannot be shown: {short(str(error) or type(error).__name__, 200)}.", "soft")
    source = f"data:image/webp;base64,{base64.b64encode(small).decode()}"
    return Picture(source, f"{short(name, 120)}, made by the run itself")


def _small(content: bytes) -> bytes:
    """The picture as WebP, no wider than a page.

    Raises:
        ValueError: it has more pixels than anyone looks at; it is not decoded.
        Exception: as Pillow, which has many types for damaged files.
    """
    from PIL import Image  # noqa: PLC0415 - only pages with a picture need it

    with warnings.catch_warnings():
        # Pillow warns of sizes that are refused below.
        warnings.simplefilter("ignore")
        with Image.open(io.BytesIO(content), formats=("PNG", "JPEG", "WEBP")) as opened:
            width, height = opened.size
            if width * height > _MOST_PIXELS:
                raise ValueError(f"{width} x {height} pixels, and a page shows at most {_MOST_PIXELS:,}")
            picture = opened.convert("RGB")
    picture.thumbnail((_WIDEST, 8 * _WIDEST))
    stream = io.BytesIO()
    picture.save(stream, "WEBP", quality=_QUALITY)
    return stream.getvalue()
