"""On a CUDA device a captured step learns what the step learns; torch's own function is at work here."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from test_graphs import batches, classifier, loss, payload
from torch import Tensor, nn

from hpcai500.engine.graphs import StepGraphs
from hpcai500.engine.precision import Precision
from hpcai500.engine.reporting import EpochTally
from hpcai500.engine.signals import StopRequest
from hpcai500.engine.updates import Updater
from hpcai500.optim.optimizers import build_optimizer
from hpcai500.recipe import reference_recipe
from hpcai500.workloads.base import Workload
from hpcai500.workloads.models.parts import static_parts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


class Losses:
    """All that an updater asks of a workload."""

    def loss(self, model: nn.Module, given: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = (tensor.to("cuda", non_blocking=True) for tensor in given)
        return loss(model, (images, labels))


def captured(model: nn.Module, parts: tuple[str, ...], precision: Precision) -> StepGraphs:
    graphs, before = StepGraphs(model, parts), {name: buffer.clone() for name, buffer in model.named_buffers()}
    graphs.capture(lambda: Losses().loss(model, payload(99)), precision)
    for name, buffer in model.named_buffers():
        buffer.copy_(before[name])
    return graphs


def trained(ranks: int, passes: int, name: str, *, fused: bool) -> tuple[dict[str, Tensor], list[float], Tensor]:
    """Weights and losses after three updates, and what the model then says of seven images; 0 ranks: no graphs."""
    device = torch.device("cuda", torch.cuda.current_device())
    model, precision = classifier().to(device).train(), Precision(name, device)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True
    policy = reference_recipe("ic").hyperparameters
    updater = Updater(
        workload=cast(Workload, Losses()),
        model=model,
        optimizer=build_optimizer(model, policy, fused=fused),
        precision=precision,
        passes=passes,
        reducer=None,
        stop=StopRequest(announce=False),
        sink=None,
        phase=lambda name: None,
        graphs=captured(model, static_parts(model, ranks), precision) if ranks else None,
    )
    source, tally = batches(), EpochTally()
    losses = [updater.update(number, 0.0, 0.05, source, tally).item() for number in range(3)]
    model.eval()
    with torch.inference_mode(), precision.forward():
        said = model(payload(1, batch=7)[0].to(device)).float()
    return model.state_dict(), losses, said


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("ranks", [1, 2], ids=["whole", "stages"])
def test_a_captured_step_learns_what_the_step_learns(ranks: int, passes: int, name: str, fused: bool) -> None:
    expected, losses, evaluated = trained(0, passes, name, fused=False)
    found, same, said = trained(ranks, passes, name, fused=fused)
    tolerance = 1e-4 if name == "fp32" else 2e-2
    assert same == pytest.approx(losses, rel=tolerance)
    torch.testing.assert_close(said, evaluated, rtol=tolerance, atol=tolerance)
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, rtol=tolerance, atol=tolerance)


def test_a_replay_follows_the_weights_and_starts_few_things() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    model, precision = classifier().to(device).train(), Precision("bf16", device)
    captured(model, ("",), precision)
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
