"""Small JPEG files of every kind that the decoder tells apart: seeds of the fuzz targets and of their short runs."""

from __future__ import annotations

import numpy as np
from jpeg_writer import write_jpeg
from numpy.typing import NDArray
from pictures import jpeg, photograph

_SAMPLINGS = ("4:4:4", "4:2:2", "4:2:0")
DHT, DQT = 0xC4, 0xDB


def noise(width: int, height: int, amplitude: int = 128) -> NDArray[np.uint8]:
    """(height, width, 3): levels without any order, so that blocks have no end before their last coefficient."""
    levels = np.random.default_rng([width, height]).integers(128 - amplitude, 128 + amplitude, (height, width, 3))
    return levels.clip(0, 255).astype(np.uint8)


def stripes(width: int, height: int) -> NDArray[np.uint8]:
    """(height, width, 3): one high frequency alone, so that long runs of zeros stand before it."""
    rows, columns = np.mgrid[0:height, 0:width]
    return np.repeat((((rows + columns) % 2) * 200 + 20)[..., None], 3, axis=2).astype(np.uint8)


def without(data: bytes, marker: int) -> bytes:
    """The file without its segments of this marker."""
    kept, at = data[:2], 2
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        kept += b"" if data[at + 1] == marker else data[at:end]
        at = end
    return kept + data[at:]


def our_files() -> dict[str, bytes]:
    """Files that our decoder takes, by name."""
    files = {}
    for sampling in _SAMPLINGS:
        name = sampling.replace(":", "")
        for width, height in ((8, 8), (17, 9), (33, 40), (64, 20)):
            files[f"{name}-{width}x{height}"] = jpeg(
                photograph(width, height), subsampling=sampling, quality=70, optimize=width == 33
            )
        for interval in (1, 2, 5):
            files[f"{name}-restart-{interval}"] = jpeg(
                photograph(40, 33), subsampling=sampling, quality=60, restart_marker_blocks=interval
            )
        files[f"{name}-noise"] = jpeg(noise(24, 24), subsampling=sampling, quality=100, optimize=True)
        files[f"{name}-coarse"] = jpeg(noise(32, 16), subsampling=sampling, quality=1)
        files[f"{name}-stripes"] = jpeg(stripes(32, 16), subsampling=sampling, quality=50)
    for luma in ((1, 1), (2, 1), (2, 2)):
        name = f"flat-codes-{luma[0]}{luma[1]}"
        files[name] = write_jpeg(photograph(40, 24), [luma, (1, 1), (1, 1)], quantiser=12)
        files[f"{name}-restart"] = write_jpeg(noise(40, 24), [luma, (1, 1), (1, 1)], quantiser=30, restart_interval=3)
    for width, height in ((1, 1), (8, 64), (37, 45)):
        files[f"grey-{width}x{height}"] = jpeg(photograph(width, height), mode="L", quality=80)
    files["grey-restart"] = jpeg(photograph(40, 24), mode="L", quality=40, restart_marker_blocks=2)
    files["grey-noise"] = jpeg(noise(24, 24), mode="L", quality=100)
    files["grey-even"] = jpeg(np.full((30, 30, 3), 77, np.uint8), mode="L")
    return files


def foreign_files() -> dict[str, bytes]:
    """Files that libjpeg-turbo is left with, and what is no image, by name."""
    picture = photograph(45, 37)
    return {
        "cmyk": jpeg(picture, mode="CMYK", quality=60),
        "progressive": jpeg(picture, progressive=True, quality=60),
        "progressive-grey": jpeg(picture, mode="L", progressive=True, quality=60),
        "narrow": jpeg(picture[:, :3]),
        "411": write_jpeg(picture, [(4, 1), (1, 1), (1, 1)], quantiser=20),
        "440": write_jpeg(picture, [(1, 2), (1, 1), (1, 1)], quantiser=20, restart_interval=2),
        "uneven": write_jpeg(picture, [(2, 2), (2, 1), (1, 2)], quantiser=20),
        "rgb": write_jpeg(picture, [(1, 1)] * 3, quantiser=20, adobe_transform=0),
        "without-codes": without(jpeg(picture), DHT),
        "without-factors": without(jpeg(picture), DQT),
        "text": b"no image at all",
        "empty": b"",
    }


def all_files() -> dict[str, bytes]:
    """Both, and a file with bytes behind its end."""
    return {**our_files(), **foreign_files(), "garbage-behind": jpeg(photograph(45, 37)) + bytes(range(256)) * 4}
