"""What the last evaluation saw, small enough to lie in the page."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterator

from hpcai500.results.report.blocks import Block, Picture, Section, Text
from hpcai500.results.report.reading import Subject
from hpcai500.results.report.words import short

_MOST_PICTURES, _MOST_BYTES = 2, 32 * 2**20
_WIDEST, _QUALITY = 1200, 82


def picture_section(subject: Subject) -> Section | None:
    """The record's pictures, if it has any and they are those that its events name."""
    blocks = list(_pictures(subject))
    return Section("Pictures", blocks) if blocks else None


def _pictures(subject: Subject) -> Iterator[Block]:
    named = {str(value["file"]): value.get("sha256") for value in subject.values("picture") if value.get("file")}
    for name, content_hash in list(named.items())[-_MOST_PICTURES:]:
        path = subject.path / name
        inside = path.resolve().is_relative_to(subject.path.resolve())
        if not inside or not path.is_file() or path.stat().st_size > _MOST_BYTES:
            yield Text(f"{short(name, 120)}: not in the record.", "soft")
            continue
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != content_hash:
            yield Text(f"{short(name, 120)}: not the picture that the events name: it was changed.", "bad")
            continue
        small = _small(content)
        if small is None:
            yield Text(f"{short(name, 120)}: no picture that can be shown.", "soft")
        else:
            source = f"data:image/webp;base64,{base64.b64encode(small).decode()}"
            yield Picture(source, f"{short(name, 120)}, made by the run itself")


def _small(content: bytes) -> bytes | None:
    from PIL import Image, UnidentifiedImageError  # noqa: PLC0415 - only pages with a picture need it

    try:
        with Image.open(io.BytesIO(content), formats=("PNG", "JPEG", "WEBP")) as opened:
            picture = opened.convert("RGB")
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError):
        return None
    picture.thumbnail((_WIDEST, 8 * _WIDEST))
    stream = io.BytesIO()
    picture.save(stream, "WEBP", quality=_QUALITY)
    return stream.getvalue()
