"""That rivals on a GPU do the work that ours does: the same batch, boxes as exact, code and memory as free."""

from __future__ import annotations

import sys
import weakref
from importlib import import_module
from types import ModuleType
from typing import Any

import ewa_step
import ic_step
import pytest
import tables
import torch
from contest import hold
from eager import arithmetic
from held import HeldSteps, Shape, held_workload
from options import Options
from regions import of_torchvision
from torch import Tensor, nn

from hpcai500.recipe import load_recipe

CPU = torch.device("cpu")
QUICK = Options(CPU, 1, True)


@pytest.mark.parametrize(
    ("module", "shape"),
    [(ic_step, Shape(classes=5)), (ewa_step, Shape(grid=(64, 96)))],
    ids=["ic", "ewa"],
)
def test_a_rival_gets_the_batch_and_weights_that_ours_has_in_the_type_of_the_precision(
    module: Any, shape: Shape
) -> None:
    recipe = module._recipe("bf16", 2, QUICK, ())
    ours = HeldSteps(recipe, CPU, shape)
    rivals = held_workload(recipe, CPU, shape)
    images, truth = rivals.payload
    weights = rivals.model.state_dict()
    assert all(value.equal(weights[name]) for name, value in ours.model.state_dict().items())
    ours.close()
    assert images.dtype == torch.bfloat16
    assert images.equal(ours.payload[0])
    assert images.is_contiguous(memory_format=torch.channels_last)
    if isinstance(truth, Tensor):
        assert truth.equal(ours.payload[1])
    else:
        assert truth.boxes.equal(ours.payload[1].boxes)


class Contestant:
    """Fails when it is called, and holds memory until then."""

    def __call__(self, calls: int) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_what_a_contestant_had_made_is_gone_before_the_next_one_is_made() -> None:
    made: list[weakref.ref[Contestant]] = []
    alive: list[bool] = []

    def failing() -> Contestant:
        one = Contestant()
        made.append(weakref.ref(one))
        return one

    def after() -> Any:
        alive.append(made[0]() is not None)
        return lambda calls: 1.0

    seconds, failed = hold({"large": failing, "next": after}, QUICK)
    assert (list(seconds), list(failed), alive) == (["next"], ["large"], [False])


@pytest.mark.parametrize("module", [ic_step, ewa_step], ids=["ic", "ewa"])
def test_compiled_code_is_thrown_away_before_a_case_and_not_between_its_contestants(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: happened.append("reset"))

    def steps(*arguments: Any) -> HeldSteps:
        happened.append("contestant")
        return HeldSteps(*arguments)

    monkeypatch.setattr(module, "HeldSteps", steps)
    module.measure(QUICK, ("bf16",))
    assert happened[0] == "reset"
    assert happened.count("reset") == 1
    assert happened.count("contestant") > 1


def test_each_row_of_a_detector_says_how_many_proposals_and_regions_it_has(measured: Any) -> None:
    rows = measured("ewa_step")["tables"]["Extreme Weather Analytics, one step"]
    options = load_recipe("ewa/reference", ewa_step._SMALL).workload
    assert {row["contestant"] for row in rows} >= {"ours, as the reference recipe", "ours, fused optimizer"}
    for row in rows:
        assert 0 < row["proposals"] <= options.proposals_after_nms[0]
        # Of the proposals, and of the truth.
        assert 0 < row["sampled_regions"] <= row["proposals"] + 5


def test_each_row_of_waiting_says_loader_conversion_speed_and_share(measured: Any) -> None:
    result = measured("data_wait")
    rows = {(row["loader"], row["conversion"]): row for row in next(iter(result["tables"].values()))}
    assert list(rows) == [("memory", None), ("native", "host"), ("native", "device"), ("dali", None)]
    host = rows["native", "host"]
    assert host["images_per_second"] > 0
    assert 0 <= host["data_wait_share"] <= 1
    assert "CUDA devices" in rows["native", "device"]["reason"]
    cases = {row["case"] for row in tables.ratios(result)}
    assert {"data wait, native, converted by the host", "data wait, dali"} <= cases


class Head(nn.Module):
    """In the place of torchvision's RPNHead, which is not here: what it gives, of one convolution."""

    def __init__(self, in_channels: int, num_anchors: int) -> None:
        super().__init__()
        self.logits, self.codes = (nn.Conv2d(in_channels, n * num_anchors, 1) for n in (1, 4))

    def forward(self, x: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        return [self.logits(level) for level in x], [self.codes(level) for level in x]


class Anything:
    """In the place of what else ewa_rival imports of torchvision."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.named = named


STAND_INS = {
    "torchvision": {},
    "torchvision.models": {"resnet50": Anything},
    "torchvision.models.detection": {"FasterRCNN": Anything},
    "torchvision.models.detection.anchor_utils": {"AnchorGenerator": Anything},
    "torchvision.models.detection.backbone_utils": {"BackboneWithFPN": Anything},
    "torchvision.models.detection.image_list": {"ImageList": Anything},
    "torchvision.models.detection.rpn": {"RPNHead": Head},
    "torchvision.ops": {},
    "torchvision.ops.feature_pyramid_network": {"LastLevelMaxPool": Anything},
}


@pytest.fixture
def ewa_rival(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, on top of stand-ins for torchvision."""
    for name, content in STAND_INS.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    rival = import_module("ewa_rival")
    # Whoever imports it later shall see what is really there.
    del sys.modules["ewa_rival"]
    return rival


def test_under_autocast_the_rival_decodes_boxes_from_codes_in_fp32(ewa_rival: Any) -> None:
    options = load_recipe("ewa/reference", ()).workload
    head = ewa_rival.detector(options, (64, 96)).named["rpn_head"]
    levels = [torch.randn(1, options.pyramid_channels, 4, 6), torch.randn(1, options.pyramid_channels, 2, 3)]
    with arithmetic("bf16", CPU):
        plain = Head.forward(head, levels)
        given = head(levels)
    assert {one.dtype for some in plain for one in some} == {torch.bfloat16}
    assert {one.dtype for some in given for one in some} == {torch.float32}
    for mine, its in zip((*given[0], *given[1]), (*plain[0], *plain[1]), strict=True):
        assert mine.equal(its.float())
    sum(one.sum() for one in given[1]).backward()
    assert head.codes.weight.grad.abs().sum() > 0
    assert given[0][0].shape[1] == len(options.anchors[0])


class Pooling(nn.Module):
    """In the place of torchvision's MultiScaleRoIAlign."""

    def forward(self, features: Any, boxes: list[Tensor], image_shapes: Any) -> None:
        """Nothing."""


class RegionHeads(nn.Module):
    """In the place of torchvision's RoIHeads: it samples all but the first of each image."""

    def __init__(self) -> None:
        super().__init__()
        self.box_roi_pool = Pooling()

    def forward(self, features: Any, proposals: list[Tensor], image_shapes: Any, targets: Any) -> None:
        """As there."""
        self.box_roi_pool(features, [boxes[1:] for boxes in proposals], image_shapes)


def test_a_rivals_proposals_and_regions_are_those_of_the_whole_batch_and_no_hook_stays() -> None:
    model = nn.Module()
    model.roi_heads = RegionHeads()
    proposals = [torch.zeros(7, 4), torch.zeros(5, 4)]
    assert of_torchvision(model, lambda: model.roi_heads({}, proposals, [], [])) == {
        "proposals": 12,
        "sampled_regions": 10,
    }
    assert not model.roi_heads._forward_pre_hooks
    assert not model.roi_heads.box_roi_pool._forward_pre_hooks
