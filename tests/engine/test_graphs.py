"""What of a step is captured as a CUDA graph, with which inputs, and that the captured step is the step.

Nothing is captured here: `graph_twin` stands in for torch's function, which needs a CUDA device.
"""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from graph_twin import graph_twin
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.engine.graphs import StepGraphs, step_graphs, step_model
from hpcai500.engine.precision import Precision
from hpcai500.engine.reporting import EpochTally
from hpcai500.engine.signals import StopRequest
from hpcai500.engine.updates import Updater
from hpcai500.engine.warm_up import WarmUp
from hpcai500.errors import RecipeError
from hpcai500.recipe import load_recipe
from hpcai500.workloads.base import TrainingBatch, Workload
from hpcai500.workloads.models.parts import static_parts
from hpcai500.workloads.models.resnet import BasicBlock, ResNet

CPU = torch.device("cpu")
BATCH = 4
Modules = tuple[nn.Module, ...]
Inputs = tuple[tuple[Any, ...], ...]


def classifier() -> ResNet:
    torch.manual_seed(0)
    model = ResNet(BasicBlock, (1, 1), width=4, classes=3)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def payload(number: int, batch: int = BATCH) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(number)
    images = torch.randn(batch, 3, 16, 16, generator=random).to(memory_format=torch.channels_last)
    return images, torch.randint(0, 3, (batch,), generator=random)


def loss(model: nn.Module, given: Any) -> Tensor:
    return F.cross_entropy(model(given[0]), given[1])


class Losses:
    """All that an updater asks of a workload."""

    def loss(self, model: nn.Module, given: Any) -> Tensor:
        return loss(model, given)


def captured(model: nn.Module, parts: tuple[str, ...], precision: Precision, given: int = 99) -> StepGraphs:
    graphs = StepGraphs(model, parts, graphing=graph_twin)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    graphs.capture(lambda: loss(model, payload(given)), precision)
    for name, buffer in model.named_buffers():
        buffer.copy_(before[name])
    return graphs


def batches() -> Iterator[TrainingBatch]:
    return (TrainingBatch(np.arange(BATCH), 0, payload(number)) for number in count())


