"""The detector: torchvision's keys, the paper's size, and a small twin that learns."""

from __future__ import annotations

import pytest
import torch
from tiny_detector import bright_squares, tiny_detector, tiny_options
from torch import Tensor

from hpcai500.layers import ExtremeWeather
from hpcai500.measure.flops import count_flops
from hpcai500.recipe import load_recipe
from hpcai500.workloads import model_of
from hpcai500.workloads.ewa import build_model, example_inputs
from hpcai500.workloads.models.detector import CountedDetector, Detections, FasterRCNN, Targets, iou

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


def test_the_reference_has_the_papers_parameters() -> None:
    """V2.0 Table 5 says 41 million; this is torchvision's R50-FPN with 16 channels, 5 classes, trainable norms."""
    assert sum(parameter.numel() for parameter in on_meta().parameters()) == 41_408_424


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


def test_operations_part_by_part() -> None:
    """At 768 x 1152 with 512 regions, in GFLOP; 3 x forward less the stem's input gradient is the training count."""
    model, example = model_of(load_recipe("ewa/reference"))
    count = count_flops(model, *example)
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
