"""The pictures of a collected ensemble: `quality` against the number of members, and `training` over time."""

from __future__ import annotations

from hpcai500.ensemble.quality_figure import draw_quality
from hpcai500.ensemble.result import EnsembleResult
from hpcai500.ensemble.training_figure import draw_training

PICTURES = ("quality.svg", "quality.png", "training.svg", "training.png")


def draw_ensemble(result: EnsembleResult) -> dict[str, bytes]:
    """`quality.svg` and `.png` where the members have voted, `training.svg` and `.png` where one is done."""
    files = draw_quality(result) if result.curve else {}
    return files | draw_training(result) if result.member_results else files
