"""What becomes of a file under our own decoder, libjpeg-turbo and the twin; and when these must agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from baseline_header import NotOursError
from baseline_reference import Reference, decode
from numpy.typing import NDArray
from reference import Box

from hpcai500 import _core

# Levels, not normalised: float32 holds 255 with 16 bits behind the point, and a pixel is the sum of some 50 products
# whose weights are float32, too. Each of these roundings is 1e-5 at most.
FLOAT32_LEVELS = 1e-3


def level_spec(size: int, **settings: Any) -> _core.DecodeSpec:
    """Levels as float32, channels last."""
    return _core.DecodeSpec(**{"size": size, "layout": "nhwc", "mean": (0, 0, 0), "std": (1, 1, 1), **settings})


# What fits libjpeg-turbo's 16-bit registers with the two bits that its transform adds. Coefficients of 8-bit images are
# an eighth of it; of larger ones, which damage makes, its vector code keeps the lower bits where a block has one row of
# them, and its plain code more. There the two decoders may differ, and so may libjpeg-turbo from itself.
LARGEST_COEFFICIENT = 8191


@dataclass(frozen=True)
class Outcome:
    """Pixels and libjpeg's warnings, or a failure as it is told."""

    pixels: NDArray[Any] | None
    warnings: int
    failure: str | None

    def equals(self, other: Outcome) -> bool:
        """Whether both are the same to the bit and the word."""
        if self.pixels is None or other.pixels is None:
            return self.failure == other.failure
        return self.warnings == other.warnings and np.array_equal(self.pixels, other.pixels)


def outcome(data: bytes, box: Box, size: int, decoder: str = "own", **settings: Any) -> Outcome:
    """Levels of a box, or of the whole picture."""
    spec = level_spec(size, decoder=decoder, **settings)
    out = np.empty(spec.shape, np.uint8 if spec.dtype == "uint8" else np.float32)
    place = {"x": box.x, "y": box.y, "width": box.width, "height": box.height, "flip": box.flip}
    try:
        return Outcome(out, _core.decode_box(data, spec, out, **place), None)
    except _core.JpegError as error:
        return Outcome(None, 0, str(error))


def expected(data: bytes, box: Box, size: int, mode: str = "random") -> Reference | None:
    """The twin's image, or nothing where it leaves the file to libjpeg-turbo."""
    try:
        return decode(data, box, size, crop_first=mode == "random")
    except NotOursError:
        return None


def assert_own_or_libjpegs(
    data: bytes, box: Box, size: int, *, mode: str = "random", note: str = ""
) -> Reference | None:
    """Our own decoder makes the twin's image without a warning; where the twin refuses, all is libjpeg-turbo's.

    Returns what the twin said. `data` needs a sound header. Either will do where coefficients are beyond all reason.
    """
    # A centre crop's filter reaches around its box; decode_box() itself never asks for resize_shorter.
    settings = {"mode": mode, "resize_shorter": size}
    found, twin = outcome(data, box, size, **settings), expected(data, box, size, mode)
    unreasonable = twin is not None and twin.largest > LARGEST_COEFFICIENT
    if unreasonable and found.equals(outcome(data, box, size, "libjpeg-turbo", **settings)):
        return twin
    if twin is None:
        assert found.equals(outcome(data, box, size, "libjpeg-turbo", **settings)), note
    else:
        assert (found.failure, found.warnings) == (None, 0), note
        np.testing.assert_allclose(found.pixels, twin.levels, rtol=0, atol=FLOAT32_LEVELS, err_msg=note)
    return twin
