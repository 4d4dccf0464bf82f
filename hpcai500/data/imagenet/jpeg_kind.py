"""What kind of file it is that our own decoder leaves to libjpeg-turbo or to Pillow."""

from __future__ import annotations

from collections.abc import Iterator

from hpcai500._core import JpegError, check_jpeg, probe_jpeg

_COLOURS = ("grey", "YCbCr")
_SAMPLINGS = ("1x1", "1x1,1x1,1x1", "2x1,1x1,1x1", "2x2,1x1,1x1")
# Markers (T.81, table B.1), and what of a frame's only its marker tells.
_FILL, _START_OF_SCAN = 0xFF, 0xDA
# Headers are shorter; a file may be 1 GiB of fill bytes.
_MOST_HEADER_BYTES = 2**20
_FRAMES = {
    0xC0: "",
    0xC1: "",
    0xC2: "progressive",
    0xC3: "lossless",
    **dict.fromkeys((0xC5, 0xC6, 0xC7), "hierarchical"),
    **dict.fromkeys((0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF), "arithmetic coding"),
}


def why_not_ours(content: bytes) -> str:
    """Why our own decoder does not take a file whole: its kind, or, of a kind that it takes, "damaged" where
    libjpeg-turbo says so, too.
    """
    if kind := _kind_by_header(content):
        return kind
    try:
        header = probe_jpeg(content)
        if header.colour_space == "unknown":
            return f"{header.components} components"
        if header.colour_space not in _COLOURS:
            return header.colour_space
        if header.sampling not in _SAMPLINGS:
            return f"sampling {header.sampling}"
        _, _, warnings = check_jpeg(content)
    except JpegError as error:
        return "no JPEG" if error.kind == "unsupported" else "damaged"
    return "damaged" if warnings else "left to libjpeg-turbo"


def _kind_by_header(content: bytes) -> str:
    """What `probe_jpeg` does not tell; "" for a baseline image in one scan, and where there is no header."""
    components = 0
    for marker, payload in _segments(content[:_MOST_HEADER_BYTES]):
        if marker in _FRAMES and len(payload) >= 6:
            bits, components = payload[0], payload[5]
            if _FRAMES[marker] or bits != 8:
                return _FRAMES[marker] or f"{bits} bits"
        elif marker == _START_OF_SCAN and payload:
            return "several scans" if payload[0] < components else ""
    return ""


def _segments(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Each marker up to the first scan's, and what follows its length."""
    at = 2 if content.startswith(b"\xff\xd8") else len(content)
    while at + 4 <= len(content) and content[at] == 0xFF:
        marker, length = content[at + 1], int.from_bytes(content[at + 2 : at + 4], "big")
        if marker == _FILL:
            at += 1
            continue
        yield marker, content[at + 4 : at + 2 + length]
        if marker == _START_OF_SCAN:
            return
        at += 2 + length
