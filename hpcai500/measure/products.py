"""Matrix products and convolutions as problems to measure, checks of their results, and those that a model needs.

All calls that the installed libraries have for a product are tried. Results are compared with float64.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from hpcai500.measure import convolutions
from hpcai500.measure.flops import step_on_meta
from hpcai500.measure.micro import WINOGRAD, Call, Precision, Prepared, entry_bound, operand, row_sum_bound

# ----------------------------------------------------------------------------------------------------
# Matrix products.


_SAMPLES = 8
# Elements that are converted to float64 at a time: enough for speed, little beside the operands.
_BLOCK = 1 << 22
# oneDNN in torch 2.13 divides by zero on CPUs with AMX, which kills the process, if the right operand is transposed and
# the left one has this many elements in 12 to 32 rows. A layer of ic/smoke is such a product.
_FATAL = 3 << 19


@dataclass(frozen=True)
class Gemm:
    """(m, k) x (k, n) -> (m, n)."""

    m: int
    n: int
    k: int

    @property
    def name(self) -> str:
        return f"m {self.m}, n {self.n}, k {self.k}"

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def elements(self) -> int:
        """Both operands in two layouts each, and two results."""
        return 2 * (self.m * self.k + self.k * self.n + self.m * self.n)

    @property
    def check_flops(self) -> int:
        """For some rows and columns, and for all entries once."""
        return 2 * _SAMPLES * self.k * (self.m + self.n) + 2 * self.elements

    def prepare(self, precision: Precision, device: torch.device) -> Prepared:
        left = operand((self.m, self.k), precision, device)
        right = operand((self.k, self.n), precision, device)
        calls = _torch_calls(left, right)
        if device.type == "cpu":
            calls |= _packed_calls(left, right)
            if precision.dtype == torch.float32:
                calls |= _numpy_call(left, right)
        return Prepared(calls, lambda product: product_error(left, right, product, precision))


def _torch_calls(left: Tensor, right: Tensor) -> dict[str, Call]:
    out = torch.empty(left.shape[0], right.shape[1], dtype=left.dtype, device=left.device)
    right_turned, left_turned = right.t().contiguous(), left.t().contiguous()
    calls: dict[str, Call] = {
        "torch.mm": lambda: torch.mm(left, right, out=out),
        "torch.mm, left operand transposed": lambda: torch.mm(left_turned.t(), right, out=out),
    }
    if left.device.type == "cpu" and left.dtype != torch.float32 and left.numel() == _FATAL:
        return calls
    return calls | {
        "torch.mm, right operand transposed": lambda: torch.mm(left, right_turned.t(), out=out),
        "F.linear": lambda: F.linear(left, right_turned),
    }


def _packed_calls(left: Tensor, right: Tensor) -> dict[str, Call]:
    """Products whose right operand is packed into the library's own layout once, as inference does."""
    found: dict[str, Call] = {}
    weight, rows = right.t().contiguous(), left.shape[0]
    # A CPU without the instructions of a precision refuses to pack. Packing in the call makes only that call fail.
    if pack := _operator("mkldnn", "_reorder_linear_weight"):
        linear, packed = torch.ops.mkldnn._linear_pointwise, cache(partial(pack, weight, rows))
        found["oneDNN linear, packed"] = lambda: linear(left, packed(), None, "none", [], None)
    if left.dtype == torch.float32 and (pack := _operator("mkl", "_mkl_reorder_linear_weight")):
        mkl, in_order = torch.ops.mkl._mkl_linear, cache(partial(pack, weight, rows))
        found["MKL linear, packed"] = lambda: mkl(left, in_order(), weight, None, rows)
    return found


def _operator(library: str, name: str) -> Callable[..., Tensor] | None:
    """An operator that only some builds of torch have; None in others."""
    return getattr(getattr(torch.ops, library), name, None) if torch.backends.mkldnn.is_available() else None


