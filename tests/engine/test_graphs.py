"""What of a step is captured as a CUDA graph, with which inputs, and that the captured step is the step.

Without a CUDA device nothing is captured: `graph_twin` stands in for torch's function.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from fakes.graphs import graph_twin
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.engine.graphs import StepGraphs, step_graphs, step_model
from hpcai500.engine.precision import Precision
from hpcai500.engine.reporting import EpochTally
from hpcai500.engine.signals import StopRequest
from hpcai500.engine.updates import Updater
from hpcai500.engine.warm_up import WarmUp
from hpcai500.errors import RecipeError
from hpcai500.optim.optimizers import build_optimizer
from hpcai500.recipe import load_recipe, reference_recipe
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

    def __init__(self, device: torch.device = CPU) -> None:
        self.device = device

    def loss(self, model: nn.Module, given: Any) -> Tensor:
        images, labels = (tensor.to(self.device, non_blocking=True) for tensor in given)
        return loss(model, (images, labels))


def captured(model: nn.Module, parts: tuple[str, ...], precision: Precision, device: torch.device = CPU) -> StepGraphs:
    """Graphs of `parts`, in which buffers are as before their capture."""
    graphs = StepGraphs(model, parts, **({"graphing": graph_twin} if device == CPU else {}))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    graphs.capture(lambda: Losses(device).loss(model, payload(99)), precision)
    for name, buffer in model.named_buffers():
        buffer.copy_(before[name])
    return graphs


def updater_of(
    model: nn.Module, precision: Precision, workload: Losses, graphs: StepGraphs | None, **changes: Any
) -> Updater:
    options: dict[str, Any] = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), "passes": 1}
    return Updater(
        workload=cast(Workload, workload),
        model=model,
        precision=precision,
        reducer=None,
        stop=StopRequest(announce=False),
        sink=None,
        phase=lambda name: None,
        graphs=graphs,
        **options | changes,
    )


def three_updates(updater: Updater) -> list[float]:
    """Their losses."""
    source = (TrainingBatch(np.arange(BATCH), 0, payload(number)) for number in count())
    tally = EpochTally()
    return [updater.update(number, 0.0, 0.05, source, tally).item() for number in range(3)]


def capture(graphs: StepGraphs, model: nn.Module, precision: str = "fp32", given: Any = None) -> None:
    graphs.capture(lambda: loss(model, given or payload(0)), Precision(precision, CPU))


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

    updater = updater_of(model, precision, Blank(), StepGraphs(model, ("",), graphing=graphing))
    ranks = cast(Any, SimpleNamespace(unwatched=None))
    found = WarmUp(updater, model, ranks, load_recipe("ic/reference").communication).alone()
    assert done == ["pass", "capture", "pass"]
    assert found.compile_seconds > 0
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


COMPILED = """
import torch
from torch import nn
from hpcai500.engine.graphs import step_model
from hpcai500.optim.optimizers import build_optimizer
from hpcai500.recipe import load_recipe, reference_recipe
torch.manual_seed(500)
model, images = nn.BatchNorm2d(8), torch.randn(4, 8, 6, 6).to(memory_format=torch.channels_last)
compiled = step_model(model, load_recipe("ic/smoke", ["framework.compile=true"]).framework)
print(torch.backends.cpu.get_cpu_capability().lower(), float((compiled(images) - model(images)).abs().max()))
"""


@pytest.mark.slow
def test_compiled_code_is_kept_apart_by_instruction_set(tmp_path: Path) -> None:
    """torch's cache gives AVX2's code to AVX-512, which then writes beyond its arrays."""
    seen = set()
    for chosen in ({"ATEN_CPU_CAPABILITY": "avx2"}, {}):
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), **chosen}
        command = [sys.executable, "-c", COMPILED]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        capability, error = ended.stdout.split()
        assert float(error) < 1e-5
        seen.add(f"cpu-{capability}")
    assert {path.name for path in tmp_path.iterdir()} == seen


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16", "int8"])
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("parts", [("",), ("layer1", "layer2")], ids=["whole", "stages"])
def test_a_captured_step_learns_what_the_step_learns(parts: tuple[str, ...], passes: int, name: str) -> None:
    def trained(is_captured: bool) -> tuple[dict[str, Tensor], list[float]]:
        model, precision = classifier().train(), Precision(name, CPU)
        graphs = captured(model, parts, precision) if is_captured else None
        losses = three_updates(updater_of(model, precision, Losses(), graphs, passes=passes))
        return model.state_dict(), losses

    (expected, losses), (found, same) = trained(False), trained(True)
    assert same == pytest.approx(losses, rel=1e-5)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_parts_are_captured_in_the_order_of_their_calls_with_what_they_are_called_with() -> None:
    seen: list[tuple[Modules, Inputs]] = []
    model = classifier().train()
    graphs = StepGraphs(model, ("layer2", "layer1"), graphing=lambda *given: seen.append(given))
    capture(graphs, model, "bf16")
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
    capture(StepGraphs(model, ("",), graphing=lambda *given: seen.append(given)), model, given=(images, labels))
    ((copy,),) = seen[0][1]
    assert not copy.requires_grad
    assert copy.data_ptr() != images.data_ptr()
    assert copy.stride() == images.stride()
    assert torch.equal(copy, images)


def test_a_capture_begins_with_nothing_of_the_first_pass_and_rounds_weights_anew_in_each_replay() -> None:
    """Autocast remembers rounded weights, and would give a graph those of its capture for ever."""
    seen: list[tuple[bool, list[Any]]] = []
    model = classifier().train()

    def graphing(*_: object) -> None:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        seen.append((torch.is_autocast_cache_enabled(), gradients))

    capture(StepGraphs(model, ("",), graphing=graphing), model, "bf16")
    assert seen == [(False, [])]


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
        (lambda part, given: part(given, 2.0), "the part part takes a float, but a graph takes tensors only"),
        (
            lambda part, given: part(given, times=2.0),
            "is called with times as keywords, but a graph takes positional arguments only",
        ),
    ],
)
def test_a_part_that_no_graph_can_serve_is_told(call: Callable[[nn.Module, Tensor], Tensor], words: str) -> None:
    model = Odd(call)
    with pytest.raises(RecipeError, match=r"--set framework\.cuda_graphs=false") as caught:
        StepGraphs(model, ("part",), graphing=graph_twin).capture(
            lambda: model(torch.ones(2)).sum(), Precision("fp32", CPU)
        )
    assert words in str(caught.value)


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


def failing(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


NOT_PERMITTED = RuntimeError("operation not permitted when stream is capturing\nand more")


@pytest.mark.parametrize(
    ("graphing", "words"),
    [
        (failing(NOT_PERMITTED), r"operation not permitted when stream is capturing\); set"),
        (BrokenOff(NOT_PERMITTED), "operation not permitted when "),
        (BrokenOff(ValueError("no such shape")), r"no such shape\); set"),
        (BrokenOff(AssertionError()), r"AssertionError\); set"),
    ],
)
def test_what_broke_a_capture_off_is_told_and_not_that_it_could_not_be_ended(graphing: Any, words: str) -> None:
    model = classifier().train()
    with pytest.raises(RecipeError, match=rf"cannot be captured \({words}"):
        capture(StepGraphs(model, ("",), graphing=graphing), model)


@pytest.mark.parametrize("kind", [failing, BrokenOff])
def test_a_capture_that_lacks_memory_says_so_though_it_could_not_be_ended(kind: Any) -> None:
    model = classifier().train()
    with pytest.raises(torch.OutOfMemoryError, match="none left"):
        capture(StepGraphs(model, ("",), graphing=kind(torch.OutOfMemoryError("none left"))), model)


def test_what_torch_itself_refuses_is_told_with_its_words() -> None:
    """torch's own function at work: it looks at hooks and buffers before it needs a device."""
    model = classifier().train()
    model.layer1.register_buffer("learnt", torch.ones(1, requires_grad=True))
    with pytest.raises(RecipeError, match=r"cannot be captured \(.*requires_grad.*\); set it to false"):
        capture(StepGraphs(model, ("layer1",)), model)


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


