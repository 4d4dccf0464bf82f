"""`torch.cuda.make_graphed_callables` without a CUDA device, which no CI machine has: a stand-in with its ways.

As torch's, it replaces the forward pass of each module; inputs, outputs and gradients live in memory that each pass
writes anew, and a module in another mode than at its capture runs as before. Unlike torch's, it computes anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree


def graph_twin(modules: tuple[nn.Module, ...], inputs: tuple[tuple[Any, ...], ...]) -> None:
    """Capture `modules`, which are called with such tensors, in this order."""
    for module, given in zip(modules, inputs, strict=True):
        assert not module._forward_pre_hooks, "modules must have no hooks when they are captured"
        module.forward = _either(module, _captured(module, given), module.forward)


def _either(module: nn.Module, graphed: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    captured_in = module.training

    def forward(*given: Any) -> Any:
        return (graphed if module.training == captured_in else original)(*given)

    return forward


def _captured(module: nn.Module, given: tuple[Any, ...]) -> Callable[..., Any]:
    original, weights = module.forward, tuple(module.parameters())
    places: list[Tensor] = pytree.arg_tree_leaves(*given)
    results, form = pytree.tree_flatten(original(*given))
    static_outputs = [torch.empty_like(result) for result in results]
    learning = [tensor for tensor in (*places, *weights) if tensor.requires_grad]
    static_gradients = [torch.empty_like(tensor) for tensor in learning]
    running: list[Tensor] = []

    class Replay(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
            for place, tensor in zip(places, tensors, strict=False):
                place.data.copy_(tensor)
            with torch.enable_grad():
                running[:] = pytree.tree_leaves(original(*given))
            for static, result in zip(static_outputs, running, strict=True):
                static.copy_(result.detach())
            return tuple(static.detach() for static in static_outputs)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
            computed = torch.autograd.grad(running, learning, gradients)
            for static, gradient in zip(static_gradients, computed, strict=True):
                static.copy_(gradient)
            found = iter(static.detach() for static in static_gradients)
            return tuple(next(found) if tensor.requires_grad else None for tensor in (*places, *weights))

    def replay(*tensors: Any) -> Any:
        outputs = Replay.apply(*pytree.arg_tree_leaves(*tensors), *weights)  # type: ignore[no-untyped-call]
        return pytree.tree_unflatten(list(outputs), form)

    return replay
