"""Real members of ensembles leave what they say of each sample: on one rank or two, at once or by another process."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch
from builders import evidence
from builders.campaigns import edit_record
from builders.ranks import start
from builders.runs import member_arguments, member_recipe, short_member_recipe, train_arguments, train_member

from hpcai500 import train
from hpcai500.data.imagenet.synthetic import SyntheticSet, make_images
from hpcai500.engine.precision import same_kernels
from hpcai500.engine.predictions import is_same_quality, last_evaluation
from hpcai500.errors import ExitCode, RunError
from hpcai500.methodology.ensemble import vouched
from hpcai500.methodology.result import derive
from hpcai500.methodology.sampling import drawn_digest, draws, probe
from hpcai500.record import Event, RecordWriter, iterate, read_record
from hpcai500.workloads.ic import ImageClassificationWorkload
from hpcai500.workloads.voting import voter

TWO = ("hardware.accelerators_per_node=2", "communication.backend=torch", "communication.timeout_seconds=20")
# What a run says once its clock has stopped; `power` is the last of what every run says.
AFTER = {"predictions", "out_of_bag", "prediction_start"}


def launch(arguments: list[str], size: int) -> None:
    ended = start([sys.executable, "-m", "hpcai500.train", *arguments], size, "processes", timeout=300)
    assert ended.exit_codes == [0] * size, ended.output


@pytest.fixture(scope="module")
def ic_member(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ic") / "record"
    assert train.main(member_arguments(short_member_recipe("ic"), images, out)) == 0
    return out


@pytest.fixture(scope="module")
def ewa_member(weather: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ewa") / "record"
    assert train.main(member_arguments(short_member_recipe("ewa", "problem.epochs=2"), weather, out)) == 0
    return out


@pytest.fixture(params=["ic", "ewa"])
def member(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(f"{request.param}_member")
    return path


@pytest.fixture
def copied(member: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(member, tmp_path / "record"))


@pytest.fixture
def out(ic_member: Path, tmp_path: Path) -> Path:
    """A copy of the classifier's record."""
    return Path(shutil.copytree(ic_member, tmp_path / "record"))


def arrays(record: Path, kind: str) -> dict[str, Any]:
    with np.load(record / "predictions" / f"{kind}.npz", allow_pickle=False) as file:
        return dict(file)


def findings(path: Path) -> list[tuple[str, str]]:
    """What there is against a record, as verification sees it."""
    return [(one.name, one.evidence) for one in evidence.against(evidence.findings(path))]


def test_the_quality_of_the_file_is_that_of_the_last_evaluation_bit_for_bit(member: Path) -> None:
    record = read_record(member)
    told = last_evaluation(record)
    found = arrays(member, "evaluation")
    assert found["samples"].tolist() == list(range(told["samples"]))
    quality = voter(record.recipe(), found["samples"]).alone(found)
    assert quality is not None
    assert is_same_quality(quality, told)


def test_out_of_bag_are_those_of_the_probe_that_the_seed_has_not_drawn(member: Path) -> None:
    record = read_record(member)
    samples = next(iterate(record.events, "dataset"))["value"]["training_samples"]
    unseen = set(probe(samples, 20).tolist()) - set(draws(samples, 1, "bootstrap").tolist())
    assert unseen
    found = arrays(member, "out-of-bag")
    assert found["samples"].tolist() == sorted(unseen)
    (told,) = iterate(record.events, "out_of_bag")
    quality = voter(record.recipe(), found["samples"]).alone(found)
    assert quality is not None
    assert is_same_quality(quality, told["value"])


def test_the_record_of_a_member_is_in_order_and_its_clock_counts_none_of_it(member: Path) -> None:
    record = read_record(member)
    keys = [event["key"] for event in record.events]
    assert keys[-3:] == ["predictions", "predictions", "out_of_bag"]
    assert findings(member) == []
    without = [event for event in record.events if event["key"] not in AFTER]
    assert derive(record.tables, {}, without) == derive(record.tables, {}, record.events)