# ----------------------------------------------------------------------------------------------------
# On a CUDA device, where torch's own function is at work.


needs_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def trained_on_device(
    ranks: int, passes: int, name: str, *, fused: bool
) -> tuple[dict[str, Tensor], list[float], Tensor]:
    """Weights and losses after three updates, and what the model then says of seven images; 0 ranks: no graphs."""
    device = torch.device("cuda", torch.cuda.current_device())
    model, precision = classifier().to(device).train(), Precision(name, device)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True
    optimizer = build_optimizer(model, reference_recipe("ic").hyperparameters, fused=fused)
    graphs = captured(model, static_parts(model, ranks), precision, device) if ranks else None
    losses = three_updates(updater_of(model, precision, Losses(device), graphs, optimizer=optimizer, passes=passes))
    model.eval()
    with torch.inference_mode(), precision.forward():
        said = model(payload(1, batch=7)[0].to(device)).float()
    return model.state_dict(), losses, said


@pytest.mark.gpu
@needs_device
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("ranks", [1, 2], ids=["whole", "stages"])
def test_on_a_device_a_captured_step_learns_what_the_step_learns(
    ranks: int, passes: int, name: str, fused: bool
) -> None:
    expected, losses, evaluated = trained_on_device(0, passes, name, fused=False)
    found, same, said = trained_on_device(ranks, passes, name, fused=fused)
    tolerance = 1e-4 if name == "fp32" else 2e-2
    assert same == pytest.approx(losses, rel=tolerance)
    torch.testing.assert_close(said, evaluated, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
@needs_device
def test_a_replay_follows_the_weights_and_starts_few_things() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    model, precision = classifier().to(device).train(), Precision("bf16", device)
    captured(model, ("",), precision, device)
    images = payload(0)[0].to(device)
    with precision.forward():
        first = model(images).float()
        with torch.no_grad():
            for parameter in model.fc.parameters():
                parameter.zero_()
        second = model(images).float()
    assert first.abs().max() > 0
    # The memory of the first answer is the graph's, and has been written anew.
    assert second.abs().max() == 0
