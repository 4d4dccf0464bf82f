"""What `hpcai500 data index` says of a file that our own decoder leaves to libjpeg-turbo or to Pillow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from jpeg_writer import write_jpeg
from pictures import jpeg, photograph
from PIL import Image

from hpcai500 import _core
from hpcai500.data.imagenet.seek_index import why_not_ours

PICTURE = photograph(90, 67)
YCC = np.asarray(Image.fromarray(PICTURE).convert("YCbCr"))
WHOLE = jpeg(PICTURE)

SOUND: dict[str, tuple[str, Callable[[], bytes]]] = {
    "progressive": ("progressive", lambda: jpeg(PICTURE, progressive=True)),
    "CMYK": ("CMYK", lambda: jpeg(PICTURE, mode="CMYK")),
    "YCCK": ("YCCK", lambda: write_jpeg(np.concatenate([YCC, YCC[..., :1]], axis=2), [(1, 1)] * 4, adobe_transform=2)),
    "RGB": ("RGB", lambda: write_jpeg(PICTURE, [(1, 1)] * 3, adobe_transform=0)),
    "4:4:0": ("sampling 1x2,1x1,1x1", lambda: write_jpeg(YCC, [(1, 2), (1, 1), (1, 1)])),
    "a scan for each component": ("several scans", lambda: write_jpeg(YCC, [(1, 1)] * 3, interleaved=False)),
    "too narrow for interpolated chroma": ("left to libjpeg-turbo", lambda: jpeg(PICTURE[:, :3])),
    "factors of 16 bits": (
        "left to libjpeg-turbo",
        lambda: write_jpeg(YCC, [(1, 1)] * 3, quantiser=[4] * 63 + [300], wide_factors=True),
    ),
}


@pytest.mark.parametrize("kind", SOUND)
def test_a_sound_file_is_named_by_its_kind_and_never_damaged(kind: str) -> None:
    reason, make = SOUND[kind]
    data = make()
    assert _core.check_jpeg(data) == (*_core.probe_jpeg(data)[:2], 0)
    assert _core.seek_points(data) is None
    assert why_not_ours(data) == reason


def with_frame(marker: int, bits: int = 8) -> bytes:
    at = WHOLE.index(b"\xff\xc0")
    return WHOLE[: at + 1] + bytes([marker]) + WHOLE[at + 2 : at + 4] + bytes([bits]) + WHOLE[at + 5 :]


@pytest.mark.parametrize(
    ("marker", "bits", "reason"),
    [
        (0xC0, 12, "12 bits"),
        (0xC1, 12, "12 bits"),
        (0xC3, 8, "lossless"),
        (0xC5, 8, "hierarchical"),
        (0xC9, 8, "arithmetic coding"),
        (0xCA, 8, "arithmetic coding"),
    ],
)
def test_what_only_the_header_of_a_frame_tells_is_told(marker: int, bits: int, reason: str) -> None:
    data = with_frame(marker, bits)
    assert _core.seek_points(data) is None
    assert why_not_ours(data) == reason
    # Bytes that fill, and a segment that looks like another frame, stand before it.
    comment = b"\xff\xff\xff\xfe\x00\x09\xff\xc2\x00\x0b\x08ab"
    assert why_not_ours(data[:2] + comment + data[2:]) == reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "damaged"),
        (b"\xff\xd8", "damaged"),
        (WHOLE[:300], "damaged"),
        (WHOLE[: len(WHOLE) // 2], "damaged"),
        (WHOLE[: len(WHOLE) // 2] + b"\xff\xd3" + WHOLE[len(WHOLE) // 2 :], "damaged"),
        (b"GIF89a and more", "no JPEG"),
    ],
    ids=["empty", "a first marker", "half a header", "half the data", "a marker out of place", "another format"],
)
def test_only_what_libjpeg_cannot_read_or_warns_of_is_damaged(data: bytes, reason: str) -> None:
    assert _core.seek_points(data) is None
    assert why_not_ours(data) == reason


def test_a_header_that_ends_anywhere_has_a_kind() -> None:
    header = jpeg(PICTURE, progressive=True)[:700]
    assert {why_not_ours(header[:length]) for length in range(len(header))} == {"damaged", "progressive"}


def test_a_header_of_more_than_a_mebibyte_is_not_looked_through() -> None:
    """Fill bytes before a marker, as many as there are, are legal, and a file may be 1 GiB of them."""
    progressive = jpeg(PICTURE, progressive=True)
    assert why_not_ours(progressive[:2] + b"\xff" * 2**10 + progressive[2:]) == "progressive"
    assert why_not_ours(progressive[:2] + b"\xff" * 2**20 + progressive[2:]) == "left to libjpeg-turbo"
