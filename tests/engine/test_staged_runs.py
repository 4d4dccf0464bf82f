"""Model, pipeline and mixed parallelism on real ranks: the mathematics of one process, one record, one checkpoint."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from many_ranks import start, started
from staged_runs import settings_of
from test_many_ranks import assert_close, launch, wait_for
from threads_at_exit import ThreadsAtExit
from tiny_runs import last_weights, train_arguments, weather_arguments

from hpcai500 import train
from hpcai500.methodology.sampling import Coverage
from hpcai500.recipe import rulebook
from hpcai500.record import iterate, read_record
from hpcai500.results.score import score_record
from hpcai500.results.verification.verify import check_events

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
        assert [event["value"]["bucket_bytes"] for event in iterate(record.events, "rehearsal")] == [
            None if ranks == 2 else 4000
        ]
        (costs,) = iterate(record.events, "communication")
        assert 0 < costs["value"]["communication_fraction"] < 1
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
        "batch norm took its statistics of micro-batches of 2 samples, where one device takes those of 8: not "
        "mathematically equivalent (programming.micro_batches=1 is)"
    ) in result.reasons


def test_stages_stop_together_and_one_process_goes_on_with_what_they_learnt(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "record"
    arguments = train_arguments(images, out, *LAMB, *settings_of("model", 2), "problem.epochs=2000")
    train, at_exit = [sys.executable, "-m", "hpcai500.train", *arguments], ThreadsAtExit(tmp_path / "at-exit")
    with started(train, 2, "processes", environment=at_exit.environment) as (processes, log):
        wait_for(out, "epoch_stop", log)
        processes[1].send_signal(signal.SIGTERM)
        assert [process.wait(60) for process in processes] == [1, 1], log.read_text()
    assert at_exit.counts == [0, 0], "threads of Gloo"
    resume = [sys.executable, "-m", "hpcai500.train", "--resume", "--out", str(out)]
    (interrupted,) = iterate(read_record(out).events, "interrupted")
    for size in (1, 2):
        with started(resume, size, "processes") as (processes, log):
            wait_for(out, "epoch_stop", log, after="run_resume", starts=size)
            processes[-1].send_signal(signal.SIGTERM)
            assert [process.wait(60) for process in processes] == [1] * size, log.read_text()
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
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str, ranks: list[int]
) -> None:
    """Which of its stages began, nobody knows."""
    monkeypatch.setenv("BAD", bad)
    out = tmp_path / "record"
    settings = (*settings_of("mixed", 2, ranks=4), "problem.epochs=30", "hyperparameters.batch_size=2")
    ended = start([sys.executable, "-c", FAULTY, *train_arguments(images, out, *settings)], 4, "processes", timeout=120)
    assert ended.exit_codes == [1] * 4, ended.output
    events = read_record(out).events
    told = [event["value"] for event in iterate(events, "not_finite")]
    assert [value["ranks"] for value in told] == ([ranks] if ranks else [])
    assert len(list(iterate(events, "diverged"))) == (0 if ranks else 1)


def test_a_stage_that_is_killed_is_named_by_the_others(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "record"
    arguments = train_arguments(images, out, *settings_of("model", 2), "problem.epochs=2000")
    with started([sys.executable, "-m", "hpcai500.train", *arguments], 2, "processes") as (processes, log):
        wait_for(out, "checkpoint", log)
        processes[1].kill()
        assert processes[0].wait(60) == 1
    assert "rank 1 on host" in (out / "ERROR").read_text()
