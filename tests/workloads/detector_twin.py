"""The detector's choices, losses and detections again: image by image, with as many rows as there are.

The readable twin of `models.proposals`, `models.roi_heads` and `models.matching`, as V2.0's model was first written
here: masks and padding are gone before anything is computed. On a GPU each of these lines would wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

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
from hpcai500.workloads.operators import batched_nms, roi_align

BACKGROUND, IGNORED = -1, -2
BETA = 1 / 9


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
        proposals.append(left[batched_nms(left, of_box, group, options.nms_iou)[:after]])
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
        pooled.append(roi_align(features, regions[indices], 7, 1 / stride, 2, False))
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
    logits, codes = heads.judge(pool(model, levels, torch.cat(regions)))
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
        class_logits, box_codes = heads.judge(pool(model, levels, regions))
        every_score = class_logits.float().softmax(dim=1)
        boxes = clip(decode(box_codes, proposals, DETECTION_WEIGHTS), *size)
        region, label = (every_score[:, 1:] > options.score).nonzero(as_tuple=True)
        label = label + 1
        found, scores = boxes[region, label], every_score[region, label]
        kept = at_least(found, 1e-2).nonzero().squeeze(1)
        found, scores, label = found[kept], scores[kept], label[kept]
        best = batched_nms(found, scores, label, options.nms_iou)[: options.most]
        detections.append(Detections(found[best], scores[best], label[best]))
    return detections
