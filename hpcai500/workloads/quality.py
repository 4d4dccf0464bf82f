"""Quality metrics (layer 9): top-1 accuracy, and mean average precision at IoU 0.5."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hpcai500.comm.communicator import Communicator

# ----------------------------------------------------------------------------------------------------
# Top-1 accuracy: only the class with the highest score counts (V2.0 section 4.2.2).


class Top1:
    """Counts correct answers on the device, so that evaluation does not wait for each batch."""

    def __init__(self, device: torch.device) -> None:
        self._right = torch.zeros((), dtype=torch.int64, device=device)
        self.samples = 0

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Add a batch: scores (N, classes), labels (N,) int64. Scores that are not finite are wrong answers."""
        numbers = torch.isfinite(scores).all(dim=1)
        self._right += ((scores.argmax(dim=1) == labels) & numbers).sum()
        self.samples += labels.shape[0]

    def combine(self, ranks: Communicator) -> None:
        """Sum the counts of all ranks: integers, so the value is the same as for one process."""
        counts = torch.stack([self._right.cpu(), torch.tensor(self.samples)])
        ranks.all_reduce(counts)
        self._right, self.samples = counts[0], int(counts[1])

    @property
    def value(self) -> float:
        """Fraction of correct answers, 0 to 1."""
        return float(self._right) / self.samples if self.samples else 0.0


# ----------------------------------------------------------------------------------------------------
# Mean average precision at IoU 0.5 as COCO defines it, computed by COCO's own code (pycocotools).


Floats = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.integer[Any]]

IOU = 0.5
# COCO's limit is per class and image: an image may have more detections in total.
MOST_DETECTIONS = 100


@dataclass(frozen=True)
class Precision:
    """Average precision, 0 to 1: the mean over the classes that occur in the truth (0 when none does), and by class.

    `per_class` is None for a class that does not occur.
    """

    mean: float
    per_class: dict[str, float | None]


class AveragePrecision:
    """Collects truth and detections of an evaluation set, image by image.

    101-point interpolated average precision at IoU >= 0.5, of the best 100 detections of each class in each image,
    mean over the classes that occur (docs/methodology.md). Labels count from 1, in the order of `classes`.
    """

    def __init__(self, classes: Sequence[str]) -> None:
        self._classes = list(classes)
        self._truth: list[dict[str, Any]] = []
        self._detections: list[dict[str, Any]] = []
        self.images = 0

    def add(self, truth: Floats, truth_labels: Integers, detections: Floats, scores: Floats, labels: Integers) -> None:
        """Add one image: boxes (m, 4) and (d, 4) as x1 y1 x2 y2, labels (m,) and (d,), scores (d,)."""
        self.images += 1
        for box, label in zip(_as_coco(truth), truth_labels.tolist(), strict=True):
            self._truth.append(
                {
                    "id": len(self._truth) + 1,
                    "image_id": self.images,
                    "category_id": label,
                    "bbox": box,
                    "area": box[2] * box[3],
                    "iscrowd": 0,
                }
            )
        for box, score, label in zip(_as_coco(detections), scores.tolist(), labels.tolist(), strict=True):
            self._detections.append({"image_id": self.images, "category_id": label, "bbox": box, "score": score})

    def result(self) -> Precision:
        """Average precision over everything that was added."""
        # COCO's code prints, and stdout is for results only.
        with contextlib.redirect_stdout(io.StringIO()):
            per_class = self._evaluate()
        occurring = [value for value in per_class.values() if value is not None]
        return Precision(float(np.mean(occurring)) if occurring else 0.0, per_class)

    def _evaluate(self) -> dict[str, float | None]:
        from pycocotools.cocoeval import COCOeval  # only detectors need it

        truth = self._dataset(self._truth)
        found = truth.loadRes(self._detections) if self._detections else self._dataset([])
        evaluation = COCOeval(truth, found, iouType="bbox")
        evaluation.params.iouThrs = np.array([IOU])
        evaluation.params.maxDets = [MOST_DETECTIONS]
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, 1e10]], ["all"]
        evaluation.evaluate()
        evaluation.accumulate()
        # Precision at IoU 0.5 by recall (101 points) and class; -1 marks a class without truth.
        precision = evaluation.eval["precision"][0, :, :, 0, 0]
        return {
            name: float(precision[:, index].mean()) if precision[:, index].max() > -1 else None
            for index, name in enumerate(self._classes)
        }

    def _dataset(self, annotations: list[dict[str, Any]]) -> Any:
        from pycocotools.coco import COCO

        dataset = COCO()
        dataset.dataset = {
            "images": [{"id": image} for image in range(1, self.images + 1)],
            "categories": [{"id": label, "name": name} for label, name in enumerate(self._classes, 1)],
            "annotations": annotations,
        }
        dataset.createIndex()
        return dataset


def _as_coco(boxes: Floats) -> list[list[float]]:
    """x1 y1 x2 y2 -> x y width height, in float64: widths rounded to float32 could move an IoU across the threshold."""
    wide = boxes.astype(np.float64)
    rows: list[list[float]] = np.concatenate([wide[:, :2], wide[:, 2:] - wide[:, :2]], axis=1).tolist()
    return rows
