"""Convolutions and their two backward products, in every layout that a library here has; and whether one is right."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Literal, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from hpcai500.measure import convolutions
from hpcai500.measure.micro import convolution_reference as reference
from hpcai500.measure.micro.error_bound import WINOGRAD, entry_bound, operand
from hpcai500.measure.micro.precisions import Precision
from hpcai500.measure.micro.problem import Call, Prepared

Product = Literal["forward", "input gradient", "weight gradient"]
Pair = tuple[int, int]
# Images and channels of which all entries are looked at.
_IMAGES, _CHANNELS = 2, 4
_SIDE = 16


@dataclass(frozen=True)
class Convolution:
    """One of the three products of a layer in training.

    Attributes:
        product: which.
        images: shape (N, C, H, W) of what goes in.
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
        """Shape (N, O, P, Q) of what comes out of the layer."""
        height, width = (
            (self.images[2 + axis] + 2 * self.padding[axis] - self.weight[2 + axis]) // self.stride[axis] + 1
            for axis in (0, 1)
        )
        return self.images[0], self.weight[0], height, width

    @property
    def name(self) -> str:
        """For people."""
        (count, channels, height, width), (outputs, _, rows, columns) = self.images, self.weight
        stride = f", stride {self.stride[0]}" if self.stride != (1, 1) else ""
        return f"{self.product}: {count} x {channels} x {height} x {width}, {outputs} of {rows} x {columns}{stride}"

    @property
    def flops(self) -> int:
        """2 C R S for each value that comes out of the layer, the same for all three products (docs/methodology.md)."""
        count, outputs, height, width = self.outputs
        _, channels, rows, columns = self.weight
        return 2 * count * outputs * height * width * channels * rows * columns

    @property
    def inner(self) -> int:
        """Products that each value of the result is a sum of, at most."""
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
        """Both operands in two layouts, and results."""
        shapes = (self.images, self.weight, self.outputs)
        return 3 * sum(shape[0] * shape[1] * shape[2] * shape[3] for shape in shapes)

    @property
    def check_flops(self) -> int:
        """The share of the product that is computed again."""
        count, outputs, *_ = self.outputs
        some = {
            "forward": (min(_IMAGES, count) / count) * min(_CHANNELS, outputs) / outputs,
            "input gradient": (min(_IMAGES, count) / count) * min(_CHANNELS, self.weight[1]) / self.weight[1],
            "weight gradient": min(_CHANNELS, outputs) / outputs * min(_CHANNELS, self.weight[1]) / self.weight[1],
        }
        return int(self.flops * some[self.product])

    def smaller(self) -> list[Convolution]:
        """The same layer for one image, a small one and a whole one: they take no time on any machine."""
        _, channels, height, width = self.images
        sides = [(min(_SIDE, height), min(_SIDE, width)), (height, width)]
        return [replace(self, images=(1, channels, *side)) for side in dict.fromkeys(sides)]

    def prepare(self, precision: Precision, device: torch.device) -> Prepared:
        """Operands on `device`, and the calls that a library has there."""
        images, weight = operand(self.images, precision, device), operand(self.weight, precision, device)
        gradient = None if self.product == "forward" else operand(self.outputs, precision, device)
        layouts = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
        if self.product == "weight gradient" and self._is_hurt_in_nhwc(device):
            del layouts["NHWC"]
        calls = {
            f"{self._call_name}, {name}": self._call(*(_laid_out(one, layout) for one in (images, weight, gradient)))
            for name, layout in layouts.items()
        }
        if device.type == "cpu" and self.product == "forward":
            calls |= self._packed_call(_laid_out(images, torch.channels_last), weight)
        return Prepared(calls, lambda result: self._complaint(images, weight, gradient, result, precision))

    def _is_hurt_in_nhwc(self, device: torch.device) -> bool:
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
        wants_input = self.product == "input gradient"
        mask = [wants_input, not wants_input, False]

        def backward() -> Tensor:
            found = torch.ops.aten.convolution_backward(
                gradient, images, weight, None, self.stride, self.padding, (1, 1), False, (0, 0), 1, mask
            )
            return cast(Tensor, found[0 if wants_input else 1])

        return backward

    def _packed_call(self, images: Tensor | None, weight: Tensor) -> dict[str, Call]:
        """With weights that are brought into the library's own order once: what inference does."""
        assert images is not None
        if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_reorder_convolution_weight"):
            return {}
        places = self.padding, self.stride, (1, 1)
        # A processor without the instructions of a precision refuses: that is the call's failure, not the shape's.
        packed = cache(partial(torch.ops.mkldnn._reorder_convolution_weight, weight, *places, 1, self.images))
        convolve = torch.ops.mkldnn._convolution_pointwise
        return {"oneDNN convolution, packed": lambda: convolve(images, packed(), None, *places, 1, "none", [], None)}

    def _complaint(
        self, images: Tensor, weight: Tensor, gradient: Tensor | None, result: Tensor, precision: Precision
    ) -> str | None:
        """What is wrong with `result`, of which some images and channels are computed in float64."""
        expected = {"forward": self.outputs, "input gradient": self.images, "weight gradient": self.weight}
        if result.shape != expected[self.product] or result.dtype != precision.dtype:
            return f"it has the shape {tuple(result.shape)} and type {result.dtype}"
        some, ins, outs = (
            _some(size, most)
            for size, most in zip((len(images), *weight.shape[1::-1]), (_IMAGES, _CHANNELS, _CHANNELS), strict=True)
        )
        place = self.stride, self.padding
        if gradient is None:
            exact, found = reference.forward(images[some], weight[outs], *place), result[some][:, outs]
        elif self.product == "input gradient":
            operands = gradient[some], images[some][:, ins], weight[:, ins]
            exact, found = reference.input_gradient(*operands, *place), result[some][:, ins]
        else:
            operands = gradient[:, outs], images[:, ins], weight[outs][:, ins]
            exact, found = reference.weight_gradient(*operands, *place), result[outs][:, ins]
        loss = WINOGRAD if self.weight[2:] != (1, 1) else 1.0
        parts = self.images[0] if self.product == "weight gradient" and _rounds_partial_sums(images) else 1
        error, bound = (found.to(exact.dtype) - exact).abs(), entry_bound(exact, self.inner, precision, loss, parts)
        # Written so that what is no number is not below it.
        if not bool((error <= bound).all()):
            worst = float((error / bound).nan_to_num(torch.inf).max())
            return f"a value is {worst:.3g} times as wrong as {precision.name} allows"
        return None


def _rounds_partial_sums(images: Tensor) -> bool:
    """Whether oneDNN lacks the instructions for this type here, and so rounds a weight gradient after each image."""
    has_instructions = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    return images.device.type == "cpu" and images.dtype in has_instructions and not has_instructions[images.dtype]()


def _laid_out(tensor: Tensor | None, layout: torch.memory_format) -> Tensor | None:
    return None if tensor is None else tensor.contiguous(memory_format=layout)


def _some(size: int, most: int) -> list[int]:
    """The first, the last, and some in between, ascending."""
    inside = torch.randint(0, size, (max(0, most - 2),)).tolist()
    return sorted({0, size - 1, *inside})
