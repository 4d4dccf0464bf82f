"""CUDA graphs: kernels of the parts with static shapes are captured before the clock starts, and launched together.

Only torch's `make_graphed_callables`, called once, needs a CUDA device. It replaces the forward and the backward pass
of a part by replays of graphs. These read and write the same memory each time: a part's next backward pass overwrites
its gradients, unless `pass_ended` has copied them.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from hpcai500.engine.precision import Precision
from hpcai500.errors import RecipeError
from hpcai500.layers import Framework, Recipe
from hpcai500.workloads.base import Graphable

# As torch.cuda.make_graphed_callables: replaces the forward pass of each module, given example inputs of each.
Graphing = Callable[[tuple[nn.Module, ...], tuple[tuple[Any, ...], ...]], Any]


def step_model(model: nn.Module, framework: Framework, compiler: Callable[..., Any] = torch.compile) -> nn.Module:
    """`model` as training calls it: compiled if the recipe says so. The compiler captures its own graphs."""
    if not framework.compile:
        return model
    _keep_instruction_sets_apart()
    return cast(nn.Module, compiler(model, mode="reduce-overhead" if framework.cuda_graphs else None))


def step_graphs(recipe: Recipe, workload: object, model: nn.Module) -> StepGraphs | None:
    """The graphs that `recipe` asks for, not captured yet; None if it asks for none.

    Raises:
        RecipeError: the workload does not say which of its parts can be captured.
    """
    framework = recipe.framework
    if not framework.cuda_graphs:
        return None
    if framework.compile:
        return StepGraphs(model, (), compiled=True)
    if not isinstance(workload, Graphable):
        raise RecipeError(
            f"framework.cuda_graphs: the benchmark {recipe.benchmark} does not say which parts of its model have "
            "static shapes (Graphable.graphed_parts); set it to false: --set framework.cuda_graphs=false"
        )
    return StepGraphs(model, workload.graphed_parts())


def _keep_instruction_sets_apart() -> None:
    """Give torch's cache of compiled code a folder for each instruction set.

    The key of the cache lacks the instruction set, and a cache in TORCHINDUCTOR_CACHE_DIR persists between runs. Code
    that was compiled for AVX2, used by a process with AVX-512 (on another node, or by ATEN_CPU_CAPABILITY), writes
    vectors of 16 numbers into space for 8: the heap is corrupted, or the loss is not finite.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir  # imports torch's compiler: takes a second

    folder = Path(cache_dir())
    name = f"cpu-{torch.backends.cpu.get_cpu_capability().lower()}"
    if folder.name != name:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / name)