def trained(
    make_graphs: Callable[[nn.Module, Precision], StepGraphs | None], passes: int, precision_name: str = "fp32"
) -> tuple[dict[str, Tensor], list[float]]:
    """Weights and losses after three updates."""
    model, precision = classifier().train(), Precision(precision_name, CPU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    updater = Updater(
        workload=cast(Workload, Losses()),
        model=model,
        optimizer=optimizer,
        precision=precision,
        passes=passes,
        reducer=None,
        stop=StopRequest(announce=False),
        sink=None,
        phase=lambda name: None,
        graphs=make_graphs(model, precision),
    )
    source, tally = batches(), EpochTally()
    losses = [updater.update(number, 0.0, 0.05, source, tally).item() for number in range(3)]
    return model.state_dict(), losses


def test_a_warm_up_captures_before_its_first_step_and_leaves_the_model_as_it_was() -> None:
    done: list[str] = []
    model, precision = classifier(), Precision("fp32", CPU)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    class Blank(Losses):
        def blank_payload(self) -> Any:
            return payload(0)

        def loss(self, model: nn.Module, given: Any) -> Tensor:
            done.append("pass")
            return super().loss(model, given)

    def graphing(modules: Modules, inputs: Inputs) -> None:
        done.append("capture")
        assert all(module.training for module in modules)
        graph_twin(modules, inputs)

    updater = Updater(
        workload=cast(Workload, Blank()),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        precision=precision,
        passes=1,
        reducer=None,
        stop=StopRequest(announce=False),
        sink=None,
        phase=lambda name: None,
        graphs=StepGraphs(model, ("",), graphing=graphing),
    )
    ranks = cast(Any, SimpleNamespace(unwatched=None))
    settings = load_recipe("ic/reference").communication
    found = WarmUp(updater, model, ranks, settings).alone()
    assert done == ["pass", "capture", "pass"]
    assert found.compile_seconds > 0
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


COMPILED = """
import torch
from torch import nn
from hpcai500.engine.graphs import step_model
from hpcai500.recipe import load_recipe
torch.manual_seed(500)
model, images = nn.BatchNorm2d(8), torch.randn(4, 8, 6, 6).to(memory_format=torch.channels_last)
compiled = step_model(model, load_recipe("ic/smoke", ["framework.compile=true"]).framework)
print(torch.backends.cpu.get_cpu_capability().lower(), float((compiled(images) - model(images)).abs().max()))
"""


@pytest.mark.slow
def test_compiled_code_is_kept_apart_by_instruction_set(tmp_path: Path) -> None:
    """torch's cache gives AVX2's code to AVX-512: where the heap is checked, this ended by SIGABRT."""
    library = ctypes.util.find_library("c_malloc_debug")
    checked = {"LD_PRELOAD": library, "MALLOC_CHECK_": "3"} if library else {}
    seen = set()
    for chosen in ({"ATEN_CPU_CAPABILITY": "avx2"}, {}):
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), **checked, **chosen}
        command = [sys.executable, "-c", COMPILED]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        capability, error = ended.stdout.split()
        assert float(error) < 1e-5
        seen.add(f"cpu-{capability}")
    assert {path.name for path in tmp_path.iterdir()} == seen


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "int8"])
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("parts", [("",), ("layer1", "layer2")], ids=["whole", "stages"])
def test_a_captured_step_learns_what_the_step_learns(parts: tuple[str, ...], passes: int, precision: str) -> None:
    expected, losses = trained(lambda model, precision: None, passes, precision)
    found, same = trained(lambda model, precision: captured(model, parts, precision), passes, precision)
    assert same == pytest.approx(losses, rel=1e-5)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)


def test_parts_are_captured_in_the_order_of_their_calls_with_what_they_are_called_with() -> None:
    seen: list[tuple[Modules, Inputs]] = []
    model = classifier().train()
    graphs = StepGraphs(model, ("layer2", "layer1"), graphing=lambda *given: seen.append(given))
    images, labels = payload(0)
    graphs.capture(lambda: loss(model, (images, labels)), Precision("bf16", CPU))
    ((modules, inputs),) = seen
    assert modules == (model.get_submodule("layer1"), model.get_submodule("layer2"))
    assert [[tuple(tensor.shape) for tensor in given] for given in inputs] == [[(4, 4, 4, 4)], [(4, 4, 4, 4)]]
    for (tensor,) in inputs:
        assert tensor.is_leaf
        assert tensor.requires_grad
        assert tensor.dtype == torch.bfloat16
        assert tensor.is_contiguous(memory_format=torch.channels_last)
    assert all(not module._forward_pre_hooks for module in model.modules())


def test_images_need_no_gradient_and_are_copied_for_the_graph_alone() -> None:
    seen: list[tuple[Modules, Inputs]] = []
    model = classifier().train()
    images, labels = payload(0)
    StepGraphs(model, ("",), graphing=lambda *given: seen.append(given)).capture(
        lambda: loss(model, (images, labels)), Precision("fp32", CPU)
    )
    ((copy,),) = seen[0][1]
    assert not copy.requires_grad
    assert copy.data_ptr() != images.data_ptr()
    assert copy.stride() == images.stride()
    assert torch.equal(copy, images)


def test_weights_are_rounded_anew_in_each_replay() -> None:
    """Autocast remembers rounded weights, and would give a graph those of its capture for ever."""
    asked = []
    model = classifier().train()
    graphs = StepGraphs(model, ("",), graphing=lambda *_: asked.append(torch.is_autocast_cache_enabled()))
    graphs.capture(lambda: loss(model, payload(0)), Precision("bf16", CPU))
    assert asked == [False]


