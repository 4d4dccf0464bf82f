"""The batched detector of fixed shapes gives what its readable twin gives, asks a GPU nothing, and can be captured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, cast

import detector_twin as twin
import pytest
import torch
from fakes.graphs import graph_twin
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_detector import bright_squares, tiny_detector
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hpcai500.engine.graphs import StepGraphs
from hpcai500.engine.precision import Precision
from hpcai500.workloads.ewa import as_arrays
from hpcai500.workloads.models.detector import Detections, FasterRCNN, Targets
from hpcai500.workloads.models.parts import static_parts

SIZE = (48, 64)
CPU = torch.device("cpu")
Losses = Callable[..., dict[str, Tensor]]


def scene(truths: list[int], seed: int, codes_scale: float) -> tuple[list[Tensor], Tensor, Tensor, Targets]:
    """Levels, logits and codes as a dense part gives, and so many boxes in each image; some nearly without a side."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    images, most = len(truths), max(1, *truths)
    levels = [random(images, 8, 12, 16), random(images, 8, 6, 8)]
    logits, codes = random(images, 504), codes_scale * random(images, 504, 4)
    corners = torch.rand(images, most, 2, generator=generator) * torch.tensor([50.0, 34.0])
    sides = 0.1 + torch.rand(images, most, 2, generator=generator) * torch.tensor([30.0, 30.0])
    labels = torch.randint(1, 5, (images, most), generator=generator)
    # Where the boxes of an image lie among the places does not matter.
    for image, count in enumerate(truths):
        labels[image, torch.randperm(most, generator=generator)[count:]] = 0
    boxes = torch.cat([corners, torch.minimum(corners + sides, torch.tensor([64.0, 48.0]))], dim=2)
    return levels, logits, codes, Targets(boxes, labels, torch.arange(seed, seed + images))


def detector(**changes: Any) -> FasterRCNN:
    model = tiny_detector(**changes)
    with torch.no_grad():
        for parameter in model.roi_heads.box_predictor.parameters():
            parameter.mul_(8)
    return model.train()


def learnt(losses: Losses, model: FasterRCNN, given_: list[Tensor], targets: Targets) -> dict[str, Tensor]:
    """Losses, and gradients of what the dense part gave and of the second stage's weights."""
    leaves = [tensor.clone().requires_grad_() for tensor in given_]
    *levels, logits, codes = leaves
    model.zero_grad()
    found = losses(levels, logits, codes, SIZE, targets, targets.keys(600))
    sum(found.values()).backward()
    gradients = {f"gradient {place}": leaf.grad for place, leaf in enumerate(leaves)}
    weights = {name: parameter.grad for name, parameter in model.roi_heads.named_parameters()}
    return {**found, **gradients, **weights}


