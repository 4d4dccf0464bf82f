"""Counts the floating-point operations of a model by a training step without data (V3.0 section 3.6 and Table 3).

Convolutions and matrix products are counted exactly, two operations a multiply-add, forward and backward; nothing else
is counted. A convolution is 2 K^2 Cin Cout H W / groups with H, W of its output. A backward product is counted when
autograd computes it: the first layer has no input gradient, a frozen layer no weight gradient. The step runs on torch's
`meta` device, which has shapes and no data.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

CONVENTION = "analytic"


@dataclass(frozen=True)
class Operator:
    """Operations of one module for one sample: in the forward pass, and in forward and backward pass together."""

    name: str
    kind: str
    forward_flops: float
    training_flops: float


@dataclass(frozen=True)
class FlopsCount:
    """Operations of one sample, operator by operator in the order of the forward pass.

    `part_names` are the modules that `parts` sums up; by default the model's direct children.
    """

    parameters: int
    operators: tuple[Operator, ...]
    part_names: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[Operator, ...]:
        of_part: dict[str, list[Operator]] = defaultdict(list)
        for operator in self.operators:
            inside = [name for name in self.part_names if f"{operator.name}.".startswith(f"{name}.")]
            of_part[max(inside, key=len, default=operator.name.partition(".")[0])].append(operator)
        return tuple(
            Operator(
                name,
                "part",
                math.fsum(operator.forward_flops for operator in operators),
                math.fsum(operator.training_flops for operator in operators),
            )
            for name, operators in of_part.items()
        )

    @property
    def forward_flops(self) -> float:
        return math.fsum(operator.forward_flops for operator in self.operators)

    @property
    def training_flops(self) -> float:
        return math.fsum(operator.training_flops for operator in self.operators)


def _matrix_product(left: Tensor, right: Tensor) -> int:
    """(…, m, k) x (…, k, n) -> 2 … m k n."""
    return 2 * math.prod(left.shape) * right.shape[-1]


def _convolution(images: Tensor, weight: Tensor, outputs: Tensor, transposed: bool) -> int:
    """2 K^2 (Cin / groups) for each output element; for a transposed convolution the same for each input element."""
    return 2 * math.prod((images if transposed else outputs).shape) * math.prod(weight.shape[1:])


def _count_convolution(args: tuple[Any, ...], output: Any) -> int:
    return _convolution(args[0], args[1], output, args[6])


def _count_convolution_backward(args: tuple[Any, ...], output: Any) -> int:
    gradient, images, weight, transposed, mask = args[0], args[1], args[2], args[7], args[10]
    # Input and weight gradient each take as many products as the forward pass; the bias gradient takes none.
    return (int(mask[0]) + int(mask[1])) * _convolution(images, weight, gradient, transposed)


_COUNTERS: dict[Any, tuple[str, Callable[[tuple[Any, ...], Any], int]]] = {
    torch.ops.aten.convolution: ("convolution", _count_convolution),
    torch.ops.aten.convolution_backward: ("convolution", _count_convolution_backward),
    torch.ops.aten.mm: ("matrix product", lambda args, output: _matrix_product(args[0], args[1])),
    torch.ops.aten.bmm: ("matrix product", lambda args, output: _matrix_product(args[0], args[1])),
    torch.ops.aten.addmm: ("matrix product", lambda args, output: _matrix_product(args[1], args[2])),
    torch.ops.aten.baddbmm: ("matrix product", lambda args, output: _matrix_product(args[1], args[2])),
}


class _Counter(TorchDispatchMode):
    """Counts each convolution and matrix product that reaches torch's dispatcher, by its module."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tracker = ModuleTracker()
        self.forward: dict[str, int] = defaultdict(int)
        self.backward: dict[str, int] = defaultdict(int)
        self.kinds: dict[str, str] = {}
        self._operands = _Operands()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if counter := _COUNTERS.get(func._overloadpacket):
            kind, count = counter
            operands = [argument for argument in args if isinstance(argument, Tensor)]
            if self.tracker.is_bw:
                name = self._operands.owner(operands, output)
                self.backward[name] += count(args, output)
            else:
                name = max(self.tracker.parents - {"Global"}, key=len, default="").partition(".")[2] or _NO_MODULE
                self._operands.add(name, operands)
                self.forward[name] += count(args, output)
            self.kinds[name] = kind if self.kinds.get(name, kind) == kind else "mixed"
        return output


