"""What an image becomes, as both loaders take it."""

from __future__ import annotations

from typing import TypedDict

from hpcai500.data.imagenet.loader import CropMode, DType, Layout


class CropSettings(TypedDict, total=False):
    """The settings of `hpcai500._core.DecodeSpec` that a recipe has; `size` and `mode` must be among them."""

    size: int
    mode: CropMode
    area: tuple[float, float]
    ratio: tuple[float, float]
    flip_probability: float
    resize_shorter: int
    dtype: DType
    layout: Layout
    dct_scaling: bool
