"""A training step of the detector has no shape and no branch that depends on data: the host never waits for a GPU."""

from __future__ import annotations

from collections.abc import Callable

import detector_twin as twin
import pytest
import torch
from asked import asked
from tiny_detector import bright_squares, tiny_detector
from torch import Tensor

from hpcai500.workloads.ewa import as_arrays
from hpcai500.workloads.models.detector import Detections, FasterRCNN, Targets


def step(images: int, **changes: object) -> tuple[FasterRCNN, Callable[[], None]]:
    """A detector, and its step: forward pass, losses, backward pass."""
    model = tiny_detector(**changes).train()
    batch, targets = bright_squares(images)

    def run() -> None:
        found = model(batch, targets)
        assert isinstance(found, dict)
        sum(found.values()).backward()

    run()
    return model, run


@pytest.mark.parametrize("images", [1, 2, 4])
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_a_training_step_asks_nothing(images: int, norm: str) -> None:
    assert not asked(step(images, norm=norm)[1]).questions


def test_a_batch_of_four_starts_as_many_operators_as_one_image() -> None:
    """Some 430. Image by image they were 483 for one and 1197 for four (and 12 and 39 questions)."""
    counts = [asked(step(images)[1]).started.total() for images in (1, 4)]
    assert counts[0] == counts[1] < 450


def test_images_without_truth_start_the_same_operators() -> None:
    """As every rank does the same, no rank waits for one whose images hold more."""
    model = tiny_detector().train()
    images, targets = bright_squares(2)
    empty = Targets(targets.boxes, torch.zeros_like(targets.labels), targets.seeds)
    counts = []
    for truth in (targets, targets, empty):
        model.zero_grad()
        counts.append(asked(lambda truth=truth: sum(model(images, truth).values()).backward()).started)
    # Not the first, which makes the anchors.
    assert counts[1] == counts[2]


def test_the_readable_twin_asks_for_every_image() -> None:
    """What is counted is there: the twin would wait 12 times and 9 times more for each further image."""
    model = tiny_detector().train()
    images, targets = bright_squares(2)
    *levels, logits, codes = model.dense(images)
    counts = asked(lambda: twin.losses(model, levels, logits, codes, (48, 64), targets, targets.keys(600)))
    assert counts.questions["aten::nonzero"] >= 10
    assert counts.questions["hpcai500::nms"] == 2


@pytest.mark.parametrize(
    "question",
    [
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).any()),
        torch.unique,
        lambda x: x.masked_select(x > 0),
        lambda x: x.repeat_interleave(torch.tensor([1, 2, 3])),
        lambda x: x + torch.tensor(3.0),
        lambda x: torch.equal(x, x),
        lambda x: x.clone().index_put_((x > 0,), torch.ones(())),
    ],
)
def test_a_question_is_counted(question: Callable[[Tensor], object]) -> None:
    values = torch.tensor([-1.0, 2.0, 3.0])
    assert asked(lambda: question(values)).questions


def test_an_evaluation_copies_to_the_host_once_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """All questions come behind the copy, of what is on the host already; so do those of the workload."""
    model = tiny_detector(detection_score=0.0).eval()
    images, _ = bright_squares(3)
    copies: list[torch.Size] = []
    of_tensors = Tensor.cpu

    def copied(tensor: Tensor) -> Tensor:
        copies.append(tensor.shape)
        return of_tensors(tensor)

    monkeypatch.setattr(Tensor, "cpu", copied)
    found: list[list[Detections]] = []

    def detect() -> None:
        with torch.no_grad():
            found.append(model(images))

    before = asked(lambda: model.dense(images))
    whole = asked(detect)
    assert copies == [(3, 80, 7)]
    assert not before.questions
    # One mask an image, on the host.
    assert whole.questions == {"aten::index": 3}
    arrays = [as_arrays(detections) for detections in found[0]]
    assert len(copies) == 1
    assert all(len(boxes) == len(scores) == len(labels) > 0 for boxes, scores, labels in arrays)


def test_the_dense_part_is_the_models_and_no_second_copy() -> None:
    model = tiny_detector()
    assert not [key for key in model.state_dict() if "dense" in key]
    assert {id(p) for p in model.dense.parameters()} < {id(p) for p in model.parameters()}
    assert model.get_submodule("dense") is model.dense
    for mode in (False, True):
        assert model.train(mode).dense.training is mode
    images, targets = bright_squares(2)
    calls: list[tuple[int, ...]] = []
    original = model.dense.forward

    def noted(given: Tensor) -> tuple[Tensor, ...]:
        calls.append(tuple(given.shape))
        return original(given)

    model.dense.forward = noted  # type: ignore[method-assign]
    model(images, targets)
    assert calls == [(2, 2, 48, 64)]


def test_it_compiles_as_one_graph_for_any_truth_and_seeds() -> None:
    """Neither what images hold nor which seeds they have is looked at by the compiler; with its own eager backend."""
    model = tiny_detector().train()
    images, targets = bright_squares(2)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed in (0, 5):
            other = Targets(targets.boxes, targets.labels * (seed == 0), targets.seeds + seed)
            expected, found = model(images, other), compiled(images, other)
            for name, loss in expected.items():
                torch.testing.assert_close(found[name], loss)
            sum(found.values()).backward()
    torch._dynamo.reset()
