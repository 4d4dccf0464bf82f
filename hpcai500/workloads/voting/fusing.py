"""What members found in one image, made into one answer. Each function gives the same for whatever order of members."""

from __future__ import annotations

import numpy as np
import torch

from hpcai500.workloads.operators.nms import batched_nms
from hpcai500.workloads.voting.detections import Seen


def weighted_boxes(pooled: Seen, votes: int, *, iou: float) -> Seen:
    """Weighted boxes fusion (Solovyev, Wang, Gabruseva 2021), by its authors' own code.

    Boxes of one class that overlap by more than `iou` become one, with their mean weighted by score as corners; its
    score is the mean of theirs, lowered by the share of members that have none there.

    Args:
        pooled: boxes of all members.
        votes: how many members looked at the image, two or more.
        iou: overlap from which boxes are one.
    """
    # numba, which the package imports for other functions, takes half a second.
    from ensemble_boxes import weighted_boxes_fusion  # noqa: PLC0415

    pooled = _in_order(_with_area(pooled))
    if not len(pooled.labels):
        return pooled
    # It wants coordinates of 0 to 1. Powers of two are divided by without loss.
    scale = 2.0 ** np.ceil(np.log2(max(1.0, float(pooled.boxes.max()))))
    # Members count the same, so it is of no importance which of them a box comes from, but how many they are.
    nobody: list[float] = []
    boxes, scores, labels = weighted_boxes_fusion(
        [pooled.boxes.astype(np.float64) / scale] + [nobody] * (votes - 1),
        [pooled.scores.astype(np.float64)] + [nobody] * (votes - 1),
        [pooled.labels] + [nobody] * (votes - 1),
        iou_thr=iou,
        skip_box_thr=0.0,
        conf_type="avg",
    )
    return _in_order(Seen(boxes * scale, scores, labels.astype(np.int64)))


def best_boxes(pooled: Seen, votes: int, *, iou: float) -> Seen:
    """Non-maximum suppression over the boxes of all members: of those that overlap by more than `iou`, the best."""
    del votes
    pooled = _in_order(pooled)
    kept = batched_nms(
        torch.from_numpy(np.ascontiguousarray(pooled.boxes, np.float32)),
        torch.from_numpy(np.ascontiguousarray(pooled.scores, np.float32)),
        torch.from_numpy(np.ascontiguousarray(pooled.labels, np.int64)),
        iou,
    ).numpy()
    return Seen(pooled.boxes[kept], pooled.scores[kept], pooled.labels[kept])


def _with_area(found: Seen) -> Seen:
    kept = np.all(found.boxes[:, 2:] > found.boxes[:, :2], axis=1)
    return Seen(found.boxes[kept], found.scores[kept], found.labels[kept])


def _in_order(found: Seen) -> Seen:
    """The best first; equal scores by place and class, so that the order of the members says nothing."""
    order = np.lexsort((found.labels, *found.boxes.T, -found.scores))
    return Seen(found.boxes[order], found.scores[order], found.labels[order])
