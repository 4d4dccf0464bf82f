"""A whole run: what the record says, that it is the truth, and what it leaves for those who doubt it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from builders import evidence
from builders.data import write_digits
from builders.runs import same_weights, train_arguments

from hpcai500 import train
from hpcai500.comm.communicator import LocalCommunicator
from hpcai500.engine import job
from hpcai500.engine.ranks import Ranks
from hpcai500.engine.reporting import SilentJournal
from hpcai500.hosts import find_placement
from hpcai500.methodology.conduct import conduct
from hpcai500.methodology.sampling import Coverage
from hpcai500.recipe import load_recipe, rulebook
from hpcai500.record import Record, iterate, read_record
from hpcai500.results.score import score_record
from hpcai500.system.container import find_container
from hpcai500.system.mpi import installed_mpi
from hpcai500.system.software import version_document

Run = Callable[..., tuple[int, Path]]
SHORT = ("problem.epochs=1", "hyperparameters.warmup_epochs=0")


@pytest.fixture
def record(finished: Path) -> Record:
    return read_record(finished)


def values(record: Record, key: str) -> list[Any]:
    return [event["value"] for event in iterate(record.events, key)]


def test_a_run_ends_in_a_record_with_every_epoch_and_its_evaluation(record: Record) -> None:
    assert record.status == "done"
    epochs, evaluations = values(record, "epoch_stop"), values(record, "eval_accuracy")
    assert [one["epoch"] for one in epochs] == [one["epoch"] for one in evaluations] == [1, 2, 3]
    assert all(one["samples"] == 12 for one in evaluations)
    # Every sample is seen once an epoch, and padding is not counted.
    for one in epochs:
        assert (one["steps"], one["samples"], one["padded_samples"]) == (5, 33, 7)
        assert one["coverage"] == Coverage.expected(33).digest


def test_the_clock_starts_after_start_up_and_stops_after_the_last_evaluation(record: Record) -> None:
    keys = [event["key"] for event in record.events]
    assert keys.index("init_stop") + 1 == keys.index("run_start") == keys.index("epoch_start") - 1
    end = keys.index("run_stop")
    assert keys[end - 3 : end] == ["eval_accuracy", "eval_stop", "checkpoint"]
    # What comes after only tells about the run.
    assert not {"epoch_start", "eval_start", "checkpoint"} & set(keys[end:])


def test_every_second_of_the_steps_is_attributed(record: Record) -> None:
    epochs, (steps,) = values(record, "epoch_stop"), values(record, "steps")
    (rank,) = steps["ranks"]
    assert (rank["rank"], rank["steps"]) == (0, 15)
    for part in ("seconds", "data_wait_seconds", "compute_seconds", "communication_wait_seconds"):
        assert rank[part] == pytest.approx(sum(epoch[part] for epoch in epochs), abs=1e-4)
    assert rank["compute_seconds"] > 0 == rank["communication_wait_seconds"]
    parts = rank["data_wait_seconds"] + rank["compute_seconds"] + rank["other_seconds"]
    assert parts == pytest.approx(rank["seconds"], abs=1e-4)
    result = score_record(record.path)
    assert result.input == "synthetic"
    assert result.step_split is not None
    assert result.step_split.compute == pytest.approx(rank["compute_seconds"] / rank["seconds"], abs=1e-4)


def test_the_result_is_what_score_computes_from_the_events(finished: Path) -> None:
    written = json.loads((finished / "result.json").read_text())
    assert written == score_record(finished).as_json()
    assert written["images"] == 3 * 33
    assert written["flops"] == pytest.approx(written["images"] * written["flops_per_image"] / written["seconds"])
    assert not written["rankable"]


def test_the_system_is_captured_by_the_job(run: Run) -> None:
    _, path = run(*SHORT)
    system = json.loads((path / "system.json").read_text())
    (node,) = system["nodes"]
    assert node["host"]
    assert node["memory_bytes"] > 0
    assert node["software"]["core_isa"] in ("avx512", "avx2", "neon", "portable")
    assert system["installation"] == version_document(find_container(os.environ), installed_mpi(os.environ))


def test_a_run_measures_what_its_devices_reach_before_its_clock_starts(record: Record) -> None:
    (measured,), (began,) = iterate(record.events, "ceilings"), iterate(record.events, "run_start")
    assert measured["seq"] < began["seq"]
    value = measured["value"]
    assert (value["precision"], value["ranks"]) == ("fp32", 1)
    assert value["flops"] == value["slowest_flops"] > 1e8
    assert value["spread"] >= 0
    assert 0 <= value["waited"] <= 1


def test_the_weights_are_looked_at_after_each_epoch(record: Record) -> None:
    expected = [{"epoch": epoch, "ranks": 1, "digest": None} for epoch in (1, 2, 3)]
    assert values(record, "replicas") == expected


def test_a_record_keeps_which_run_of_which_campaign_it_is(finished: Path, images: Path, tmp_path: Path) -> None:
    place = {"id": "ab" * 32, "trial": 2, "attempt": 1, "head": "cd" * 32}
    arguments = train_arguments(images, tmp_path / "record", *SHORT)
    assert train.main([*arguments, "--campaign", ":".join(map(str, place.values()))]) == 0
    (began,) = values(read_record(tmp_path / "record"), "init_start")
    assert began["campaign"] == place
    (alone,) = values(read_record(finished), "init_start")
    assert alone["campaign"] is None


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(finished: Path, run: Run) -> None:
    _, same = run(name="same")
    _, other = run("hyperparameters.seed=2", name="other")
    assert same_weights(finished, same)
    assert not same_weights(finished, other)


def test_a_run_from_memory_reads_nothing_while_the_clock_runs_and_says_so(run: Run) -> None:
    _, path = run("accelerator.loader=memory")
    result = score_record(path)
    assert result.input == "memory"
    assert (result.images, result.padded_images, result.data_wait_fraction) == (3 * 33, 3 * 7, 0.0)
    assert result.reasons[0].startswith("accelerator.loader is memory")
    assert not result.rankable


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
    (epoch,) = values(read_record(path), "epoch_stop")
    assert code == 0
    assert 0.5 < epoch["loss"] < 3


def test_old_checkpoints_are_removed(run: Run) -> None:
    _, path = run("problem.target_quality=1.0")
    names = [f"epoch-000{epoch}-step-0000000.pt" for epoch in (3, 4)]
    assert [p.name for p in sorted((path / "checkpoints").iterdir())] == names


def test_the_checkpoint_with_which_the_target_was_reached_is_kept(run: Run) -> None:
    _, path = run("problem.epochs=5")
    evaluations = values(read_record(path), "eval_accuracy")
    reached = next(one["epoch"] for one in evaluations if one["value"] >= 0.01)
    assert reached < 4
    names = [f"epoch-{epoch:04d}" for epoch in (reached + 1, 5, 6)]
    assert [p.name[:10] for p in sorted((path / "checkpoints").iterdir())] == names


@pytest.mark.slow
def test_a_compiled_model_is_compiled_before_the_clock_starts_and_left_as_it_was(finished: Path, run: Run) -> None:
    code, path = run("framework.compile=true")
    assert code == 0
    (stop,) = values(read_record(path), "init_stop")
    assert stop["compile_seconds"] > 0
    compiled, eager = (values(read_record(one), "epoch_stop")[0]["loss"] for one in (path, finished))
    assert compiled == pytest.approx(eager, rel=1e-3)


def test_a_class_that_is_never_evaluated_is_told(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fewer = Path(shutil.copytree(images, tmp_path / "fewer"))
    name = min(path.name for path in (fewer / "val").iterdir())
    shutil.rmtree(fewer / "val" / name)
    assert train.main(train_arguments(fewer, tmp_path / "r", *SHORT)) == 0
    said = f"the evaluation set has no sample of 1 class ({name}): the quality covers the other classes only"
    assert said in capsys.readouterr().err
    assert values(read_record(tmp_path / "r"), "dataset")[0]["classes_not_evaluated"] == [name]


def test_images_that_are_left_out_are_told_and_counted(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = Path(shutil.copytree(images, tmp_path / "more"))
    image = min((more / "train").rglob("*.JPEG"))
    for name in ("a.jfif", "b.jfif", ".hidden.JPEG"):
        shutil.copy(image, image.with_name(name))
    assert train.main(train_arguments(more, tmp_path / "r", *SHORT)) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert line.startswith(
        f"hpcai500: warning: {more}: 3 entries are left out (2 .jfif, 1 hidden): images are files in "
    )
    assert values(read_record(tmp_path / "r"), "dataset")[0]["ignored_files"] == 3


# ----------------------------------------------------------------------------------------------------
# Rules that are checked by events, and verification, find nothing against an honest run.


def problems(record: Record) -> list[str]:
    rules = rulebook("v2.0", "ic")
    broken = [problem for rule in conduct(record.tables, rules, record.events) for problem in rule.problems]
    return [*broken, *(f"{one.name}: {one.evidence}" for one in evidence.against(evidence.findings(record.path)))]


def test_a_run_in_one_go_kept_every_rule(record: Record) -> None:
    assert problems(record) == []


def test_a_dropped_tail_breaks_no_rule_but_is_counted_and_makes_the_run_not_rankable(run: Run) -> None:
    code, path = run("workload.tail=drop", "hyperparameters.accumulation_steps=2")
    assert code == 0
    assert problems(read_record(path)) == []
    result = score_record(path)
    assert (result.images, result.padded_images) == (3 * 32, 0)
    assert any("workload.tail = drop" in reason for reason in result.reasons)


# ----------------------------------------------------------------------------------------------------
# What a run says of its nodes when it starts.


class Noted(SilentJournal):
    """Remembers what it is told."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.events: dict[str, Any] = {}

    def event(self, key: str, value: Any = None) -> None:
        self.events[key] = value


