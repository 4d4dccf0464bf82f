"""The one door to Matplotlib: a figure looks as our code says, whatever `matplotlibrc` lies in the current folder.

Matplotlib reads that file when it is imported, before that of the user. A stranger's could make a line of a figure
invisible, or start TeX. So each figure is drawn from the values that Matplotlib comes with.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    from matplotlib import rc_context, rcParamsDefault  # noqa: PLC0415
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

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
