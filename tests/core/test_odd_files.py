"""The kinds of file that real image sets hold: each decodes as Pillow decodes it, or fails with its reason."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable

import numpy as np
import pytest
from jpeg_writer import write_jpeg
from numpy.typing import NDArray
from pictures import decoded, jpeg, photograph
from PIL import Image

from hpcai500 import _core

KEY = {"seed": 3, "epoch": 1}
PICTURE = photograph(90, 67)


def ycc(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.asarray(Image.fromarray(pixels).convert("YCbCr"))


def cmyk(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """With real black, which Pillow's own conversion never makes."""
    black = (255 - pixels.max(axis=2)) // 2
    inks = np.clip(255 - pixels.astype(int) - black[..., None], 0, 255).astype(np.uint8)
    return np.concatenate([inks, black[..., None]], axis=2)


def inverted_cmyk_jpeg(pixels: NDArray[np.uint8], *, ycck: bool) -> bytes:
    """As Adobe's programs write it: inverted, and for YCCK the inverted inks as YCbCr."""
    stored = 255 - cmyk(pixels)
    if ycck:
        # libjpeg makes C, M, Y from YCC as 255 - R, G, B.
        stored = np.concatenate([ycc(255 - stored[..., :3]), stored[..., 3:]], axis=2)
        return write_jpeg(stored, [(2, 2), (1, 1), (1, 1), (2, 2)], adobe_transform=2)
    return write_jpeg(stored, [(1, 1)] * 4, adobe_transform=0)


def with_exif_orientation(data: bytes, orientation: int) -> bytes:
    exif = b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">HHHIHHI", 1, 0x0112, 3, 1, orientation, 0, 0)
    return data[:2] + struct.pack(">BBH", 0xFF, 0xE1, len(exif) + 2) + exif + data[2:]


SAMPLINGS = {
    "4:1:1": [(4, 1), (1, 1), (1, 1)],
    "4:4:0": [(1, 2), (1, 1), (1, 1)],
    "4:1:0": [(4, 2), (1, 1), (1, 1)],
    "4:2:2": [(2, 1), (1, 1), (1, 1)],
    "4:2:0": [(2, 2), (1, 1), (1, 1)],
    "4:4:1": [(1, 4), (1, 1), (1, 1)],
    "chroma of unequal factors": [(2, 2), (2, 1), (1, 2)],
}
KINDS: dict[str, Callable[[], bytes]] = {
    "grey": lambda: jpeg(PICTURE, mode="L"),
    "RGB without conversion": lambda: write_jpeg(PICTURE, [(1, 1)] * 3, adobe_transform=0),
    "CMYK": lambda: jpeg(PICTURE, mode="CMYK"),
    "CMYK with black": lambda: inverted_cmyk_jpeg(PICTURE, ycck=False),
    "YCCK": lambda: inverted_cmyk_jpeg(PICTURE, ycck=True),
    "CMYK without an Adobe marker": lambda: write_jpeg(255 - cmyk(PICTURE), [(1, 1)] * 4),
    "progressive": lambda: jpeg(PICTURE, progressive=True),
    "progressive grey": lambda: jpeg(PICTURE, mode="L", progressive=True),
    "optimised": lambda: jpeg(PICTURE, optimize=True, quality=30),
    "restart markers by row": lambda: jpeg(PICTURE, restart_marker_rows=1),
    "restart markers by block": lambda: jpeg(PICTURE, restart_marker_blocks=1),
    "trailing garbage": lambda: jpeg(PICTURE) + b"\xff\xd8 garbage" * 50,
    "a comment and a profile": lambda: jpeg(PICTURE, comment=b"x" * 60_000, icc_profile=b"y" * 130_000),
    "1 pixel wide": lambda: jpeg(PICTURE[:, :1]),
    "1 pixel high": lambda: jpeg(PICTURE[:1]),
    "1 pixel": lambda: jpeg(PICTURE[:1, :1]),
    "1 pixel wide, progressive": lambda: jpeg(PICTURE[:, :1], progressive=True),
    **{name: lambda s=sampling: write_jpeg(ycc(PICTURE), s) for name, sampling in SAMPLINGS.items()},
    "4:1:1 with restarts": lambda: write_jpeg(ycc(PICTURE), SAMPLINGS["4:1:1"], restart_interval=2),
}


