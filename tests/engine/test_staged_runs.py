"""Models in stages: where they are cut, which rank holds what, and that they learn what one process does.

Model, pipeline and mixed parallelism run on real ranks: the mathematics of one process, one record, one checkpoint.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import torch
from builders.commands import ThreadsAtExit
from builders.ranks import run_ranks, start, started
from builders.runs import last_weights, settings_of, train_arguments, weather_arguments
from test_many_ranks import COMMAND, assert_close, launch, wait_for
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500 import train
from hpcai500.engine.pipeline import Pipe, cut, work_of
from hpcai500.engine.precision import Precision
from hpcai500.engine.ranks import Layout, Neighbours, changes_statistics, layout_of, require_size
from hpcai500.errors import CommunicationError, RecipeError, UsageError
from hpcai500.layers import Recipe
from hpcai500.measure.flops import count_flops
from hpcai500.methodology.sampling import Coverage
from hpcai500.recipe import load_recipe, rulebook
from hpcai500.record import iterate, read_record
from hpcai500.results.score import score_record
from hpcai500.results.verification.verify import check_events
from hpcai500.workloads import ewa, ic
from hpcai500.workloads.models.detector import CountedDetector
from hpcai500.workloads.models.parts import Chain, Part, classifier_parts, detector_parts

# ----------------------------------------------------------------------------------------------------
# Where a chain is cut: each stage has about as much to do, by the operations that results are told by.


def largest(work: list[float], ranges: list[range]) -> float:
    return max(sum(work[part] for part in one) for one in ranges)


@pytest.mark.parametrize("stages", range(1, 7))
def test_no_other_cut_has_a_smaller_largest_stage(stages: int) -> None:
    work = [4.0, 1.0, 7.0, 3.0, 3.0, 2.0]
    found = cut(work, stages)
    assert [part for one in found for part in one] == list(range(len(work)))
    assert all(len(one) for one in found)
    every = (
        [range(a, b) for a, b in zip((0, *ends), (*ends, len(work)), strict=True)]
        for ends in combinations(range(1, len(work)), stages - 1)
    )
    assert largest(work, found) == min(largest(work, one) for one in every)


def test_more_stages_than_parts_are_refused() -> None:
    with pytest.raises(RecipeError, match="at most 2 parts, got 3"):
        cut([1.0, 1.0], 3)


def named(model: nn.Module) -> set[str]:
    return {name for name, _ in [*model.named_parameters(), *model.named_buffers()]}


def holders(name: str, parts: tuple[Part, ...]) -> int:
    return sum(any(f"{name}.".startswith(f"{one}.") for one in part.names) for part in parts)


def test_the_parts_of_resnet_50_have_all_of_its_work_and_halves_are_nearly_halves() -> None:
    options = load_recipe("ic/reference").workload
    model = ic.build_model(options, 1000)
    parts, count = classifier_parts(model), count_flops(model, ic.example_images(options))
    work = work_of(parts, count)
    assert sum(work) == pytest.approx(count.training_flops)
    assert {holders(name, parts) for name in named(model)} == {1}
    for stages, share in ((2, 0.54), (4, 0.28), (8, 0.17)):
        assert largest(work, cut(work, stages)) < share * sum(work)


def test_the_parts_of_the_detector_have_all_of_its_work() -> None:
    options = load_recipe("ewa/reference").workload
    model = ewa.build_model(options)
    parts = detector_parts(model)
    count = count_flops(CountedDetector(model), *ewa.example_inputs(options, *ewa.REFERENCE_GRID))
    work = work_of(parts, count)
    assert sum(work) == pytest.approx(count.training_flops)
    assert {holders(name, parts) for name in named(model)} == {1}
    assert largest(work, cut(work, 2)) < 0.57 * sum(work)


# ----------------------------------------------------------------------------------------------------
# Who holds which part, and with how many ranks a run of stages may be gone on with.


def recipe(mode: str, stages: int, ranks: int, *more: str, micro_batches: int = 1, name: str = "ic/smoke") -> Recipe:
    return load_recipe(
        name,
        [
            f"programming.parallel_mode={mode}",
            f"programming.stages={stages}",
            f"programming.micro_batches={micro_batches}",
            f"hardware.accelerators_per_node={ranks}",
            "communication.backend=torch",
            *more,
        ],
    )


def test_every_rank_is_in_one_column_and_one_row() -> None:
    layout = Layout(stages=3, replicas=2)
    for rank in range(6):
        assert rank in layout.column(layout.replica(rank))
        assert rank in layout.row(layout.stage(rank))
        assert layout.column(layout.replica(rank))[layout.stage(rank)] == rank
    assert [list(layout.row(stage)) for stage in range(3)] == [[0, 3], [1, 4], [2, 5]]


def test_an_update_has_as_many_shares_as_replicas_not_as_ranks() -> None:
    mixed = recipe("mixed", 2, 4, "hyperparameters.batch_size=8", "hyperparameters.accumulation_steps=3")
    assert (mixed.world_size, mixed.replicas, mixed.shards, mixed.global_batch) == (4, 2, 6, 48)


@pytest.mark.parametrize(
    ("size", "found"), [(4, Layout(2, 2)), (2, Layout(2, 1)), (1, Layout(1, 1)), (3, None), (8, None)]
)
def test_stages_are_kept_where_they_fit_and_whole_models_take_their_place(size: int, found: Layout | None) -> None:
    assert layout_of(recipe("mixed", 2, 4), size) == found


def test_batch_norm_of_micro_batches_is_another_without_them() -> None:
    staged = recipe("pipeline", 2, 2, micro_batches=4)
    assert not changes_statistics(staged, Layout(2, 1))
    assert changes_statistics(staged, Layout(1, 1))
    with pytest.raises(UsageError, match=r"batch norm over micro-batches gives other results on .* resume with 2"):
        require_size(staged, 1, going_on=True)
    settings = ("workload.norm=group", "hyperparameters.batch_size=4")
    require_size(recipe("pipeline", 2, 2, *settings, micro_batches=4, name="ewa/smoke"), 1, going_on=True)


def test_synchronised_norm_is_over_replicas() -> None:
    synchronised = recipe("mixed", 2, 4, "workload.norm=sync-batch")
    require_size(synchronised, 4, going_on=True)
    with pytest.raises(UsageError, match="batch norm over all ranks"):
        require_size(synchronised, 1, going_on=True)


@pytest.mark.parametrize(
    ("mode", "stages", "ranks", "micro_batches", "more", "line"),
    [
        ("data", 2, 2, 1, (), "`data` does not split the model, but stages is 2"),
        ("model", 1, 2, 1, (), "expected at least 2 stages, got 1"),
        ("model", 2, 4, 1, (), "hardware asks for 4 ranks and there are 2 stages"),
        ("model", 2, 2, 2, (), "`model` does not split batches: expected 1, got 2"),
        ("pipeline", 2, 2, 1, (), "expected at least 2, got 1"),
        ("pipeline", 2, 2, 5, (), "expected a divisor of hyperparameters.batch_size"),
        ("mixed", 2, 2, 1, (), "expected a multiple of 2 ranks, at least 4, got 2"),
        ("mixed", 2, 5, 1, (), "expected a multiple of 2 ranks, at least 4, got 5"),
        ("model", 2, 2, 1, ("communication.backend=horovod",), "which `horovod` lacks: use"),
        ("model", 2, 2, 1, ("communication.topology=hierarchical",), "`model` parallelism needs flat"),
        ("model", 2, 2, 1, ("framework.compile=true",), "`model` parallelism cannot compile its stages"),
    ],
)
def test_what_cannot_be_laid_over_the_ranks_or_stages_cannot_do_is_refused(
    mode: str, stages: int, ranks: int, micro_batches: int, more: tuple[str, ...], line: str
) -> None:
    with pytest.raises(RecipeError, match=line):
        recipe(mode, stages, ranks, *more, micro_batches=micro_batches)


# ----------------------------------------------------------------------------------------------------
# Batches that pass stages on real ranks leave the gradients of one process.


CPU = torch.device("cpu")
SAMPLES, CLASSES, PASSES = 8, 5, 2


class Doubled(nn.Module):
    """Two tensors from one, as a detector hands finished stages on."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images, self.convolution(images)


