"""A whole run: what the record says, and that it is the truth."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_runs import train_arguments

from hpcai500 import train
from hpcai500.methodology.sampling import Coverage
from hpcai500.record import iterate, read_record
from hpcai500.results.score import score_record
from hpcai500.system.container import find_container
from hpcai500.system.mpi import installed_mpi
from hpcai500.system.software import version_document

Run = Callable[..., tuple[int, Path]]


def test_a_run_ends_in_a_record_with_every_epoch_and_its_evaluation(run: Run) -> None:
    code, path = run()
    record = read_record(path)
    assert (code, record.status) == (0, "done")
    epochs = [event["value"]["epoch"] for event in iterate(record.events, "epoch_stop")]
    evaluations = [event["value"] for event in iterate(record.events, "eval_accuracy")]
    assert epochs == [value["epoch"] for value in evaluations] == [1, 2, 3]
    assert all(value["samples"] == 12 for value in evaluations)


def test_the_clock_starts_after_start_up_and_stops_after_the_last_evaluation(run: Run) -> None:
    _, path = run()
    keys = [event["key"] for event in read_record(path).events]
    assert keys.index("init_stop") + 1 == keys.index("run_start") == keys.index("epoch_start") - 1
    end = keys.index("run_stop")
    assert keys[end - 3 : end] == ["eval_accuracy", "eval_stop", "checkpoint"]
    # What comes after only tells about the run.
    assert not {"epoch_start", "eval_start", "checkpoint"} & set(keys[end:])


def test_every_sample_is_seen_once_an_epoch_and_padding_is_not_counted(run: Run) -> None:
    _, path = run()
    for event in iterate(read_record(path).events, "epoch_stop"):
        value = event["value"]
        assert (value["steps"], value["samples"], value["padded_samples"]) == (5, 33, 7)
        assert value["coverage"] == Coverage.expected(33).digest


def test_every_second_of_the_steps_is_attributed(run: Run) -> None:
    _, path = run()
    record = read_record(path)
    epochs = [event["value"] for event in iterate(record.events, "epoch_stop")]
    (rank,) = next(iterate(record.events, "steps"))["value"]["ranks"]
    assert (rank["rank"], rank["steps"]) == (0, 15)
    for part in ("seconds", "data_wait_seconds", "compute_seconds", "communication_wait_seconds"):
        assert rank[part] == pytest.approx(sum(epoch[part] for epoch in epochs), abs=1e-4)
    assert rank["compute_seconds"] > 0 == rank["communication_wait_seconds"]
    parts = rank["data_wait_seconds"] + rank["compute_seconds"] + rank["other_seconds"]
    assert parts == pytest.approx(rank["seconds"], abs=1e-4)
    result = score_record(path)
    assert result.input == "synthetic"
    split = result.step_split
    assert split is not None
    assert split.compute == pytest.approx(rank["compute_seconds"] / rank["seconds"], abs=1e-4)


def test_a_run_from_memory_reads_nothing_while_the_clock_runs_and_says_so(run: Run) -> None:
    _, path = run("accelerator.loader=memory")
    result = score_record(path)
    assert result.input == "memory"
    assert (result.images, result.padded_images, result.data_wait_fraction) == (3 * 33, 3 * 7, 0.0)
    assert result.reasons[0].startswith("accelerator.loader is memory")
    assert not result.rankable


def test_a_dropped_tail_is_counted_and_makes_the_run_not_rankable(run: Run) -> None:
    _, path = run("workload.tail=drop")
    result = score_record(path)
    assert (result.images, result.padded_images) == (3 * 32, 0)
    assert any("workload.tail = drop" in reason for reason in result.reasons)


def test_the_result_is_what_score_computes_from_the_events(run: Run) -> None:
    _, path = run()
    written = json.loads((path / "result.json").read_text())
    assert written == score_record(path).as_json()
    assert written["images"] == 3 * 33
    assert written["flops"] == pytest.approx(written["images"] * written["flops_per_image"] / written["seconds"])
    assert not written["rankable"]


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(run: Run) -> None:
    from tiny_runs import same_weights

    _, one = run(name="one")
    _, two = run(name="two")
    _, other = run("hyperparameters.seed=2", name="other")
    assert same_weights(one, two)
    assert not same_weights(one, other)


@pytest.mark.parametrize(
    "settings",
    [
        ("accelerator.precision=bf16",),
        ("accelerator.precision=fp16",),
        ("framework.channels_last=false",),
        ("workload.block=bottleneck", "workload.zero_gamma=true"),
        ("hyperparameters.schedule=step", "hyperparameters.weight_decay_on=weights"),
        ("workload.dct_scaling=true",),
    ],
    ids=lambda settings: settings[0],
)
def test_every_option_of_the_recipe_trains(run: Run, settings: tuple[str, ...]) -> None:
    code, path = run(*settings, "problem.epochs=1")
    (epoch,) = iterate(read_record(path).events, "epoch_stop")
    assert code == 0
    assert 0.5 < epoch["value"]["loss"] < 3


def test_the_system_is_captured_by_the_job(run: Run) -> None:
    _, path = run("problem.epochs=1")
    system = json.loads((path / "system.json").read_text())
    (node,) = system["nodes"]
    assert node["host"]
    assert node["memory_bytes"] > 0
    assert node["software"]["core_isa"] in ("avx512", "avx2", "portable")
    assert system["installation"] == version_document(find_container(os.environ), installed_mpi(os.environ))


def test_old_checkpoints_are_removed(run: Run) -> None:
    _, path = run("problem.target_quality=1.0")
    assert [p.name for p in sorted((path / "checkpoints").iterdir())] == [
        "epoch-0003-step-0000000.pt",
        "epoch-0004-step-0000000.pt",
    ]


def test_the_checkpoint_with_which_the_target_was_reached_is_kept(run: Run) -> None:
    _, path = run("problem.epochs=5")
    evaluations = [event["value"] for event in iterate(read_record(path).events, "eval_accuracy")]
    reached = next(value["epoch"] for value in evaluations if value["value"] >= 0.01)
    assert reached < 4
    assert [p.name[:10] for p in sorted((path / "checkpoints").iterdir())] == [
        f"epoch-{reached + 1:04d}",
        "epoch-0005",
        "epoch-0006",
    ]


@pytest.mark.slow
def test_a_compiled_model_is_compiled_before_the_clock_starts_and_left_as_it_was(run: Run) -> None:
    code, path = run("framework.compile=true", name="compiled")
    _, plain = run(name="plain")
    assert code == 0
    (stop,) = iterate(read_record(path).events, "init_stop")
    assert stop["value"]["compile_seconds"] > 0
    compiled, eager = (next(iterate(read_record(p).events, "epoch_stop"))["value"]["loss"] for p in (path, plain))
    assert compiled == pytest.approx(eager, rel=1e-3)


def test_a_class_that_is_never_evaluated_is_told(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fewer = tmp_path / "fewer"
    shutil.copytree(images, fewer)
    name = min(path.name for path in (fewer / "val").iterdir())
    shutil.rmtree(fewer / "val" / name)
    short = ("problem.epochs=1", "hyperparameters.warmup_epochs=0")
    assert train.main(train_arguments(fewer, tmp_path / "r", *short)) == 0
    said = f"the evaluation set has no sample of 1 class ({name}): the quality is that of the others"
    assert said in capsys.readouterr().err
    assert next(iterate(read_record(tmp_path / "r").events, "dataset"))["value"]["classes_not_evaluated"] == [name]
