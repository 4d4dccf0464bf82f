"""An image is decoded by its own tables: none of the file before, whichever that was."""

from __future__ import annotations

import numpy as np
import pytest
from jpeg_corpus import DHT, DQT, without
from pictures import jpeg, photograph

from hpcai500 import _core


def decoded(data: bytes, decoder: str) -> np.ndarray:
    spec = _core.DecodeSpec(size=32, dtype="uint8", decoder=decoder)
    out = np.empty(spec.shape, np.uint8)
    _core.decode_crop(data, spec, out, seed=1, epoch=0, sample=0)
    return out


@pytest.mark.parametrize("decoder", ["own", "libjpeg-turbo"])
def test_a_frame_of_a_film_has_the_standard_codes_whatever_came_before(decoder: str) -> None:
    """Its files leave out the codes that Annex K of T.81 gives, which Pillow writes where it does not optimise."""
    picture = photograph(80, 60)
    frame = without(jpeg(picture, quality=80), DHT)
    decoded(jpeg(picture[::-1], quality=30, optimize=True), decoder)
    np.testing.assert_array_equal(decoded(frame, decoder), decoded(jpeg(picture, quality=80), "libjpeg-turbo"))
    assert _core.seek_points(frame) is None


@pytest.mark.parametrize("decoder", ["own", "libjpeg-turbo"])
def test_a_file_without_quantisation_tables_is_refused_whatever_came_before(decoder: str) -> None:
    data = jpeg(photograph(80, 60), quality=80)
    decoded(data, decoder)
    with pytest.raises(_core.JpegError, match="corrupt: Quantization table 0x00 was not defined"):
        decoded(without(data, DQT), decoder)
