"""The arithmetic of a run: which of torch's switches it sets, and training in 8 bits.

In 8 bits values lie on 256 levels, gradients pass straight through; torch's own quantisation is the peer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.engine.precision import Precision, rounded_samples, rounded_weight
from hpcai500.recipe import load_recipe
from hpcai500.workloads import ic
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


# ----------------------------------------------------------------------------------------------------
# In 8 bits.


def test_weights_are_those_of_torchs_int8_tensors() -> None:
    weight = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(1))
    scales = weight.abs().flatten(1).amax(1) / 127
    peer = torch.quantize_per_channel(weight, scales, torch.zeros(6, dtype=torch.int64), 0, torch.qint8)
    torch.testing.assert_close(rounded_weight(weight), peer.dequantize(), rtol=0, atol=1e-7)
    assert peer.int_repr().dtype == torch.int8
    # The largest of each output is hit exactly.
    assert torch.equal(rounded_weight(weight).abs().flatten(1).amax(1), (scales * 127))


def test_each_sample_has_at_most_256_values_none_far_from_its_own() -> None:
    widths = torch.tensor([1, 5, 0.1])[:, None, None, None]
    images = 0.3 + widths * torch.randn(3, 4, 40, 40, generator=torch.Generator().manual_seed(2))
    rounded = rounded_samples(images)
    for before, after in zip(images, rounded, strict=True):
        assert 200 < len(after.unique()) <= 256
        step = (before.amax() - before.amin()) / 254
        assert (before - after).abs().max() <= step * 0.51
        peer = torch.quantize_per_tensor(
            before, float(step), int(torch.round(-128 - before.amin() / step)), torch.qint8
        )
        torch.testing.assert_close(after, peer.dequantize(), rtol=0, atol=float(step) * 1e-3)
        # Whatever else is in its batch.
        assert torch.equal(rounded_samples(before[None])[0], after)


def test_zero_stays_zero() -> None:
    padded = F.relu(torch.randn(2, 3, 8, 8))
    assert (rounded_samples(padded)[padded == 0] == 0).all()
    assert torch.equal(rounded_samples(torch.zeros(2, 3)), torch.zeros(2, 3))
    assert torch.equal(rounded_weight(torch.zeros(2, 3)), torch.zeros(2, 3))


@pytest.mark.parametrize("function", [rounded_weight, rounded_samples])
def test_gradients_pass_straight_through_for_every_value(function: Callable[[Tensor], Tensor]) -> None:
    for seed in range(20):
        values = torch.randn(3, 50, generator=torch.Generator().manual_seed(seed)) + 0.1 * seed
        values.requires_grad_()
        function(values).sum().backward()
        assert values.grad is not None
        assert torch.equal(values.grad, torch.ones_like(values))


def products_seen(precision: str) -> list[int]:
    """Distinct values that each convolution and linear layer of a small ResNet gets of one image."""
    torch.manual_seed(3)
    seen: list[int] = []
    model = ic.build_model(load_recipe("ic/smoke", ["workload.width=4"]).workload, 3)

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func in (F.conv2d, F.linear):
                seen.append(len(args[0][0].unique()))
            return func(*args, **(kwargs or {}))

    # Inside: what the product gets when the precision has done its work.
    with Watch(), Precision(precision, CPU).forward():
        model(torch.randn(2, 3, 64, 64))
    return seen


def test_every_product_of_the_network_gets_values_of_8_bits() -> None:
    plain, rounded = products_seen("fp32"), products_seen("int8")
    assert len(plain) == len(rounded) > 10
    assert max(plain) > 1000
    assert max(rounded) <= 256


def train(precision_name: str, steps: int = 30) -> list[float]:
    """Losses of a small ResNet on a task that it can learn by heart."""
    torch.manual_seed(4)
    model = ic.build_model(load_recipe("ic/smoke", ["workload.width=8"]).workload, 3)
    images, labels = torch.randn(12, 3, 32, 32), torch.arange(12) % 3
    precision, optimizer = Precision(precision_name, CPU), torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses: list[float] = []
    for _ in range(steps):
        optimizer.zero_grad()
        with precision.forward():
            loss: Tensor = F.cross_entropy(model(images), labels)
        precision.backward(loss)
        precision.step(optimizer)
        losses.append(loss.item())
    return losses


def test_a_network_learns_in_8_bits_about_as_in_32() -> None:
    plain, rounded = train("fp32"), train("int8")
    assert rounded != plain
    assert rounded[0] == pytest.approx(plain[0], rel=0.05)
    assert rounded[-1] < 0.2 * rounded[0]
    assert rounded[-1] < plain[-1] + 0.1


def test_weights_themselves_stay_in_32_bits() -> None:
    layer, precision = nn.Linear(40, 40), Precision("int8", CPU)
    with precision.forward():
        outputs = layer(torch.randn(2, 40))
    assert len(layer.weight.detach()[0].unique()) == 40
    assert outputs.dtype == layer.weight.dtype == torch.float32
