"""The second stage (Girshick 2015; Lin et al. 2017): what each proposal holds, and its box. Keys as torchvision's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.workloads.models.boxes import DETECTION_WEIGHTS, area, at_least, clip, decode, encode
from hpcai500.workloads.models.matching import match, sample
from hpcai500.workloads.models.targets import BACKGROUND_LABEL, Targets
from hpcai500.workloads.operators import batched_nms, roi_align

_POOLED = 7
_SAMPLING_RATIO = 2
_SMOOTH_L1_BETA = 1 / 9
# A detection thinner than this is none.
_LEAST_SIDE_PIXELS = 1e-2


@dataclass(frozen=True)
class Detections:
    """What was found in one image, best first: boxes (D, 4) in pixels, scores (D,), labels (D,) from 1."""

    boxes: Tensor
    scores: Tensor
    labels: Tensor


@dataclass(frozen=True)
class DetectionOptions:
    """What the second stage learns from, and which detections it reports."""

    foreground_iou: float
    samples: int
    positive_fraction: float
    score: float
    nms_iou: float
    most: int


class RegionPooling(nn.Module):
    """RoIAlign on the level that fits a region's size (Lin et al. 2017, equation 1).

    Args:
        strides: pixels of the image that a cell of each level stands for; the coarsest level of all is not pooled.
        canonical_side: a region of this side (pixels) is pooled from the level with stride 16.
    """

    def __init__(self, strides: Sequence[int], canonical_side: float) -> None:
        super().__init__()
        self.strides = list(strides)
        self.canonical_side = canonical_side

    def forward(self, levels: Sequence[Tensor], regions: Tensor) -> Tensor:
        """Levels (N, C, h, w) and regions (K, 5) as image x1 y1 x2 y2 -> (K, C, 7, 7)."""
        level_of = self._levels(regions)
        # A level without a region is pooled all the same: the graph has the same nodes whatever the image holds.
        order, pooled = [], []
        for level, (features, stride) in enumerate(zip(levels, self.strides, strict=True)):
            indices = (level_of == level).nonzero().squeeze(1)
            order.append(indices)
            pooled.append(roi_align(features, regions[indices], _POOLED, 1 / stride, _SAMPLING_RATIO, False))
        return torch.cat(pooled)[torch.argsort(torch.cat(order))]

    def _levels(self, regions: Tensor) -> Tensor:
        side = area(regions[:, 1:]).clamp(min=0).sqrt()
        # 1e-6 keeps a region of exactly the canonical size from falling below its level by rounding.
        power = torch.floor(math.log2(16) + torch.log2(side / self.canonical_side + 1e-6))
        finest = int(math.log2(self.strides[0]))
        return (power - finest).clamp(0, len(self.strides) - 1).to(torch.int64)


class BoxHead(nn.Module):
    """Two fully connected layers."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.fc6 = nn.Linear(inputs, outputs)
        self.fc7 = nn.Linear(outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(K, C, 7, 7) -> (K, outputs)."""
        return F.relu(self.fc7(F.relu(self.fc6(x.flatten(1)))))


class BoxPredictor(nn.Module):
    """Class scores, and one box code for each class."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.cls_score = nn.Linear(inputs, classes)
        self.bbox_pred = nn.Linear(inputs, 4 * classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(K, inputs) -> logits (K, classes) and codes (K, classes, 4)."""
        return self.cls_score(x), self.bbox_pred(x).reshape(len(x), self.cls_score.out_features, 4)


class RegionHeads(nn.Module):
    """Pools proposals, classifies them and refines their boxes."""

    def __init__(
        self, pooling: RegionPooling, channels: int, width: int, classes: int, options: DetectionOptions
    ) -> None:
        super().__init__()
        self.pooling = pooling
        self.pooled_shape = (channels, _POOLED, _POOLED)
        self.box_head = BoxHead(channels * _POOLED * _POOLED, width)
        self.box_predictor = BoxPredictor(width, classes)
        self.options = options

    def forward(self, levels: Sequence[Tensor], regions: Tensor) -> tuple[Tensor, Tensor]:
        """Levels and regions (K, 5) -> logits (K, classes) and codes (K, classes, 4)."""
        return self.judge(self.pooling(levels, regions))

    def judge(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """Pooled regions (K, C, 7, 7) -> logits (K, classes) and codes (K, classes, 4)."""
        logits, codes = self.box_predictor(self.box_head(pooled))
        return logits, codes

    def losses(self, levels: Sequence[Tensor], proposals: Sequence[Tensor], targets: Targets) -> dict[str, Tensor]:
        """Cross entropy of the class and smooth L1 of the box codes, both a sampled region."""
        regions, labels, codes_wanted = self._choose(proposals, targets)
        logits, codes = self(levels, regions)
        classification = F.cross_entropy(logits.float(), labels)
        positive = (labels != BACKGROUND_LABEL).nonzero().squeeze(1)
        boxes = F.smooth_l1_loss(
            codes[positive, labels[positive]].float(), codes_wanted, beta=_SMOOTH_L1_BETA, reduction="sum"
        )
        return {"classification": classification, "boxes": boxes / len(labels)}

    @torch.no_grad()
    def _choose(self, proposals: Sequence[Tensor], targets: Targets) -> tuple[Tensor, Tensor, Tensor]:
        """Regions (K, 5) to train on, their labels (K,), and the codes (P, 4) that the positive ones should give."""
        options = self.options
        regions, labels, codes = [], [], []
        for image, generator in enumerate(targets.generators(targets.boxes.device)):
            truth, classes = targets.boxes_of(image), targets.labels_of(image)
            # The truth itself is a proposal, so that the second stage learns before the first one finds anything.
            candidates = torch.cat([proposals[image], truth])
            matches = match(truth, candidates, foreground=options.foreground_iou, background=options.foreground_iou)
            positives, negatives = sample(matches, options.samples, options.positive_fraction, generator)
            chosen = candidates[torch.cat([positives, negatives])]
            regions.append(torch.cat([chosen.new_full((len(chosen), 1), image), chosen], dim=1))
            labels.append(torch.cat([classes[matches[positives]], torch.full_like(negatives, BACKGROUND_LABEL)]))
            codes.append(encode(truth[matches[positives]], candidates[positives], DETECTION_WEIGHTS))
        return torch.cat(regions), torch.cat(labels), torch.cat(codes)

    def detect(
        self, levels: Sequence[Tensor], proposals: Sequence[Tensor], image_size: tuple[int, int]
    ) -> list[Detections]:
        """The detections of each image: at most `most`, thinned out class by class."""
        regions = torch.cat(
            [torch.cat([boxes.new_full((len(boxes), 1), image), boxes], dim=1) for image, boxes in enumerate(proposals)]
        )
        logits, codes = self(levels, regions)
        scores = logits.float().softmax(dim=1)
        boxes = clip(decode(codes, regions[:, 1:], DETECTION_WEIGHTS), *image_size)
        counts = [len(boxes) for boxes in proposals]
        return [
            self._of_one_image(image_boxes, image_scores)
            for image_boxes, image_scores in zip(boxes.split(counts), scores.split(counts), strict=True)
        ]

    def _of_one_image(self, boxes: Tensor, scores: Tensor) -> Detections:
        """Boxes (K, classes, 4), scores (K, classes)."""
        options = self.options
        region, label = (scores[:, 1:] > options.score).nonzero(as_tuple=True)
        label = label + 1
        found, found_scores = boxes[region, label], scores[region, label]
        kept = at_least(found, _LEAST_SIDE_PIXELS).nonzero().squeeze(1)
        found, found_scores, label = found[kept], found_scores[kept], label[kept]
        best = batched_nms(found, found_scores, label, options.nms_iou)[: options.most]
        return Detections(found[best], found_scores[best], label[best])
