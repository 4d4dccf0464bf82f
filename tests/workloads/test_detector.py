"""The detector: its parts by hand, what it learns from, a readable twin, and a small one that learns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import detector_twin as twin
import numpy as np
import pytest
import torch
from fakes.graphs import graph_twin
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_detector import bright_squares, tiny_detector, tiny_options
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hpcai500.engine.graphs import StepGraphs
from hpcai500.engine.precision import Precision
from hpcai500.layers import ExtremeWeather
from hpcai500.measure.flops import count_flops
from hpcai500.recipe import load_recipe
from hpcai500.workloads import model_of
from hpcai500.workloads.ewa import as_arrays, build_model, example_inputs
from hpcai500.workloads.models.detector import (
    BACKGROUND,
    DETECTION_WEIGHTS,
    IGNORED,
    PROPOSAL_WEIGHTS,
    Anchors,
    Backbone,
    CountedDetector,
    DetectionOptions,
    Detections,
    FasterRCNN,
    FeaturePyramid,
    PlacedAnchors,
    ProposalHead,
    ProposalNetwork,
    ProposalOptions,
    Proposals,
    RegionHeads,
    RegionPooling,
    Targets,
    _uniform,
    at_least,
    clip,
    decode,
    encode,
    iou,
    match,
    sample,
)
from hpcai500.workloads.models.parts import static_parts
from hpcai500.workloads.models.resnet import BasicBlock, ResNetStages

side = st.floats(1, 500)
start = st.floats(-100, 1000)
box = st.builds(lambda x, y, w, h: [x, y, x + w, y + h], start, start, side, side)


# --- boxes: against hand computation and their own inverse


def test_iou_of_known_boxes() -> None:
    left = torch.tensor([[0.0, 0, 4, 4], [10, 10, 12, 12], [3, 3, 3, 3]])
    right = torch.tensor([[2.0, 2, 6, 6], [0, 0, 4, 4], [20, 20, 30, 30], [3, 3, 3, 3]])
    expected = torch.tensor([[4 / 28, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    torch.testing.assert_close(iou(left, right), expected)


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


# --- anchors, and the pyramid that they lie on


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


# --- what anchors and proposals learn from
TRUTH = torch.tensor([[0.0, 0, 10, 10], [20, 20, 40, 40]])


def matched(candidates: torch.Tensor, *, every_truth: bool = False) -> list[int]:
    """What the candidates of one image, which holds both truths, stand for."""
    present = torch.ones(1, 2, dtype=torch.bool)
    found = match(TRUTH[None], present, candidates, foreground=0.7, background=0.3, every_truth=every_truth)
    return found[0].tolist()


@pytest.mark.parametrize(
    ("candidates", "every_truth", "expected"),
    [
        (
            [[0, 0, 10, 9], [0, 0, 10, 5], [0, 0, 10, 2], [21, 21, 40, 40], [60, 60, 70, 70]],
            False,
            [0, IGNORED, BACKGROUND, 1, BACKGROUND],
        ),
        ([[0, 0, 10, 2], [60, 60, 70, 70], [30, 30, 60, 60]], False, [BACKGROUND] * 3),
        ([[0, 0, 10, 2], [60, 60, 70, 70], [30, 30, 60, 60]], True, [0, BACKGROUND, 1]),
        # A truth that nothing touches takes no candidate.
        ([[0, 0, 10, 10], [100, 100, 110, 110]], True, [0, BACKGROUND]),
    ],
)
def test_a_candidate_answers_for_what_it_overlaps_most_and_every_truth_is_answered_for_when_asked(
    candidates: list[list[float]], every_truth: bool, expected: list[int]
) -> None:
    assert matched(torch.tensor(candidates, dtype=torch.float32), every_truth=every_truth) == expected


def test_without_truth_everything_is_background() -> None:
    nowhere = torch.zeros(1, 0, 4), torch.zeros(1, 0, dtype=torch.bool)
    for truth, present in (nowhere, (TRUTH[None], torch.tensor([[False, False]]))):
        matches = match(truth, present, TRUTH, foreground=0.7, background=0.3, every_truth=True)
        assert matches.tolist() == [[BACKGROUND] * 2]


def test_images_are_matched_each_for_itself() -> None:
    """A place that holds no box is nobody's truth, whatever lies there and wherever it is."""
    truth = torch.stack([TRUTH, TRUTH.flip(0), TRUTH])
    present = torch.tensor([[True, True], [False, True], [True, False]])
    candidates = torch.tensor([[0.0, 0, 10, 9], [21, 21, 40, 40]])
    matches = match(truth, present, candidates, foreground=0.7, background=0.3, every_truth=True)
    assert matches.tolist() == [[0, 1], [1, BACKGROUND], [0, BACKGROUND]]
    of_images = torch.stack([candidates, candidates.flip(0), candidates.flip(0)])
    matches = match(truth, present, of_images, foreground=0.7, background=0.3, every_truth=True)
    assert matches.tolist() == [[0, 1], [BACKGROUND, 1], [BACKGROUND, 0]]


def drawn(matches: torch.Tensor, keys: torch.Tensor, size: int, fraction: float) -> tuple[list[int], list[int]]:
    """Positives and negatives of one image."""
    found = sample(matches[None], keys[None], size, fraction)
    assert found.places.shape == found.positive.shape == found.used.shape == (1, min(size, len(matches)))
    places, positive, used = (tensor[0] for tensor in (found.places, found.positive, found.used))
    assert not positive[found.most_positives :].any()
    assert not (positive & ~used).any()
    assert found.count().item() == max(used.sum().item(), 1)
    return places[positive].tolist(), places[used & ~positive].tolist()


def keys_of(seed: int, count: int) -> torch.Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed))


@given(
    st.integers(0, 60),
    st.integers(0, 60),
    st.integers(0, 3),
    st.integers(1, 40),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
)
def test_a_sample_keeps_its_size_and_share(
    positive: int, negative: int, ignored: int, size: int, fraction: float
) -> None:
    kinds = [torch.zeros(positive), torch.full((negative,), BACKGROUND), torch.full((ignored,), IGNORED)]
    matches = torch.cat(kinds).long()
    positives, negatives = drawn(matches, keys_of(1, len(matches)), size, fraction)
    assert len(positives) == min(positive, int(size * fraction))
    assert len(negatives) == min(negative, size - len(positives))
    assert (matches[positives] >= 0).all()
    assert (matches[negatives] == BACKGROUND).all()
    assert len(set(positives)) == len(positives)
    assert len(set(negatives)) == len(negatives)


