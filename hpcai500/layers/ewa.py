"""Layer 7 of `ewa`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hpcai500.layers.fields import Count, Fraction, Interval, Layer, Pair, Positive

# As ExtremeWeather names them, in the order of its files (CAM5 output: Racah et al. 2017).
ClimateChannel = Literal[
    "PRECT",
    "PS",
    "PSL",
    "QREFHT",
    "T200",
    "T500",
    "TMQ",
    "TREFHT",
    "TS",
    "U850",
    "UBOT",
    "V850",
    "VBOT",
    "Z1000",
    "Z200",
    "ZBOT",
]
# (height, width) of each anchor of a pyramid level.
AnchorShapes = Annotated[tuple[Interval, ...], Field(strict=False, min_length=1)]


class ExtremeWeather(Layer):
    """Layer 7 of `ewa`: Faster R-CNN with a feature pyramid and its algorithmic options."""

    model: Literal["faster-rcnn-fpn"] = Field(description="two-stage detector on a residual network")
    block: Literal["bottleneck", "basic"] = Field(description="residual block")
    depths: Annotated[tuple[Count, ...], Field(strict=False, min_length=1, max_length=4)] = Field(
        description="blocks a stage; there are as many pyramid levels as stages, and one more"
    )
    width: Count = Field(description="channels of the first stage; each stage doubles it")
    norm: Literal["group", "batch", "sync-batch", "frozen-batch"] = Field(
        description="normalisation of the backbone; `sync-batch` is over all processes, `frozen-batch` never learns"
    )
    pyramid_channels: Count = Field(description="channels of every pyramid level")
    head_width: Count = Field(description="width of the two layers that judge a region")
    channels: Annotated[tuple[ClimateChannel, ...], Field(strict=False, min_length=1)] = Field(
        description="channels of an image that the model sees, by name, in this order"
    )
    longitude_roll: bool = Field(description="turn each training image by a random longitude (an algorithmic change)")
    crop_width: Annotated[int, Field(ge=0)] = Field(description="columns of a training image; 0 takes all of them")
    anchors: Annotated[tuple[AnchorShapes, ...], Field(strict=False, min_length=1)] = Field(
        description="(height, width) in pixels of the anchors of each level, finest first"
    )
    canonical_side: Positive = Field(description="side of a region (pixels) that is pooled from the level of stride 16")
    proposals_before_nms: Pair = Field(description="proposals a level kept before NMS, in training and in evaluation")
    proposals_after_nms: Pair = Field(description="proposals an image kept after NMS, in training and in evaluation")
    proposal_nms_iou: Fraction = Field(description="overlap at which the better of two proposals stays")
    proposal_foreground_iou: Fraction = Field(description="overlap with a box from which an anchor is positive")
    proposal_background_iou: Fraction = Field(description="overlap below which an anchor is background")
    proposal_samples: Count = Field(description="anchors an image that the first stage learns from")
    proposal_positive_fraction: Fraction = Field(description="largest share of positive ones among them")
    detection_foreground_iou: Fraction = Field(description="overlap with a box from which a region is of its class")
    detection_samples: Count = Field(description="regions an image that the second stage learns from")
    detection_positive_fraction: Fraction = Field(description="largest share of positive ones among them")
    detection_score: Fraction = Field(description="least score of a detection")
    detection_nms_iou: Fraction = Field(description="overlap at which the better of two detections of a class stays")
    detections: Annotated[int, Field(ge=1, le=100)] = Field(description="most detections an image")
    tail: Literal["pad", "drop"] = Field(
        description="last global batch of an epoch: filled up with repeats, or left out"
    )

    @model_validator(mode="after")
    def _options_fit_together(self) -> ExtremeWeather:
        if len(set(self.channels)) < len(self.channels):
            raise ValueError(f"channels: expected each one once, got {', '.join(self.channels)}")
        levels = len(self.depths) + 1
        if len(self.anchors) != levels:
            raise ValueError(f"anchors: expected {levels} levels (one more than depths), got {len(self.anchors)}")
        counts = sorted({len(level) for level in self.anchors})
        if len(counts) > 1:
            raise ValueError(f"anchors: expected as many on every level, got {' and '.join(map(str, counts))}")
        if self.proposal_background_iou > self.proposal_foreground_iou:
            raise ValueError(
                f"proposal_background_iou: expected at most proposal_foreground_iou "
                f"({self.proposal_foreground_iou:g}), got {self.proposal_background_iou:g}"
            )
        return self
