"""The parts of our models that a CUDA graph can hold are the whole of their dense work, and change nothing."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from graph_twin import graph_twin
from tiny_detector import bright_squares, tiny_detector
from torch import Tensor

from hpcai500.engine.graphs import StepGraphs
from hpcai500.engine.precision import Precision
from hpcai500.workloads.models.detector import FasterRCNN
from hpcai500.workloads.models.parts import static_parts

CPU = torch.device("cpu")


def gradients(model: FasterRCNN, precision: Precision) -> tuple[float, dict[str, Tensor]]:
    images, targets = bright_squares(2, seed=1)
    with precision.forward():
        loss = cast(Tensor, sum(cast(dict[str, Tensor], model(images, targets)).values()))
    loss.backward()
    return loss.item(), {name: cast(Tensor, weight.grad) for name, weight in model.named_parameters()}


@pytest.mark.parametrize("norm", ["group", "batch", "frozen-batch"])
@pytest.mark.parametrize("ranks", [1, 2], ids=["dense", "stages"])
def test_a_captured_detector_has_the_gradients_of_the_detector(ranks: int, norm: str) -> None:
    plain, model = tiny_detector(norm=norm).train(), tiny_detector(norm=norm).train()
    precision = Precision("fp32", CPU)
    images, targets = bright_squares(2, seed=7)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    StepGraphs(model, static_parts(model, ranks), graphing=graph_twin).capture(
        lambda: cast(Tensor, sum(cast(dict[str, Tensor], model(images, targets)).values())), precision
    )
    for name, buffer in model.named_buffers():
        buffer.copy_(before[name])
    expected, loss = gradients(plain, precision)[::-1]
    found, same = gradients(model, precision)[::-1]
    assert same == pytest.approx(loss, rel=1e-5)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_evaluation_of_a_captured_detector_takes_images_of_any_number(ranks: int) -> None:
    model = tiny_detector().train()
    images, targets = bright_squares(2)
    StepGraphs(model, static_parts(model, ranks), graphing=graph_twin).capture(
        lambda: cast(Tensor, sum(cast(dict[str, Tensor], model(images, targets)).values())), Precision("fp32", CPU)
    )
    model.eval()
    twin: Any = tiny_detector().eval()
    with torch.inference_mode():
        found, expected = cast(Any, model(bright_squares(3)[0])), twin(bright_squares(3)[0])
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