def test_nothing_of_the_first_pass_is_left_when_the_capture_begins() -> None:
    left: list[list[Any]] = []
    model = classifier().train()
    graphs = StepGraphs(
        model, ("",), graphing=lambda *_: left.append([p.grad for p in model.parameters() if p.grad is not None])
    )
    graphs.capture(lambda: loss(model, payload(0)), Precision("fp32", CPU))
    assert left == [[]]


def test_an_evaluation_runs_the_model_as_it_was() -> None:
    model, plain = classifier().train(), classifier().eval()
    captured(model, ("",), Precision("fp32", CPU))
    images, _ = payload(1, batch=7)
    model.eval()
    with torch.inference_mode():
        assert torch.equal(model(images), plain(images))
    # And in training mode without gradients, which no step is.
    model.train()
    with torch.no_grad():
        assert model(images).shape == (7, 3)


def test_a_part_that_no_module_list_knows_is_left_alone_in_an_evaluation() -> None:
    class Wrapper(nn.Module):
        """Its part is reached by name, but is no child: it never hears that an evaluation begins."""

        def __init__(self) -> None:
            super().__init__()
            object.__setattr__(self, "hidden", nn.Linear(3, 3))

        def forward(self, given: Tensor) -> Tensor:
            result: Tensor = self.get_submodule("hidden")(given)
            return result

    model = Wrapper().train()
    replayed: list[Tensor] = []

    def graphing(modules: Modules, inputs: Inputs) -> None:
        for module in modules:
            module.forward = replayed.append

    values = torch.randn(2, 3)
    StepGraphs(model, ("hidden",), graphing=graphing).capture(lambda: model(values).sum(), Precision("fp32", CPU))
    model(values)
    assert len(replayed) == 1
    model.eval()
    model(values)
    assert len(replayed) == 1


def test_a_batch_of_another_size_runs_without_a_graph() -> None:
    model, plain = classifier().train(), classifier().train()
    captured(model, ("",), Precision("fp32", CPU))
    images, labels = payload(3, batch=BATCH - 1)
    loss(model, (images, labels)).backward()
    loss(plain, (images, labels)).backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None
        assert torch.equal(one.grad, cast(Tensor, other.grad))