class StepGraphs:
    """The graphs of one model, which is on its device, in its memory layout.

    Args:
        parts: names of its modules that are captured; "" is the model itself. Empty if the compiler captures.
        compiled: whether torch's compiler captures instead.
        graphing: `torch.cuda.make_graphed_callables`, or a stand-in if there is no GPU.
    """

    def __init__(
        self,
        model: nn.Module,
        parts: Sequence[str],
        *,
        compiled: bool = False,
        graphing: Graphing = torch.cuda.make_graphed_callables,
    ) -> None:
        self._model, self._parts, self._compiled, self._graphing = model, tuple(parts), compiled, graphing

    def capture(self, one_pass: Callable[[], Tensor], precision: Precision) -> None:
        """Capture every part, in training mode, before any other pass.

        `one_pass` is a forward pass of the model that returns its loss; parts are captured with the inputs that it
        gives them. Buffers (running statistics) change: the caller restores them.

        Raises:
            RecipeError: a part cannot be captured.
        """
        if not self._parts:
            return
        with precision.forward(caching=False):
            calls = self._calls(one_pass)
            # Free what autograd keeps of that pass, which ran on another stream than the capture.
            gc.collect()
            modules = tuple(self._model.get_submodule(call.name) for call in calls)
            eager = [module.forward for module in modules]
            self._graph(modules, tuple(call.inputs for call in calls))
        for module, call, original in zip(modules, calls, eager, strict=True):
            replay = partial(_replay_or_not, self._model, call.shapes, module.forward, original)
            module.forward = replay

    def pass_begins(self) -> None:
        """Call it before each forward pass."""
        if self._compiled:
            torch.compiler.cudagraph_mark_step_begin()

    def pass_ended(self) -> None:
        """Call it after each backward pass of an update except the last: copies gradients that the next overwrites."""
        held = [parameter for parameter in self._model.parameters() if parameter.grad is not None]
        gradients = [cast(Tensor, parameter.grad) for parameter in held]
        copies = [torch.empty_like(gradient) for gradient in gradients]
        torch._foreach_copy_(copies, gradients)
        for parameter, copy in zip(held, copies, strict=True):
            parameter.grad = copy

    def _calls(self, one_pass: Callable[[], Tensor]) -> list[_Call]:
        """The call of each part, in the order of the calls."""
        with _recording_calls(self._model, self._parts) as calls:
            one_pass()
        for name in self._parts:
            if (count := sum(call.name == name for call in calls)) != 1:
                raise _refused(name, f"is called {count} times in a step, but a graph can serve only one call")
        return calls

    def _graph(self, modules: tuple[nn.Module, ...], inputs: tuple[tuple[Any, ...], ...]) -> None:
        try:
            self._graphing(modules, inputs)
        except (RuntimeError, AssertionError) as error:
            cause = _first_cause(error)
            if isinstance(cause, torch.OutOfMemoryError):
                raise cause from None
            why = (str(cause).splitlines() or [type(cause).__name__])[0]
            raise RecipeError(
                f"framework.cuda_graphs: the step cannot be captured ({why}); set it to false: "
                "--set framework.cuda_graphs=false"
            ) from error


def _first_cause(error: BaseException) -> BaseException:
    """The root cause of `error`: ending a failed capture fails, too, and torch reports only that."""
    while error.__context__ is not None:
        error = error.__context__
    return error


@dataclass(frozen=True)
class _Call:
    """One call of one part; `inputs` are copies, from which the graph will read."""

    name: str
    inputs: tuple[Any, ...]
    shapes: tuple[torch.Size, ...]


@contextmanager
def _recording_calls(model: nn.Module, names: Sequence[str]) -> Iterator[list[_Call]]:
    """Collect the calls of these modules of `model`; their hooks are removed afterwards, as capture requires."""
    calls: list[_Call] = []

    def note(name: str, _: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        if named:
            raise _refused(
                name, f"is called with {', '.join(named)} as keywords, but a graph takes positional arguments only"
            )
        inputs = tuple(_copied(one, name) for one in positional)
        calls.append(_Call(name, inputs, tuple(tensor.shape for tensor in _tensors(inputs))))

    with ExitStack() as hooks:
        for name in names:
            handle = model.get_submodule(name).register_forward_pre_hook(partial(note, name), with_kwargs=True)
            hooks.callback(handle.remove)
        yield calls


def _copied(value: Any, name: str) -> Any:
    """A copy with the same layout and with the values of a real step, which a part may need."""
    if isinstance(value, list | tuple):
        return type(value)(_copied(one, name) for one in value)
    if not isinstance(value, Tensor):
        raise _refused(name, f"takes a {type(value).__name__}, but a graph takes tensors only")
    return value.detach().clone().requires_grad_(value.requires_grad)


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)


def _replay_or_not(
    model: nn.Module,
    shapes: tuple[torch.Size, ...],
    replay: Callable[..., Any],
    original: Callable[..., Any],
    *inputs: Any,
) -> Any:
    """Replay in training, for inputs with the captured shapes; otherwise call the original forward pass."""
    is_captured = (
        model.training and torch.is_grad_enabled() and tuple(tensor.shape for tensor in _tensors(inputs)) == shapes
    )
    return (replay if is_captured else original)(*inputs)


def _refused(name: str, why: str) -> RecipeError:
    return RecipeError(
        f"framework.cuda_graphs: {f'the part {name}' if name else 'the model'} {why}; set it to false: "
        "--set framework.cuda_graphs=false"
    )