def _numpy_call(left: Tensor, right: Tensor) -> dict[str, Call]:
    """NumPy's own BLAS, mostly OpenBLAS, which is faster on some CPUs."""
    left_array, right_array = left.numpy(), right.numpy()
    out = torch.empty(left.shape[0], right.shape[1])
    target = out.numpy()

    def multiply() -> Tensor:
        np.matmul(left_array, right_array, out=target)
        return out

    return {"numpy.matmul": multiply}


def product_error(left: Tensor, right: Tensor, product: Tensor, precision: Precision) -> str | None:
    """What is wrong with `product`, compared with float64: all entries of some rows and columns, and sums of all rows.

    The sum of a row has a random sign for each entry (Freivalds 1977), so that errors do not cancel out: a tile that
    was never written is found wherever it is.
    """
    if product.shape != (left.shape[0], right.shape[1]) or product.dtype != precision.dtype:
        return f"it has the shape {tuple(product.shape)} and type {product.dtype}"
    inner, wide = left.shape[1], torch.float64
    rows, columns = (_some(size, left.device) for size in product.shape)
    for exact, found, where in (
        (_multiplied(left[rows], right), product[rows].to(wide), "row"),
        (_multiplied(right.t()[columns], left.t()), product.t()[columns].to(wide), "column"),
    ):
        if factor := _beyond(found, exact, entry_bound(exact, inner, precision)):
            return f"the error of an entry in a sampled {where} is {factor:.3g} times what {precision.name} allows"
    signs = torch.randint(0, 2, (right.shape[1], 1), device=left.device).to(wide) * 2 - 1
    summed = _multiplied(left, _multiplied(right, signs))
    for first, block in _blocks(product):
        computed = block.to(wide)
        if not bool(torch.isfinite(computed).all()):
            return "it has values that are not finite"
        error = (computed @ signs - summed[first : first + len(block)]).squeeze(1).abs()
        if not bool((error <= row_sum_bound(computed, inner, precision)).all()):
            return f"the error of the sum of a row is more than {precision.name} allows"
    return None


def _beyond(found: Tensor, exact: Tensor, bound: Tensor) -> float | None:
    """The largest error of `found` divided by its `bound`; None if all are within it."""
    error = (found - exact).abs()
    # Not `any(error > bound)`: a NaN must fail too.
    return None if bool((error <= bound).all()) else float((error / bound).nan_to_num(torch.inf).max())


def _some(size: int, device: torch.device) -> Tensor:
    inside = torch.randint(0, size, (_SAMPLES - 2,), device=device)
    return torch.cat([torch.tensor([0, size - 1], device=device), inside])


