"""Anchors: the boxes around each cell of a pyramid level that proposals are coded against (Ren et al. 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Shapes = Sequence[Sequence[tuple[float, float]]]


@dataclass(frozen=True)
class PlacedAnchors:
    """The anchors of an image, level after level: boxes (A, 4), and how many each level has."""

    boxes: Tensor
    counts: tuple[int, ...]


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
        self._placed: dict[tuple[int, int, torch.device], PlacedAnchors] = {}
        for level, level_shapes in enumerate(shapes):
            sides = torch.tensor(level_shapes).flip(1)
            # Not in the state: they follow from the recipe.
            self.register_buffer(f"cell_{level}", torch.cat([-sides / 2, sides / 2], dim=1), persistent=False)

    def forward(self, height: int, width: int) -> PlacedAnchors:
        """The anchors of an image of height x width; of each level h * w * per_cell, row by row, cell by cell.

        A level's h and w are the image's divided by its stride and rounded up, as the backbone rounds.
        """
        if torch.compiler.is_compiling():
            return self._place(height, width)
        # The images of a run have one size or two: some sixty small operators a step are saved.
        key = height, width, self.get_buffer("cell_0").device
        if key not in self._placed:
            with torch.inference_mode(mode=False):
                self._placed[key] = self._place(height, width)
        return self._placed[key]

    def _place(self, height: int, width: int) -> PlacedAnchors:
        levels = [
            self._of_level(level, -(-height // stride), -(-width // stride))
            for level, stride in enumerate(self.strides)
        ]
        return PlacedAnchors(torch.cat(levels), tuple(len(boxes) for boxes in levels))

    def _of_level(self, level: int, height: int, width: int) -> Tensor:
        cell, stride = self.get_buffer(f"cell_{level}"), self.strides[level]
        y = (torch.arange(height, device=cell.device) + 0.5) * stride
        x = (torch.arange(width, device=cell.device) + 0.5) * stride
        centres = torch.stack([x.expand(height, width), y[:, None].expand(height, width)], dim=-1).repeat(1, 1, 2)
        return (centres[:, :, None, :] + cell).reshape(-1, 4)
