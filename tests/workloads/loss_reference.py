"""What the detector learns from, again: loops over anchors and truth, in float64, from the papers' definitions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

BETA = 1 / 9


def overlap(first: Floats, second: Floats) -> float:
    """Intersection over union of two boxes x1 y1 x2 y2."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    common = max(width, 0.0) * max(height, 0.0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)]
    return float(common / (areas[0] + areas[1] - common))


def assign(
    truth: Floats, candidates: Floats, foreground: float, background: float, every_truth: bool
) -> tuple[dict[int, int], list[int]]:
    """Positive candidates with the truth of each, and negatives; what is neither is ignored (Ren et al. 2015, 3.1.2).

    Positive are (i), with `every_truth`, the candidates that overlap a truth most, and (ii) those that overlap any
    truth by `foreground` or more; negative those of the rest that overlap every truth by less than `background`.
    """
    overlaps = [[overlap(box, candidate) for candidate in candidates] for box in truth]
    positives, negatives = {}, []
    for index in range(len(candidates)):
        of_truth = [row[index] for row in overlaps]
        most = max(of_truth, default=0.0)
        is_best = every_truth and any(row[index] == max(row) > 0 for row in overlaps)
        if is_best or (len(truth) > 0 and most >= foreground):
            positives[index] = of_truth.index(most)
        elif most < background:
            negatives.append(index)
    return positives, negatives


def code(box: Floats, reference: Floats) -> list[float]:
    """Girshick et al. 2014, appendix C."""
    width, height = box[2] - box[0], box[3] - box[1]
    reference_width, reference_height = reference[2] - reference[0], reference[3] - reference[1]
    return [
        ((box[0] + box[2]) / 2 - (reference[0] + reference[2]) / 2) / reference_width,
        ((box[1] + box[3]) / 2 - (reference[1] + reference[3]) / 2) / reference_height,
        math.log(width / reference_width),
        math.log(height / reference_height),
    ]


def smooth_l1(found: Floats, wanted: Sequence[float]) -> float:
    """Girshick 2015, equation 3, whose two branches meet at BETA (sigma = 3 in Ren et al.'s own code)."""
    errors = [abs(float(f) - w) for f, w in zip(found, wanted, strict=True)]
    return sum(0.5 * e * e / BETA if e < BETA else e - BETA / 2 for e in errors)


def proposal_losses(
    logits: Floats, codes: Floats, anchors: Floats, truth: Sequence[Floats], foreground: float, background: float
) -> dict[str, float]:
    """Logits (N, A), codes (N, A, 4), anchors (A, 4) and the truth (m, 4) of each image; every anchor is sampled."""
    objectness, boxes, sampled = 0.0, 0.0, 0
    for image, of_image in enumerate(truth):
        positives, negatives = assign(of_image, anchors, foreground, background, every_truth=True)
        sampled += len(positives) + len(negatives)
        for anchor, index in positives.items():
            objectness += math.log1p(math.exp(-logits[image, anchor]))
            boxes += smooth_l1(codes[image, anchor], code(of_image[index], anchors[anchor]))
        for anchor in negatives:
            objectness += math.log1p(math.exp(logits[image, anchor]))
    return {"objectness": objectness / sampled, "proposal_boxes": boxes / sampled}


def detection_losses(
    logits: Sequence[Floats],
    codes: Sequence[Floats],
    candidates: Sequence[Floats],
    truth: Sequence[Floats],
    labels: Sequence[Sequence[int]],
    foreground: float,
) -> dict[str, float]:
    """Of each image logits (K, C), codes (K, C, 4), candidates (K, 4), truth (m, 4) and labels; all are sampled."""
    classification, boxes, sampled = 0.0, 0.0, 0
    for image, of_image in enumerate(truth):
        positives, _ = assign(of_image, candidates[image], foreground, foreground, every_truth=False)
        sampled += len(candidates[image])
        for region, scores in enumerate(logits[image]):
            index = positives.get(region)
            label = 0 if index is None else labels[image][index]
            classification += math.log(sum(math.exp(score) for score in scores)) - scores[label]
            if index is not None:
                dx, dy, dw, dh = code(of_image[index], candidates[image][region])
                boxes += smooth_l1(codes[image][region, label], [10 * dx, 10 * dy, 5 * dw, 5 * dh])
    return {"classification": classification / sampled, "boxes": boxes / sampled}
