"""Anchors: the boxes around each cell of a pyramid level that proposals are coded against (Ren et al. 2015)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

Shapes = Sequence[Sequence[tuple[float, float]]]


class Anchors(nn.Module):
    """Anchors of all levels, around the centres of the cells: (i + 0.5) * stride.

    torchvision's are around i * stride, the cells' corners. Cells tile the image, so their centres lie as far from one
    border as from the other. Weights that were trained with torchvision's anchors load, as the keys are the same, but
    propose half a stride too far right and down.

    Args:
        shapes: (height, width) in pixels of the anchors of each level, finest level first; as many on each.
        strides: pixels of the image that a cell of each level stands for.
    """

    def __init__(self, shapes: Shapes, strides: Sequence[int]) -> None:
        super().__init__()
        assert len(shapes) == len(strides), "as many levels of anchors as of features"
        self.strides = list(strides)
        self.per_cell = len(shapes[0])
        for level, level_shapes in enumerate(shapes):
            sides = torch.tensor(level_shapes).flip(1)
            # Not in the state: they follow from the recipe.
            self.register_buffer(f"cell_{level}", torch.cat([-sides / 2, sides / 2], dim=1), persistent=False)

    def forward(self, levels: Sequence[Tensor]) -> list[Tensor]:
        """Features (N, C, h, w) of each level -> its anchors (h * w * per_cell, 4), row by row, cell by cell."""
        anchors = []
        for level, (features, stride) in enumerate(zip(levels, self.strides, strict=True)):
            cell = self.get_buffer(f"cell_{level}")
            height, width = features.shape[-2:]
            y = (torch.arange(height, device=cell.device) + 0.5) * stride
            x = (torch.arange(width, device=cell.device) + 0.5) * stride
            centres = torch.stack([x.expand(height, width), y[:, None].expand(height, width)], dim=-1).repeat(1, 1, 2)
            anchors.append((centres[:, :, None, :] + cell).reshape(-1, 4))
        return anchors