# Of normalised levels: libjpeg's pixels are Pillow's; our own decoder's differ by rounding, and where levels are cut.
WORST = {"own": 5 / 57, "libjpeg-turbo": 1e-5}


@pytest.mark.parametrize("decoder", WORST)
@pytest.mark.parametrize("kind", KINDS)
def test_an_odd_file_shows_what_pillow_shows(kind: str, decoder: str) -> None:
    data = KINDS[kind]()
    whole = np.asarray(decoded(data))
    height, width = whole.shape[:2]
    assert _core.check_jpeg(data) == (width, height, 0)
    for settings in ({"mode": "random"}, {"mode": "centre", "resize_shorter": 28}):
        spec = _core.DecodeSpec(size=24, dtype="float32", decoder=decoder, **settings)
        ours, expected = np.empty((2, *spec.shape), np.float32)
        for sample in range(12):
            assert _core.decode_crop(data, spec, ours, sample=sample, **KEY) == 0
            # The crop and the resize are held to Pillow elsewhere: here the same ones on Pillow's pixels.
            _core.crop_pixels(whole, spec, expected, sample=sample, **KEY)
            np.testing.assert_allclose(ours, expected, rtol=0, atol=WORST[decoder], err_msg=f"{settings} {sample}")


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("decoder", WORST)
def test_a_part_of_an_oddly_sampled_file_equals_the_part_of_the_whole(sampling: str, seed: int, decoder: str) -> None:
    data = write_jpeg(ycc(photograph(131, 77, seed)), SAMPLINGS[sampling])
    spec = _core.DecodeSpec(size=9, dtype="uint8", layout="nhwc", decoder=decoder)
    whole = np.asarray(decoded(data)).astype(int)
    # Two of them are our own decoder's, which does not round where Pillow does.
    levels = 2 if decoder == "own" and sampling in ("4:2:2", "4:2:0") else 0
    out = np.empty(spec.shape, np.uint8)
    for x in range(0, 131 - 9, 3):
        for y in range(0, 77 - 9, 2):
            _core.decode_box(data, spec, out, x=x, y=y, width=9, height=9, flip=False)
            assert np.abs(out - whole[y : y + 9, x : x + 9]).max() <= levels, (x, y)


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_exif_orientation_is_ignored_as_imagenet_training_does(orientation: int) -> None:
    plain = jpeg(PICTURE)
    turned = with_exif_orientation(plain, orientation)
    assert Image.open(io.BytesIO(turned)).getexif()[0x0112] == orientation
    spec = _core.DecodeSpec(size=24)
    first, second = np.empty((2, *spec.shape), np.float32)
    _core.decode_crop(plain, spec, first, sample=0, **KEY)
    _core.decode_crop(turned, spec, second, sample=0, **KEY)
    np.testing.assert_array_equal(first, second)


def test_a_header_is_told() -> None:
    assert _core.probe_jpeg(jpeg(PICTURE, subsampling="4:2:2")) == (90, 67, 3, "YCbCr", False, "2x1,1x1,1x1")
    assert _core.probe_jpeg(jpeg(PICTURE, mode="L", progressive=True)) == (90, 67, 1, "grey", True, "1x1")
    assert _core.probe_jpeg(inverted_cmyk_jpeg(PICTURE, ycck=True)).colour_space == "YCCK"


def _png() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(PICTURE).save(buffer, "PNG")
    return buffer.getvalue()


