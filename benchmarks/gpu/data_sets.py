"""Files to read: a user's folder, or a set made for the purpose."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from options import Options

from hpcai500.data.climate.synthetic import SyntheticYears, make_years
from hpcai500.data.imagenet.synthetic import SyntheticSet, make_images
from hpcai500.measure.host import available_cores

# Ignored by git; what was made there serves the next part too.
_KEPT = Path(__file__).resolve().parents[2] / "build" / "bench-gpu"
# As large as ImageNet's usual image. Each file has many names: drawing tens of thousands of pictures takes long.
_IMAGES = SyntheticSet(classes=20, train_per_class=100, val_per_class=5, smallest_side=375, largest_side=500)
_NAMES_A_FILE = 20
_SMALL_IMAGES = SyntheticSet(classes=3, train_per_class=11, val_per_class=1)
# 56.6 MB an image.
_YEARS = SyntheticYears(last_year=1980, images_per_year=32, height=768, width=1152)
_SMALL_YEARS = SyntheticYears(last_year=1980, images_per_year=8, height=64, width=96)


@contextmanager
def images(options: Options, given: Path | None) -> Iterator[Path]:
    """A folder of JPEG files in ImageNet's layout."""
    if given is not None:
        yield given
    elif options.quick:
        with tempfile.TemporaryDirectory() as name:
            make_images(Path(name), _SMALL_IMAGES, workers=1)
            yield Path(name)
    else:
        folder = _KEPT / "images"
        make_images(folder, _IMAGES, workers=available_cores())
        yield _with_many_names(folder, _KEPT / "images-linked")


@contextmanager
def years(options: Options) -> Iterator[Path]:
    """A folder of climate years."""
    if options.quick:
        with tempfile.TemporaryDirectory() as name:
            make_years(Path(name), _SMALL_YEARS, workers=1)
            yield Path(name)
    else:
        folder = _KEPT / "years"
        make_years(folder, _YEARS, workers=available_cores())
        yield folder


def _with_many_names(folder: Path, linked: Path) -> Path:
    """`linked`, filled with hard links to the images of `folder`: `_NAMES_A_FILE` of each that is trained on."""
    for path in sorted(folder.glob("*/*/*.JPEG")):
        names = _NAMES_A_FILE if path.relative_to(folder).parts[0] == "train" else 1
        target = linked / path.relative_to(folder).parent
        target.mkdir(parents=True, exist_ok=True)
        for number in range(names):
            name = target / f"{path.stem}-{number:02d}{path.suffix}"
            if not name.exists():
                os.link(path, name)
    return linked
