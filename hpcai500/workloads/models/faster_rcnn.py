"""Faster R-CNN with a feature pyramid (Ren et al. 2015; Lin et al. 2017): the model of V2.0 section 4.2.1.

The parts are in files of their own: `resnet`, `pyramid` (backbone), `anchors`, `proposals` (first stage), `roi_heads`
(second stage), `boxes` and `matching` (coding and targets). Images are not resized. State-dict keys are torchvision's.

No shape depends on what images hold: there are as many proposals, sampled anchors and sampled regions in each, and
masks tell which count. So a training step asks a GPU nothing, an evaluation once a batch, for the detections.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from hpcai500.workloads.models.proposals import ProposalHead, ProposalNetwork
from hpcai500.workloads.models.pyramid import Backbone
from hpcai500.workloads.models.roi_heads import Detections, RegionHeads
from hpcai500.workloads.models.targets import Targets


class DenseDetector(nn.Module):
    """The part whose work depends on the images' shape alone: backbone, pyramid and proposal head.

    Tensors in, tensors out, no random numbers, no asking: what a compiler or a CUDA graph takes whole.
    """

    def __init__(self, backbone: Backbone, head: ProposalHead) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Images (N, C, H, W) -> the levels that are pooled from, then logits (N, A) and codes (N, A, 4)."""
        levels = self.backbone(images)
        # The coarsest level only proposes (Lin et al. 2017, section 4.1).
        return (*levels[:-1], *self.head(levels))


class FasterRCNN(nn.Module):
    """Backbone, proposals, detections: losses in training, detections in evaluation."""

    def __init__(self, backbone: Backbone, rpn: ProposalNetwork, roi_heads: RegionHeads) -> None:
        super().__init__()
        self.backbone = backbone
        self.rpn = rpn
        self.roi_heads = roi_heads
        # Not registered: its weights are the model's, once, under torchvision's keys.
        self._unregistered = (DenseDetector(backbone, rpn.head),)

    @property
    def dense(self) -> DenseDetector:
        """The dense part, which `forward` calls: what replaces its own `forward` (a CUDA graph, a compiler) is used."""
        return self._unregistered[0]

    def train(self, mode: bool = True) -> FasterRCNN:
        """As of any module, the dense part included."""
        super().train(mode)
        self.dense.train(mode)
        return self

    def forward(self, images: Tensor, targets: Targets | None = None) -> dict[str, Tensor] | list[Detections]:
        """Images (N, C, H, W) and, in training mode, their targets -> the four losses; else what is in each image."""
        *levels, logits, codes = self.dense(images)
        return self.conclude(levels, logits, codes, (images.shape[-2], images.shape[-1]), targets)

    def judge(
        self, levels: Sequence[Tensor], size: tuple[int, int], targets: Targets | None
    ) -> dict[str, Tensor] | list[Detections]:
        """All behind the backbone: its levels for images of `size` (H, W) -> as `forward`."""
        logits, codes = self.rpn.head(levels)
        return self.conclude(levels[:-1], logits, codes, size, targets)

    def conclude(
        self, levels: Sequence[Tensor], logits: Tensor, codes: Tensor, size: tuple[int, int], targets: Targets | None
    ) -> dict[str, Tensor] | list[Detections]:
        """All behind the dense part: what it gave for images of `size` (H, W) -> as `forward`."""
        if targets is None:
            proposals = self.rpn.propose(logits, codes, self.rpn.anchors(*size), size)
            return self.roi_heads.detect(levels, proposals, size)
        candidates = self.rpn.options.after_nms[0] + targets.boxes.shape[1]
        keys = targets.keys(max(logits.shape[1], candidates))
        return self.losses(levels, logits, codes, size, targets, keys)

    def losses(
        self,
        levels: Sequence[Tensor],
        logits: Tensor,
        codes: Tensor,
        size: tuple[int, int],
        targets: Targets,
        keys: Tensor,
    ) -> dict[str, Tensor]:
        """The four losses; `keys` (N, …) are `Targets.keys`, as many as there are anchors or candidates at least.

        Tensors of fixed shapes throughout: it can be compiled whole.
        """
        anchors = self.rpn.anchors(*size)
        proposals = self.rpn.propose(logits, codes, anchors, size)
        candidates = proposals.boxes.shape[1] + targets.boxes.shape[1]
        return {
            **self.rpn.losses(logits, codes, anchors, targets, keys[:, : logits.shape[1]]),
            **self.roi_heads.losses(levels, proposals, targets, keys[:, :candidates]),
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
        return [self.rpn.head(levels), self.roi_heads.judge(pooled)]
