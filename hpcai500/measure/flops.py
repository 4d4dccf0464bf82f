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
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

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


_NO_MODULE = "(model)"


class _Counter(TorchDispatchMode):
    """Counts each convolution and matrix product that reaches torch's dispatcher, by its module."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.forward: dict[str, int] = defaultdict(int)
        self.backward: dict[str, int] = defaultdict(int)
        self.kinds: dict[str, str] = {}
        self._names: dict[nn.Module, str] = {}
        # The modules whose forward pass is under way, from the outermost to the innermost.
        self._entered = [_NO_MODULE]
        # The module of each step of the backward pass, by torch's number for it.
        self._owners: dict[int, str] = {}

    def __enter__(self) -> Self:
        self._hooks = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def _enter_module(self, module: nn.Module, inputs: Any) -> None:
        self._names = self._names or {one: name for name, one in module.named_modules()}
        self._entered.append(self._names.get(module) or self._entered[-1])

    def _leave_module(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._entered.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if counter := _COUNTERS.get(func._overloadpacket):
            kind, count = counter
            step = torch._C._current_autograd_node()  # none in the forward pass
            # A backward pass records no gradients, unless it computes a forward pass again.
            if torch.is_grad_enabled() or len(self._entered) > 1:
                name = self._entered[-1]
                # autograd has just numbered the step that will compute this product's gradients.
                self._owners.setdefault(torch._C._autograd._get_sequence_nr() - 1, name)
            else:
                name = self._owners.get(step._sequence_nr(), _NO_MODULE)
            (self.backward if step else self.forward)[name] += count(args, output)
            self.kinds[name] = kind if self.kinds.get(name, kind) == kind else "mixed"
        return output


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
    with counter:
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
    # One scalar, so that one backward pass goes through each module once.
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