def test_images_of_the_training_set_are_seen_as_in_an_evaluation(ic_member: Path, images: Path, tmp_path: Path) -> None:
    # A set whose evaluation images are the training images, by name and content: the model must say the same of both.
    twin = tmp_path / "twin"
    shutil.copytree(images / "train", twin / "train")
    shutil.copytree(images / "train", twin / "val")
    out = tmp_path / "record"
    assert train.main(member_arguments(short_member_recipe("ic"), twin, out)) == 0
    evaluated, unseen = arrays(out, "evaluation"), arrays(out, "out-of-bag")
    assert len(unseen["samples"]) > 2
    assert np.array_equal(evaluated["labels"][unseen["samples"]], unseen["labels"])
    np.testing.assert_allclose(evaluated["logits"][unseen["samples"]], unseen["logits"], rtol=1e-4, atol=1e-5)


def killed_after(record: Path, key: str) -> None:
    """Leave `record` as a kill does after the first event `key`."""

    def cut(events: list[Event]) -> None:
        place = next(number for number, event in enumerate(events) if event["key"] == key)
        del events[place + 1 :]

    edit_record(record, cut)
    for name in ("DONE", "result.json"):
        (record / name).unlink(missing_ok=True)
    named = {value["file"] for value in vouched(read_record(record).events).values()}
    for file in (record / "predictions").glob("*"):
        if f"predictions/{file.name}" not in named:
            file.unlink()


@pytest.mark.parametrize("key", ["run_stop", "power", "predictions"])
def test_a_member_that_was_killed_after_its_clock_had_stopped_still_says_the_same(
    copied: Path, member: Path, key: str
) -> None:
    before = {kind: value["sha256"] for kind, value in vouched(read_record(member).events).items()}
    killed_after(copied, key)
    assert train.main(["--resume", "--out", str(copied)]) == 0
    record = read_record(copied)
    assert record.status == "done"
    assert {kind: value["sha256"] for kind, value in vouched(record.events).items()} == before
    assert [event["key"] for event in record.events][-4:-2] in (
        [["prediction_start", "predictions"], ["predictions", "predictions"]]
        if key != "predictions"
        else [["init_start", "prediction_start"], ["prediction_start", "predictions"]]
    )
    result, whole = (json.loads((path / "result.json").read_text()) for path in (copied, member))
    assert (result["seconds"], result["restarts"], result["quality"]) == (whole["seconds"], 0, whole["quality"])
    assert [name for name, _ in findings(copied) if name != "evidence"] == []


def test_a_file_that_was_damaged_before_the_end_is_made_again(ic_member: Path, out: Path) -> None:
    killed_after(out, "out_of_bag")
    (out / "predictions/evaluation.npz").write_bytes(b"torn")
    assert train.main(["--resume", "--out", str(out)]) == 0
    assert (out / "predictions/evaluation.npz").read_bytes() == (ic_member / "predictions/evaluation.npz").read_bytes()
    assert findings(out) == []


def test_a_member_that_has_said_all_is_only_concluded(ic_member: Path, out: Path) -> None:
    killed_after(out, "out_of_bag")
    assert train.main(["--resume", "--out", str(out), "--data", "/nowhere"]) == 0
    assert read_record(out).events == read_record(ic_member).events


def test_without_its_last_checkpoint_a_member_cannot_speak(out: Path, capfd: pytest.CaptureFixture[str]) -> None:
    killed_after(out, "run_stop")
    for checkpoint in (out / "checkpoints").iterdir():
        checkpoint.unlink()
    assert train.main(["--resume", "--out", str(out)]) == ExitCode.USAGE
    assert "the checkpoint of the last epoch is damaged or missing" in capfd.readouterr().err


