"""Products by every call that is here, right in every precision; what is wrong is found, however small."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.measure import products as reference
from hpcai500.measure.flops import count_flops
from hpcai500.measure.micro import PRECISIONS, Call, Problem, arithmetic, lacking, operand
from hpcai500.measure.products import Convolution, Gemm, Product, as_gemm, heaviest, product_error, products_of_step

CPU = torch.device("cpu")
GEMMS = [Gemm(64, 48, 200), Gemm(7, 300, 33), Gemm(513, 1, 2048), Gemm(129, 257, 1)]
PRODUCTS: list[Product] = ["forward", "input gradient", "weight gradient"]
LAYERS = [
    ((2, 16, 13, 11), (24, 16, 3, 3), (2, 2), (1, 1)),
    ((2, 3, 32, 30), (8, 3, 7, 7), (2, 2), (3, 3)),
    ((3, 8, 10, 9), (12, 8, 1, 1), (2, 2), (0, 0)),
    ((2, 8, 9, 9), (4, 8, 3, 3), (1, 1), (1, 1)),
]
CONVOLUTIONS = [Convolution(product, *layer) for layer in LAYERS for product in PRODUCTS]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("problem", [*GEMMS, *CONVOLUTIONS], ids=lambda problem: problem.name)
def test_every_call_is_right(problem: Problem, precision: str) -> None:
    torch.manual_seed(1)
    with arithmetic(PRECISIONS[precision]):
        prepared = problem.prepare(PRECISIONS[precision], CPU)
        products = {name: _unless_refused(call) for name, call in prepared.calls.items()}
        made = {name: product for name, product in products.items() if product is not None}
        assert len(made) >= 2
        for name, product in made.items():
            assert prepared.check(product) is None, name


def _unless_refused(call: Call) -> Tensor | None:
    """What a call makes; None where oneDNN says that this processor has no instructions to pack the precision."""
    try:
        return call()
    except RuntimeError as error:
        if "needs the cpu support" not in str(error):
            raise
        return None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", list(PRECISIONS))
@pytest.mark.parametrize("problem", [*GEMMS, *CONVOLUTIONS], ids=lambda problem: problem.name)
def test_every_call_of_a_device_is_right(problem: Problem, precision: str) -> None:
    device = torch.device("cuda")
    if reason := lacking(PRECISIONS[precision], device):
        pytest.skip(f"no CUDA device with it: {reason}")
    with arithmetic(PRECISIONS[precision]):
        prepared = problem.prepare(PRECISIONS[precision], device)
        for name, call in prepared.calls.items():
            assert prepared.check(call()) is None, name


def test_a_product_that_kills_the_process_on_some_processors_is_not_made_that_way() -> None:
    torch.manual_seed(1)
    with arithmetic(PRECISIONS["bf16"]):
        prepared = Gemm(24, 147, 65536).prepare(PRECISIONS["bf16"], CPU)
        for name, call in prepared.calls.items():
            try:
                product = call()
            except RuntimeError as error:
                # A processor without the instructions of bf16 refuses to pack.
                if "needs the cpu support" not in str(error):
                    raise
            else:
                assert prepared.check(product) is None, name


def _cut_off(tensor: Tensor, bits: int) -> Tensor:
    """Rounded to fewer bits, as tensor cores round operands to tf32."""
    half = 1 << (bits - 1)
    return ((tensor.view(torch.int32) + half) & -(1 << bits)).view(torch.float32)


def test_fp32_that_is_computed_in_less_is_found() -> None:
    torch.manual_seed(1)
    precision = PRECISIONS["fp32"]
    left, right = operand((256, 1024), precision, CPU), operand((1024, 128), precision, CPU)
    assert product_error(left, right, left @ right, precision) is None
    in_bf16 = (left.bfloat16() @ right.bfloat16()).float()
    for wrong in (_cut_off(left, 13) @ _cut_off(right, 13), in_bf16):
        assert "times what fp32 allows" in str(product_error(left, right, wrong, precision))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_tile_that_was_never_written_is_found_wherever_it_is(precision: str) -> None:
    torch.manual_seed(1)
    kind = PRECISIONS[precision]
    left, right = operand((512, 256), kind, CPU), operand((256, 512), kind, CPU)
    product = left @ right
    assert product_error(left, right, product, kind) is None
    for row, column in ((0, 0), (200, 300), (480, 480)):
        wrong = product.clone()
        wrong[row : row + 32, column : column + 32] = 0
        assert product_error(left, right, wrong, kind)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_no_number_is_found(value: float) -> None:
    kind = PRECISIONS["fp32"]
    left, right = operand((64, 32), kind, CPU), operand((32, 64), kind, CPU)
    product = left @ right
    product[13, 31] = value
    assert product_error(left, right, product, kind)


@pytest.mark.parametrize("problem", CONVOLUTIONS, ids=lambda problem: problem.name)
def test_a_convolution_that_is_a_little_off_is_found(problem: Convolution) -> None:
    torch.manual_seed(1)
    with arithmetic(PRECISIONS["fp32"]):
        prepared = problem.prepare(PRECISIONS["fp32"], CPU)
        for call in prepared.calls.values():
            assert "times what fp32 allows" in str(prepared.check(call() * 1.001))
            assert "shape" in str(prepared.check(call()[:, :-1]))


@pytest.mark.parametrize(("images", "weight", "stride", "padding"), LAYERS)
def test_the_reference_is_torchs_own_float64(
    images: tuple[int, ...], weight: tuple[int, ...], stride: tuple[int, int], padding: tuple[int, int]
) -> None:
    x = torch.randn(images, dtype=torch.float64, requires_grad=True)
    w = torch.randn(weight, dtype=torch.float64, requires_grad=True)
    out = F.conv2d(x, w, stride=stride, padding=padding)
    gradient = torch.randn_like(out)
    of_x, of_w = torch.autograd.grad(out, (x, w), gradient)
    x, w = x.detach(), w.detach()
    torch.testing.assert_close(reference.forward(x, w, stride, padding), out.detach())
    torch.testing.assert_close(reference.input_gradient(gradient, x, w, stride, padding), of_x)
    torch.testing.assert_close(reference.weight_gradient(gradient, x, w, stride, padding), of_w)


def _small_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 1, stride=2), nn.Flatten(), nn.Linear(128, 5)
    )


def test_a_models_products_are_all_that_it_computes() -> None:
    model, images = _small_network(), torch.empty(4, 3, 8, 8)
    found = products_of_step(model, images)
    total = sum(shape.flops * count for shape, count in found.gemms.items())
    assert total == 4 * count_flops(model, images).training_flops
    layer = (4, 3, 8, 8), (8, 3, 3, 3), (1, 1), (1, 1)
    # Nobody wants the gradient of the images.
    assert found.convolutions[Convolution("forward", *layer)] == 1
    assert found.convolutions[Convolution("weight gradient", *layer)] == 1
    assert found.convolutions[Convolution("input gradient", *layer)] == 0
    assert found.gemms[Gemm(4, 5, 128)] == 1


@pytest.mark.parametrize("problem", CONVOLUTIONS, ids=lambda problem: problem.name)
def test_a_convolution_written_out_has_as_many_operations(problem: Convolution) -> None:
    assert as_gemm(problem).flops == problem.flops


def test_the_heaviest_shapes_of_both_walks_come_first_and_once() -> None:
    small, large, huge = Gemm(1, 1, 1), Gemm(2, 2, 2), Gemm(100, 100, 100)
    walks = [Counter({small: 1, large: 3}), Counter({huge: 1, small: 1})]
    assert heaviest(walks, 2) == [huge, large]
    assert heaviest(walks, 9) == [huge, large, small]


def test_tf32_is_left_out_where_no_device_has_it() -> None:
    assert lacking(PRECISIONS["tf32"], CPU) == "tf32 exists on CUDA devices only"
    assert lacking(PRECISIONS["fp16"], CPU) is None


OLD_PROCESSOR = """
import torch
from hpcai500.measure.products import Convolution
from hpcai500.measure.products import Gemm
from hpcai500.measure.micro import PRECISIONS, arithmetic

failed = set()
for problem in (Gemm(64, 48, 200), Convolution("forward", (2, 16, 9, 9), (8, 16, 3, 3), (1, 1), (1, 1))):
    for name in ("bf16", "fp16"):
        with arithmetic(PRECISIONS[name]):
            prepared = problem.prepare(PRECISIONS[name], torch.device("cpu"))
            for call_name, call in prepared.calls.items():
                try:
                    assert prepared.check(call()) is None
                except RuntimeError:
                    failed.add(call_name)
print(sorted(failed))
"""


def test_a_processor_without_a_precisions_instructions_loses_the_packed_calls_alone() -> None:
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    words = [sys.executable, "-c", OLD_PROCESSOR]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() in ("['oneDNN convolution, packed', 'oneDNN linear, packed']", "[]")