def _with_frame(marker: int, precision: int = 8, components: int = 3) -> bytes:
    """A JPEG whose frame header was changed."""
    data = bytearray(jpeg(PICTURE))
    at = data.index(b"\xff\xc0")
    data[at + 1] = marker
    data[at + 4] = precision
    data[at + 9] = components
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        (_png(), "unsupported", "Not a JPEG"),
        (b"<html>not found</html>", "unsupported", "Not a JPEG"),
        (_with_frame(0xC0, precision=12), "unsupported", "precision"),
        (_with_frame(0xC3), "unsupported", "SOF"),
        (b"", "truncated", "empty"),
        (b"\xff", "truncated", "ends"),
        (b"\xff\xd8", "truncated", "ends"),
        (b"\xff\xd8\xff\xd9", "corrupt", "no image"),
        (_with_frame(0xC0, components=9), "corrupt", "Bogus marker length"),
    ],
)
def test_what_is_no_readable_jpeg_says_so(data: bytes, kind: str, reason: str) -> None:
    out = np.empty((3, 8, 8), np.float32)
    for call in (
        lambda: _core.check_jpeg(data),
        lambda: _core.decode_crop(data, _core.DecodeSpec(size=8), out, sample=0, **KEY),
    ):
        with pytest.raises(_core.JpegError, match=reason) as caught:
            call()
        assert caught.value.kind == kind
        assert str(caught.value).startswith(f"{kind}: ")
        assert isinstance(caught.value, ValueError)


def _claiming(width: int, height: int, **options: object) -> bytes:
    data = bytearray(jpeg(PICTURE, **options))
    at = data.index(b"\xff\xc2" if options.get("progressive") else b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def test_a_header_that_claims_an_absurd_size_is_refused_before_memory_is() -> None:
    with pytest.raises(_core.JpegError, match="the header claims 65000 x 65000 pixels; the limit is 268435456"):
        _core.check_jpeg(_claiming(65000, 65000))
    with pytest.raises(_core.JpegError, match="needs more memory than one image is allowed"):
        _core.check_jpeg(_claiming(16000, 16000, progressive=True))
    with pytest.raises(_core.JpegError, match="corrupt"):
        _core.check_jpeg(_claiming(0, 50))


def test_a_progressive_bomb_is_refused() -> None:
    data = jpeg(PICTURE, progressive=True)
    last_scan = data.rindex(b"\xff\xda")
    bomb = data[:last_scan] + data[last_scan:-2] * 600 + b"\xff\xd9"
    with pytest.raises(_core.JpegError, match="more scans than any real file"):
        _core.check_jpeg(bomb)


def test_damage_that_pillow_tolerates_is_tolerated_and_counted() -> None:
    data = bytearray(jpeg(PICTURE, quality=95))
    middle = len(data) // 2
    data[middle : middle + 2] = b"\xff\xd9"
    damaged = bytes(data)
    width, height, warnings = _core.check_jpeg(damaged)
    assert (width, height) == (90, 67)
    assert warnings > 0
    spec = _core.DecodeSpec(size=67, mode="centre", resize_shorter=67, dtype="uint8", layout="nhwc")
    out = np.empty(spec.shape, np.uint8)
    assert _core.decode_crop(damaged, spec, out, sample=0, **KEY) > 0
    expected = np.empty_like(out)
    _core.crop_pixels(np.asarray(decoded(damaged)), spec, expected, sample=0, **KEY)
    np.testing.assert_array_equal(out, expected)


def test_a_failed_image_leaves_nothing_behind() -> None:
    good, spec = jpeg(PICTURE), _core.DecodeSpec(size=24)
    before, after = np.empty((2, *spec.shape), np.float32)
    _core.decode_crop(good, spec, before, sample=0, **KEY)
    for bad in (good[: len(good) // 2], _png(), _claiming(16000, 16000, progressive=True)):
        with pytest.raises(_core.JpegError):
            _core.check_jpeg(bad)
        _core.decode_crop(good, spec, after, sample=0, **KEY)
        np.testing.assert_array_equal(before, after)
