"""A drawing as files: an SVG for pages and papers, a PNG for everything else."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hpcai500.errors import UsageError
from hpcai500.files import write_atomically
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
        return _files(draw, name, size)


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


def _files(draw: Callable[[Figure], None], name: str, size: tuple[float, float]) -> dict[str, bytes]:
    # Only who draws needs it, and it takes longer to load than all the rest.
    from matplotlib import rc_context  # noqa: PLC0415
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    files = {}
    # Without a date and random names in it, the picture of the same numbers is the same file. Text stays text: it can
    # be searched, copied and read aloud.
    with rc_context({"svg.hashsalt": "hpcai500", "svg.fonttype": "none"}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        for kind, metadata in (("svg", {"Date": None}), ("png", {})):
            stream = io.BytesIO()
            figure.savefig(stream, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata)
            files[f"{name}.{kind}"] = stream.getvalue()
    return files
