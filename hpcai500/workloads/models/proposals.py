"""Region proposal network (Ren et al. 2015, section 3): where in an image something may be. Keys as torchvision's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.workloads.models.anchors import Anchors
from hpcai500.workloads.models.boxes import PROPOSAL_WEIGHTS, at_least, clip, decode, encode
from hpcai500.workloads.models.matching import match, sample
from hpcai500.workloads.models.targets import Targets
from hpcai500.workloads.operators import batched_nms

_SMOOTH_L1_BETA = 1 / 9
# A proposal thinner than this has no inside.
_LEAST_SIDE_PIXELS = 1e-3


@dataclass(frozen=True)
class ProposalOptions:
    """How many proposals, and what they learn from; the first number of a pair is for training, the second for use."""

    before_nms: tuple[int, int]
    after_nms: tuple[int, int]
    nms_iou: float
    foreground_iou: float
    background_iou: float
    samples: int
    positive_fraction: float


class ProposalHead(nn.Module):
    """Objectness and box codes of each anchor, by the same convolutions on every level."""

    def __init__(self, channels: int, anchors_per_cell: int) -> None:
        super().__init__()
        # Twice in a container: torchvision's keys say conv.0.0.
        self.conv = nn.Sequential(nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1)))
        self.cls_logits = nn.Conv2d(channels, anchors_per_cell, 1)
        self.bbox_pred = nn.Conv2d(channels, 4 * anchors_per_cell, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.01)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]  # there is a bias

    def forward(self, levels: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Levels (N, C, h, w) -> logits (N, h w A) and codes (N, h w A, 4) of each, in the order of the anchors."""
        hidden = [F.relu(self.conv(features)) for features in levels]
        logits = [self.cls_logits(x).permute(0, 2, 3, 1).flatten(1) for x in hidden]
        codes = [self.bbox_pred(x).permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, 4)) for x in hidden]
        return logits, codes


class ProposalNetwork(nn.Module):
    """Anchors, the head that judges them, the choice of proposals, and the loss that both learn from."""

    def __init__(self, head: ProposalHead, anchors: Anchors, options: ProposalOptions) -> None:
        super().__init__()
        self.head = head
        self.anchors = anchors
        self.options = options

    def propose(
        self, logits: Sequence[Tensor], codes: Sequence[Tensor], anchors: Sequence[Tensor], image_size: tuple[int, int]
    ) -> list[Tensor]:
        """The proposals of each image, best first: boxes (K, 4) without gradient."""
        before, after = (pair[0 if self.training else 1] for pair in (self.options.before_nms, self.options.after_nms))
        proposals = []
        for image in range(logits[0].shape[0]):
            boxes, scores, of_level = [], [], []
            for level, (level_logits, level_codes, level_anchors) in enumerate(
                zip(logits, codes, anchors, strict=True)
            ):
                best = level_logits[image].detach().float().topk(min(before, level_logits.shape[1]))
                best_codes = level_codes[image].detach()[best.indices]
                boxes.append(clip(decode(best_codes, level_anchors[best.indices], PROPOSAL_WEIGHTS), *image_size))
                scores.append(best.values)
                of_level.append(torch.full_like(best.indices, level))
            proposals.append(self._thin_out(torch.cat(boxes), torch.cat(scores), torch.cat(of_level), after))
        return proposals

    def _thin_out(self, boxes: Tensor, scores: Tensor, of_level: Tensor, most: int) -> Tensor:
        usable = at_least(boxes, _LEAST_SIDE_PIXELS).nonzero().squeeze(1)
        boxes, scores, of_level = boxes[usable], scores[usable], of_level[usable]
        return boxes[batched_nms(boxes, scores, of_level, self.options.nms_iou)[:most]]

    def losses(
        self, logits: Sequence[Tensor], codes: Sequence[Tensor], anchors: Sequence[Tensor], targets: Targets
    ) -> dict[str, Tensor]:
        """Binary cross entropy of objectness and smooth L1 of the box codes, both a sampled anchor."""
        all_logits, all_codes = torch.cat(list(logits), dim=1), torch.cat(list(codes), dim=1)
        all_anchors = torch.cat(list(anchors))
        options = self.options
        chosen_logits, wanted, box_loss = [], [], all_codes.new_zeros((), dtype=torch.float32)
        for image, generator in enumerate(targets.generators(all_anchors.device)):
            truth = targets.boxes_of(image)
            matches = match(
                truth,
                all_anchors,
                foreground=options.foreground_iou,
                background=options.background_iou,
                every_truth=True,
            )
            positives, negatives = sample(matches, options.samples, options.positive_fraction, generator)
            chosen = torch.cat([positives, negatives])
            chosen_logits.append(all_logits[image, chosen].float())
            wanted.append((matches[chosen] >= 0).float())
            codes_wanted = encode(truth[matches[positives]], all_anchors[positives], PROPOSAL_WEIGHTS)
            box_loss = box_loss + F.smooth_l1_loss(
                all_codes[image, positives].float(), codes_wanted, beta=_SMOOTH_L1_BETA, reduction="sum"
            )
        every_logit = torch.cat(chosen_logits)
        objectness = F.binary_cross_entropy_with_logits(every_logit, torch.cat(wanted))
        return {"objectness": objectness, "proposal_boxes": box_loss / len(every_logit)}
