"""torchvision's Faster R-CNN with what the recipe of Extreme Weather Analytics has: the fair rival.

Why this is fair:
- The network is torchvision's own (ResNet-50, feature pyramid, its heads), eager, as its documentation trains it. The
  first convolution takes 16 channels, and the normalisation is the recipe's, because ours does no other work.
- Numbers are the recipe's: anchors (their shapes too), proposals before and after NMS, sampled anchors and regions,
  classes, thresholds. The weights are ours where the names agree, so that NMS sees like proposals.
- Its transform, which would resize, normalise and pad, is replaced by one that hands the batch on: we do none of it.
- Boxes are in fp32, as ours are, in every precision: its proposal head hands on logits and codes in fp32, and its
  anchors are made so. By itself torchvision decodes boxes in the type of the codes, under autocast in bf16, where
  numbers from 512 to 1024 are 4 apart: different boxes would fall together in NMS, and fewer regions would reach its
  heads than ours. The convolutions of the head run in bf16 all the same. What is cast is a few megabytes an image; ours
  casts all logits, and the codes of the best anchors alone. `regions` counts proposals and regions of both.
- Batch, boxes, precision (autocast) and optimizer (torch's default SGD) are those of the other contestants.
"""

from __future__ import annotations

from typing import Any

import torch
from clock import Timed, timed
from eager import arithmetic, eager_step
from held import Shape, held_workload
from regions import Counts, of_torchvision
from torch import Tensor, nn

# This module is imported only where torchvision is.
from torchvision.models import resnet50
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from hpcai500.layers import ExtremeWeather, Recipe
from hpcai500.workloads.models.detector import Targets
from hpcai500.workloads.models.normalisation import norm_factory

_CLASSES = 5
_STAGES = {"layer1": "0", "layer2": "1", "layer3": "2", "layer4": "3"}


class AsTheyAre(nn.Module):
    """In the place of torchvision's transform: one batch in, the same batch out."""

    def forward(self, images: Tensor, targets: Any = None) -> tuple[ImageList, Any]:
        """Images (N, C, H, W) as torchvision's modules want them."""
        height, width = images.shape[-2:]
        return ImageList(images, [(height, width)] * len(images)), targets

    def postprocess(self, result: Any, image_sizes: Any, original_sizes: Any) -> Any:
        """Boxes are in pixels of the images already."""
        return result


class Head(RPNHead):  # type: ignore[misc]
    """torchvision's proposal head, which hands on fp32: what follows it takes the type of what the head gives."""

    def forward(self, x: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Levels (N, C, h, w) -> logits (N, A, h, w) and codes (N, 4 A, h, w) of each."""
        logits, codes = super().forward(x)
        return [one.float() for one in logits], [one.float() for one in codes]


def rival_step(
    recipe: Recipe, device: torch.device, grid: tuple[int, int], layout: torch.memory_format
) -> tuple[Timed, Counts]:
    """Steps of torchvision's detector on the batch that ours trains on, and how many regions it has there."""
    options = recipe.workload
    assert isinstance(options, ExtremeWeather)
    changed = recipe.model_copy(
        update={
            "framework": recipe.framework.model_copy(update={"channels_last": layout == torch.channels_last}),
        }
    )
    held = held_workload(changed, device, Shape(grid=grid))
    model = detector(options, grid)
    model.load_state_dict(_fitting(held.model.state_dict(), model.state_dict()), strict=False)
    images, truth = held.payload
    targets = _as_torchvision(truth)

    def loss(model: nn.Module) -> Tensor:
        losses: dict[str, Tensor] = model(images, targets)
        return sum(losses.values(), torch.zeros((), device=device))

    def one_pass() -> None:
        with arithmetic(recipe.accelerator.precision, device):
            loss(model)

    step = eager_step(model, loss, changed, device)
    return timed(step, device), of_torchvision(model, one_pass)


def detector(options: ExtremeWeather, grid: tuple[int, int]) -> FasterRCNN:
    """ResNet-50 and the rest of torchvision's Faster R-CNN, by the recipe's numbers."""
    body = resnet50(weights=None, norm_layer=norm_factory(options.norm))
    body.conv1 = nn.Conv2d(len(options.channels), 64, kernel_size=7, stride=2, padding=3, bias=False)
    stages = [256, 512, 1024, 2048]
    backbone = BackboneWithFPN(body, _STAGES, stages, options.pyramid_channels, LastLevelMaxPool())
    anchors = _Anchors(options)
    before, after = options.proposals_before_nms, options.proposals_after_nms
    model = FasterRCNN(
        backbone,
        num_classes=_CLASSES,
        min_size=min(grid),
        max_size=max(grid),
        rpn_anchor_generator=anchors,
        rpn_head=Head(options.pyramid_channels, len(options.anchors[0])),
        rpn_pre_nms_top_n_train=before[0],
        rpn_pre_nms_top_n_test=before[1],
        rpn_post_nms_top_n_train=after[0],
        rpn_post_nms_top_n_test=after[1],
        rpn_nms_thresh=options.proposal_nms_iou,
        rpn_fg_iou_thresh=options.proposal_foreground_iou,
        rpn_bg_iou_thresh=options.proposal_background_iou,
        rpn_batch_size_per_image=options.proposal_samples,
        rpn_positive_fraction=options.proposal_positive_fraction,
        box_score_thresh=options.detection_score,
        box_nms_thresh=options.detection_nms_iou,
        box_detections_per_img=options.detections,
        box_fg_iou_thresh=options.detection_foreground_iou,
        box_bg_iou_thresh=options.detection_foreground_iou,
        box_batch_size_per_image=options.detection_samples,
        box_positive_fraction=options.detection_positive_fraction,
    )
    model.transform = AsTheyAre()
    return model


class _Anchors(AnchorGenerator):  # type: ignore[misc]
    """torchvision's anchors with the recipe's shapes, which are no products of sizes and ratios."""

    def __init__(self, options: ExtremeWeather) -> None:
        # One size and as many ratios as there are shapes: only their number counts, the shapes follow.
        per_cell = len(options.anchors[0])
        levels = len(options.anchors)
        super().__init__(sizes=((32,),) * levels, aspect_ratios=((1.0,) * per_cell,) * levels)
        sides = [torch.tensor(level, dtype=torch.float32).flip(1) for level in options.anchors]
        self.cell_anchors = [torch.cat([-side / 2, side / 2], dim=1) for side in sides]

    def set_cell_anchors(self, dtype: torch.dtype, device: torch.device) -> None:
        """In fp32 always: under autocast they would be in bf16, where places beyond 256 pixels fall together."""
        super().set_cell_anchors(torch.float32, device)


def _fitting(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of ours that have a place in theirs."""
    return {name: value for name, value in ours.items() if name in theirs and theirs[name].shape == value.shape}


def _as_torchvision(truth: Targets) -> list[dict[str, Tensor]]:
    return [{"boxes": truth.boxes_of(image), "labels": truth.labels_of(image)} for image in range(len(truth.seeds))]