def test_predictions_are_made_on_the_data_of_the_run(
    out: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    make_images(other, SyntheticSet(classes=3, train_per_class=11, val_per_class=5), workers=1)
    killed_after(out, "run_stop")
    assert train.main(["--resume", "--out", str(out), "--data", str(other)]) == ExitCode.USAGE
    assert "not the data that this run was started on" in capfd.readouterr().err


def test_a_model_that_says_something_else_than_in_its_evaluation_is_told(
    out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def forge(events: list[Event]) -> None:
        evaluation = next(event for event in events if event["key"] == "eval_accuracy")
        evaluation["value"]["value"] = 11 / 12

    edit_record(out, forge)
    killed_after(out, "run_stop")
    assert train.main(["--resume", "--out", str(out)]) == ExitCode.RUN_FAILED
    said = capfd.readouterr().err
    assert "the last evaluation gave 0.9166666666666666" in said
    assert f"--resume --out {out}" in said
    assert read_record(out).status == "error"
    assert not (out / "predictions/evaluation.npz").exists()


def test_a_signal_after_training_stops_without_loss(
    out: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    killed_after(out, "run_stop")
    # A real signal, at a moment that no other process could hit.
    monkeypatch.setattr("hpcai500.engine.job._require_trained", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    assert train.main(["--resume", "--out", str(out)]) == ExitCode.RUN_FAILED
    assert "stopped by SIGTERM after training, before all predictions were written" in capfd.readouterr().err
    monkeypatch.undo()
    assert train.main(["--resume", "--out", str(out)]) == 0
    assert findings(out) == [("evidence", findings(out)[0][1])]


def test_a_full_disk_leaves_no_part_of_a_file_and_is_told_with_the_line_to_go_on(tmp_path: Path) -> None:
    writer = RecordWriter.create(tmp_path / "record", short_member_recipe("ic"))

    def fill(stream: IO[bytes]) -> None:
        stream.write(b"some of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    with writer, pytest.raises(RunError, match=r"No space left on device.*continue with --resume --out"):
        writer.write_predictions("evaluation", 12, fill)
    assert list((tmp_path / "record/predictions").iterdir()) == []


def test_members_are_judged_by_kernels_that_repeat_and_one_model_as_ever(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, bool]] = []

    def spied(self: ImageClassificationWorkload, *arguments: Any, **named: Any) -> Any:
        seen.append((torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic))
        return evaluate(self, *arguments, **named)

    evaluate = ImageClassificationWorkload.evaluate
    monkeypatch.setattr(ImageClassificationWorkload, "evaluate", spied)
    assert train.main(train_arguments(images, tmp_path / "one", "problem.epochs=1")) == 0
    assert seen == [(True, False)]
    assert train.main(member_arguments(short_member_recipe("ic"), images, tmp_path / "member")) == 0
    assert seen[1:] == [(False, True)]
    # Training goes on as it was, whatever happens within.
    with pytest.raises(KeyError), same_kernels():
        raise KeyError
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic) == (True, False)


def test_members_that_draw_all_have_no_out_of_bag_and_runs_of_one_model_no_predictions(
    images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "whole"
    assert train.main(member_arguments(short_member_recipe("ic", "ensemble.sampling=all"), images, out)) == 0
    assert set(vouched(read_record(out).events)) == {"evaluation"}
    assert findings(out) == []


@pytest.mark.parametrize("benchmark", ["ic", "ewa"])
def test_two_ranks_write_what_their_evaluation_found(
    benchmark: str, images: Path, weather: Path, tmp_path: Path
) -> None:
    out = tmp_path / "record"
    # Batches of which the ranks have different numbers: 12 images by 5, 10 by 2.
    batch = "hyperparameters.batch_size=5" if benchmark == "ic" else "hyperparameters.batch_size=2"
    recipe = short_member_recipe(benchmark, *TWO, batch)
    launch(member_arguments(recipe, images if benchmark == "ic" else weather, out), 2)
    record = read_record(out)
    told = last_evaluation(record)
    found = arrays(out, "evaluation")
    quality = voter(recipe, found["samples"]).alone(found)
    assert quality is not None
    assert is_same_quality(quality, told)
    assert findings(out) == []
    # They deliver the draws that one rank does.
    dataset = next(iterate(record.events, "dataset"))["value"]
    drawn = draws(dataset["training_samples"], 1, "bootstrap")
    (epoch,) = iterate(record.events, "epoch_stop")
    assert (epoch["value"]["samples"], epoch["value"]["coverage"]) == (drawn.size, drawn_digest(drawn))
    before = vouched(record.events)
    killed_after(out, "power")
    launch(["--resume", "--out", str(out)], 2)
    assert vouched(read_record(out).events) == before
    assert findings(out) == []


def test_two_ranks_of_a_member_learn_from_the_draws_what_one_does(images: Path, tmp_path: Path) -> None:
    usual = ("hyperparameters.seed=7", "problem.epochs=2", "hyperparameters.batch_size=4")
    alone, together = tmp_path / "alone", tmp_path / "together"
    train_member(member_recipe("ic", *usual, "hyperparameters.accumulation_steps=2"), images, alone)
    recipe = member_recipe("ic", *usual, *TWO, "communication.timeout_seconds=60")
    launch(list(member_arguments(recipe, images, together)), 2)
    stops = [list(iterate(read_record(path).events, "epoch_stop")) for path in (alone, together)]
    ours, theirs = ([stop["value"] for stop in of_one] for of_one in stops)
    assert len(ours) == 2
    for one, other in zip(ours, theirs, strict=True):
        for key in ("samples", "padded_samples", "steps", "coverage"):
            assert one[key] == other[key], key
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)
    assert findings(together) == []


Change = Callable[[list[Event]], object]


def of(events: list[Event], key: str, number: int = -1) -> Any:
    return [event for event in events if event["key"] == key][number]["value"]


def without(*keys: str) -> Change:
    def change(events: list[Event]) -> None:
        events[:] = [event for event in events if event["key"] not in keys]

    return change


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (without("predictions", "out_of_bag"), "predictions"),
        (without("out_of_bag"), "predictions"),
        (lambda events: events.pop(-2), "predictions"),
        (lambda events: of(events, "predictions", 0).update(samples=11), "predictions"),
        (lambda events: of(events, "predictions").update(samples=3), "predictions"),
        (lambda events: of(events, "predictions").update(file="predictions/evaluation.npz"), "predictions"),
        (lambda events: of(events, "predictions").update(file="../evaluation.npz"), "files"),
        (lambda events: of(events, "predictions").update(sha256="0" * 64), "files"),
        (lambda events: of(events, "out_of_bag").update(value=0.123), "predictions"),
        (lambda events: of(events, "out_of_bag").update(metric="top5"), "predictions"),
        (lambda events: of(events, "out_of_bag").update(value=None), "predictions"),
        (lambda events: events.insert(-4, events.pop(-1)), "event-order"),
        (lambda events: events.insert(8, events.pop(-3)), "event-order"),
        (lambda events: of(events, "predictions").update(samples="4"), "event-values"),
    ],
)  # fmt: skip
def test_a_forged_word_of_predictions_is_told(out: Path, change: Change, name: str) -> None:
    edit_record(out, change)
    assert name in {found for found, _ in findings(out)}


@pytest.mark.parametrize("harm", ["missing", "changed"])
def test_a_file_that_is_gone_or_changed_is_told(out: Path, harm: str) -> None:
    file = out / "predictions/evaluation.npz"
    if harm == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes() + b"\0")
    ((name, evidence),) = findings(out)
    assert name == "files"
    assert evidence.startswith("predictions/evaluation.npz")


def test_a_run_of_one_model_that_tells_of_predictions_is_told(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "record"
    assert train.main(train_arguments(images, out, "problem.epochs=1")) == 0
    assert not (out / "predictions").exists()
    value = {"kind": "evaluation", "file": "predictions/evaluation.npz", "sha256": "0" * 64, "samples": 12}

    def add(events: list[Event]) -> None:
        events.append({**events[-1], "key": "predictions", "value": value})

    edit_record(out, add)
    assert {"event-order", "predictions", "files"} <= {name for name, _ in findings(out)}
