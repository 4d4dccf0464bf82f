"""Which products a model is made of, by a walk over a training step on torch's `meta` device: shapes, no data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hpcai500.measure.flops import step_on_meta
from hpcai500.measure.micro.convolution import Convolution, Product
from hpcai500.measure.micro.gemm import Gemm

Shape = TypeVar("Shape", Gemm, Convolution)


class ProductsOfStep(TorchDispatchMode):
    """Counts the products that reach the dispatcher while it is on.

    Attributes:
        gemms: matrix products, by shape.
        convolutions: the products of convolutions, by shape; grouped, dilated and transposed ones are left out.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gemms: Counter[Gemm] = Counter()
        self.convolutions: Counter[Convolution] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        match func._overloadpacket:
            case torch.ops.aten.mm:
                self._add_product(args[0], args[1])
            case torch.ops.aten.addmm:
                self._add_product(args[1], args[2])
            case torch.ops.aten.convolution:
                images, weight, _, stride, padding, dilation, transposed, _, groups = args
                if not transposed and groups == 1 and set(dilation) == {1}:
                    self._add_convolution("forward", images, weight, stride, padding)
            case torch.ops.aten.convolution_backward:
                _, images, weight, _, stride, padding, dilation, transposed, _, groups, wanted = args
                if not transposed and groups == 1 and set(dilation) == {1}:
                    products: tuple[Product, ...] = ("input gradient", "weight gradient")
                    for product, is_wanted in zip(products, wanted, strict=False):
                        if is_wanted:
                            self._add_convolution(product, images, weight, stride, padding)
        return func(*args, **(kwargs or {}))

    def _add_product(self, left: Tensor, right: Tensor) -> None:
        self.gemms[Gemm(left.shape[0], right.shape[1], left.shape[1])] += 1

    def _add_convolution(
        self, product: Product, images: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]
    ) -> None:
        found = Convolution(
            product,
            cast(tuple[int, int, int, int], tuple(images.shape)),
            cast(tuple[int, int, int, int], tuple(weight.shape)),
            cast(tuple[int, int], tuple(stride)),
            cast(tuple[int, int], tuple(padding)),
        )
        self.convolutions[found] += 1
        self.gemms[as_gemm(found)] += 1


def as_gemm(convolution: Convolution) -> Gemm:
    """The matrix product that `convolution` is when each place of the kernel is written out (implicit GEMM).

    N P Q pixels, O channels and C R S terms; which of the three is summed over depends on the product. The input
    gradient of a stride above 1 multiplies fewer pixels at a time; its operations are the same.
    """
    count, outputs, height, width = convolution.outputs
    _, channels, rows, columns = convolution.weight
    pixels, terms = count * height * width, channels * rows * columns
    match convolution.product:
        case "forward":
            return Gemm(pixels, outputs, terms)
        case "input gradient":
            return Gemm(pixels, terms, outputs)
        case "weight gradient":
            return Gemm(outputs, terms, pixels)


def products_of_step(model: nn.Module, *inputs: Tensor) -> ProductsOfStep:
    """The products of one forward and backward pass of `model`; neither its data nor that of `inputs` is touched."""
    found = ProductsOfStep()
    with found:
        step_on_meta(model, *inputs)
    return found


def heaviest(counted: Iterable[Counter[Shape]], most: int) -> list[Shape]:
    """The shapes with most operations a step in any of the walks, each once."""
    share: dict[Shape, float] = {}
    for one in counted:
        total = math.fsum(shape.flops * count for shape, count in one.items())
        for shape, count in one.items():
            share[shape] = max(share.get(shape, 0.0), shape.flops * count / total)
    return sorted(share, key=lambda shape: (-share[shape], -shape.flops))[:most]
