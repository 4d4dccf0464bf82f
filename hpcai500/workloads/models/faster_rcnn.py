"""Faster R-CNN with a feature pyramid (Ren et al. 2015; Lin et al. 2017): the model of V2.0 section 4.2.1.

The parts are in files of their own: `resnet`, `pyramid` (backbone), `anchors`, `proposals` (first stage), `roi_heads`
(second stage), `boxes` and `matching` (coding and targets). Images are not resized. State-dict keys are torchvision's.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from hpcai500.workloads.models.proposals import ProposalNetwork
from hpcai500.workloads.models.pyramid import Backbone
from hpcai500.workloads.models.roi_heads import Detections, RegionHeads
from hpcai500.workloads.models.targets import Targets


class FasterRCNN(nn.Module):
    """Backbone, proposals, detections: losses in training, detections in evaluation."""

    def __init__(self, backbone: Backbone, rpn: ProposalNetwork, roi_heads: RegionHeads) -> None:
        super().__init__()
        self.backbone = backbone
        self.rpn = rpn
        self.roi_heads = roi_heads

    def forward(self, images: Tensor, targets: Targets | None = None) -> dict[str, Tensor] | list[Detections]:
        """Images (N, C, H, W) and, in training mode, their targets -> the four losses; else what is in each image."""
        return self.judge(self.backbone(images), (images.shape[-2], images.shape[-1]), targets)

    def judge(
        self, levels: Sequence[Tensor], size: tuple[int, int], targets: Targets | None
    ) -> dict[str, Tensor] | list[Detections]:
        """All behind the backbone: its levels for images of `size` (H, W) -> as `forward`."""
        logits, codes = self.rpn.head(levels)
        anchors = self.rpn.anchors(levels)
        proposals = self.rpn.propose(logits, codes, anchors, size)
        # The coarsest level only proposes (Lin et al. 2017, section 4.1).
        if targets is None:
            return self.roi_heads.detect(levels[:-1], proposals, size)
        return {
            **self.rpn.losses(logits, codes, anchors, targets),
            **self.roi_heads.losses(levels[:-1], proposals, targets),
        }


class CountedDetector(nn.Module):
    """The convolutions and matrix products of one step, for counting them: regions are given, not found."""

    def __init__(self, detector: FasterRCNN) -> None:
        super().__init__()
        stages = [f"backbone.body.{name}" for name in ("conv1", *detector.backbone.body.stage_names)]
        self.part_names = (*stages, "backbone.fpn", "rpn.head", "roi_heads.box_head", "roi_heads.box_predictor")
        self.backbone, self.rpn, self.roi_heads = detector.backbone, detector.rpn, detector.roi_heads

    def forward(self, images: Tensor, regions: Tensor) -> Sequence[Sequence[Tensor]]:
        """Images (N, C, H, W) and regions (K, 5) -> everything that a loss is taken of."""
        levels = self.backbone(images)
        # Which level a region is pooled from depends on data, which a count has not; pooling itself is not counted.
        # This stand-in has its shape and, as it depends on the levels, its gradient.
        pooled = levels[0].mean().expand(len(regions), *self.roi_heads.pooled_shape)
        return [*self.rpn.head(levels), self.roi_heads.judge(pooled)]
