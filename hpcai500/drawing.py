"""The one door to Matplotlib: a figure looks as our code says, whatever `matplotlibrc` lies in the current folder.

Matplotlib reads that file when it is imported, before that of the user. A stranger's could make a line of a figure
invisible, or start TeX. So each figure is drawn from the values that Matplotlib comes with.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcai500.errors import UsageError
from hpcai500.files import scratch, write_atomically
from hpcai500.text import legible

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# ----------------------------------------------------------------------------------------------------
# The one door to Matplotlib: a figure looks as our code says, whatever `matplotlibrc` lies in the current folder.
#
# Matplotlib reads that file when it is imported, before that of the user. A stranger's could make a line of a figure
# invisible, or start TeX. So each figure is drawn from the values that Matplotlib comes with.


# Without a date and random names in it, the picture of the same numbers is the same file. Text stays text: it can be
# searched, copied and read aloud.
_OURS: dict[Any, Any] = {"svg.hashsalt": "hpcai500", "svg.fonttype": "none"}
_METADATA = {"svg": {"Date": None}}


def drawn(
    draw: Callable[[Figure], None], size: tuple[float, float], dots_per_inch: int, kinds: Sequence[str]
) -> dict[str, bytes]:
    """What `draw` puts on an empty figure, as a file of each of `kinds`, `svg` or `png`.

    Args:
        draw: fills the figure; what it needs of Matplotlib it imports itself, inside.
        size: width and height in inches.
        dots_per_inch: of what has dots.
        kinds: of files.
    """
    # Only who draws needs it, and it takes longer to load than all the rest.
    from matplotlib import rc_context, rcParamsDefault
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    files = {}
    # The backend opens windows, and we have none: its default is not even a name.
    settings: dict[Any, Any] = {name: value for name, value in rcParamsDefault.items() if name != "backend"}
    with rc_context({**settings, **_OURS}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        for kind in kinds:
            stream = io.BytesIO()
            figure.savefig(stream, format=kind, dpi=dots_per_inch, metadata=_METADATA.get(kind))
            files[kind] = stream.getvalue()
    return files


# ----------------------------------------------------------------------------------------------------
# A drawing as files: an SVG for pages and papers, a PNG for everything else.


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