def test_the_largest_keys_are_drawn_of_each_image() -> None:
    matches = torch.tensor([[0, BACKGROUND, 0, IGNORED, BACKGROUND, BACKGROUND], [BACKGROUND] * 6])
    keys = torch.tensor([[0.1, 0.2, 0.3, 0.9, 0.0, 0.4], [0.1, 0.2, 0.3, 0.9, 0.0, 0.4]])
    found = sample(matches, keys, 3, 0.5)
    assert found.places.tolist() == [[2, 5, 1], [3, 5, 2]]
    assert found.positive.tolist() == [[True, False, False], [False] * 3]
    assert found.used.all()
    assert found.count().item() == 6


def test_every_candidate_is_equally_likely() -> None:
    matches = torch.full((20,), BACKGROUND)
    counts = torch.zeros(20)
    for seed in range(2000):
        counts[drawn(matches, keys_of(seed, 20), 5, 0.5)[1]] += 1
    # 500 expected each, standard deviation 19.4.
    assert (counts - 500).abs().max() < 5 * 19.4


def test_an_images_keys_follow_from_its_seed_alone() -> None:
    """Not from the images beside it, and not from how many more are drawn."""
    empty = torch.zeros(0, 1, 4), torch.zeros(0, 1, dtype=torch.int64)
    keys = Targets(*empty, torch.tensor([3, 2**62, 3])).keys(50)
    assert torch.equal(keys[0], keys[2])
    assert not torch.equal(keys[0], keys[1])
    assert torch.equal(Targets(*empty, torch.tensor([2**62])).keys(2000)[0, :50], keys[1])
    assert torch.equal(keys[0], keys_of(3, 50))
    assert keys.min() >= 0
    assert keys.max() < 1
    torch.library.opcheck(_uniform, (torch.tensor([1, 2]), 5, torch.device("cpu")))


# --- regions are pooled from the level of their size, at the places that RoIAlign samples