class Odd(nn.Module):
    """Calls its part in ways that no graph can serve."""

    def __init__(self, call: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.part = Part()
        self.call = call

    def forward(self, given: Tensor) -> Tensor:
        return self.call(self.part, given)


class Part(nn.Module):
    """A scale, times a number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, given: Tensor, times: float = 1.0) -> Tensor:
        return self.scale * given * times


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda part, given: part(part(given)), "the part part is called 2 times in a step"),
        (lambda part, given: given * part.scale, "the part part is called 0 times in a step"),
        (lambda part, given: part(given, 2.0), "the part part takes a float, and a graph takes tensors only"),
        (lambda part, given: part(given, times=2.0), "is called with times by name, and a graph takes places only"),
    ],
)
def test_a_part_that_no_graph_can_serve_is_told(call: Callable[[nn.Module, Tensor], Tensor], words: str) -> None:
    model = Odd(call)
    with pytest.raises(RecipeError, match=r"--set framework\.cuda_graphs=false") as caught:
        StepGraphs(model, ("part",), graphing=graph_twin).capture(
            lambda: model(torch.ones(2)).sum(), Precision("fp32", CPU)
        )
    assert words in str(caught.value)


def test_a_capture_that_fails_is_told_with_torchs_words_and_lack_of_memory_as_itself() -> None:
    def failing(error: RuntimeError) -> StepGraphs:
        def fail(*_: object) -> None:
            raise error

        return StepGraphs(classifier().train(), ("",), graphing=fail)

    def capture(graphs: StepGraphs) -> None:
        graphs.capture(lambda: loss(graphs._model, payload(0)), Precision("fp32", CPU))

    with pytest.raises(
        RecipeError, match=r"cannot be captured \(operation not permitted when stream is capturing\); set"
    ):
        capture(failing(RuntimeError("operation not permitted when stream is capturing\nand more")))
    with pytest.raises(torch.OutOfMemoryError):
        capture(failing(torch.OutOfMemoryError("none left")))


class BrokenOff:
    """Stands in for a capture that fails: torch then cannot end it, and raises that instead."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, *_: object) -> None:
        try:
            raise self.error
        finally:
            self._end()

    def _end(self) -> None:
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture\nand more")


@pytest.mark.parametrize(
    ("graphing", "words"),
    [
        (BrokenOff(RuntimeError("operation not permitted when stream is capturing")), "operation not permitted when "),
        (BrokenOff(ValueError("no such shape")), r"no such shape\); set"),
        (BrokenOff(AssertionError()), r"AssertionError\); set"),
    ],
)
def test_what_broke_a_capture_off_is_told_and_not_that_it_could_not_be_ended(graphing: BrokenOff, words: str) -> None:
    model = classifier().train()
    with pytest.raises(RecipeError, match=rf"cannot be captured \({words}"):
        StepGraphs(model, ("",), graphing=graphing).capture(lambda: loss(model, payload(0)), Precision("fp32", CPU))


def test_a_capture_that_lacks_memory_says_so_though_it_could_not_be_ended() -> None:
    model = classifier().train()
    graphs = StepGraphs(model, ("",), graphing=BrokenOff(torch.OutOfMemoryError("none left")))
    with pytest.raises(torch.OutOfMemoryError, match="none left"):
        graphs.capture(lambda: loss(model, payload(0)), Precision("fp32", CPU))


def test_what_torch_itself_refuses_is_told_with_its_words() -> None:
    """torch's own function at work: it looks at hooks and buffers before it needs a device."""
    model = classifier().train()
    model.layer1.register_buffer("learnt", torch.ones(1, requires_grad=True))
    with pytest.raises(RecipeError, match=r"cannot be captured \(.*requires_grad.*\); set it to false"):
        StepGraphs(model, ("layer1",)).capture(lambda: loss(model, payload(0)), Precision("fp32", CPU))


def test_only_a_recipe_that_asks_has_graphs_and_a_workload_must_say_of_what() -> None:
    class Silent:
        """A plug-in from before there were graphs."""

    class Speaking(Silent):
        def graphed_parts(self) -> tuple[str, ...]:
            return ("layer1",)

    wants = load_recipe("ic/reference", ["framework.cuda_graphs=true"])
    assert step_graphs(load_recipe("ic/reference"), Silent(), classifier()) is None
    graphs = step_graphs(wants, Speaking(), classifier())
    assert graphs is not None
    assert graphs._parts == ("layer1",)
    with pytest.raises(RecipeError, match=r"the benchmark ic does not say which parts .*framework.cuda_graphs=false"):
        step_graphs(wants, Silent(), classifier())


@pytest.mark.parametrize(("graphs", "mode"), [(False, None), (True, "reduce-overhead")])
def test_a_compiler_captures_by_itself(graphs: bool, mode: str | None) -> None:
    modes: list[Any] = []
    settings = ["framework.compile=true", f"framework.cuda_graphs={str(graphs).lower()}"]
    recipe, model = load_recipe("ic/reference", settings), classifier().train()
    step_model(model, recipe.framework, compiler=lambda one, mode: modes.append(mode))
    assert modes == [mode]
    own = step_graphs(recipe, object(), model)
    assert (own is not None) == graphs
    if own:
        own.capture(lambda: pytest.fail("a pass before the compiler's own"), Precision("fp32", CPU))
        own.pass_begins()
    assert step_model(model, load_recipe("ic/reference").framework) is model


def test_whole_models_are_captured_on_one_rank_and_stages_on_several() -> None:
    model = classifier()
    assert static_parts(model, 1) == ("",)
    assert static_parts(model, 2) == ("layer1", "layer2")
    assert static_parts(nn.Linear(1, 1), 2) == ("",)
