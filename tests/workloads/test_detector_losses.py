"""What the detector proposes and learns from: equal to the definitions, and to the shares asked for."""

from __future__ import annotations

from dataclasses import replace

import detector_twin as twin
import numpy as np
import pytest
import torch
from torch import Tensor

from hpcai500.workloads.models.detector import (
    Anchors,
    DetectionOptions,
    PlacedAnchors,
    ProposalHead,
    ProposalNetwork,
    ProposalOptions,
    Proposals,
    RegionHeads,
    RegionPooling,
    Targets,
)

SIZE = (48, 64)


def anchors_of_two_levels() -> Anchors:
    """With 96 and 24 anchors."""
    return Anchors([[(8.0, 8.0), (16.0, 16.0)], [(16.0, 32.0), (32.0, 32.0)]], [8, 16])


# --- which boxes the first stage proposes (all of them against a plain loop over images: test_detector_twin)

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
TRUTH = [
    [[8.0, 8, 16, 16], [33, 17, 49, 33]],
    [[10.0, 10, 22, 22], [28, 14, 51, 37], [500, 500, 520, 520]],
    [],
    [[0.0, 16, 32, 32]],
]
LABELS = [[1, 3], [2, 4, 1], [], [4]]


def targets(seed: int = 0) -> Targets:
    boxes, labels = torch.full((len(TRUTH), 3, 4), 7.0), torch.zeros(len(TRUTH), 3, dtype=torch.int64)
    for image, (of_image, classes) in enumerate(zip(TRUTH, LABELS, strict=True)):
        for place, (box, label) in enumerate(zip(of_image, classes, strict=True), start=3 - len(classes)):
            boxes[image, place], labels[image, place] = torch.tensor(box), label
    return Targets(boxes, labels, torch.arange(seed, seed + len(TRUTH)))


def truth() -> list[twin.Floats]:
    return [np.array(boxes, np.float64).reshape(-1, 4) for boxes in TRUTH]


def first_stage(**changes: object) -> tuple[ProposalNetwork, Tensor, Tensor, PlacedAnchors]:
    """A network, and logits, codes and anchors of both levels of a 48 x 64 image."""
    anchors = anchors_of_two_levels()
    network = ProposalNetwork(ProposalHead(4, 2), anchors, replace(PROPOSALS, **changes))  # type: ignore[arg-type]
    placed, generator = anchors(*SIZE), torch.Generator().manual_seed(3)
    logits = torch.randn(len(TRUTH), len(placed.boxes), generator=generator)
    # Errors on both sides of smooth L1's bend.
    codes = 0.2 * torch.randn(len(TRUTH), len(placed.boxes), 4, generator=generator)
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
    levels = [torch.randn(len(TRUTH), 3, 12, 16), torch.randn(len(TRUTH), 3, 6, 8)]
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
        torch.cat([found, torch.tensor(boxes).reshape(-1, 4)]) for found, boxes in zip(proposals, TRUTH, strict=True)
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
