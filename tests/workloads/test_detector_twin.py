"""The batched detector of fixed shapes gives what its readable twin gives, image by image: losses, gradients, boxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import detector_twin as twin
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_detector import bright_squares, tiny_detector
from torch import Tensor

from hpcai500.workloads.models.detector import FasterRCNN, Targets

SIZE = (48, 64)


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


Losses = Callable[..., dict[str, Tensor]]


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
        proposals_before_nms=(proposals[0],) * 2,
        proposals_after_nms=(proposals[1],) * 2,
        proposal_nms_iou=iou,
    )
    levels, logits, codes, targets = scene(truths, seed, codes_scale)
    require_same(model, [*levels, logits, codes], targets)


def test_where_every_proposal_is_too_thin_the_truth_is_learnt_from_alone() -> None:
    levels, logits, codes, targets = scene([2, 1], 5, 0.2)
    codes[..., 2:] = -30
    model = detector()
    placed = model.rpn.anchors(*SIZE)
    assert not model.rpn.propose(logits, codes, placed, SIZE).present.any()
    require_same(model, [*levels, logits, codes], targets)


def test_where_nothing_can_be_sampled_nothing_is_learnt() -> None:
    """An image without truth and without proposals: there, the mean of nothing would be no number."""
    levels, logits, codes, targets = scene([0], 6, 0.2)
    codes[..., 2:] = -30
    model = detector()
    found = learnt(model.losses, model, [*levels, logits, codes], targets)
    assert found["classification"].item() == found["boxes"].item() == 0
    assert found["objectness"].item() > 0
    assert all(gradient.isfinite().all() for gradient in found.values())


def test_whole_steps_of_real_images_are_the_twins() -> None:
    model = detector()
    images, targets = bright_squares(3)
    *levels, logits, codes = model.dense(images)
    given_ = [tensor.detach() for tensor in (*levels, logits, codes)]
    require_same(model, given_, targets)
    assert model(images, targets).keys() == twin.losses(model, *_split(given_), SIZE, targets, targets.keys(600)).keys()


def _split(given_: list[Tensor]) -> tuple[list[Tensor], Tensor, Tensor]:
    return given_[:-2], given_[-2], given_[-1]


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
    model = detector(
        detection_score=score,
        detections=most,
        proposals_before_nms=(proposals[0],) * 2,
        proposals_after_nms=(proposals[1],) * 2,
    ).eval()
    levels, logits, codes, _ = scene([0] * images, seed, codes_scale)
    with torch.inference_mode():
        ours = model.conclude(levels, logits, codes, SIZE, None)
        theirs = twin.detect(model, levels, logits, codes, SIZE)
    assert isinstance(ours, list)
    for found, expected in zip(ours, theirs, strict=True):
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
    levels, logits, codes, _ = scene([0] * images, 8, 0.3)
    with torch.inference_mode():
        ours = model.conclude(levels, logits, codes, SIZE, None)
        theirs = twin.detect(model, levels, logits, codes, SIZE)
    assert isinstance(ours, list)
    for found, expected in zip(ours, theirs, strict=True):
        assert found.labels.tolist() == expected.labels.tolist()
        assert torch.equal(found.boxes, expected.boxes)
