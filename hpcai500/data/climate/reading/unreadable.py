"""What the core's reader could not read, in one line for people."""

from __future__ import annotations

from pathlib import Path

from hpcai500._core import ClimateError
from hpcai500.data.climate.layout import CHANNELS, IMAGES
from hpcai500.errors import DataError


def unreadable(error: ClimateError, path: Path, channels: int) -> DataError:
    """Return what to raise for `error`, which befell the file at `path`, whose images have so many `channels`."""
    where = f"{path}: dataset {IMAGES}"
    if error.image is not None and error.channel is not None:
        names = CHANNELS if channels == len(CHANNELS) else range(channels)
        where += f", image {error.image}, channel {names[error.channel]}"
    if error.chunk is not None:
        where += f", chunk {error.chunk}"
    return DataError(
        f"{where}: {error.kind}: {error.reason}; replace the file, "
        f"and run `hpcai500 data check ewa {path.parent}` to find all such files"
    )
