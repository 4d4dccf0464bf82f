"""The parts of the detector: boxes and their codes, anchors, matches and samples, and the pooling of regions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.recipe import load_recipe
from hpcai500.workloads.ewa import build_model
from hpcai500.workloads.models.detector import (
    BACKGROUND,
    DETECTION_WEIGHTS,
    IGNORED,
    PROPOSAL_WEIGHTS,
    Anchors,
    Backbone,
    FeaturePyramid,
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