class Joined(nn.Module):
    """One tensor of two."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        scores: Tensor = self.head(self.norm(one * other).mean((2, 3)))
        return scores


def network() -> nn.ModuleList:
    torch.manual_seed(1)
    first = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU())
    return nn.ModuleList([first, Doubled(), Joined()])


def payload(turn: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(turn)
    images = torch.randn(SAMPLES, 3, 16, 16, generator=generator)
    return images, torch.randint(CLASSES, (SAMPLES,), generator=generator)


def chain_of(parts: nn.ModuleList) -> Chain:
    return Chain(
        parts=tuple(Part(module, (str(number),)) for number, module in enumerate(parts)),
        inputs=lambda given: given[0],
        targets=lambda given: given[1],
        pick=lambda labels, which: labels[which],
        loss=lambda outputs, labels: F.cross_entropy(outputs[0], labels),
    )


def gradients_of_stages(
    communicator: Any, micro_batches: int, precision_name: str, channels_last: bool, *, stop: bool = False
) -> tuple[float, dict[str, Tensor], int]:
    parts, precision = network(), Precision(precision_name, CPU, stages=communicator)
    rank = communicator.rank
    pipe = Pipe(
        chain_of(parts),
        range(rank, rank + 1),
        Neighbours(communicator, communicator.process_group),
        precision,
        payload(0)[0],
        micro_batches=micro_batches,
        channels_last=channels_last,
    )
    pipe.begin()
    loss = sum(pipe.run(payload(turn) if pipe.is_first else None, PASSES) for turn in range(PASSES))
    assert pipe.waited_seconds > 0
    if stop:
        raise InterruptedError("stopped")
    found = {name: parameter.grad for name, parameter in parts.named_parameters() if parameter.grad is not None}
    return loss, found, pipe.sent_bytes(("here", "here", "there"))


def gradients_alone(precision_name: str) -> tuple[float, dict[str, Tensor]]:
    parts, precision, total = network(), Precision(precision_name, CPU), 0.0
    for turn in range(PASSES):
        images, labels = payload(turn)
        with precision.forward():
            loss = F.cross_entropy(parts[2](*parts[1](parts[0](images))), labels) / PASSES
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total, {name: parameter.grad for name, parameter in parts.named_parameters() if parameter.grad is not None}


# Micro-batches, precision, memory layout: one, fewer than stages (GPipe), and more (one forward, one backward).
CASES = ((1, "fp32", True), (2, "int8", False), (4, "fp32", False))


def gradients_of_all_cases(communicator: Any) -> tuple[list[tuple[float, dict[str, Tensor], int]], str]:
    """And the error that ends the last batch."""
    found = [gradients_of_stages(communicator, *case) for case in CASES]
    try:
        gradients_of_stages(communicator, 2, "fp16", False, stop=True)
    except InterruptedError as error:
        # As a run that is stopped: the traceback still has the schedule, which has the group.
        communicator.close()
        return found, str(error)
    raise AssertionError


def test_gradients_of_three_stages_are_those_of_one_process_and_an_error_leaves_no_threads(tmp_path: Path) -> None:
    at_exit = ThreadsAtExit(tmp_path / "at-exit")
    found = run_ranks(gradients_of_all_cases, 3, environment=at_exit.environment, timeout=300)
    ranks, errors = zip(*found, strict=True)
    assert (errors, at_exit.counts) == (("stopped",) * 3, [0, 0, 0])
    for number, (_, precision, _) in enumerate(CASES):
        loss, expected = gradients_alone(precision)
        losses, gradients, sent = zip(*(cases[number] for cases in ranks), strict=True)
        assert list(losses) == pytest.approx([0, 0, loss])
        assert [len(one) for one in gradients] == [2, 2, 4]
        found = {name: gradient for one in gradients for name, gradient in one.items()}
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)
        # The second stage sends two tensors (4, 7, 7) of each sample to the third, on another host, and gets as many.
        assert list(sent) == [0, *[2 * SAMPLES * 4 * 7 * 7 * 4] * 2]


def steps_in_fp16(communicator: Any) -> tuple[list[tuple[float, float]], float, str]:
    """Weights and scales after a step with gradients that overflow on no rank, on the second, on both; by an optimizer
    in many kernels, and in one. Then the weight beside a stage without gradients, and what a stage that fails ends by.
    """
    found = []
    for overflowing, fused in product(((), (1,), (0, 1)), (False, True)):
        precision = Precision("fp16", CPU, stages=communicator)
        scale = precision.scaled(torch.ones(())).item()
        weight = stepped(precision, float("inf") if communicator.rank in overflowing else scale, fused=fused)
        found.append((weight, precision.scaled(torch.ones(())).item() / scale))
    precision = Precision("fp16", CPU, stages=communicator)
    own = precision.scaled(torch.ones(())).item() if communicator.rank == 0 else None
    return found, stepped(precision, own, fused=False), failing_stage(communicator)


def stepped(precision: Precision, gradient: float | None, *, fused: bool) -> float:
    """A weight of 1 after one step."""
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1, fused=fused)
    weight.grad = None if gradient is None else torch.full((1,), gradient)
    precision.step(optimizer)
    return weight.item()


def failing_stage(communicator: Any) -> str:
    parts, rank = network(), communicator.rank
    own = (range(1), range(1, 3))[rank]
    group = Neighbours(communicator, communicator.process_group)
    precision = Precision("fp32", CPU)
    pipe = Pipe(chain_of(parts), own, group, precision, payload(0)[0], micro_batches=1, channels_last=False)
    if rank == 0:
        parts[0].register_forward_hook(_fail)
    with pytest.raises((torch.OutOfMemoryError, CommunicationError)) as caught:
        pipe.run(payload(0) if rank == 0 else None, 1)
    return caught.type.__name__


def _fail(*given: Any) -> None:
    raise torch.OutOfMemoryError("no more")


def test_a_step_that_overflows_in_one_stage_is_left_out_by_all_and_an_error_is_not_taken_for_a_lost_rank() -> None:
    steps, beside, errors = zip(*run_ranks(steps_in_fp16, 2, timeout=300), strict=True)
    assert list(steps) == [[(pytest.approx(0.9), 1.0)] * 2 + [(1.0, 0.5)] * 4] * 2
    # A stage without gradients steps beside the others.
    assert beside == (pytest.approx(0.9), 1.0)
    assert errors == ("OutOfMemoryError", "CommunicationError")


def test_a_run_of_whole_models_does_not_load_what_passes_batches() -> None:
    """It brings torch's compiler along, whose import and end take seconds on every rank."""
    code = "import sys, hpcai500.engine.job; sys.exit('torch.distributed.pipelining' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ----------------------------------------------------------------------------------------------------
