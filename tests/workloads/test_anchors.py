"""Anchors and the pyramid that they lie on."""

from __future__ import annotations

import pytest
import torch

from hpcai500.workloads.models.detector import Anchors, Backbone, FeaturePyramid
from hpcai500.workloads.models.resnet import BasicBlock, ResNetStages


def test_anchors_are_centred_on_their_cells() -> None:
    anchors = Anchors([[(4.0, 8.0), (10.0, 10.0)]], [16])(32, 48).boxes
    assert anchors.shape == (2 * 3 * 2, 4)
    # First cell, both shapes; then the second cell of the first row; height comes first in a shape.
    assert anchors[0].tolist() == [4, 6, 12, 10]
    assert anchors[1].tolist() == [3, 3, 13, 13]
    assert anchors[2].tolist() == [20, 6, 28, 10]
    centres = (anchors[:, :2] + anchors[:, 2:]) / 2
    assert centres[-1].tolist() == [40, 24]


def test_anchors_follow_the_order_of_the_heads_outputs() -> None:
    """Cell (row 1, column 2) of a 2 x 3 level with 2 shapes is entries 10 and 11 of both."""
    anchors = Anchors([[(2.0, 2.0), (4.0, 4.0)]], [8])(16, 24).boxes.reshape(2, 3, 2, 4)
    assert ((anchors[1, 2, 0, :2] + anchors[1, 2, 0, 2:]) / 2).tolist() == [20, 12]


@pytest.mark.parametrize("size", [(64, 96), (51, 67), (33, 1), (768, 1152)])
def test_there_are_as_many_anchors_as_the_levels_have_cells(size: tuple[int, int]) -> None:
    """Whatever the image's size: both round up."""
    with torch.device("meta"):
        backbone = Backbone(ResNetStages(BasicBlock, (1, 1, 1), width=8, channels=2), 16)
        levels = backbone(torch.empty(1, 2, *size))
    shapes = [[(8.0 * 2**level, 8.0 * 2**level)] * 3 for level in range(len(levels))]
    placed = Anchors(shapes, backbone.strides)(*size)
    assert placed.counts == tuple(3 * level.shape[2] * level.shape[3] for level in levels)
    assert len(placed.boxes) == sum(placed.counts)


def test_anchors_of_a_size_are_made_once_and_serve_training_after_an_evaluation() -> None:
    anchors = Anchors([[(4.0, 8.0)]], [16])
    with torch.inference_mode():
        boxes = anchors(32, 48).boxes
    assert anchors(32, 48).boxes is boxes
    assert not boxes.is_inference()
    assert len(anchors(32, 64).boxes) == 8


def test_the_pyramid_adds_a_level_and_keeps_resolutions() -> None:
    body = ResNetStages(BasicBlock, (1, 1, 1), width=8, channels=2)
    backbone = Backbone(body, 16)
    levels = backbone(torch.randn(1, 2, 64, 96))
    assert [tuple(level.shape) for level in levels] == [(1, 16, 16, 24), (1, 16, 8, 12), (1, 16, 4, 6), (1, 16, 2, 3)]
    assert backbone.strides == [4, 8, 16, 32]


def test_what_a_coarse_level_knows_reaches_the_finest() -> None:
    pyramid = FeaturePyramid([4, 8], 8)
    fine, coarse = torch.zeros(1, 4, 8, 8), torch.zeros(1, 8, 4, 4, requires_grad=True)
    pyramid([fine, coarse])[0].sum().backward()
    assert coarse.grad is not None
    assert coarse.grad.abs().sum() > 0
