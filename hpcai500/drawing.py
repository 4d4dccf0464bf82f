"""Figures as SVG and PNG files, drawn with Matplotlib's default settings.

The drawings of HTML pages are made in results/report/drawing.py instead: they need colours that follow the reader's
theme, bars that can be sorted, text alternatives, and a few kilobytes where Matplotlib takes thirty.

Matplotlib reads a `matplotlibrc` in the current folder before that of the user. An untrusted one could hide a line of a
figure or start TeX, so all settings are reset to the defaults. The same numbers give the same files.
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


# No date and no random names: the same numbers give the same file. Text stays text, which can be searched and copied.
_SETTINGS: dict[Any, Any] = {"svg.hashsalt": "hpcai500", "svg.fonttype": "none"}
_METADATA = {"svg": {"Date": None}}


def drawn(
    draw: Callable[[Figure], None], size: tuple[float, float], dots_per_inch: int, kinds: Sequence[str]
) -> dict[str, bytes]:
    """The figure of `size` (width, height in inches) that `draw` fills, as a file of each kind, `svg` or `png`.

    `draw` must import Matplotlib inside its body.
    """
    # Imported here because it is slow to load.
    from matplotlib import rc_context, rcParamsDefault
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    files = {}
    # Without the backend, whose default is a sentinel, not a name.
    settings: dict[Any, Any] = {name: value for name, value in rcParamsDefault.items() if name != "backend"}
    with rc_context({**settings, **_SETTINGS}):
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
    """The figure that `draw` fills, as `NAME.svg` and `NAME.png`. `draw` and `size` are as in `drawn`."""
    with scratch(os.environ, Path.cwd()):
        files = drawn(draw, size, _DOTS_PER_INCH, ("svg", "png"))
    # A PNG shows a box for an invisible character; an SVG would keep it.
    files["svg"] = legible(files["svg"].decode()).encode()
    return {f"{name}.{kind}": content for kind, content in files.items()}


def write_figures(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write `files` (name: content) into `folder`, creating it if needed; returns their paths.

    Raises:
        UsageError: they cannot be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_atomically(folder / name, content)
    except OSError as error:
        raise UsageError(f"{folder}: cannot write the figures: {error.strerror}; give another --out") from error
    return [folder / name for name in files]
