"""Figures as files, with Matplotlib's own defaults: what a command draws beside its numbers is drawn here.

Papers and slides need a PNG as well as an SVG, and axes, ticks and legends that we did not write. Pages need colours
that follow the reader (light, dark, print), bars that can be sorted, words for who cannot see them, and a few kilobytes
where Matplotlib takes thirty; so their drawings are made in results/report/drawing.py.

Matplotlib reads a `matplotlibrc` in the current folder when it is imported, before that of the user. A stranger's could
make a line of a figure invisible, or start TeX. The same numbers give the same files.
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


# No date and no random names, so that the picture of the same numbers is the same file. Text stays text, which can be
# searched, copied and read aloud.
_OURS: dict[Any, Any] = {"svg.hashsalt": "hpcai500", "svg.fonttype": "none"}
_METADATA = {"svg": {"Date": None}}


def drawn(
    draw: Callable[[Figure], None], size: tuple[float, float], dots_per_inch: int, kinds: Sequence[str]
) -> dict[str, bytes]:
    """What `draw` puts on an empty figure of `size` (width, height in inches), as a file of each kind, `svg` or `png`.

    `draw` imports what it needs of Matplotlib itself, inside.
    """
    # Imported here, as it takes longer to load than all the rest.
    from matplotlib import rc_context, rcParamsDefault
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    files = {}
    # Not the backend, which opens windows: its default is no name.
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


_DOTS_PER_INCH = 150


def figure_files(draw: Callable[[Figure], None], name: str, size: tuple[float, float]) -> dict[str, bytes]:
    """What `draw` puts on an empty figure, as `NAME.svg`, for pages and papers, and `NAME.png`, for everything else.

    `draw` and `size` are as in `drawn`.
    """
    with scratch(os.environ, Path.cwd()):
        files = drawn(draw, size, _DOTS_PER_INCH, ("svg", "png"))
    # A PNG shows a box for an invisible character; an SVG would pass it on.
    files["svg"] = legible(files["svg"].decode()).encode()
    return {f"{name}.{kind}": content for kind, content in files.items()}


def write_figures(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write `files` (name: content) into `folder`, which is made if need be; returns their paths.

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
