"""Image files that the core's JPEG decoder leaves to Pillow: ImageNet itself holds a PNG named .JPEG."""

from __future__ import annotations

import io
import warnings

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

Pixels = npt.NDArray[np.uint8]


def decode_odd(content: bytes) -> Pixels:
    """Decode any image file that Pillow reads; return its pixels as uint8 of shape (height, width, 3), RGB.

    Grey becomes RGB, transparency is dropped, 16-bit grey keeps its upper 8 bits. Raises ValueError with the reason
    when the file is no image, truncated, damaged, or so large that Pillow suspects an attack.
    """
    try:
        with warnings.catch_warnings():
            # A palette's transparency, a half-suspicious size: Pillow's advice to programmers, not a defect of data.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(content)) as image:
                return _rgb(image)
    except UnidentifiedImageError as error:
        raise ValueError("no JPEG and no other image format that Pillow knows") from error
    except Exception as error:
        # Pillow's decoders raise a dozen types (OSError, SyntaxError, struct.error, ...) for damaged input.
        raise ValueError(f"{str(error).strip() or type(error).__name__}") from error


def _rgb(image: Image.Image) -> Pixels:
    if image.mode.startswith("I"):
        # Pillow's own conversion of 16-bit grey clips at 255: a white image.
        grey = (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    # A copy: asarray of an image is read-only, and what crops it may want to own it.
    return np.array(image.convert("RGB"), dtype=np.uint8)
