"""Layer 7 of `ic`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hpcai500.layers.fields import Count, Fraction, Interval, Layer


class ImageClassification(Layer):
    """Layer 7 of `ic`: ResNet v1.5 and its algorithmic options."""

    model: Literal["resnet-v1.5"] = Field(description="residual network with the stride in the 3x3 convolution")
    block: Literal["bottleneck", "basic"] = Field(description="residual block")
    depths: Annotated[tuple[Count, Count, Count, Count], Field(strict=False)] = Field(description="blocks a stage")
    width: Count = Field(description="channels of the first stage; each stage doubles it")
    norm: Literal["batch", "sync-batch"] = Field(
        description="normalisation; `sync-batch` is over all ranks (an algorithmic change: V2.0 Table 1, Google)"
    )
    norm_statistics: Literal["moving", "last-batch"] = Field(
        description="what evaluation normalises by: moving averages, or the last batch's statistics over all ranks "
        "(an algorithmic change: V2.0 Table 1, Preferred Networks and Sony)"
    )
    zero_gamma: bool = Field(description="start the last batch norm of each block at 0 (an algorithmic change)")
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = Field(description="share of the target given to all classes")
    image_size: Annotated[int, Field(ge=8, le=1024)] = Field(description="side of a training and evaluation image")
    evaluation_resize: Annotated[int, Field(ge=8, le=2048)] = Field(
        description="shorter side before the centre crop of `image_size`"
    )
    crop_area: Interval = Field(description="random-resized crop: share of the image's area")
    crop_ratio: Interval = Field(description="random-resized crop: width / height")
    flip_probability: Fraction = Field(description="probability of a horizontal flip")
    dct_scaling: bool = Field(description="decode large images at 1/2 or 1/4 size (changes pixels slightly)")
    tail: Literal["pad", "drop"] = Field(
        description="last global batch of an epoch: filled up with repeats, or left out"
    )

    @model_validator(mode="after")
    def _crops_are_possible(self) -> ImageClassification:
        if self.crop_area[0] > self.crop_area[1] or self.crop_area[1] > 1:
            raise ValueError(f"crop_area: expected [low, high] with low <= high <= 1, got {list(self.crop_area)}")
        if self.crop_ratio[0] > self.crop_ratio[1]:
            raise ValueError(f"crop_ratio: expected [low, high] with low <= high, got {list(self.crop_ratio)}")
        if self.evaluation_resize < self.image_size:
            raise ValueError(
                f"evaluation_resize: expected at least image_size ({self.image_size}), got {self.evaluation_resize}"
            )
        return self