def level_of(pooling: RegionPooling, regions: torch.Tensor) -> list[float]:
    """Strides of the levels that regions (K, 4) of a 640 x 640 image are pooled from; levels hold their stride."""
    levels = [torch.full((1, 1, 640 // stride, 640 // stride), float(stride)) for stride in pooling.strides]
    pooled = pooling(levels, torch.cat([torch.zeros(len(regions), 1), regions], dim=1))
    # Bilinear weights add up to 1 but for rounding.
    strides = pooled.round(decimals=3).flatten(1)
    assert (strides == strides[:, :1]).all(), "a region is pooled from one level"
    return strides[:, 0].tolist()


def squares(*sides: float) -> torch.Tensor:
    return torch.tensor([[0.0, 0.0, side, side] for side in sides])


@pytest.mark.parametrize("canonical_side", [56.0, 112.0, 224.0])
def test_regions_go_to_the_level_of_their_size(canonical_side: float) -> None:
    """Lin et al. 2017, equation 1: the canonical side on stride 16, half of it one level finer."""
    pooling = RegionPooling([4, 8, 16, 32], canonical_side)
    unit = canonical_side / 2
    sides = (unit / 8, unit / 2, unit - 0.01, unit, 2 * unit - 0.01, 2 * unit, 4 * unit - 0.01, 4 * unit, 5.5 * unit)
    assert level_of(pooling, squares(*sides)) == [4, 4, 4, 8, 8, 16, 16, 32, 32]


def test_another_finest_level_leaves_the_canonical_one_at_stride_16() -> None:
    sides = (20.0, 111.99, 112, 223.99, 224, 447.99, 448)
    assert level_of(RegionPooling([8, 16, 32], 224), squares(*sides)) == [8, 8, 8, 8, 16, 16, 32]
    assert level_of(RegionPooling([4, 8, 16], 224), squares(*sides)) == [4, 4, 8, 8, 16, 16, 16]
    # The reference has Lin et al.'s k0 = 4; the coarsest of its five levels only proposes.
    with torch.device("meta"):
        pooling = build_model(load_recipe("ewa/reference").workload).roi_heads.pooling  # type: ignore[arg-type]
    assert pooling.strides == [4, 8, 16, 32]
    assert level_of(pooling, squares(*sides[1:])) == [4, 8, 8, 16, 16, 32]


def test_the_size_is_the_root_of_the_area_and_regions_come_back_in_their_order() -> None:
    regions = torch.tensor([[0.0, 0, 56, 448], [0, 0, 448, 27.9], [300, 200, 412, 312]])
    assert level_of(RegionPooling([4, 8, 16, 32], 224), regions) == [8, 4, 8]
    # An empty region goes somewhere.
    assert level_of(RegionPooling([4, 8], 32), torch.tensor([[5.0, 5, 5, 5], [9, 9, 4, 4]])) == [4, 4]


def test_rounding_moves_no_region_of_the_canonical_size() -> None:
    starts = torch.linspace(288.1, 400.3, 200)
    regions = torch.stack([starts, starts, starts + 224, starts + 224], dim=1)
    sides = ((regions[:, 2] - regions[:, 0]) * (regions[:, 3] - regions[:, 1])).sqrt()
    assert (sides < 224).any(), "float32 makes some of them smaller"
    assert set(level_of(RegionPooling([4, 8, 16, 32], 224), regions)) == {16}


@pytest.mark.parametrize("level", [0, 1])
def test_a_bin_is_the_mean_of_two_by_two_samples(level: int) -> None:
    """By hand, on x^2 + 10 y^2, 14 cells from column 2 and row 3 on, so that a bin is two cells wide.

    Bin j is sampled at x = a + 1/2 and a + 3/2 with a = 2 + 2 j; between a^2 and (a + 1)^2 lies their mean
    a^2 + a + 1/2, so the bin's mean is (a + 1)^2 + 1/2. One sample, at a + 1, would give (a + 1)^2; samples moved
    half a cell, as `aligned`, (a^2 + (a + 1)^2) / 2.
    """
    strides = [4, 8]
    stride = strides[level]
    cells = torch.arange(24.0)
    levels = [torch.zeros(1, 1, 24, 24) for _ in strides]
    levels[level] = (cells**2 + 10 * cells[:, None] ** 2)[None, None]
    region = torch.tensor([[0.0, 2, 3, 16, 17]]) * stride
    pooled = RegionPooling(strides, canonical_side=224)(levels, region)
    bins = torch.arange(7.0)
    expected = (2 * bins + 3) ** 2 + 0.5 + 10 * ((2 * bins[:, None] + 4) ** 2 + 0.5)
    torch.testing.assert_close(pooled[0, 0], expected, rtol=1e-6, atol=0)


# --- What it proposes and learns from: equal to the definitions, and to the shares asked for.


SIZE = (48, 64)


def anchors_of_two_levels() -> Anchors:
    """With 96 and 24 anchors."""
    return Anchors([[(8.0, 8.0), (16.0, 16.0)], [(16.0, 32.0), (32.0, 32.0)]], [8, 16])


# --- which boxes the first stage proposes

OPTIONS = ProposalOptions((40, 25), (24, 12), 0.4, 0.7, 0.3, samples=8, positive_fraction=0.5)


def propose(codes: list[Tensor], logits: list[Tensor], anchors: list[Tensor]) -> list[list[float]]:
    """Proposals of one image in use, from what is given of each level; what is no proposal comes last and is empty."""
    placed = PlacedAnchors(torch.cat(anchors), tuple(len(of_level) for of_level in anchors))
    rpn = ProposalNetwork(ProposalHead(4, 2), anchors_of_two_levels(), OPTIONS).eval()
    found = rpn.propose(torch.cat(logits)[None], torch.cat(codes)[None].requires_grad_(), placed, SIZE)
    assert not found.boxes.requires_grad
    before, after = OPTIONS.before_nms[1], OPTIONS.after_nms[1]
    assert found.present.shape[1] == min(after, sum(min(before, len(of_level)) for of_level in anchors))
    assert not found.boxes[~found.present].any()
    assert (found.present.int().diff(dim=1) <= 0).all()
    return found.boxes[found.present].tolist()


def test_levels_do_not_suppress_each_other() -> None:
    same = torch.tensor([[8.0, 8, 24, 24], [8, 8, 24, 23]])
    logits = [torch.tensor([1.0, 2.0]), torch.tensor([4.0, 3.0])]
    # Of each level the better one: the first of the second level (4), the second of the first (2).
    assert propose([torch.zeros(2, 4)] * 2, logits, [same, same]) == [[8, 8, 24, 24], [8, 8, 24, 23]]


def test_the_limit_before_thinning_out_is_for_each_level_and_that_after_for_all() -> None:
    """30 boxes apart from each other on the first level, 3 worse ones on the second: 25 and 3, then 12."""
    x, y = torch.arange(30) % 10 * 6.0, torch.arange(30) // 10 * 6.0
    apart = torch.stack([x, y, x + 5, y + 5], dim=1)
    logits = torch.arange(30.0)
    better = apart.flip(0)[:12].tolist()
    assert propose([torch.zeros(30, 4), torch.zeros(3, 4)], [logits, -logits[1:4]], [apart, apart[:3]]) == better
    # Where the best 25 of the first level are one box, NMS leaves one, but none of the five below them moves up.
    apart[5:] = apart[29]
    found = propose([torch.zeros(30, 4), torch.zeros(3, 4)], [logits, -logits[1:4]], [apart, apart[:3] + 30])
    assert found == [apart[29].tolist(), *(apart[:3] + 30).tolist()]


def test_boxes_are_clipped_before_they_are_compared_and_dropped() -> None:
    """Two boxes that differ outside the image alone are one; one outside, or thinner than 1e-3, is none."""
    anchors = torch.tensor(
        [
            [40.0, 20, 90, 60],
            [40, 20, 64, 48],
            [70, 10, 80, 20],
            [5, 5, 5.0009, 20],
            [5, 30, 9, 30.0009],
            [5, 5, 5.002, 20],
        ]
    )
    found = propose([torch.zeros(6, 4)], [torch.arange(6.0, 0, -1)], [anchors])
    torch.testing.assert_close(torch.tensor(found), torch.tensor([[40.0, 20, 64, 48], [5, 5, 5.002, 20]]))


# --- losses
ALL = 10_000
PROPOSALS = ProposalOptions(
    (9, 9), (9, 9), 0.7, foreground_iou=0.7, background_iou=0.3, samples=ALL, positive_fraction=0.5
)
DETECTIONS = DetectionOptions(foreground_iou=0.5, samples=ALL, positive_fraction=0.5, score=0.05, nms_iou=0.5, most=9)
# An anchor as it is, one moved; one between four anchors, of which none reaches 0.7; one that no anchor touches.
TRUTHS = [
    [[8.0, 8, 16, 16], [33, 17, 49, 33]],
    [[10.0, 10, 22, 22], [28, 14, 51, 37], [500, 500, 520, 520]],
    [],
    [[0.0, 16, 32, 32]],
]
LABELS = [[1, 3], [2, 4, 1], [], [4]]


def targets(seed: int = 0) -> Targets:
    boxes, labels = torch.full((len(TRUTHS), 3, 4), 7.0), torch.zeros(len(TRUTHS), 3, dtype=torch.int64)
    for image, (of_image, classes) in enumerate(zip(TRUTHS, LABELS, strict=True)):
        for place, (box, label) in enumerate(zip(of_image, classes, strict=True), start=3 - len(classes)):
            boxes[image, place], labels[image, place] = torch.tensor(box), label
    return Targets(boxes, labels, torch.arange(seed, seed + len(TRUTHS)))


def truth() -> list[twin.Floats]:
    return [np.array(boxes, np.float64).reshape(-1, 4) for boxes in TRUTHS]


def first_stage(**changes: object) -> tuple[ProposalNetwork, Tensor, Tensor, PlacedAnchors]:
    """A network, and logits, codes and anchors of both levels of a 48 x 64 image."""
    anchors = anchors_of_two_levels()
    network = ProposalNetwork(ProposalHead(4, 2), anchors, replace(PROPOSALS, **changes))  # type: ignore[arg-type]
    placed, generator = anchors(*SIZE), torch.Generator().manual_seed(3)
    logits = torch.randn(len(TRUTHS), len(placed.boxes), generator=generator)
    # Errors on both sides of smooth L1's bend.
    codes = 0.2 * torch.randn(len(TRUTHS), len(placed.boxes), 4, generator=generator)
    return network, logits, codes, placed


def floats(values: Tensor) -> twin.Floats:
    return values.double().numpy()


def as_numbers(losses: dict[str, Tensor]) -> dict[str, float]:
    return {name: loss.item() for name, loss in losses.items()}


def test_the_scene_holds_every_case() -> None:
    """Ignored anchors, a truth whose best anchors are below 0.7 and tie, one that nothing touches, and none."""
    anchors = floats(first_stage()[3].boxes)
    for boxes in truth()[:2]:
        positives, negatives = twin.assign(boxes, anchors, 0.7, 0.3, every_truth=True)
        assert 0 < len(positives) + len(negatives) < len(anchors)
    overlaps = [twin.overlap(truth()[1][0], anchor) for anchor in anchors]
    assert 0.3 < max(overlaps) < 0.7
    assert overlaps.count(max(overlaps)) > 1
    assert max(twin.overlap(truth()[1][2], anchor) for anchor in anchors) == 0
    assert len(truth()[2]) == 0


def test_the_first_stage_learns_what_the_definition_says() -> None:
    network, logits, codes, anchors = first_stage()
    expected = twin.proposal_losses(
        floats(logits), floats(codes), floats(anchors.boxes), truth(), foreground=0.7, background=0.3
    )
    found = as_numbers(network.losses(logits, codes, anchors, targets(), targets().keys(logits.shape[1])))
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_the_first_stage_draws_its_share_and_never_what_is_ignored(seed: int) -> None:
    """What was drawn has a gradient: below 0 for a positive's logit, above for a negative's."""
    network, logits, codes, anchors = first_stage(samples=16, positive_fraction=0.125)
    drawn = targets(seed)
    losses = network.losses(
        logits.requires_grad_(), codes.requires_grad_(), anchors, drawn, drawn.keys(len(anchors.boxes))
    )
    sum(losses.values()).backward()
    of_logits, of_codes = logits.grad, codes.grad
    assert of_logits is not None
    assert of_codes is not None
    for image, boxes in enumerate(truth()):
        eligible, background = twin.assign(boxes, floats(anchors.boxes), 0.7, 0.3, every_truth=True)
        positives = (of_logits[image] < 0).nonzero().flatten().tolist()
        negatives = (of_logits[image] > 0).nonzero().flatten().tolist()
        assert len(positives) == min(len(eligible), 2)
        assert len(positives) + len(negatives) == 16
        assert set(positives) <= set(eligible)
        assert set(negatives) <= set(background)
        assert of_codes[image].abs().sum(dim=1).nonzero().flatten().tolist() == positives


def second_stage(**changes: object) -> tuple[RegionHeads, list[Tensor], list[Tensor]]:
    """Heads, levels of a 48 x 64 image, and proposals: about the truth, at half its size exactly, and elsewhere."""
    torch.manual_seed(5)
    options = replace(DETECTIONS, **changes)  # type: ignore[arg-type]
    heads = RegionHeads(RegionPooling([4, 8], canonical_side=32), 3, 16, classes=5, options=options)
    with torch.no_grad():
        # Logits and codes that differ from class to class by more than the tolerance.
        for parameter in heads.box_predictor.parameters():
            parameter.mul_(8)
    levels = [torch.randn(len(TRUTHS), 3, 12, 16), torch.randn(len(TRUTHS), 3, 6, 8)]
    proposals = [
        torch.tensor([[8.0, 8, 16, 12], [8, 8, 16, 11.9], [9, 8, 16, 16], [30, 16, 48, 32], [0, 0, 60, 40]]),
        torch.tensor([[10.0, 11, 22, 23], [27, 15, 50, 36], [31, 14, 52, 40], [2, 2, 9, 9], [40, 0, 60, 12]]),
        torch.tensor([[1.0, 1, 20, 20], [5, 5, 60, 41]]),
        torch.zeros(0, 4),
    ]
    return heads, levels, proposals


def padded(proposals: list[Tensor]) -> Proposals:
    """Five places an image."""
    boxes, present = torch.zeros(len(proposals), 5, 4), torch.zeros(len(proposals), 5, dtype=torch.bool)
    for image, found in enumerate(proposals):
        boxes[image, : len(found)], present[image, : len(found)] = found, True
    return Proposals(boxes, present)


def test_the_second_stage_learns_what_the_definition_says() -> None:
    heads, levels, proposals = second_stage()
    # The truth is among the candidates.
    candidates = [
        torch.cat([found, torch.tensor(boxes).reshape(-1, 4)]) for found, boxes in zip(proposals, TRUTHS, strict=True)
    ]
    with torch.no_grad():
        judged = [
            heads(levels, torch.cat([torch.full((len(boxes), 1), float(image)), boxes], dim=1))
            for image, boxes in enumerate(candidates)
        ]
    expected = twin.detection_losses(
        [logits.double().numpy() for logits, _ in judged],
        [codes.double().numpy() for _, codes in judged],
        [boxes.double().numpy() for boxes in candidates],
        truth(),
        LABELS,
        foreground=0.5,
    )
    assert as_numbers(heads.losses(levels, padded(proposals), targets(), targets().keys(8))) == pytest.approx(
        expected, rel=1e-5, abs=1e-5
    )


@pytest.mark.parametrize("seed", range(8))
def test_the_second_stage_draws_its_share(seed: int) -> None:
    heads, levels, proposals = second_stage(samples=4, positive_fraction=0.5)
    judged: list[tuple[Tensor, Tensor]] = []
    heads.register_forward_hook(lambda _, given, found: judged.append((given[1], found[0])))
    loss = heads.losses(levels, padded(proposals), targets(seed), targets(seed).keys(8))["classification"]
    regions, logits = judged[0]
    (gradient,) = torch.autograd.grad(loss, logits)
    used = gradient.abs().sum(dim=1) > 0
    assert not regions[~used, 1:].any(), "a place that is not used holds no region"
    regions, gradient = regions[used], gradient[used]
    # Cross entropy pulls up the wanted class alone.
    labels = gradient.argmin(dim=1)
    for image, (boxes, classes) in enumerate(zip(truth(), LABELS, strict=True)):
        ours = regions[:, 0] == image
        candidates = regions[ours, 1:].double().numpy()
        positives, _ = twin.assign(boxes, candidates, 0.5, 0.5, every_truth=False)
        assert labels[ours].tolist() == [classes[positives[k]] if k in positives else 0 for k in range(len(candidates))]
        assert len(candidates) == min(4, len(proposals[image])) if image < 3 else 1
        assert len(positives) == min(2, len(boxes))
        assert len({tuple(box) for box in candidates.tolist()}) == len(candidates)


# --- Whole batches at once: what it finds and learns is what the readable twin does image by image.


CPU = torch.device("cpu")
Losses = Callable[..., dict[str, Tensor]]


def scene(truths: list[int], seed: int, codes_scale: float) -> tuple[list[Tensor], Tensor, Tensor, Targets]:
    """Levels, logits and codes as a dense part gives, and so many boxes in each image; some nearly without a side."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    images, most = len(truths), max(1, *truths)
    levels = [random(images, 8, 12, 16), random(images, 8, 6, 8)]
    logits, codes = random(images, 504), codes_scale * random(images, 504, 4)
    corners = torch.rand(images, most, 2, generator=generator) * torch.tensor([50.0, 34.0])
    sides = 0.1 + torch.rand(images, most, 2, generator=generator) * torch.tensor([30.0, 30.0])
    labels = torch.randint(1, 5, (images, most), generator=generator)
    # Where the boxes of an image lie among the places does not matter.
    for image, count in enumerate(truths):
        labels[image, torch.randperm(most, generator=generator)[count:]] = 0
    boxes = torch.cat([corners, torch.minimum(corners + sides, torch.tensor([64.0, 48.0]))], dim=2)
    return levels, logits, codes, Targets(boxes, labels, torch.arange(seed, seed + images))


def detector(**changes: Any) -> FasterRCNN:
    model = tiny_detector(**changes)
    with torch.no_grad():
        for parameter in model.roi_heads.box_predictor.parameters():
            parameter.mul_(8)
    return model.train()


def learnt(losses: Losses, model: FasterRCNN, given_: list[Tensor], targets: Targets) -> dict[str, Tensor]:
    """Losses, and gradients of what the dense part gave and of the second stage's weights."""
    leaves = [tensor.clone().requires_grad_() for tensor in given_]
    *levels, logits, codes = leaves
    model.zero_grad()
    found = losses(levels, logits, codes, SIZE, targets, targets.keys(600))
    sum(found.values()).backward()
    gradients = {f"gradient {place}": leaf.grad for place, leaf in enumerate(leaves)}
    weights = {name: parameter.grad for name, parameter in model.roi_heads.named_parameters()}
    return {**found, **gradients, **weights}


def require_same(model: FasterRCNN, given_: list[Tensor], targets: Targets) -> None:
    ours = learnt(model.losses, model, given_, targets)
    theirs = learnt(lambda *rest: twin.losses(model, *rest), model, given_, targets)
    for name, expected in theirs.items():
        torch.testing.assert_close(
            ours[name], expected, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


@settings(max_examples=40, deadline=None)
@given(
    truths=st.lists(st.integers(0, 6), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
    codes_scale=st.sampled_from([0.0, 0.2, 3.0]),
    samples=st.sampled_from([(1, 1), (4, 3), (32, 16), (600, 100)]),
    fraction=st.sampled_from([0.0, 0.25, 1.0]),
    proposals=st.sampled_from([(1, 1), (7, 5), (50, 20)]),
    iou=st.sampled_from([0.0, 0.7]),
)
@example([0, 0], 1, 0.2, (32, 16), 0.25, (50, 20), 0.7).via("no truth in any image")
@example([6, 0], 2, 0.2, (4, 3), 1.0, (50, 20), 0.7).via("more truths than places, and an image without")
@example([1], 3, 0.2, (600, 100), 0.25, (1, 1), 0.0).via("fewer candidates than places, one proposal left")
@example([3], 4, 0.2, (32, 16), 0.0, (50, 20), 0.7).via("no place for positives")
def test_losses_and_gradients_are_the_twins(
    truths: list[int],
    seed: int,
    codes_scale: float,
    samples: tuple[int, int],
    fraction: float,
    proposals: tuple[int, int],
    iou: float,
) -> None:
    model = detector(
        proposal_samples=samples[0],
        detection_samples=samples[1],
        proposal_positive_fraction=fraction,
        detection_positive_fraction=fraction,
        # In use, other limits hold than in training.
        proposals_before_nms=(proposals[0], 3),
        proposals_after_nms=(proposals[1], 2),
        proposal_nms_iou=iou,
    )
    levels, logits, codes, targets = scene(truths, seed, codes_scale)
    require_same(model, [*levels, logits, codes], targets)


def test_where_every_proposal_is_too_thin_the_truth_is_learnt_from_alone() -> None:
    model = detector()
    for truths in ([2, 1], [0]):
        levels, logits, codes, targets = scene(truths, 5, 0.2)
        codes[..., 2:] = -30
        assert not model.rpn.propose(logits, codes, model.rpn.anchors(*SIZE), SIZE).present.any()
        require_same(model, [*levels, logits, codes], targets)
    # Without truth either, the mean of nothing would be no number.
    found = learnt(model.losses, model, [*levels, logits, codes], targets)
    assert found["classification"].item() == found["boxes"].item() == 0
    assert found["objectness"].item() > 0
    assert all(gradient.isfinite().all() for gradient in found.values())


def test_whole_steps_of_real_images_are_the_twins() -> None:
    model = detector()
    images, targets = bright_squares(3)
    *levels, logits, codes = (tensor.detach() for tensor in model.dense(images))
    require_same(model, [*levels, logits, codes], targets)
    theirs = twin.losses(model, levels, logits, codes, SIZE, targets, targets.keys(600))
    assert as_numbers(model(images, targets)) == pytest.approx(as_numbers(theirs), rel=1e-4, abs=1e-6)


def detected(model: FasterRCNN, images: int, seed: int, codes_scale: float) -> list[tuple[Detections, Detections]]:
    """Ours and the twin's of each image."""
    levels, logits, codes, _ = scene([0] * images, seed, codes_scale)
    with torch.inference_mode():
        ours = model.conclude(levels, logits, codes, SIZE, None)
        assert isinstance(ours, list)
        return list(zip(ours, twin.detect(model, levels, logits, codes, SIZE), strict=True))


@settings(max_examples=30, deadline=None)
@given(
    images=st.integers(1, 3),
    seed=st.integers(0, 1000),
    codes_scale=st.sampled_from([0.0, 0.3, 20.0]),
    score=st.sampled_from([0.0, 0.2, 0.9]),
    most=st.sampled_from([1, 100]),
    proposals=st.sampled_from([(1, 1), (50, 20)]),
)
def test_detections_are_the_twins(
    images: int, seed: int, codes_scale: float, score: float, most: int, proposals: tuple[int, int]
) -> None:
    before, after = proposals
    limits = {"proposals_before_nms": (3, before), "proposals_after_nms": (2, after)}
    model = detector(detection_score=score, detections=most, **limits).eval()
    for found, expected in detected(model, images, seed, codes_scale):
        assert found.labels.tolist() == expected.labels.tolist()
        torch.testing.assert_close(found.scores, expected.scores, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.boxes, expected.boxes, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("images", [1, 2])
def test_equal_scores_keep_the_order_of_the_twin(images: int) -> None:
    """Every region of an image scores the same for every class."""
    model = detector(detection_score=0.0, detections=7, proposal_nms_iou=0.9).eval()
    with torch.no_grad():
        for parameter in model.roi_heads.box_predictor.parameters():
            parameter.zero_()
    for found, expected in detected(model, images, 8, 0.3):
        assert found.labels.tolist() == expected.labels.tolist()
        assert torch.equal(found.boxes, expected.boxes)


# --- a training step has no shape and no branch that depends on data: the host never waits for a GPU
# Their result's shape, or a Python value, follows from the data. `lift_fresh` is a number that becomes a tensor on the
# host: where it is needed on a GPU, it is copied.
_ASKING = {
    "aten::nonzero",
    "aten::nonzero_static",
    "aten::masked_select",
    "aten::unique_dim",
    "aten::_unique2",
    "aten::unique_consecutive",
    "aten::_local_scalar_dense",
    "aten::is_nonzero",
    "aten::equal",
    "aten::bincount",
    "aten::histc",
    "aten::lift_fresh",
    "hpcai500::nms",
}
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}
# They start no kernel: what they give is another look at the same memory, or memory that is not filled.
_LOOKING = {
    *("view", "_unsafe_view", "_reshape_alias", "as_strided", "alias", "detach", "t", "transpose", "permute"),
    *("expand", "squeeze", "unsqueeze", "select", "slice", "split", "split_with_sizes", "unbind", "lift_fresh"),
    *("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"),
}


class Asked(TorchDispatchMode):
    """Counts operators while it is entered.

    Attributes:
        questions: operators that would make the host wait for a GPU, by name.
        started: all others that compute something, by name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.questions: Counter[str] = Counter()
        self.started: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        name = function._schema.name
        if name in _ASKING or _by_mask(name, arguments) or _repeats_by_data(name, named or {}):
            self.questions[name] += 1
        elif name.removeprefix("aten::") not in _LOOKING:
            self.started[name] += 1
        return function(*arguments, **(named or {}))


def _by_mask(name: str, arguments: tuple[Any, ...]) -> bool:
    """Indexing by a mask, whose number of rows only the device knows."""
    return name in _INDEXING and any(index is not None and index.dtype == torch.bool for index in arguments[1])


def _repeats_by_data(name: str, named: Mapping[str, Any]) -> bool:
    return name == "aten::repeat_interleave" and named.get("output_size") is None


def asked(work: Callable[[], Any]) -> Asked:
    """What `work` asks and starts."""
    with Asked() as counts:
        work()
    return counts


def step(images: int, **changes: object) -> tuple[FasterRCNN, Callable[[], None]]:
    """A detector, and its step: forward pass, losses, backward pass."""
    model = tiny_detector(**changes).train()
    batch, targets = bright_squares(images)

    def run() -> None:
        found = model(batch, targets)
        assert isinstance(found, dict)
        sum(found.values()).backward()

    run()
    return model, run


@pytest.mark.parametrize("images", [1, 2, 4])
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_a_training_step_asks_nothing(images: int, norm: str) -> None:
    assert not asked(step(images, norm=norm)[1]).questions


def test_a_batch_of_four_starts_as_many_operators_as_one_image() -> None:
    """Some 430. Image by image they were 483 for one and 1197 for four (and 12 and 39 questions)."""
    counts = [asked(step(images)[1]).started.total() for images in (1, 4)]
    assert counts[0] == counts[1] < 450


def test_images_without_truth_start_the_same_operators() -> None:
    """As every rank does the same, no rank waits for one whose images hold more."""
    model = tiny_detector().train()
    images, targets = bright_squares(2)
    empty = Targets(targets.boxes, torch.zeros_like(targets.labels), targets.seeds)
    counts = []
    for truth in (targets, targets, empty):
        model.zero_grad()
        counts.append(asked(lambda truth=truth: sum(model(images, truth).values()).backward()).started)
    # Not the first, which makes the anchors.
    assert counts[1] == counts[2]


def test_the_readable_twin_asks_for_every_image() -> None:
    """What is counted is there: the twin would wait 12 times and 9 times more for each further image."""
    model = tiny_detector().train()
    images, targets = bright_squares(2)
    *levels, logits, codes = model.dense(images)
    counts = asked(lambda: twin.losses(model, levels, logits, codes, (48, 64), targets, targets.keys(600)))
    assert counts.questions["aten::nonzero"] >= 10
    assert counts.questions["hpcai500::nms"] == 2


@pytest.mark.parametrize(
    "question",
    [
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).any()),
        torch.unique,
        lambda x: x.masked_select(x > 0),
        lambda x: x.repeat_interleave(torch.tensor([1, 2, 3])),
        lambda x: x + torch.tensor(3.0),
        lambda x: torch.equal(x, x),
        lambda x: x.clone().index_put_((x > 0,), torch.ones(())),
    ],
)
def test_a_question_is_counted(question: Callable[[Tensor], object]) -> None:
    values = torch.tensor([-1.0, 2.0, 3.0])
    assert asked(lambda: question(values)).questions


def test_an_evaluation_copies_to_the_host_once_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """All questions come behind the copy, of what is on the host already; so do those of the workload."""
    model = tiny_detector(detection_score=0.0).eval()
    images, _ = bright_squares(3)
    copies: list[torch.Size] = []
    of_tensors = Tensor.cpu

    def copied(tensor: Tensor) -> Tensor:
        copies.append(tensor.shape)
        return of_tensors(tensor)

    monkeypatch.setattr(Tensor, "cpu", copied)
    found: list[list[Detections]] = []

    def detect() -> None:
        with torch.no_grad():
            found.append(model(images))

    before = asked(lambda: model.dense(images))
    whole = asked(detect)
    assert copies == [(3, 80, 7)]
    assert not before.questions
    # One mask an image, on the host.
    assert whole.questions == {"aten::index": 3}
    arrays = [as_arrays(detections) for detections in found[0]]
    assert len(copies) == 1
    assert all(len(boxes) == len(scores) == len(labels) > 0 for boxes, scores, labels in arrays)


def test_the_dense_part_is_the_models_and_no_second_copy() -> None:
    model = tiny_detector()
    assert not [key for key in model.state_dict() if "dense" in key]
    assert {id(p) for p in model.dense.parameters()} < {id(p) for p in model.parameters()}
    assert model.get_submodule("dense") is model.dense
    for mode in (False, True):
        assert model.train(mode).dense.training is mode
    images, targets = bright_squares(2)
    calls: list[tuple[int, ...]] = []
    original = model.dense.forward

    def noted(given: Tensor) -> tuple[Tensor, ...]:
        calls.append(tuple(given.shape))
        return original(given)

    model.dense.forward = noted  # type: ignore[method-assign]
    model(images, targets)
    assert calls == [(2, 2, 48, 64)]


def test_it_compiles_as_one_graph_for_any_truth_and_seeds() -> None:
    """Neither what images hold nor which seeds they have is looked at by the compiler; with its own eager backend."""
    model = tiny_detector().train()
    images, targets = bright_squares(2)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed in (0, 5):
            other = Targets(targets.boxes, targets.labels * (seed == 0), targets.seeds + seed)
            expected, found = model(images, other), compiled(images, other)
            for name, loss in expected.items():
                torch.testing.assert_close(found[name], loss)
            sum(found.values()).backward()
    torch._dynamo.reset()


# --- the parts that a CUDA graph can hold are the whole of the dense work, and change nothing


def loss_of(model: FasterRCNN, seed: int) -> Tensor:
    found = model(*bright_squares(2, seed=seed))
    assert isinstance(found, dict)
    return cast(Tensor, sum(found.values()))


def captured(ranks: int, seed: int, **changes: Any) -> FasterRCNN:
    """A detector whose static parts were captured, with the state that it had before."""
    model = tiny_detector(**changes).train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    graphs = StepGraphs(model, static_parts(model, ranks), graphing=graph_twin)
    graphs.capture(lambda: loss_of(model, seed), Precision("fp32", CPU))
    for name, buffer in model.named_buffers():
        buffer.copy_(before[name])
    return model


@pytest.mark.parametrize("norm", ["group", "batch", "frozen-batch"])
@pytest.mark.parametrize("ranks", [1, 2], ids=["dense", "stages"])
def test_a_captured_detector_has_the_gradients_of_the_detector(ranks: int, norm: str) -> None:
    plain, model = tiny_detector(norm=norm).train(), captured(ranks, 7, norm=norm)
    losses = []
    for one in (plain, model):
        with Precision("fp32", CPU).forward():
            losses.append(loss_of(one, 1))
        losses[-1].backward()
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-5)
    expected = dict(plain.named_parameters())
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, expected[name].grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_evaluation_of_a_captured_detector_takes_images_of_any_number(ranks: int) -> None:
    model, plain = captured(ranks, 0).eval(), tiny_detector().eval()
    with torch.inference_mode():
        found, expected = cast(Any, model(bright_squares(3)[0])), cast(Any, plain(bright_squares(3)[0]))
    assert [torch.equal(one.boxes, other.boxes) for one, other in zip(found, expected, strict=True)] == [True] * 3


def test_parts_hold_all_convolutions_of_a_step_and_none_twice() -> None:
    model = tiny_detector()
    for ranks in (1, 2):
        held = [p for name in static_parts(model, ranks) for p in model.get_submodule(name).parameters()]
        assert len(held) == len({id(parameter) for parameter in held})
        outside = {name for name, weight in model.named_parameters() if all(weight is not one for one in held)}
        first = {name for name in outside if not name.startswith("roi_heads.")}
        assert first == (set() if ranks == 1 else {name for name in first if name.startswith("backbone.body.")})
        assert all("layer" not in name for name in first)


# --- torchvision's keys, the paper's size, and a small twin that learns.


GIGA = 1e9


def on_meta(**changes: object) -> FasterRCNN:
    """The reference's detector, without memory."""
    options = load_recipe("ewa/reference").workload
    assert isinstance(options, ExtremeWeather)
    with torch.device("meta"):
        return build_model(options.model_copy(update=changes))


def losses(model: FasterRCNN, images: Tensor, targets: Targets) -> dict[str, Tensor]:
    found = model.train()(images, targets)
    assert isinstance(found, dict)
    return found


def detections(model: FasterRCNN, images: Tensor) -> list[Detections]:
    with torch.inference_mode():
        found = model.eval()(images)
    assert isinstance(found, list)
    return found


def test_state_dict_keys_are_torchvisions() -> None:
    state = on_meta(norm="batch").state_dict()
    expected = {
        "backbone.body.conv1.weight": (64, 16, 7, 7),
        "backbone.body.bn1.running_var": (64,),
        "backbone.body.layer4.2.conv3.weight": (2048, 512, 1, 1),
        "backbone.body.layer1.0.downsample.1.bias": (256,),
        "backbone.fpn.inner_blocks.0.0.weight": (256, 256, 1, 1),
        "backbone.fpn.inner_blocks.3.0.bias": (256,),
        "backbone.fpn.layer_blocks.2.0.weight": (256, 256, 3, 3),
        "rpn.head.conv.0.0.weight": (256, 256, 3, 3),
        "rpn.head.cls_logits.weight": (3, 256, 1, 1),
        "rpn.head.bbox_pred.bias": (12,),
        "roi_heads.box_head.fc6.weight": (1024, 12544),
        "roi_heads.box_head.fc7.bias": (1024,),
        "roi_heads.box_predictor.cls_score.weight": (5, 1024),
        "roi_heads.box_predictor.bbox_pred.weight": (20, 1024),
    }
    assert {key: tuple(state[key].shape) for key in expected} == expected
    # 53 norms of 5 entries, 53 convolutions, 8 x 2 of the pyramid, 3 x 2 and 4 x 2 of the heads.
    assert len(state) == 53 * 5 + 53 + 16 + 6 + 8
    assert not [key for key in state if "cell_" in key], "anchors follow from the recipe"


def test_frozen_norms_are_no_parameters_and_have_the_keys_of_batch_norm() -> None:
    frozen, batch = on_meta(norm="frozen-batch"), on_meta(norm="batch")
    assert set(batch.state_dict()) - set(frozen.state_dict()) == {
        key for key in batch.state_dict() if key.endswith("num_batches_tracked")
    }
    assert sum(p.numel() for p in batch.parameters()) - sum(p.numel() for p in frozen.parameters()) == 53_120


def test_the_reference_has_the_papers_parameters_and_operations_part_by_part() -> None:
    """At 768 x 1152 with 512 regions, in GFLOP; 3 x forward less the stem's input gradient is the training count.

    V2.0 Table 5 says 41 million parameters; this is torchvision's R50-FPN with 16 channels, 5 classes, trainable norms.
    """
    model, example = model_of(load_recipe("ewa/reference"))
    count = count_flops(model, *example)
    assert count.parameters == 41_408_424
    forward = {part.name: round(part.forward_flops / GIGA, 1) for part in count.parts}
    assert forward == {
        "backbone.body.conv1": 22.2,
        "backbone.body.layer1": 23.6,
        "backbone.body.layer2": 36.2,
        "backbone.body.layer3": 51.6,
        "backbone.body.layer4": 28.5,
        "backbone.fpn": 100.2,
        "rpn.head": 87.5,
        "roi_heads.box_head": 14.2,
        "roi_heads.box_predictor": 0.0,
    }
    stem = 2 * 7 * 7 * 16 * 64 * 384 * 576
    assert count.training_flops == 3 * count.forward_flops - stem
    for part in count.parts:
        times = 2 if part.name == "backbone.body.conv1" else 3
        assert part.training_flops == times * part.forward_flops, part.name


@pytest.mark.parametrize("norm", ["group", "batch", "sync-batch", "frozen-batch"])
def test_every_norm_trains(norm: str) -> None:
    model = tiny_detector(norm=norm)
    images, targets = bright_squares(2)
    sum(losses(model, images, targets).values()).backward()
    missing = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not missing
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_it_learns_to_find_squares() -> None:
    model = tiny_detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, targets = bright_squares(32)
    for _ in range(30):
        for start in range(0, 32, 4):
            part = slice(start, start + 4)
            batch = Targets(targets.boxes[part], targets.labels[part], targets.seeds[part])
            optimizer.zero_grad()
            sum(losses(model, images[part], batch).values()).backward()
            optimizer.step()
    images, targets = bright_squares(8, seed=1)
    found = detections(model, images)
    overlaps = [iou(d.boxes[:1], t).item() for d, t in zip(found, targets.boxes, strict=True)]
    assert min(overlaps) > 0.5
    assert all((d.labels == 1).all() for d in found)


def test_random_choices_follow_the_seed_of_the_image() -> None:
    model = tiny_detector(proposal_samples=8)
    images, targets = bright_squares(2)
    other = Targets(targets.boxes, targets.labels, torch.tensor([7, 8]))
    values = []
    for chosen in (targets, targets, other):
        torch.rand(1)  # what the rest of the program draws does not matter
        values.append(losses(model, images, chosen)["objectness"].item())
    assert values[0] == values[1] != values[2]


def test_an_image_without_truth_is_all_background() -> None:
    model = tiny_detector()
    images, _ = bright_squares(2)
    empty = Targets(torch.zeros(2, 1, 4), torch.zeros(2, 1, dtype=torch.int64), torch.arange(2))
    found = losses(model, images, empty)
    assert found["boxes"].item() == found["proposal_boxes"].item() == 0
    sum(found.values()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_an_image_without_proposals_has_no_detections() -> None:
    model = tiny_detector()
    with torch.no_grad():
        for parameter in model.rpn.parameters():
            parameter.fill_(torch.nan)
    assert [len(found.scores) for found in detections(model, torch.randn(2, 2, 48, 64))] == [0, 0]


def test_images_of_a_batch_do_not_influence_each_other() -> None:
    model, (images, _) = tiny_detector(), bright_squares(3)
    together, alone = detections(model, images)[1], detections(model, images[1:2])[0]
    torch.testing.assert_close(together.boxes, alone.boxes, rtol=1e-4, atol=1e-3)


def test_detections_are_inside_the_image_best_first_and_few() -> None:
    model = tiny_detector(detections=5, detection_score=0.0)
    # Odd grids need no resize.
    for height, width, images in ((48, 64, bright_squares(2)[0]), (51, 67, torch.randn(1, 2, 51, 67))):
        for found in detections(model, images):
            assert len(found.scores) == 5
            assert (found.scores.diff() <= 0).all()
            assert (found.boxes >= 0).all()
            assert (found.boxes[:, [0, 2]] <= width).all()
            assert (found.boxes[:, [1, 3]] <= height).all()
            assert ((found.labels >= 1) & (found.labels <= 4)).all()


def test_bf16_autocast_trains() -> None:
    model = tiny_detector()
    images, targets = bright_squares(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = losses(model, images.bfloat16(), targets)
    assert all(value.dtype == torch.float32 and value.isfinite() for value in found.values())
    sum(found.values()).backward()


def test_the_counted_twin_has_the_same_parameters() -> None:
    model = tiny_detector()
    counted = CountedDetector(model)
    assert {id(p) for p in counted.parameters()} == {id(p) for p in model.parameters()}
    count = count_flops(counted, *example_inputs(tiny_options(), 48, 64))
    assert count.parameters == sum(p.numel() for p in model.parameters())
