"""Region proposal network (Ren et al. 2015, section 3): where in an image something may be. Keys as torchvision's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.workloads.models.anchors import Anchors, PlacedAnchors
from hpcai500.workloads.models.boxes import PROPOSAL_WEIGHTS, at_least, clip, decode, encode, take
from hpcai500.workloads.models.matching import Sample, match, sample
from hpcai500.workloads.models.targets import Targets
from hpcai500.workloads.operators import sorted_nms

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


@dataclass(frozen=True)
class Proposals:
    """Of each image as many places, best first: boxes (N, K, 4), and present (N, K), where a place holds one."""

    boxes: Tensor
    present: Tensor


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

    def forward(self, levels: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Levels (N, C, h, w) -> logits (N, A) and codes (N, A, 4) of all anchors, level after level."""
        hidden = [F.relu(self.conv(features)) for features in levels]
        logits = [self.cls_logits(x).permute(0, 2, 3, 1).flatten(1) for x in hidden]
        codes = [self.bbox_pred(x).permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, 4)) for x in hidden]
        return torch.cat(logits, dim=1), torch.cat(codes, dim=1)


class ProposalNetwork(nn.Module):
    """Anchors, the head that judges them, the choice of proposals, and the loss that both learn from."""

    def __init__(self, head: ProposalHead, anchors: Anchors, options: ProposalOptions) -> None:
        super().__init__()
        self.head = head
        self.anchors = anchors
        self.options = options

    @torch.no_grad()
    def propose(self, logits: Tensor, codes: Tensor, anchors: PlacedAnchors, image_size: tuple[int, int]) -> Proposals:
        """The proposals of images of `image_size` (H, W), from the logits (N, A) and codes (N, A, 4) of all anchors."""
        before, after = (pair[0 if self.training else 1] for pair in (self.options.before_nms, self.options.after_nms))
        scores, places = _best_of_levels(logits, anchors.counts, before)
        boxes = clip(decode(take(codes, places), anchors.boxes[places], PROPOSAL_WEIGHTS), *image_size)
        usable = at_least(boxes, _LEAST_SIDE_PIXELS)
        stays = sorted_nms(
            boxes.masked_fill(~usable[..., None], torch.nan),
            [min(before, count) for count in anchors.counts],
            self.options.nms_iou,
        )
        stays = stays & usable
        order = scores.masked_fill(~stays, -torch.inf).sort(dim=1, descending=True, stable=True).indices[:, :after]
        present = stays.gather(1, order)
        return Proposals(take(boxes, order).masked_fill(~present[..., None], 0), present)

    def losses(
        self, logits: Tensor, codes: Tensor, anchors: PlacedAnchors, targets: Targets, keys: Tensor
    ) -> dict[str, Tensor]:
        """Binary cross entropy of objectness and smooth L1 of the box codes, both a sampled anchor.

        Logits (N, A) and codes (N, A, 4) are of all anchors; `keys` (N, A) are `Targets.keys`, by which is sampled.
        """
        chosen, codes_wanted = self._choose(anchors, targets, keys)
        count = chosen.count()
        objectness = F.binary_cross_entropy_with_logits(
            logits.gather(1, chosen.places).float(), chosen.positive.float(), chosen.used.float(), reduction="sum"
        )
        first = slice(chosen.most_positives)
        # Where there is no positive one, 0 is found and wanted: no error, no gradient.
        found = take(codes, chosen.places[:, first]).float().masked_fill(~chosen.positive[:, first, None], 0)
        boxes = F.smooth_l1_loss(found, codes_wanted, beta=_SMOOTH_L1_BETA, reduction="sum")
        return {"objectness": objectness / count, "proposal_boxes": boxes / count}

    @torch.no_grad()
    def _choose(self, anchors: PlacedAnchors, targets: Targets, keys: Tensor) -> tuple[Sample, Tensor]:
        """The anchors to train on, and the codes (N, P, 4) that the positives among them should have; 0 elsewhere."""
        options = self.options
        matches = match(
            targets.boxes,
            targets.present,
            anchors.boxes,
            foreground=options.foreground_iou,
            background=options.background_iou,
            every_truth=True,
        )
        chosen = sample(matches, keys, options.samples, options.positive_fraction)
        places = chosen.places[:, : chosen.most_positives]
        truth = take(targets.boxes, matches.gather(1, places).clamp(min=0))
        codes = encode(truth, anchors.boxes[places], PROPOSAL_WEIGHTS)
        return chosen, codes.masked_fill(~chosen.positive[:, : chosen.most_positives, None], 0)


def _best_of_levels(logits: Tensor, counts: Sequence[int], most: int) -> tuple[Tensor, Tensor]:
    """Of each image and level at most `most` anchors, best first: their logits and their places, (N, K) both."""
    scores, places, start = [], [], 0
    for of_level in logits.float().split(list(counts), dim=1):
        best = of_level.topk(min(most, of_level.shape[1]), dim=1)
        scores.append(best.values)
        places.append(best.indices + start)
        start += of_level.shape[1]
    return torch.cat(scores, dim=1), torch.cat(places, dim=1)
