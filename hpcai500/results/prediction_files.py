"""A prediction in a folder: its numbers and its picture."""

from __future__ import annotations

import json
from pathlib import Path

from hpcai500.errors import UsageError
from hpcai500.files import write_atomically
from hpcai500.results.prediction import Prediction
from hpcai500.results.prediction_figure import draw_prediction


def write_prediction(prediction: Prediction, folder: Path) -> list[Path]:
    """Write `prediction.json`, `prediction.svg` and `prediction.png` to `folder`; returns the pictures.

    Raises:
        UsageError: it cannot be written to.
    """
    pictures = draw_prediction(prediction)
    numbers = (json.dumps(prediction.document(), indent=2) + "\n").encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in {**pictures, "prediction.json": numbers}.items():
            write_atomically(folder / name, content)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror}; give another --out") from error
    return [folder / name for name in pictures]