def started(monkeypatch: pytest.MonkeyPatch, out: Path, torches: tuple[str, ...]) -> dict[str, Any]:
    nodes = [
        {"host": f"n{number}", "software": {"torch": torch}, "machine": {"bios_version": torch}}
        for number, torch in enumerate(torches)
    ]
    monkeypatch.setattr(job, "capture_nodes", lambda *_, **__: nodes)
    journal = Noted(out)
    with closing(Ranks(find_placement({}), LocalCommunicator(), 1.0)) as ranks:
        job.announce_start(job.Job(load_recipe("ic/smoke", ()), Path("/data"), journal), ranks)
    return journal.events


def test_nodes_that_differ_are_told_on_stderr_and_in_the_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = started(monkeypatch, tmp_path, ("2.13.0", "2.12.0", "2.13.0"))
    told = capsys.readouterr()
    assert told.err == "hpcai500: warning: nodes differ: software.torch: 2.13.0 on n0, n2; 2.12.0 on n1\n"
    assert told.out == ""
    found = [(one["field"], one["matters"]) for one in events["system_differences"]["differences"]]
    assert found == [("software.torch", True), ("machine.bios_version", False)]
    # Equal nodes are on record as equal, and one node is nothing to compare.
    assert started(monkeypatch, tmp_path, ("1", "1"))["system_differences"] == {"differences": []}
    assert "system_differences" not in started(monkeypatch, tmp_path, ("1",))
    assert capsys.readouterr().err == ""


# ----------------------------------------------------------------------------------------------------
# The same code on pictures that no one here made: scikit-learn's scans of handwritten digits, as JPEG files.


@pytest.mark.slow
def test_scanned_digits_are_learnt_to_a_top1_above_0_9(tmp_path: Path) -> None:
    training, evaluation = write_digits(tmp_path / "digits")
    assert (training, evaluation) == (1438, 359)
    # A mirrored digit is another sign, so there is no flip; crops stay close to the whole scan.
    settings = [
        "problem.dataset=digits",
        "problem.epochs=4",
        "problem.target_quality=0.9",
        "hyperparameters.batch_size=32",
        "workload.flip_probability=0.0",
        "workload.crop_area=[0.7, 1.0]",
    ]
    changes = [token for text in settings for token in ("--set", text)]
    places = ["--data", str(tmp_path / "digits"), "--out", str(tmp_path / "record")]
    assert train.main(["--recipe", "ic/smoke", *places, *changes]) == 0
    result = score_record(tmp_path / "record")
    assert result.quality.achieved is not None
    assert result.quality.achieved > 0.9
    assert result.images == 4 * training
