"""Anchors and the pyramid that they lie on."""

from __future__ import annotations

import torch

from hpcai500.workloads.models.anchors import Anchors
from hpcai500.workloads.models.pyramid import Backbone, FeaturePyramid
from hpcai500.workloads.models.resnet import BasicBlock, ResNetStages


def test_anchors_are_centred_on_their_cells() -> None:
    anchors = Anchors([[(4.0, 8.0), (10.0, 10.0)]], [16])([torch.zeros(1, 1, 2, 3)])[0]
    assert anchors.shape == (2 * 3 * 2, 4)
    # First cell, both shapes; then the second cell of the first row; height comes first in a shape.
    assert anchors[0].tolist() == [4, 6, 12, 10]
    assert anchors[1].tolist() == [3, 3, 13, 13]
    assert anchors[2].tolist() == [20, 6, 28, 10]
    centres = (anchors[:, :2] + anchors[:, 2:]) / 2
    assert centres[-1].tolist() == [40, 24]


def test_anchors_follow_the_order_of_the_heads_outputs() -> None:
    """Cell (row 1, column 2) of a 2 x 3 level with 2 shapes is entries 10 and 11 of both."""
    level = torch.zeros(1, 1, 2, 3)
    anchors = Anchors([[(2.0, 2.0), (4.0, 4.0)]], [8])([level])[0].reshape(2, 3, 2, 4)
    assert ((anchors[1, 2, 0, :2] + anchors[1, 2, 0, 2:]) / 2).tolist() == [20, 12]


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
