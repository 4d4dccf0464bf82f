"""A drawing as files: an SVG for pages and papers, a PNG for everything else."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hpcai500.drawing import drawn
from hpcai500.errors import UsageError
from hpcai500.files import write_atomically
from hpcai500.results.report.words import legible
from hpcai500.scratch import scratch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DOTS_PER_INCH = 150


def figure_files(draw: Callable[[Figure], None], name: str, size: tuple[float, float]) -> dict[str, bytes]:
    """What `draw` puts on an empty figure, as the files `NAME.svg` and `NAME.png`; the same numbers, the same files.

    Args:
        draw: fills the figure; what it needs of Matplotlib it imports itself, inside.
        name: of the files, without their kind.
        size: width and height in inches.
    """
    with scratch(os.environ, Path.cwd()):
        files = drawn(draw, size, _DOTS_PER_INCH, ("svg", "png"))
    # A PNG shows a box for what has no picture; an SVG would hand it on.
    files["svg"] = legible(files["svg"].decode()).encode()
    return {f"{name}.{kind}": content for kind, content in files.items()}


def write_figures(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Put `files` (name: content) into `folder`, which is made if need be; returns their paths.

    Raises:
        UsageError: they cannot be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_atomically(folder / name, content)
    except OSError as error:
        raise UsageError(f"{folder}: the pictures cannot be written: {error.strerror}; give another --out") from error
    return [folder / name for name in files]
