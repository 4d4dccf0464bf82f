"""What the detector computes, again: readable, slow, from the definitions.

First what csrc/core/detection does, in plain torch; then the detector's choices, losses and detections image by image,
with as many rows as there are, as V2.0's model was first written here: masks and padding are gone before anything is
computed, and on a GPU each of these lines would wait for it; last the two stages' losses as Ren et al. 2015 and
Girshick 2015 define them, term by term, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from hpcai500.workloads import operators
from hpcai500.workloads.models.detector import (
    DETECTION_WEIGHTS,
    PROPOSAL_WEIGHTS,
    Detections,
    FasterRCNN,
    Targets,
    area,
    at_least,
    clip,
    decode,
    encode,
)

BACKGROUND, IGNORED = -1, -2
BETA = 1 / 9
Floats = npt.NDArray[np.float64]


# --- operators


def iou_of_two(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union of two boxes x1 y1 x2 y2."""
    width = (torch.minimum(first[2], second[2]) - torch.maximum(first[0], second[0])).clamp(min=0)
    height = (torch.minimum(first[3], second[3]) - torch.maximum(first[1], second[1])).clamp(min=0)
    overlap = width * height
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)]
    return overlap / (areas[0] + areas[1] - overlap)


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, groups: Tensor | None = None) -> Tensor:
    """Each box in falling order of score stays unless one that stays overlaps it by more than the threshold."""
    kept: list[int] = []
    for index in torch.sort(scores, descending=True, stable=True).indices.tolist():
        rivals = [k for k in kept if groups is None or groups[k] == groups[index]]
        # Python compares the float32 ratio with the threshold in float64, as torchvision does.
        if not any(iou_of_two(boxes[k], boxes[index]).item() > iou_threshold for k in rivals):
            kept.append(index)
    return torch.tensor(kept, dtype=torch.int64)


def _samples(low: float, high: float, bins: int, ratio: int, aligned: bool, real: type) -> list[list[float]]:
    """Places of the samples of each bin on one axis, in the arithmetic of the type `real`."""
    offset = real(0.5) if aligned else real(0)
    start, end = real(low) - offset, real(high) - offset
    length = end - start if aligned else max(end - start, real(1))
    size = length / real(bins)
    grid = ratio if ratio > 0 else max(math.ceil(size), 0)
    return [
        [float(start + real(b) * size + (real(i) + real(0.5)) * size / real(grid)) for i in range(grid)]
        for b in range(bins)
    ]


def _taps(place: float, size: int) -> Iterator[tuple[int, float]]:
    """Pixels that a sample lies between, and their weights; none where it is more than a pixel outside."""
    if not -1 <= place <= size:
        return
    place = min(max(place, 0.0), float(size - 1))
    low = min(int(place), size - 1)
    yield low, 1 - (place - low)
    if low + 1 < size:
        yield low + 1, place - low


def _bin_mean(plane: Tensor, rows: list[float], columns: list[float]) -> Tensor:
    """Mean over the grid of samples of one bin: (C, H, W) -> (C,)."""
    total = plane[:, 0, 0] * 0
    for y in rows:
        for x in columns:
            for row, row_weight in _taps(y, plane.shape[1]):
                for column, column_weight in _taps(x, plane.shape[2]):
                    total = total + plane[:, row, column] * (row_weight * column_weight)
    return total / max(len(rows) * len(columns), 1)


