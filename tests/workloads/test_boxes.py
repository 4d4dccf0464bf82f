"""Box arithmetic: against hand computation and its own inverse."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.workloads.models.detector import DETECTION_WEIGHTS, PROPOSAL_WEIGHTS, at_least, clip, decode, encode, iou

side = st.floats(1, 500)
start = st.floats(-100, 1000)
box = st.builds(lambda x, y, w, h: [x, y, x + w, y + h], start, start, side, side)


def test_iou_of_known_boxes() -> None:
    left = torch.tensor([[0.0, 0, 4, 4], [10, 10, 12, 12]])
    right = torch.tensor([[2.0, 2, 6, 6], [0, 0, 4, 4], [20, 20, 30, 30]])
    expected = torch.tensor([[4 / 28, 1, 0], [0, 0, 0]])
    torch.testing.assert_close(iou(left, right), expected)


def test_iou_of_empty_boxes_is_zero_and_no_nan() -> None:
    point = torch.tensor([[3.0, 3, 3, 3]])
    assert iou(point, point).item() == 0


@given(st.lists(st.tuples(box, box), min_size=1, max_size=8))
def test_iou_is_symmetric_and_a_fraction(pairs: list[tuple[list[float], list[float]]]) -> None:
    left, right = (torch.tensor(boxes, dtype=torch.float64) for boxes in zip(*pairs, strict=True))
    overlaps = iou(left, right)
    assert ((overlaps >= 0) & (overlaps <= 1 + 1e-12)).all()
    torch.testing.assert_close(overlaps, iou(right, left).T)


@given(box, box, st.sampled_from([PROPOSAL_WEIGHTS, DETECTION_WEIGHTS]))
def test_decode_undoes_encode(wanted: list[float], reference: list[float], weights: tuple[float, ...]) -> None:
    boxes, references = (torch.tensor([values], dtype=torch.float64) for values in (wanted, reference))
    back = decode(encode(boxes, references, weights), references, weights)  # type: ignore[arg-type]
    grows = (boxes[:, 2:] - boxes[:, :2]) / (references[:, 2:] - references[:, :2])
    if (grows <= 1000 / 16).all():
        torch.testing.assert_close(back, boxes, rtol=1e-9, atol=1e-7)


def test_codes_are_girshicks() -> None:
    """Girshick et al. 2014, appendix C: shifts in units of the reference's size, logarithms of the scales."""
    reference, wanted = torch.tensor([[0.0, 0, 10, 20]]), torch.tensor([[5.0, 5, 25, 15]])
    expected = torch.tensor([[1.0, 0.0, math.log(2), math.log(0.5)]])
    torch.testing.assert_close(encode(wanted, reference, PROPOSAL_WEIGHTS), expected)
    torch.testing.assert_close(encode(wanted, reference, DETECTION_WEIGHTS), expected * torch.tensor([10.0, 10, 5, 5]))


def test_decoding_does_not_overflow() -> None:
    huge = decode(torch.full((1, 4), 1e4), torch.tensor([[0.0, 0, 16, 16]]), PROPOSAL_WEIGHTS)
    assert huge.isfinite().all()
    assert (huge[0, 2:] - huge[0, :2]).tolist() == pytest.approx([1000, 1000])


def test_decode_takes_one_code_for_each_class() -> None:
    references = torch.tensor([[0.0, 0, 10, 10], [5, 5, 25, 25]])
    codes = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    together = decode(codes, references, DETECTION_WEIGHTS)
    apart = torch.stack([decode(codes[:, k], references, DETECTION_WEIGHTS) for k in range(3)], dim=1)
    torch.testing.assert_close(together, apart)


def test_clip_and_least_side() -> None:
    boxes = clip(torch.tensor([[-5.0, -5, 200, 300], [190, 10, 250, 20]]), height=100, width=192)
    assert boxes.tolist() == [[0, 0, 192, 100], [190, 10, 192, 20]]
    assert at_least(boxes, 5).tolist() == [True, False]