_NO_MODULE = "(model)"


class _Operands:
    """The operands of each module's products in the forward pass; each backward product uses one of them again.

    They identify the module of a backward product. torch's own tracker infers it from when gradients arrive, which is
    wrong for modules that return several tensors, such as a feature pyramid.
    """

    def __init__(self) -> None:
        self._owners: dict[int, list[tuple[str, list[tuple[int, ...]]]]] = defaultdict(list)
        # Kept alive, so that no other tensor gets the same number.
        self._alive: list[Tensor] = []

    def add(self, name: str, operands: list[Tensor]) -> None:
        shapes = [_ordered(operand) for operand in operands]
        for operand in operands:
            self._owners[_storage(operand)].append((name, shapes))
        self._alive += operands

    def owner(self, operands: list[Tensor], output: Any) -> str:
        """The module whose operand is among `operands`; of several with the same input, the one with fitting shapes."""
        shapes = [_ordered(tensor) for tensor in (*operands, *_tensors(output))]
        fits = [
            (sum(shape in shapes for shape in of_module), name)
            for operand in operands
            for name, of_module in self._owners.get(_storage(operand), [])
        ]
        return max(fits, key=lambda fit: fit[0], default=(0, _NO_MODULE))[1]


def _storage(tensor: Tensor) -> int:
    """A number that a tensor shares with its views, and with no other living tensor."""
    return int(tensor.untyped_storage()._cdata)


def _ordered(tensor: Tensor) -> tuple[int, ...]:
    """The sorted shape, since backward passes transpose."""
    return tuple(sorted(tensor.shape))


def count_flops(model: nn.Module, *inputs: Tensor) -> FlopsCount:
    """Count one training step of `model` on `inputs`, per sample.

    Args:
        model: any module whose output is a tensor, or tensors in tuples, lists or dicts; its data is not touched. Its
            attribute `part_names`, if it has one, names the modules that `FlopsCount.parts` sums up.
        inputs: example tensors, with samples along the first dimension; only shapes and types matter. Their gradients
            are not counted.
    """
    samples = inputs[0].shape[0]
    counter = _Counter()
    with counter.tracker, counter:
        step_on_meta(model, *inputs)
    names = [*counter.forward, *(name for name in counter.backward if name not in counter.forward)]
    operators = tuple(
        Operator(
            name=name,
            kind=counter.kinds[name],
            forward_flops=counter.forward[name] / samples,
            training_flops=(counter.forward[name] + counter.backward[name]) / samples,
        )
        for name in names
    )
    return FlopsCount(sum(p.numel() for p in model.parameters()), operators, getattr(model, "part_names", ()))


def step_on_meta(model: nn.Module, *inputs: Tensor) -> None:
    """Do a forward and backward pass of a copy of `model` without data, for a dispatch mode that watches operations."""
    shadow = _on_meta(model)
    outputs = [leaf for leaf in _tensors(shadow(*(_empty(one) for one in inputs))) if leaf.requires_grad]
    # One scalar, since torch's tracker does not see modules whose output is the root of the backward pass.
    torch.stack([output.sum().float() for output in outputs]).sum().backward()


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="meta")


def _on_meta(model: nn.Module) -> nn.Module:
    """A copy of `model` on the meta device, in training mode."""
    memo: dict[int, Any] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        empty = _empty(tensor)
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(empty, requires_grad=tensor.requires_grad) if is_parameter else empty
    # deepcopy gets the empty tensors as already copied, so that shared parameters stay shared and no data is copied.
    return copy.deepcopy(model, memo).train()


def _tensors(output: Any) -> list[Tensor]:
    if output is None:
        return []
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, dict):
        output = output.values()
    return [leaf for item in output for leaf in _tensors(item)] if hasattr(output, "__iter__") else []