def roi_align(
    features: Tensor,
    rois: Tensor,
    output_size: tuple[int, int],
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:
    """RoIAlign by its definition, differentiable; half precision is computed in float32."""
    real = np.float64 if features.dtype == torch.float64 else np.float32
    wide = features if features.dtype == torch.float64 else features.float()
    height, width = output_size
    pooled = []
    for image, *box in rois.to(torch.float64 if real is np.float64 else torch.float32).tolist():
        x1, y1, x2, y2 = (real(value) * real(spatial_scale) for value in box)
        rows = _samples(y1, y2, height, sampling_ratio, aligned, real)
        columns = _samples(x1, x2, width, sampling_ratio, aligned, real)
        bins = [[_bin_mean(wide[int(image)], rows[i], columns[j]) for j in range(width)] for i in range(height)]
        pooled.append(torch.stack([torch.stack(row, dim=-1) for row in bins], dim=-2))
    if not pooled:
        return features.new_zeros((0, features.shape[1], height, width))
    return torch.stack(pooled).to(features.dtype)


# --- the detector


def iou(left: Tensor, right: Tensor) -> Tensor:
    """(N, 4) and (M, 4) -> (N, M)."""
    top_left = torch.maximum(left[:, None, :2], right[None, :, :2])
    bottom_right = torch.minimum(left[:, None, 2:], right[None, :, 2:])
    common = (bottom_right - top_left).clamp(min=0).prod(dim=2)
    union = area(left)[:, None] + area(right)[None, :] - common
    return torch.where(union > 0, common / union, torch.zeros_like(union))


def match(truth: Tensor, candidates: Tensor, foreground: float, background: float, every_truth: bool) -> Tensor:
    """For each candidate the truth that it overlaps most, BACKGROUND or IGNORED."""
    if len(truth) == 0:
        return torch.full((len(candidates),), BACKGROUND)
    overlaps = iou(truth, candidates)
    best, index = overlaps.max(dim=0)
    matches = torch.where(best >= foreground, index, IGNORED)
    matches = torch.where(best < background, BACKGROUND, matches)
    if every_truth:
        best_of_truth = overlaps.max(dim=1, keepdim=True).values
        is_best = ((overlaps == best_of_truth) & (best_of_truth > 0)).any(dim=0)
        matches = torch.where(is_best, index, matches)
    return matches


def sample(matches: Tensor, keys: Tensor, size: int, positive_fraction: float) -> tuple[Tensor, Tensor]:
    """Indices of the positives and of the negatives that are drawn."""
    positives = draw(matches >= 0, keys, int(size * positive_fraction))
    return positives, draw(matches == BACKGROUND, keys, size - len(positives))


def draw(eligible: Tensor, keys: Tensor, most: int) -> Tensor:
    indices = eligible.nonzero().squeeze(1)
    return indices if len(indices) <= most else indices[keys[indices].topk(most).indices]


def propose(model: FasterRCNN, logits: Tensor, codes: Tensor, size: tuple[int, int]) -> list[Tensor]:
    """The proposals of each image, best first: boxes (K, 4) without gradient."""
    options, placed = model.rpn.options, model.rpn.anchors(*size)
    before, after = (pair[0 if model.training else 1] for pair in (options.before_nms, options.after_nms))
    proposals = []
    for image in range(len(logits)):
        boxes, scores, of_level = [], [], []
        of_levels = (values.split(placed.counts) for values in (logits[image], codes[image], placed.boxes))
        for level, (level_logits, level_codes, anchors) in enumerate(zip(*of_levels, strict=True)):
            best = level_logits.detach().float().topk(min(before, len(level_logits)))
            decoded = decode(level_codes.detach()[best.indices], anchors[best.indices], PROPOSAL_WEIGHTS)
            boxes.append(clip(decoded, *size))
            scores.append(best.values)
            of_level.append(torch.full_like(best.indices, level))
        every = torch.cat(boxes), torch.cat(scores), torch.cat(of_level)
        usable = at_least(every[0], 1e-3).nonzero().squeeze(1)
        left, of_box, group = (values[usable] for values in every)
        proposals.append(left[operators.batched_nms(left, of_box, group, options.nms_iou)[:after]])
    return proposals


def first_losses(
    model: FasterRCNN, logits: Tensor, codes: Tensor, size: tuple[int, int], targets: Targets, keys: Tensor
) -> dict[str, Tensor]:
    """Objectness and the boxes of the proposals."""
    options, anchors = model.rpn.options, model.rpn.anchors(*size).boxes
    found, wanted, box_loss = [], [], torch.zeros(())
    for image in range(len(logits)):
        truth = targets.boxes_of(image)
        matches = match(truth, anchors, options.foreground_iou, options.background_iou, every_truth=True)
        positives, negatives = sample(matches, keys[image], options.samples, options.positive_fraction)
        chosen = torch.cat([positives, negatives])
        found.append(logits[image, chosen].float())
        wanted.append((matches[chosen] >= 0).float())
        codes_wanted = encode(truth[matches[positives]], anchors[positives], PROPOSAL_WEIGHTS)
        found_codes = codes[image, positives].float()
        box_loss = box_loss + F.smooth_l1_loss(found_codes, codes_wanted, beta=BETA, reduction="sum")
    every = torch.cat(found)
    objectness = F.binary_cross_entropy_with_logits(every, torch.cat(wanted), reduction="sum")
    return {"objectness": objectness / max(len(every), 1), "proposal_boxes": box_loss / max(len(every), 1)}


def pool(model: FasterRCNN, levels: Sequence[Tensor], regions: Tensor) -> Tensor:
    """Regions (K, 5) pooled level by level."""
    pooling = model.roi_heads.pooling
    level_of = pooling._levels(regions)
    order, pooled = [], []
    for level, (features, stride) in enumerate(zip(levels, pooling.strides, strict=True)):
        indices = (level_of == level).nonzero().squeeze(1)
        order.append(indices)
        pooled.append(operators.roi_align(features, regions[indices], 7, 1 / stride, 2, False))
    return torch.cat(pooled)[torch.argsort(torch.cat(order))]


def second_losses(
    model: FasterRCNN, levels: Sequence[Tensor], proposals: Sequence[Tensor], targets: Targets, keys: Tensor, most: int
) -> dict[str, Tensor]:
    """Classes and boxes of the detections; the keys of the truths lie behind those of `most` proposals."""
    heads, options = model.roi_heads, model.roi_heads.options
    regions, labels, wanted = [], [], []
    for image, found in enumerate(proposals):
        truth, classes = targets.boxes_of(image), targets.labels_of(image)
        of_truths = keys[image, most : most + targets.boxes.shape[1]][targets.present[image]]
        of_candidates = torch.cat([keys[image, : len(found)], of_truths])
        candidates = torch.cat([found, truth])
        matches = match(truth, candidates, options.foreground_iou, options.foreground_iou, every_truth=False)
        positives, negatives = sample(matches, of_candidates, options.samples, options.positive_fraction)
        chosen = candidates[torch.cat([positives, negatives])]
        regions.append(torch.cat([chosen.new_full((len(chosen), 1), image), chosen], dim=1))
        labels.append(torch.cat([classes[matches[positives]], torch.zeros_like(negatives)]))
        wanted.append(encode(truth[matches[positives]], candidates[positives], DETECTION_WEIGHTS))
    label = torch.cat(labels)
    logits, codes = heads.predict(pool(model, levels, torch.cat(regions)))
    classification = F.cross_entropy(logits.float(), label, reduction="sum")
    positive = (label != 0).nonzero().squeeze(1)
    found_codes = codes[positive, label[positive]].float()
    boxes = F.smooth_l1_loss(found_codes, torch.cat(wanted), beta=BETA, reduction="sum")
    return {"classification": classification / max(len(label), 1), "boxes": boxes / max(len(label), 1)}


def losses(
    model: FasterRCNN,
    levels: Sequence[Tensor],
    logits: Tensor,
    codes: Tensor,
    size: tuple[int, int],
    targets: Targets,
    keys: Tensor,
) -> dict[str, Tensor]:
    """As `FasterRCNN.losses`."""
    options = model.rpn.options
    # So many proposals there can be: the keys of the truths lie behind them.
    most = min(options.after_nms[0], sum(min(options.before_nms[0], of) for of in model.rpn.anchors(*size).counts))
    return {
        **first_losses(model, logits, codes, size, targets, keys),
        **second_losses(model, levels, propose(model, logits, codes, size), targets, keys, most),
    }


def detect(
    model: FasterRCNN, levels: Sequence[Tensor], logits: Tensor, codes: Tensor, size: tuple[int, int]
) -> list[Detections]:
    """As `FasterRCNN.conclude` in evaluation."""
    heads, options = model.roi_heads, model.roi_heads.options
    detections = []
    for image, proposals in enumerate(propose(model, logits, codes, size)):
        regions = torch.cat([proposals.new_full((len(proposals), 1), image), proposals], dim=1)
        class_logits, box_codes = heads.predict(pool(model, levels, regions))
        every_score = class_logits.float().softmax(dim=1)
        boxes = clip(decode(box_codes, proposals, DETECTION_WEIGHTS), *size)
        region, label = (every_score[:, 1:] > options.score).nonzero(as_tuple=True)
        label = label + 1
        found, scores = boxes[region, label], every_score[region, label]
        kept = at_least(found, 1e-2).nonzero().squeeze(1)
        found, scores, label = found[kept], scores[kept], label[kept]
        best = operators.batched_nms(found, scores, label, options.nms_iou)[: options.most]
        detections.append(Detections(found[best], scores[best], label[best]))
    return detections


# --- the definitions of the losses, when everything is sampled


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