def require_same(model: FasterRCNN, given_: list[Tensor], targets: Targets) -> None:
    ours = learnt(model.losses, model, given_, targets)
    theirs = learnt(lambda *rest: twin.losses(model, *rest), model, given_, targets)
    for name, expected in theirs.items():
        torch.testing.assert_close(
            ours[name], expected, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


@settings(max_examples=40, deadline=None)
@given(
    truths=st.lists(st.integers(0, 6), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
    codes_scale=st.sampled_from([0.0, 0.2, 3.0]),
    samples=st.sampled_from([(1, 1), (4, 3), (32, 16), (600, 100)]),
    fraction=st.sampled_from([0.0, 0.25, 1.0]),
    proposals=st.sampled_from([(1, 1), (7, 5), (50, 20)]),
    iou=st.sampled_from([0.0, 0.7]),
)
@example([0, 0], 1, 0.2, (32, 16), 0.25, (50, 20), 0.7).via("no truth in any image")
@example([6, 0], 2, 0.2, (4, 3), 1.0, (50, 20), 0.7).via("more truths than places, and an image without")
@example([1], 3, 0.2, (600, 100), 0.25, (1, 1), 0.0).via("fewer candidates than places, one proposal left")
@example([3], 4, 0.2, (32, 16), 0.0, (50, 20), 0.7).via("no place for positives")
def test_losses_and_gradients_are_the_twins(
    truths: list[int],
    seed: int,
    codes_scale: float,
    samples: tuple[int, int],
    fraction: float,
    proposals: tuple[int, int],
    iou: float,
) -> None:
    model = detector(
        proposal_samples=samples[0],
        detection_samples=samples[1],
        proposal_positive_fraction=fraction,
        detection_positive_fraction=fraction,
        # In use, other limits hold than in training.
        proposals_before_nms=(proposals[0], 3),
        proposals_after_nms=(proposals[1], 2),
        proposal_nms_iou=iou,
    )
    levels, logits, codes, targets = scene(truths, seed, codes_scale)
    require_same(model, [*levels, logits, codes], targets)


def test_where_every_proposal_is_too_thin_the_truth_is_learnt_from_alone() -> None:
    model = detector()
    for truths in ([2, 1], [0]):
        levels, logits, codes, targets = scene(truths, 5, 0.2)
        codes[..., 2:] = -30
        assert not model.rpn.propose(logits, codes, model.rpn.anchors(*SIZE), SIZE).present.any()
        require_same(model, [*levels, logits, codes], targets)
    # Without truth either, the mean of nothing would be no number.
    found = learnt(model.losses, model, [*levels, logits, codes], targets)
    assert found["classification"].item() == found["boxes"].item() == 0
    assert found["objectness"].item() > 0
    assert all(gradient.isfinite().all() for gradient in found.values())


def test_whole_steps_of_real_images_are_the_twins() -> None:
    model = detector()
    images, targets = bright_squares(3)
    *levels, logits, codes = (tensor.detach() for tensor in model.dense(images))
    require_same(model, [*levels, logits, codes], targets)
    theirs = twin.losses(model, levels, logits, codes, SIZE, targets, targets.keys(600))
    assert model(images, targets).keys() == theirs.keys()


def detected(model: FasterRCNN, images: int, seed: int, codes_scale: float) -> list[tuple[Detections, Detections]]:
    """Ours and the twin's of each image."""
    levels, logits, codes, _ = scene([0] * images, seed, codes_scale)
    with torch.inference_mode():
        ours = model.conclude(levels, logits, codes, SIZE, None)
        assert isinstance(ours, list)
        return list(zip(ours, twin.detect(model, levels, logits, codes, SIZE), strict=True))


@settings(max_examples=30, deadline=None)
@given(
    images=st.integers(1, 3),
    seed=st.integers(0, 1000),
    codes_scale=st.sampled_from([0.0, 0.3, 20.0]),
    score=st.sampled_from([0.0, 0.2, 0.9]),
    most=st.sampled_from([1, 100]),
    proposals=st.sampled_from([(1, 1), (50, 20)]),
)
def test_detections_are_the_twins(
    images: int, seed: int, codes_scale: float, score: float, most: int, proposals: tuple[int, int]
) -> None:
    before, after = proposals
    limits = {"proposals_before_nms": (3, before), "proposals_after_nms": (2, after)}
    model = detector(detection_score=score, detections=most, **limits).eval()
    for found, expected in detected(model, images, seed, codes_scale):
        assert found.labels.tolist() == expected.labels.tolist()
        torch.testing.assert_close(found.scores, expected.scores, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.boxes, expected.boxes, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("images", [1, 2])
def test_equal_scores_keep_the_order_of_the_twin(images: int) -> None:
    """Every region of an image scores the same for every class."""
    model = detector(detection_score=0.0, detections=7, proposal_nms_iou=0.9).eval()
    with torch.no_grad():
        for parameter in model.roi_heads.box_predictor.parameters():
            parameter.zero_()
    for found, expected in detected(model, images, 8, 0.3):
        assert found.labels.tolist() == expected.labels.tolist()
        assert torch.equal(found.boxes, expected.boxes)


# --- a training step has no shape and no branch that depends on data: the host never waits for a GPU
# Their result's shape, or a Python value, follows from the data. `lift_fresh` is a number that becomes a tensor on the
# host: where it is needed on a GPU, it is copied.
_ASKING = {
    "aten::nonzero",
    "aten::nonzero_static",
    "aten::masked_select",
    "aten::unique_dim",
    "aten::_unique2",
    "aten::unique_consecutive",
    "aten::_local_scalar_dense",
    "aten::is_nonzero",
    "aten::equal",
    "aten::bincount",
    "aten::histc",
    "aten::lift_fresh",
    "hpcai500::nms",
}
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}
# They start no kernel: what they give is another look at the same memory, or memory that is not filled.
_LOOKING = {
    *("view", "_unsafe_view", "_reshape_alias", "as_strided", "alias", "detach", "t", "transpose", "permute"),
    *("expand", "squeeze", "unsqueeze", "select", "slice", "split", "split_with_sizes", "unbind", "lift_fresh"),
    *("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"),
}


class Asked(TorchDispatchMode):
    """Counts operators while it is entered.

    Attributes:
        questions: operators that would make the host wait for a GPU, by name.
        started: all others that compute something, by name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.questions: Counter[str] = Counter()
        self.started: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        name = function._schema.name
        if name in _ASKING or _by_mask(name, arguments) or _repeats_by_data(name, named or {}):
            self.questions[name] += 1
        elif name.removeprefix("aten::") not in _LOOKING:
            self.started[name] += 1
        return function(*arguments, **(named or {}))


def _by_mask(name: str, arguments: tuple[Any, ...]) -> bool:
    """Indexing by a mask, whose number of rows only the device knows."""
    return name in _INDEXING and any(index is not None and index.dtype == torch.bool for index in arguments[1])


def _repeats_by_data(name: str, named: Mapping[str, Any]) -> bool:
    return name == "aten::repeat_interleave" and named.get("output_size") is None


def asked(work: Callable[[], Any]) -> Asked:
    """What `work` asks and starts."""
    with Asked() as counts:
        work()
    return counts


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


# --- the parts that a CUDA graph can hold are the whole of the dense work, and change nothing


def loss_of(model: FasterRCNN, seed: int) -> Tensor:
    found = model(*bright_squares(2, seed=seed))
    assert isinstance(found, dict)
    return cast(Tensor, sum(found.values()))


def captured(ranks: int, seed: int, **changes: Any) -> FasterRCNN:
    """A detector whose static parts were captured, with the state that it had before."""
    model = tiny_detector(**changes).train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    graphs = StepGraphs(model, static_parts(model, ranks), graphing=graph_twin)
    graphs.capture(lambda: loss_of(model, seed), Precision("fp32", CPU))
    for name, buffer in model.named_buffers():
        buffer.copy_(before[name])
    return model


@pytest.mark.parametrize("norm", ["group", "batch", "frozen-batch"])
@pytest.mark.parametrize("ranks", [1, 2], ids=["dense", "stages"])
def test_a_captured_detector_has_the_gradients_of_the_detector(ranks: int, norm: str) -> None:
    plain, model = tiny_detector(norm=norm).train(), captured(ranks, 7, norm=norm)
    losses = []
    for one in (plain, model):
        with Precision("fp32", CPU).forward():
            losses.append(loss_of(one, 1))
        losses[-1].backward()
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-5)
    expected = dict(plain.named_parameters())
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, expected[name].grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_evaluation_of_a_captured_detector_takes_images_of_any_number(ranks: int) -> None:
    model, plain = captured(ranks, 0).eval(), tiny_detector().eval()
    with torch.inference_mode():
        found, expected = cast(Any, model(bright_squares(3)[0])), cast(Any, plain(bright_squares(3)[0]))
    assert [torch.equal(one.boxes, other.boxes) for one, other in zip(found, expected, strict=True)] == [True] * 3


def test_parts_hold_all_convolutions_of_a_step_and_none_twice() -> None:
    model = tiny_detector()
    for ranks in (1, 2):
        held = [p for name in static_parts(model, ranks) for p in model.get_submodule(name).parameters()]
        assert len(held) == len({id(parameter) for parameter in held})
        outside = {name for name, weight in model.named_parameters() if all(weight is not one for one in held)}
        first = {name for name in outside if not name.startswith("roi_heads.")}
        assert first == (set() if ranks == 1 else {name for name in first if name.startswith("backbone.body.")})
        assert all("layer" not in name for name in first)
