"""The index of a staged folder: that of the set at its source."""

from __future__ import annotations

from pathlib import Path

from hpcai500.data.imagenet.image_index import ImageIndex
from hpcai500.data.imagenet.index_cache import unpack_index
from hpcai500.data.staging.layout import INDEX, read_set, state_folder
from hpcai500.errors import DataError


def staged_index(root: Path) -> ImageIndex | None:
    """The index of the set that is staged in `root`; None where `root` is no staged folder.

    Raises:
        DataError: climate years are staged there, or the index is damaged.
    """
    staged = read_set(root)
    if staged is None:
        return None
    if staged.benchmark != "ic":
        raise DataError(f"{root}: a set for {staged.benchmark} is staged there, {staged.source}; give one of images")
    try:
        return unpack_index(root, (state_folder(root) / INDEX).read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{root}: its index cannot be read ({error}); remove it, and stage the set again") from error
