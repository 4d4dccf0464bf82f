"""The second stage (Girshick 2015; Lin et al. 2017): what each proposal holds, and its box. Keys as torchvision's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.workloads.models.boxes import DETECTION_WEIGHTS, area, at_least, clip, decode, encode, take
from hpcai500.workloads.models.matching import IGNORED, Sample, match, sample
from hpcai500.workloads.models.proposals import Proposals
from hpcai500.workloads.models.targets import BACKGROUND_LABEL, Targets
from hpcai500.workloads.operators import roi_align_levels, sorted_nms

_POOLED = 7
_SAMPLING_RATIO = 2
_SMOOTH_L1_BETA = 1 / 9
# A detection thinner than this is none.
_LEAST_SIDE_PIXELS = 1e-2
# Cross entropy leaves out what has this label.
_NO_LABEL = -100


@dataclass(frozen=True)
class Detections:
    """What was found in one image, best first: boxes (D, 4) in pixels, scores (D,), labels (D,) from 1; on the host."""

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
        scales = [1 / stride for stride in self.strides]
        return roi_align_levels(levels, regions, self._levels(regions), _POOLED, scales, _SAMPLING_RATIO)

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

    def losses(
        self, levels: Sequence[Tensor], proposals: Proposals, targets: Targets, keys: Tensor
    ) -> dict[str, Tensor]:
        """Cross entropy of the class and smooth L1 of the box codes, both a sampled region.

        `keys` (N, K + M) are `Targets.keys` of the K proposals and M places for truth, by which is sampled.
        """
        chosen, regions, labels, codes_wanted = self._choose(proposals, targets, keys)
        count = chosen.count()
        logits, codes = self(levels, _rows(regions))
        classification = F.cross_entropy(logits.float(), labels.flatten(), ignore_index=_NO_LABEL, reduction="sum")
        first = slice(chosen.most_positives)
        classes = labels[:, first].clamp(min=0)[..., None, None].expand(-1, -1, 1, 4)
        found = codes.unflatten(0, regions.shape[:2])[:, first].gather(2, classes).squeeze(2).float()
        # Where there is no positive one, 0 is found and wanted: no error, no gradient.
        found = found.masked_fill(~chosen.positive[:, first, None], 0)
        boxes = F.smooth_l1_loss(found, codes_wanted, beta=_SMOOTH_L1_BETA, reduction="sum")
        return {"classification": classification / count, "boxes": boxes / count}

    @torch.no_grad()
    def _choose(self, proposals: Proposals, targets: Targets, keys: Tensor) -> tuple[Sample, Tensor, Tensor, Tensor]:
        """The sample, its regions (N, S, 4) and labels (N, S), and the codes (N, P, 4) wanted of its first places.

        In unused places the region is empty and the label is none; where there is no positive one the codes are 0.
        """
        options = self.options
        # The truth itself is a proposal, so that the second stage learns before the first one finds anything.
        candidates = torch.cat([proposals.boxes, targets.boxes], dim=1)
        present = torch.cat([proposals.present, targets.present], dim=1)
        matches = match(
            targets.boxes,
            targets.present,
            candidates,
            foreground=options.foreground_iou,
            background=options.foreground_iou,
        ).masked_fill(~present, IGNORED)
        chosen = sample(matches, keys, options.samples, options.positive_fraction)
        regions = take(candidates, chosen.places).masked_fill(~chosen.used[..., None], 0)
        truth = matches.gather(1, chosen.places).clamp(min=0)
        labels = targets.labels.gather(1, truth).masked_fill(~chosen.positive, BACKGROUND_LABEL)
        labels = labels.masked_fill(~chosen.used, _NO_LABEL)
        first = slice(chosen.most_positives)
        codes = encode(take(targets.boxes, truth[:, first]), regions[:, first], DETECTION_WEIGHTS)
        return chosen, regions, labels, codes.masked_fill(~chosen.positive[:, first, None], 0)

    def detect(self, levels: Sequence[Tensor], proposals: Proposals, image_size: tuple[int, int]) -> list[Detections]:
        """The detections of each image: at most `most`, thinned out class by class. The device is waited for once."""
        found = self._found(levels, proposals, image_size).cpu()
        of_images = (rows[rows[:, -1] > 0] for rows in found)
        return [Detections(rows[:, :4], rows[:, 4], rows[:, 5].to(torch.int64)) for rows in of_images]

    def _found(self, levels: Sequence[Tensor], proposals: Proposals, image_size: tuple[int, int]) -> Tensor:
        """The best of each image as rows x1 y1 x2 y2 score label, and 1, or 0 where there are fewer: (N, most, 7)."""
        options = self.options
        logits, codes = self(levels, _rows(proposals.boxes))
        shape = proposals.present.shape
        scores = logits.float().softmax(dim=1).unflatten(0, shape)[..., 1:]
        boxes = decode(codes.unflatten(0, shape)[:, :, 1:], proposals.boxes, DETECTION_WEIGHTS)
        boxes = clip(boxes, *image_size)
        eligible = (scores > options.score) & at_least(boxes, _LEAST_SIDE_PIXELS) & proposals.present[..., None]
        stays = self._thinned_out(boxes, scores, eligible)
        best = scores.masked_fill(~stays, -torch.inf).flatten(1).sort(dim=1, descending=True, stable=True)
        places = best.indices[:, : options.most]
        labels = places % scores.shape[2] + 1
        chosen, present = take(boxes.flatten(1, 2), places), stays.flatten(1).gather(1, places)
        columns = (best.values[:, : options.most], labels, present)
        return torch.cat([chosen, *(column.to(chosen.dtype)[..., None] for column in columns)], dim=2)

    def _thinned_out(self, boxes: Tensor, scores: Tensor, eligible: Tensor) -> Tensor:
        """Which of the boxes (N, K, classes, 4) stay, of those that are eligible: (N, K, classes)."""
        images, places, classes = scores.shape
        boxes = boxes.masked_fill(~eligible[..., None], torch.nan)
        falling = scores.masked_fill(~eligible, -torch.inf).sort(dim=1, descending=True, stable=True).indices
        ordered = boxes.gather(1, falling[..., None].expand(-1, -1, -1, 4)).transpose(1, 2).flatten(1, 2)
        stays = sorted_nms(ordered, [places] * classes, self.options.nms_iou)
        stays = stays.reshape(images, classes, places).transpose(1, 2)
        return torch.zeros_like(eligible).scatter(1, falling, stays) & eligible


def _rows(regions: Tensor) -> Tensor:
    """Regions (N, S, 4) -> (N S, 5), the number of the image first."""
    images = torch.arange(regions.shape[0], dtype=regions.dtype, device=regions.device)
    return torch.cat([images[:, None, None].expand(-1, regions.shape[1], 1), regions], dim=2).flatten(0, 1)