# Whole runs.


# Its state has tensors of two kinds, and its norms are of whole layers.
LAMB = ("hyperparameters.optimizer=lamb", "hyperparameters.base_learning_rate=0.01")


def last_state(record: Path) -> dict[str, Any]:
    """All that the newest checkpoint holds."""
    state: dict[str, Any] = torch.load(max((record / "checkpoints").glob("epoch-*.pt")), weights_only=True)
    return state


def losses(record: Path) -> list[float]:
    return [event["value"]["loss"] for event in iterate(read_record(record).events, "epoch_stop")]


@pytest.fixture(scope="module")
def alone(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process, batches of eight."""
    out = tmp_path_factory.mktemp("alone") / "record"
    assert train.main(train_arguments(images, out, *LAMB)) == 0
    return out


@pytest.fixture(scope="module")
def model(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, each a part of the model."""
    out = tmp_path_factory.mktemp("model") / "record"
    codes, output = launch(train_arguments(images, out, *LAMB, *settings_of("model", 2)))
    assert codes == [0, 0], output
    return out


@pytest.fixture(scope="module")
def mixed(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four ranks: two replicas, each in two parts, with the batches of eight in halves."""
    out = tmp_path_factory.mktemp("mixed") / "record"
    settings = (*settings_of("mixed", 2, ranks=4), "hyperparameters.batch_size=4", "communication.bucket_bytes=4000")
    codes, output = launch(train_arguments(images, out, *settings), size=4)
    assert codes == [0] * 4, output
    return out


def test_model_parallelism_trains_what_one_process_trains(model: Path, alone: Path) -> None:
    assert_close(model, alone)
    assert losses(model) == pytest.approx(losses(alone), rel=1e-3)
    # Whole batches pass the stages: running statistics are those of one process too.
    one, two = last_weights(alone), last_weights(model)
    for name in (name for name in one if "running" in name):
        torch.testing.assert_close(two[name], one[name], rtol=1e-2, atol=1e-3)


def test_a_checkpoint_of_stages_is_that_of_one_process(model: Path, alone: Path) -> None:
    one, two = last_state(alone), last_state(model)
    assert two.keys() == one.keys()
    assert two["optimizer"]["param_groups"] == one["optimizer"]["param_groups"]
    assert two["optimizer"]["state"].keys() == one["optimizer"]["state"].keys()
    for number, state in one["optimizer"]["state"].items():
        for key, value in state.items():
            torch.testing.assert_close(two["optimizer"]["state"][number][key], value, rtol=1e-2, atol=1e-4)


def test_the_record_of_stages_counts_each_sample_once(model: Path, mixed: Path) -> None:
    for path, ranks in ((model, 2), (mixed, 4)):
        record, result = read_record(path), score_record(path)
        assert (result.world_size, result.images, result.padded_images) == (ranks, 99, 21)
        for event in iterate(record.events, "epoch_stop"):
            assert event["value"]["coverage"] == Coverage.expected(33).digest
        for event in iterate(record.events, "replicas"):
            assert event["value"]["ranks"] == ranks
            assert event["value"]["digest"]
        assert all(event["value"]["samples"] == 12 for event in iterate(record.events, "eval_accuracy"))
        (timed,) = iterate(record.events, "rehearsal")
        assert timed["value"]["bucket_bytes"] == (None if ranks == 2 else 4000)
        assert result.communication_fraction == result.step_split.communication > 0
        assert not [reason for reason in result.reasons if "equivalent" in reason or "weights" in reason]
        # What a committee asks the events of a run.
        findings = check_events(record, result, rulebook("v2.0", "ic"))
        assert not [found for found in findings if found.severity in ("fail", "warning")]


def test_operations_are_counted_once_for_all_stages(model: Path, alone: Path) -> None:
    assert score_record(model).flops_per_image == score_record(alone).flops_per_image


def test_mixed_parallelism_trains_what_one_process_trains(mixed: Path, images: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    shares = ("hyperparameters.batch_size=4", "hyperparameters.accumulation_steps=2")
    assert train.main(train_arguments(images, alone, *shares)) == 0
    assert_close(mixed, alone)
    assert losses(mixed) == pytest.approx(losses(alone), rel=1e-3)


def test_a_pipeline_whose_norm_sees_no_batch_trains_what_one_process_trains(weather: Path, tmp_path: Path) -> None:
    settings = ("workload.norm=group", "problem.epochs=1", "hyperparameters.batch_size=2")
    one, two = tmp_path / "one", tmp_path / "two"
    assert train.main(weather_arguments(weather, one, *settings)) == 0
    codes, output = launch(weather_arguments(weather, two, *settings, *settings_of("pipeline", 2, micro_batches=2)))
    assert codes == [0, 0], output
    assert_close(two, one)
    assert not [reason for reason in score_record(two).reasons if "equivalent" in reason]


def test_a_pipeline_with_batch_norm_is_said_not_to_be_equivalent(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "record"
    settings = (*settings_of("pipeline", 3, micro_batches=4), "problem.epochs=1", "accelerator.precision=bf16")
    codes, output = launch(train_arguments(images, out, *settings, "hyperparameters.warmup_epochs=0"), size=3)
    assert codes == [0] * 3, output
    result = score_record(out)
    assert not result.rankable
    assert (
        "batch norm used statistics of micro-batches of 2 samples, not of batches of 8: not mathematically equivalent "
        "(programming.micro_batches=1 is)"
    ) in result.reasons


def test_stages_stop_together_and_one_process_goes_on_with_what_they_learnt(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "record"
    arguments = train_arguments(images, out, *LAMB, *settings_of("model", 2), "problem.epochs=2000")
    at_exit = ThreadsAtExit(tmp_path / "at-exit")
    with started([*COMMAND, *arguments], 2, "processes", environment=at_exit.environment) as (processes, log):
        wait_for(out, "epoch_stop", log)
        processes[1].send_signal(signal.SIGTERM)
        assert [process.wait(240) for process in processes] == [1, 1], log.read_text()
    assert at_exit.counts == [0, 0], "threads of Gloo"
    (interrupted,) = iterate(read_record(out).events, "interrupted")
    for size in (1, 2):
        with started([*COMMAND, "--resume", "--out", str(out)], size, "processes") as (processes, log):
            wait_for(out, "epoch_stop", log, after="run_resume", starts=size)
            processes[-1].send_signal(signal.SIGTERM)
            assert [process.wait(240) for process in processes] == [1] * size, log.read_text()
    events = read_record(out).events
    resumed = list(iterate(events, "run_resume"))
    assert [event["value"]["world_size"] for event in resumed] == [1, 2]
    assert resumed[0]["value"]["step"] == interrupted["value"]["step"]
    complete = [event for event in iterate(events, "epoch_stop") if event["seq"] > resumed[0]["seq"]]
    assert {event["value"]["coverage"] for event in complete} == {Coverage.expected(33).digest}


# A job in which the loss is no number from the 80th micro-batch on, where it is made: on the last stage of a replica.
FAULTY = """
import os, sys
from hpcai500 import train
from hpcai500.engine.pipeline import Pipe

calls, real = [], Pipe._loss

def loss(self, *arguments):
    calls.append(None)
    found = real(self, *arguments)
    return found * float("nan") if os.environ["RANK"] in os.environ["BAD"] and len(calls) >= 80 else found

Pipe._loss = loss
sys.exit(train.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(("bad", "ranks"), [("3", [2, 3]), ("13", [])])
def test_a_replica_whose_loss_alone_is_no_number_is_named(
    images: Path, tmp_path: Path, bad: str, ranks: list[int]
) -> None:
    """Which of its stages began, nobody knows."""
    out = tmp_path / "record"
    settings = (*settings_of("mixed", 2, ranks=4), "problem.epochs=30", "hyperparameters.batch_size=2")
    command = [sys.executable, "-c", FAULTY, *train_arguments(images, out, *settings)]
    ended = start(command, 4, "processes", environment={"BAD": bad}, timeout=300)
    assert ended.exit_codes == [1] * 4, ended.output
    events = read_record(out).events
    told = [event["value"] for event in iterate(events, "not_finite")]
    assert [value["ranks"] for value in told] == ([ranks] if ranks else [])
    assert len(list(iterate(events, "diverged"))) == (0 if ranks else 1)


def test_a_stage_that_is_killed_is_named_by_the_others(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "record"
    arguments = train_arguments(images, out, *settings_of("model", 2), "problem.epochs=2000")
    with started([*COMMAND, *arguments], 2, "processes") as (processes, log):
        wait_for(out, "checkpoint", log)
        processes[1].kill()
        assert processes[0].wait(240) == 1
    assert "rank 1 on host" in (out / "ERROR").read_text()
