"""The detector that a recipe of Extreme Weather Analytics describes."""

from __future__ import annotations

import torch
from torch import Tensor

from hpcai500.comm.base import Communicator
from hpcai500.data.climate.layout import CLASSES
from hpcai500.layers import ExtremeWeather
from hpcai500.workloads.models.anchors import Anchors
from hpcai500.workloads.models.faster_rcnn import FasterRCNN
from hpcai500.workloads.models.normalisation import norm_factory
from hpcai500.workloads.models.proposals import ProposalHead, ProposalNetwork, ProposalOptions
from hpcai500.workloads.models.pyramid import Backbone
from hpcai500.workloads.models.resnet import BLOCKS, ResNetStages
from hpcai500.workloads.models.roi_heads import DetectionOptions, RegionHeads, RegionPooling

# V2.0 Table 4, with the width that the data has.
REFERENCE_GRID = (768, 1152)


def build_model(options: ExtremeWeather, communicator: Communicator | None = None) -> FasterRCNN:
    """Faster R-CNN for the four classes and background; `communicator` as of `norm_factory`."""
    body = ResNetStages(
        BLOCKS[options.block],
        options.depths,
        width=options.width,
        channels=len(options.channels),
        norm=norm_factory(options.norm, communicator),
    )
    backbone = Backbone(body, options.pyramid_channels)
    head = ProposalHead(options.pyramid_channels, len(options.anchors[0]))
    rpn = ProposalNetwork(
        head,
        Anchors(options.anchors, backbone.strides),
        ProposalOptions(
            before_nms=options.proposals_before_nms,
            after_nms=options.proposals_after_nms,
            nms_iou=options.proposal_nms_iou,
            foreground_iou=options.proposal_foreground_iou,
            background_iou=options.proposal_background_iou,
            samples=options.proposal_samples,
            positive_fraction=options.proposal_positive_fraction,
        ),
    )
    heads = RegionHeads(
        RegionPooling(backbone.strides[:-1], options.canonical_side),
        options.pyramid_channels,
        options.head_width,
        len(CLASSES) + 1,
        DetectionOptions(
            foreground_iou=options.detection_foreground_iou,
            samples=options.detection_samples,
            positive_fraction=options.detection_positive_fraction,
            score=options.detection_score,
            nms_iou=options.detection_nms_iou,
            most=options.detections,
        ),
    )
    return FasterRCNN(backbone, rpn, heads)


def example_inputs(options: ExtremeWeather, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Two images (2, C, H, W) and the regions (2 x samples, 5) of a full step; their values do not matter."""
    images = torch.empty(2, len(options.channels), height, width, device="meta")
    return images, torch.empty(2 * options.detection_samples, 5, device="meta")
