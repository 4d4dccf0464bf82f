"""The format of ExtremeWeather (Racah et al., 2017; V2.0 section 4.2.1): an HDF5 file `climo_YYYY.h5` for each year.

    images  (images, 16, height, width) float32     1460 images a year (every 6 hours) of 768 x 1152 as shipped
    boxes   (images, 15, 5) int32                   rows ymin xmin ymax xmax class; unused rows are -1

y runs over `height` (latitude), x over `width` (longitude, periodic).
"""

from __future__ import annotations

import re
from typing import get_args

from hpcai500.layers import ClimateChannel

IMAGES, BOXES = "images", "boxes"

CHANNELS: tuple[str, ...] = get_args(ClimateChannel)
CLASSES = ("tropical depression", "tropical cyclone", "extratropical cyclone", "atmospheric river")
MOST_BOXES = 15
BOX_COLUMNS = ("ymin", "xmin", "ymax", "xmax", "class")

_FILE = re.compile(r"climo_(\d{4})\.h5")


def file_name(year: int) -> str:
    """The name of the file of `year`."""
    return f"climo_{year:04d}.h5"


def year_of(name: str) -> int | None:
    """The year that a file name stands for; None for other files."""
    match = _FILE.fullmatch(name)
    return int(match[1]) if match else None
