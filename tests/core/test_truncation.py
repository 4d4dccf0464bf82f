"""A file cut at any byte: an error, or exactly the pixels of the whole file. Never a grey rest."""

from __future__ import annotations

import numpy as np
import pytest
from jpeg_writer import write_jpeg
from pictures import jpeg, photograph

from hpcai500 import _core

PICTURE = photograph(40, 33)
FILES = {
    "baseline": jpeg(PICTURE, quality=60),
    "restarts": jpeg(PICTURE, quality=60, restart_marker_blocks=1),
    "grey": jpeg(PICTURE, quality=60, mode="L"),
    "progressive": jpeg(PICTURE, quality=60, progressive=True),
    "CMYK": jpeg(PICTURE, quality=60, mode="CMYK"),
    "4:1:1": write_jpeg(PICTURE, [(4, 1), (1, 1), (1, 1)], quantiser=20),
}
SPECS = {
    decoder: _core.DecodeSpec(size=16, dtype="uint8", layout="nhwc", decoder=decoder)
    for decoder in ("own", "libjpeg-turbo")
}
WHOLE = {"x": 0, "y": 0, "width": 40, "height": 33, "flip": False}
TOP = {"x": 3, "y": 0, "width": 30, "height": 6, "flip": False}


def decode(data: bytes, box: dict[str, int], decoder: str) -> np.ndarray:
    out = np.empty(SPECS[decoder].shape, np.uint8)
    assert _core.decode_box(data, SPECS[decoder], out, **box) == 0
    return out


def try_decode(data: bytes, box: dict[str, int], decoder: str) -> tuple[np.ndarray | None, str | None]:
    """The pixels or the kind of failure."""
    try:
        return decode(data, box, decoder), None
    except _core.JpegError as error:
        return None, error.kind


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("box", [WHOLE, TOP], ids=["whole", "top"])
@pytest.mark.parametrize("decoder", SPECS)
def test_every_prefix_is_an_error_or_the_right_pixels(kind: str, box: dict[str, int], decoder: str) -> None:
    data = FILES[kind]
    expected = decode(data, box, decoder)
    outcomes = []
    for length in range(len(data)):
        pixels, failure = try_decode(data[:length], box, decoder)
        if pixels is not None:
            np.testing.assert_array_equal(pixels, expected, err_msg=str(length))
        assert failure in (None, "truncated"), length
        outcomes.append(pixels is not None)
    # Once enough is there, more of it is enough as well.
    assert outcomes == sorted(outcomes)
    # The end marker alone may be missing from an image of one scan; of a progressive one no scan may.
    assert outcomes[-2] == (kind != "progressive")


@pytest.mark.parametrize("decoder", SPECS)
def test_a_crop_needs_no_more_of_the_file_than_its_last_row(decoder: str) -> None:
    data = jpeg(photograph(40, 300))
    enough = next(n for n in range(len(data)) if try_decode(data[:n], TOP, decoder)[1] is None)
    assert try_decode(data[:enough], WHOLE, decoder)[1] == "truncated"
    assert enough < len(data) / 3


@pytest.mark.parametrize("kind", FILES)
def test_a_check_finds_every_truncation_that_costs_pixels(kind: str) -> None:
    data = FILES[kind]
    for length in range(0, len(data) - 8, 3):
        with pytest.raises(_core.JpegError) as caught:
            _core.check_jpeg(data[:length])
        assert caught.value.kind == "truncated"
