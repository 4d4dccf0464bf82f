"""The picture of what a run found in the weather: labels that can be read, channels that are named in words."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hpcai500.workloads.ewa import Scene, Truth, _draw_scene

HEIGHT, WIDTH = 96, 144


def test_labels_of_boxes_that_lie_together_do_not_cover_each_other_nor_leave_the_picture() -> None:
    boxes = np.array(
        [[20, 20, 50, 50], [21, 20, 51, 50], [24, 25, 55, 52], [100, 80, 143, 95], [135, 85, 143, 95]], dtype=float
    )
    image = np.random.default_rng(1).normal(size=(2, HEIGHT, WIDTH)).astype(np.float32)
    truth = Truth(boxes=boxes[:1], labels=np.array([1]))
    scene = Scene(3, image, truth, boxes, np.array([0.9, 0.8, 0.7, 0.6, 0.5]), np.array([1, 2, 1, 3, 4]))
    figure = Figure(figsize=(8, 6), layout="constrained", dpi=100)
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    _draw_scene(axes, scene, ["TMQ", "PSL"])
    canvas.draw()
    labels = [text.get_window_extent(canvas.get_renderer()) for text in axes.texts]
    assert len(labels) == len(boxes)
    assert not any(one.overlaps(other) for one, other in combinations(labels, 2))
    frame = axes.get_window_extent(canvas.get_renderer())
    assert all(frame.x0 <= label.x0 and label.x1 <= frame.x1 and label.y1 <= frame.y1 for label in labels)
    assert "precipitable water (TMQ)" in axes.get_title("left")
    assert "pressure at sea level (PSL)" in axes.get_title("left")