def _blocks(matrix: Tensor) -> list[tuple[int, Tensor]]:
    """Blocks of rows of `matrix`, each with the index of its first row."""
    step = max(1, _BLOCK // matrix.shape[1])
    return [(first, matrix[first : first + step]) for first in range(0, len(matrix), step)]


def _multiplied(left: Tensor, right: Tensor) -> Tensor:
    """The product in float64, without a float64 copy of the larger operand."""
    wide = torch.float64
    if right.shape[1] <= left.shape[0]:
        thin = right.to(wide)
        return torch.cat([block.to(wide) @ thin for _, block in _blocks(left)])
    thin = left.to(wide)
    return torch.cat([thin @ block.t().to(wide) for _, block in _blocks(right.t())], dim=1)


# ----------------------------------------------------------------------------------------------------
# Reference convolutions in float64: one matrix product for each position in the kernel.
#
# torch's own float64 convolution copies each pixel once for each position, a gigabyte for a climate image.


_WIDE = torch.float64
Pair = tuple[int, int]


def forward(images: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """The convolution of images (N, C, H, W) with a weight (O, C, R, S) -> (N, O, P, Q)."""
    padded = _padded(images, padding)
    height, width = ((padded.shape[2 + axis] - weight.shape[2 + axis]) // stride[axis] + 1 for axis in (0, 1))
    result = torch.zeros(len(images), len(weight), height, width, dtype=_WIDE, device=images.device)
    for place, part in _places(weight, stride, (height, width)):
        result += torch.einsum("nchw,oc->nohw", padded[part].to(_WIDE), place)
    return result


def input_gradient(gradient: Tensor, images: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """The gradient for `images` (N, C, H, W), whose values do not matter, from that of outputs (N, O, P, Q)."""
    padded = torch.zeros_like(_padded(images, padding), dtype=_WIDE)
    wide = gradient.to(_WIDE)
    for place, part in _places(weight, stride, (gradient.shape[2], gradient.shape[3])):
        padded[part] += torch.einsum("nohw,oc->nchw", wide, place)
    (top, left), (height, width) = padding, images.shape[2:]
    return padded[:, :, top : top + height, left : left + width]


def weight_gradient(gradient: Tensor, images: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """The gradient for `weight` (O, C, R, S), whose values do not matter, from that of outputs (N, O, P, Q)."""
    padded, wide = _padded(images, padding), gradient.to(_WIDE)
    result = torch.zeros(weight.shape, dtype=_WIDE, device=weight.device)
    size = gradient.shape[2], gradient.shape[3]
    for (row, column), part in _parts(weight, stride, size):
        result[:, :, row, column] = torch.einsum("nohw,nchw->oc", wide, padded[part].to(_WIDE))
    return result


Part = tuple[slice, slice, slice, slice]


def _places(weight: Tensor, stride: Pair, size: Pair) -> Iterator[tuple[Tensor, Part]]:
    """For each position in the kernel, its weights (O, C) and the pixels that they are multiplied with."""
    for (row, column), part in _parts(weight, stride, size):
        yield weight[:, :, row, column].to(_WIDE), part


def _parts(weight: Tensor, stride: Pair, size: Pair) -> Iterator[tuple[Pair, Part]]:
    for row in range(weight.shape[2]):
        for column in range(weight.shape[3]):
            rows = slice(row, row + (size[0] - 1) * stride[0] + 1, stride[0])
            columns = slice(column, column + (size[1] - 1) * stride[1] + 1, stride[1])
            yield (row, column), (slice(None), slice(None), rows, columns)


def _padded(images: Tensor, padding: Pair) -> Tensor:
    return torch.nn.functional.pad(images, (padding[1], padding[1], padding[0], padding[0]))


# ----------------------------------------------------------------------------------------------------
# Convolutions and their two backward products, in every layout that the libraries have.


Product = Literal["forward", "input gradient", "weight gradient"]
# Number of images and channels of which all entries are checked.
_IMAGES, _CHANNELS = 2, 4
_SIDE = 16


@dataclass(frozen=True)
class Convolution:
    """One of the three products of a convolution in training.

    Attributes:
        images: shape (N, C, H, W) of the layer's input.
        weight: shape (O, C, R, S).
        stride, padding: in rows and columns.
    """

    product: Product
    images: tuple[int, int, int, int]
    weight: tuple[int, int, int, int]
    stride: Pair
    padding: Pair

    @property
    def outputs(self) -> tuple[int, int, int, int]:
        """Shape (N, O, P, Q) of the layer's output."""
        height, width = (
            (self.images[2 + axis] + 2 * self.padding[axis] - self.weight[2 + axis]) // self.stride[axis] + 1
            for axis in (0, 1)
        )
        return self.images[0], self.weight[0], height, width

    @property
    def name(self) -> str:
        (count, channels, height, width), (outputs, _, rows, columns) = self.images, self.weight
        stride = f", stride {self.stride[0]}" if self.stride != (1, 1) else ""
        return f"{self.product}: {count} x {channels} x {height} x {width}, {outputs} of {rows} x {columns}{stride}"

    @property
    def flops(self) -> int:
        """2 C R S for each value of the layer's output, the same for all three products (docs/methodology.md)."""
        count, outputs, height, width = self.outputs
        _, channels, rows, columns = self.weight
        return 2 * count * outputs * height * width * channels * rows * columns

    @property
    def inner(self) -> int:
        """Number of products that each value of the result is a sum of, at most."""
        count, outputs, height, width = self.outputs
        _, channels, rows, columns = self.weight
        sums: dict[Product, int] = {
            "forward": channels * rows * columns,
            "input gradient": outputs * rows * columns,
            "weight gradient": count * height * width,
        }
        return sums[self.product]

    @property
    def elements(self) -> int:
        """Operands and result, three times: operands in two layouts, and results."""
        shapes = (self.images, self.weight, self.outputs)
        return 3 * sum(map(math.prod, shapes))

    @property
    def check_flops(self) -> int:
        """For the share of the product that is computed again."""
        count, outputs, *_ = self.outputs
        some = {
            "forward": (min(_IMAGES, count) / count) * min(_CHANNELS, outputs) / outputs,
            "input gradient": (min(_IMAGES, count) / count) * min(_CHANNELS, self.weight[1]) / self.weight[1],
            "weight gradient": min(_CHANNELS, outputs) / outputs * min(_CHANNELS, self.weight[1]) / self.weight[1],
        }
        return int(self.flops * some[self.product])

    def smaller(self) -> list[Convolution]:
        """The same layer for one small image, and for one of full size: quick on any machine."""
        _, channels, height, width = self.images
        sides = [(min(_SIDE, height), min(_SIDE, width)), (height, width)]
        return [replace(self, images=(1, channels, *side)) for side in dict.fromkeys(sides)]

    def prepare(self, precision: Precision, device: torch.device) -> Prepared:
        images, weight = operand(self.images, precision, device), operand(self.weight, precision, device)
        gradient = None if self.product == "forward" else operand(self.outputs, precision, device)
        layouts = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
        if self.product == "weight gradient" and self._has_fault_in_nhwc(device):
            del layouts["NHWC"]
        calls = {
            f"{self._call_name}, {name}": self._call(*(_laid_out(one, layout) for one in (images, weight, gradient)))
            for name, layout in layouts.items()
        }
        if device.type == "cpu" and self.product == "forward":
            calls |= self._packed_call(images.contiguous(memory_format=torch.channels_last), weight)
        return Prepared(calls, lambda result: self._error(images, weight, gradient, result, precision))

    def _has_fault_in_nhwc(self, device: torch.device) -> bool:
        outputs, channels, *kernel = self.weight
        shape = convolutions.Convolution(channels, outputs, (kernel[0], kernel[1]), self.stride, self.padding)
        setting = convolutions.Setting(str(device), "fp32", in_nhwc=True, threads=1)
        return convolutions.known_fault([shape], setting) is not None

    @property
    def _call_name(self) -> str:
        return "conv2d" if self.product == "forward" else "convolution_backward"

    def _call(self, images: Tensor | None, weight: Tensor | None, gradient: Tensor | None) -> Call:
        assert images is not None
        assert weight is not None
        if gradient is None:
            return lambda: F.conv2d(images, weight, stride=self.stride, padding=self.padding)
        is_of_input = self.product == "input gradient"
        mask = [is_of_input, not is_of_input, False]

        def backward() -> Tensor:
            found = torch.ops.aten.convolution_backward(
                gradient, images, weight, None, self.stride, self.padding, (1, 1), False, (0, 0), 1, mask
            )
            return cast(Tensor, found[0 if is_of_input else 1])

        return backward

    def _packed_call(self, images: Tensor, weight: Tensor) -> dict[str, Call]:
        """A convolution whose weights are packed into the library's own layout once, as inference does."""
        if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_reorder_convolution_weight"):
            return {}
        places = self.padding, self.stride, (1, 1)
        # A CPU without the instructions of a precision refuses to pack. Packing in the call makes only that call fail.
        packed = cache(partial(torch.ops.mkldnn._reorder_convolution_weight, weight, *places, 1, self.images))
        convolve = torch.ops.mkldnn._convolution_pointwise
        return {"oneDNN convolution, packed": lambda: convolve(images, packed(), None, *places, 1, "none", [], None)}

    def _error(
        self, images: Tensor, weight: Tensor, gradient: Tensor | None, result: Tensor, precision: Precision
    ) -> str | None:
        """What is wrong with `result`, compared with float64 for some images and channels."""
        expected = {"forward": self.outputs, "input gradient": self.images, "weight gradient": self.weight}
        if result.shape != expected[self.product] or result.dtype != precision.dtype:
            return f"it has the shape {tuple(result.shape)} and type {result.dtype}"
        some, ins, outs = (
            _indices(size, most)
            for size, most in zip((len(images), *weight.shape[1::-1]), (_IMAGES, _CHANNELS, _CHANNELS), strict=True)
        )
        place = self.stride, self.padding
        if gradient is None:
            exact, found = forward(images[some], weight[outs], *place), result[some][:, outs]
        elif self.product == "input gradient":
            operands = gradient[some], images[some][:, ins], weight[:, ins]
            exact, found = input_gradient(*operands, *place), result[some][:, ins]
        else:
            operands = gradient[:, outs], images[:, ins], weight[outs][:, ins]
            exact, found = weight_gradient(*operands, *place), result[outs][:, ins]
        loss = WINOGRAD if self.weight[2:] != (1, 1) else 1.0
        parts = 1
        if _rounds_partial_sums(images):
            # A weight gradient is summed over images, an input gradient over the kernel's places.
            parts = {"weight gradient": self.images[0], "input gradient": math.prod(self.weight[2:])}.get(
                self.product, 1
            )
        factor = _beyond(found.to(exact.dtype), exact, entry_bound(exact, self.inner, precision, loss, parts))
        return f"the error of a value is {factor:.3g} times what {precision.name} allows" if factor else None


def _rounds_partial_sums(images: Tensor) -> bool:
    """Whether this CPU lacks instructions for 16-bit types: gradients are then rounded after each partial sum."""
    has_instructions = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    return images.device.type == "cpu" and images.dtype in has_instructions and not has_instructions[images.dtype]()


def _laid_out(tensor: Tensor | None, layout: torch.memory_format) -> Tensor | None:
    return None if tensor is None else tensor.contiguous(memory_format=layout)


def _indices(size: int, most: int) -> list[int]:
    inside = torch.randint(0, size, (max(0, most - 2),)).tolist()
    return sorted({0, size - 1, *inside})


# ----------------------------------------------------------------------------------------------------
# The products of a model, from a training step on torch's `meta` device, which has shapes and no data.


Shape = TypeVar("Shape", Gemm, Convolution)


class ProductsOfStep(TorchDispatchMode):
    """Counts the products that reach torch's dispatcher while this mode is active.

    Attributes:
        gemms: matrix products by shape, including those that convolutions amount to (`as_gemm`).
        convolutions: products of convolutions by shape; grouped, dilated and transposed ones are left out.
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
                _, images, weight, _, stride, padding, dilation, transposed, _, groups, mask = args
                if not transposed and groups == 1 and set(dilation) == {1}:
                    products: tuple[Product, ...] = ("input gradient", "weight gradient")
                    for product, is_computed in zip(products, mask, strict=False):
                        if is_computed:
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
    """The matrix product that `convolution` amounts to (implicit GEMM).

    It has N P Q pixels, O channels and C R S terms; which of the three is summed over depends on the product. The input
    gradient with a stride above 1 multiplies fewer pixels at a time; its number of operations is the same.
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
    """The products of a forward and backward pass of `model`; neither its data nor that of `inputs` is touched."""
    found = ProductsOfStep()
    with found:
        step_on_meta(model, *inputs)
    return found


def heaviest(counted: Iterable[Counter[Shape]], most: int) -> list[Shape]:
    """Up to `most` shapes, each once, by their largest share of a step's operations in any of `counted`."""
    share: dict[Shape, float] = {}
    for one in counted:
        total = math.fsum(shape.flops * count for shape, count in one.items())
        for shape, count in one.items():
            share[shape] = max(share.get(shape, 0.0), shape.flops * count / total)
    return sorted(share, key=lambda shape: (-share[shape], -shape.flops))[:most]
