"""Which boxes the first stage proposes: equal to a plain loop over levels, in training and in use."""

from __future__ import annotations

import math
from dataclasses import replace

import detection_reference
import pytest
import torch
from torch import Tensor

from hpcai500.workloads.models.detector import Anchors, PlacedAnchors, ProposalHead, ProposalNetwork, ProposalOptions

SIZE = (48, 64)
OPTIONS = ProposalOptions((40, 25), (24, 12), 0.4, 0.7, 0.3, samples=8, positive_fraction=0.5)


def network(training: bool, **changes: object) -> tuple[ProposalNetwork, list[Tensor]]:
    """A network of two levels with 96 and 24 anchors, and these."""
    anchors = Anchors([[(8.0, 8.0), (16.0, 16.0)], [(16.0, 32.0), (32.0, 32.0)]], [8, 16])
    placed = anchors(*SIZE)
    boxes = list(placed.boxes.split(placed.counts))
    return ProposalNetwork(ProposalHead(4, 2), anchors, replace(OPTIONS, **changes)).train(training), boxes


def found_by(
    rpn: ProposalNetwork, logits: list[Tensor], codes: list[Tensor], anchors: list[Tensor]
) -> list[list[list[float]]]:
    """The proposals of each image, from what is given of each level; what is no proposal comes last and is empty."""
    placed = PlacedAnchors(torch.cat(anchors), tuple(len(of_level) for of_level in anchors))
    found = rpn.propose(torch.cat(logits, dim=1), torch.cat(codes, dim=1), placed, SIZE)
    assert not found.boxes.requires_grad
    after = rpn.options.after_nms[0 if rpn.training else 1]
    before = rpn.options.before_nms[0 if rpn.training else 1]
    assert found.present.shape[1] == min(after, sum(min(before, len(of_level)) for of_level in anchors))
    assert not found.boxes[~found.present].any()
    assert (found.present.int().diff(dim=1) <= 0).all()
    return [boxes[present].tolist() for boxes, present in zip(found.boxes, found.present, strict=True)]


def judged(anchors: list[Tensor], images: int) -> tuple[list[Tensor], list[Tensor]]:
    """Logits that all differ, and codes; every ninth box is as good as without width, every seventh outside."""
    generator = torch.Generator().manual_seed(7)
    logits, codes = [], []
    for of_level in anchors:
        order = [torch.randperm(len(of_level), generator=generator) for _ in range(images)]
        logits.append(torch.stack(order) / 10 + 0.01 * len(logits))
        of_images = 0.3 * torch.randn(images, len(of_level), 4, generator=generator)
        of_images[:, ::9, 2] = -14
        of_images[:, ::7, 1] = 40
        codes.append(of_images)
    return logits, codes


def decoded(code: list[float], anchor: list[float]) -> list[float]:
    """The box that a code means (Girshick et al. 2014, appendix C), cut off at the border of the image."""
    box = [0.0] * 4
    for axis, border in ((0, SIZE[1]), (1, SIZE[0])):
        size = anchor[axis + 2] - anchor[axis]
        centre, side = anchor[axis] + size / 2 + code[axis] * size, size * math.exp(code[axis + 2])
        box[axis], box[axis + 2] = (min(max(centre + half, 0), border) for half in (-side / 2, side / 2))
    return box


def twin(
    logits: list[Tensor], codes: list[Tensor], anchors: list[Tensor], before: int, after: int
) -> list[list[float]]:
    """Proposals of one image: the best of each level, decoded, clipped, with an inside, thinned out level by level."""
    found: list[tuple[float, list[float]]] = []
    for scores, of_level, references in zip(logits, codes, anchors, strict=True):
        ranked = sorted(zip(scores.tolist(), of_level.tolist(), references.tolist(), strict=True), reverse=True)
        boxes = [(score, decoded(code, anchor)) for score, code, anchor in ranked[:before]]
        usable = [(s, b) for s, b in boxes if b[2] - b[0] >= 1e-3 and b[3] - b[1] >= 1e-3]
        kept = detection_reference.nms(
            torch.tensor([b for _, b in usable]), torch.tensor([s for s, _ in usable]), OPTIONS.nms_iou
        )
        found += [usable[k] for k in kept.tolist()]
    return [box for _, box in sorted(found, reverse=True)[:after]]


@pytest.mark.parametrize("mode", [0, 1], ids=["training", "use"])
@pytest.mark.parametrize(("before", "after"), [((12, 7), (200, 150)), ((90, 60), (24, 12))], ids=["before", "after"])
def test_the_proposals_are_those_of_the_definition(mode: int, before: tuple[int, int], after: tuple[int, int]) -> None:
    """Where the limit of each level decides, and where that of all."""
    rpn, anchors = network(training=mode == 0, before_nms=before, after_nms=after)
    logits, codes = judged(anchors, images=3)
    leaves = [values.clone().requires_grad_() for values in codes]
    for image, boxes in enumerate(found_by(rpn, logits, leaves, anchors)):
        of_image = [values[image] for values in logits], [values[image] for values in codes]
        expected = twin(*of_image, anchors, before[mode], after[mode])
        assert len(expected) == after[mode] or len(expected) < 2 * before[mode]
        torch.testing.assert_close(torch.tensor(boxes), torch.tensor(expected), rtol=1e-5, atol=1e-4)


def propose(codes: list[Tensor], logits: list[Tensor], anchors: list[Tensor]) -> list[list[float]]:
    """Proposals of one image from what is given of each level."""
    rpn = network(training=False)[0]
    return found_by(rpn, [x[None] for x in logits], [x[None] for x in codes], anchors)[0]


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
