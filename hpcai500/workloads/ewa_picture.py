"""Weather as a forecaster looks at it: moisture in colour, pressure as contours, and the boxes, true and found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.layout import CLASSES
from hpcai500.data.climate.truth import Truth
from hpcai500.drawing import drawn

# What best shows storms and rivers to the eye; a recipe may have left it out.
_COLOURED, _CONTOURED = "TMQ", "PSL"
_COLOURS = ("#e69f00", "#d55e00", "#0072b2", "#009e73")
# Fewer lines keep the picture readable.
_LEAST_SCORE = 0.3


@dataclass(frozen=True, eq=False)
class Scene:
    """One evaluation image: its standardised channels (C, H, W), its truth, and what was found in it."""

    sample: int
    image: npt.NDArray[np.float32]
    truth: Truth
    boxes: npt.NDArray[Any]
    scores: npt.NDArray[Any]
    labels: npt.NDArray[Any]


def draw(scenes: Sequence[Scene], channels: Sequence[str]) -> bytes:
    """The scenes in two columns, as a PNG file."""
    height, width = scenes[0].image.shape[1:]
    columns = min(len(scenes), 2)
    rows = -(-len(scenes) // columns)
    size = (8 * columns, 0.5 + rows * (0.5 + 7.5 * height / width))
    return drawn(lambda figure: _draw(figure, scenes, list(channels), (rows, columns)), size, 100, ["png"])["png"]


def _draw(figure: Any, scenes: Sequence[Scene], channels: list[str], shape: tuple[int, int]) -> None:
    grid = figure.subplots(*shape, squeeze=False).ravel()
    for axes, scene in zip(grid, scenes, strict=False):
        _draw_scene(axes, scene, channels)
    for unused in grid[len(scenes) :]:
        unused.set_axis_off()
    _draw_legend(figure)


def _draw_scene(axes: Any, scene: Scene, channels: list[str]) -> None:
    coloured = _COLOURED if _COLOURED in channels else channels[0]
    axes.imshow(scene.image[channels.index(coloured)], cmap="GnBu", origin="lower", interpolation="nearest")
    if _CONTOURED in channels:
        pressure = _smooth(scene.image[channels.index(_CONTOURED)])
        axes.contour(pressure, levels=9, colors="black", linewidths=0.4, alpha=0.45, linestyles="solid")
    for box, label in zip(scene.truth.boxes, scene.truth.labels, strict=True):
        _draw_box(axes, box, _COLOURS[label - 1], "--")
    shown = scene.scores >= _LEAST_SCORE
    for box, score, label in zip(scene.boxes[shown], scene.scores[shown], scene.labels[shown], strict=True):
        _draw_box(axes, box, _COLOURS[label - 1], "-")
        text = f"{CLASSES[label - 1]} {score:.2f}"
        style = {"facecolor": _COLOURS[label - 1], "edgecolor": "none", "pad": 1.0, "alpha": 0.8}
        axes.text(box[0], box[3], text, fontsize=7, color="white", va="bottom", bbox=style, clip_on=True)
    height, width = scene.image.shape[1:]
    axes.set_xticks(np.linspace(0, width, 7), [f"{degrees:.0f}°E" for degrees in np.linspace(0, 360, 7)], fontsize=7)
    axes.set_yticks(np.linspace(0, height, 5), _latitudes(), fontsize=7)
    axes.set_xlim(-0.5, width - 0.5)
    axes.set_ylim(-0.5, height - 0.5)
    shown_channels = f"{coloured}; contours {_CONTOURED}" if _CONTOURED in channels else coloured
    axes.set_title(f"evaluation image {scene.sample} ({shown_channels})", fontsize=9, loc="left")


def _smooth(field: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """A running mean over a fiftieth of the globe: contours of noise hide the storms."""
    side = max(1, field.shape[1] // 50) | 1
    for axis, mode in ((0, "edge"), (1, "wrap")):
        pad = [(side // 2, side // 2) if at == axis else (0, 0) for at in (0, 1)]
        field = np.lib.stride_tricks.sliding_window_view(np.pad(field, pad, mode=mode), side, axis).mean(axis=-1)  # type: ignore[call-overload]
    return field


def _draw_box(axes: Any, box: npt.NDArray[Any], colour: str, style: str) -> None:
    from matplotlib.patches import Rectangle  # noqa: PLC0415 - a run imports it after its clock has stopped

    size = box[2] - box[0], box[3] - box[1]
    axes.add_patch(Rectangle((box[0], box[1]), *size, fill=False, edgecolor=colour, linestyle=style, linewidth=1.4))


def _draw_legend(figure: Any) -> None:
    from matplotlib.lines import Line2D  # noqa: PLC0415 - a run imports it after its clock has stopped

    entries = [Line2D([], [], color=colour, label=name) for colour, name in zip(_COLOURS, CLASSES, strict=True)]
    entries.append(Line2D([], [], color="black", linestyle="--", label="truth"))
    entries.append(Line2D([], [], color="black", label=f"found (score {_LEAST_SCORE:g} or more)"))
    figure.legend(handles=entries, loc="outside upper center", ncols=len(entries), fontsize=8, frameon=False)


def _latitudes() -> list[str]:
    return ["90°S", "45°S", "0°", "45°N", "90°N"]
