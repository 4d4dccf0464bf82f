"""The arithmetic of a run: which of torch's switches it sets, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpcai500.engine.precision import Precision
from hpcai500.workloads.models.resnet import BasicBlock, ResNet

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
    """Torch's, for the whole process: as they were before."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = before[1:]


@pytest.mark.parametrize("name", ["fp32", "tf32", "bf16", "fp16", "int8"])
def test_products_of_fp32_are_rounded_to_tf32_only_where_the_recipe_says_so(name: str) -> None:
    Precision("fp32" if name == "tf32" else "tf32", CPU)
    Precision(name, CPU)
    expected = name == "tf32"
    assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == expected
    # The same by torch's newer switches, which its compiler reads: torch refuses to say where both disagree.
    cudnn: Any = torch.backends.cudnn
    newer = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    assert [switch.fp32_precision == "tf32" for switch in newer] == [expected] * 3


def test_channels_stay_last_through_mixed_precision() -> None:
    torch.manual_seed(0)
    model = ResNet(BasicBlock, (1, 1), width=8, classes=3).train()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    seen: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d | nn.ReLU):
            module.register_forward_hook(lambda module, inputs, output: seen.append(output))
    precision = Precision("bf16", CPU)
    images = torch.randn(2, 3, 32, 32, dtype=precision.input_dtype).to(memory_format=torch.channels_last)
    with precision.forward():
        model(images).float().sum().backward()
    assert len(seen) > 10
    assert all(output.is_contiguous(memory_format=torch.channels_last) for output in seen)
    assert {output.dtype for output in seen} == {torch.bfloat16}
    weights = [module.weight for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert all(weight.grad is not None and weight.grad.stride() == weight.stride() for weight in weights)


def test_a_weight_that_changed_between_two_passes_is_rounded_anew() -> None:
    """Autocast remembers rounded weights within a pass; the next update must not see them."""
    layer, precision = nn.Linear(1, 1, bias=False), Precision("bf16", CPU)
    outputs = []
    for value in (1.0, 2.0):
        with torch.no_grad():
            layer.weight.fill_(value)
        with precision.forward():
            outputs.append(layer(torch.ones(1, 1)).item())
    assert outputs == [1.0, 2.0]
