"""Whole jobs of two real ranks: the same mathematics as one process, one record, one way to stop and to go on."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from many_ranks import start, started
from tiny_runs import last_weights, train_arguments, weather_arguments

from hpcai500 import train
from hpcai500.methodology.events import order_violations, read_log
from hpcai500.methodology.sampling import Coverage
from hpcai500.record import iterate, read_record
from hpcai500.results.score import score_record

TWO = ("hardware.accelerators_per_node=2", "communication.backend=torch", "communication.timeout_seconds=20")
# Group norm has no statistics of a batch: nothing may depend on how a batch is cut.
WEATHER = ("workload.norm=group", "problem.epochs=1", "hyperparameters.batch_size=1")


def launch(arguments: list[str], size: int = 2, launcher: str = "processes") -> tuple[list[int], str]:
    ended = start([sys.executable, "-m", "hpcai500.train", *arguments], size, launcher, timeout=120)
    return ended.exit_codes, ended.output


def parameters(record: Path) -> dict[str, torch.Tensor]:
    return {name: value for name, value in last_weights(record).items() if "running" not in name and "num_" not in name}


def assert_close(one: Path, other: Path) -> None:
    left, right = parameters(one), parameters(other)
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], rtol=1e-3, atol=2e-5, msg=lambda text, n=name: f"{n}: {text}")


@pytest.fixture(scope="module")
def together(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, each half of a global batch of eight."""
    out = tmp_path_factory.mktemp("together") / "record"
    codes, output = launch(train_arguments(images, out, *TWO, "hyperparameters.batch_size=4"))
    assert codes == [0, 0], output
    return out


def test_two_ranks_train_the_weights_that_one_process_trains(together: Path, images: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    shares = ("hyperparameters.batch_size=4", "hyperparameters.accumulation_steps=2")
    assert train.main(train_arguments(images, alone, *shares)) == 0
    assert_close(together, alone)


def test_the_record_tells_who_trained_and_counts_all_their_samples(together: Path) -> None:
    record = read_record(together)
    (begin,) = iterate(record.events, "run_start")
    assert (begin["value"]["world_size"], begin["value"]["nodes"], begin["value"]["backend"]) == (2, 1, "torch")
    assert begin["value"]["library"].startswith("Gloo")
    for event in iterate(record.events, "epoch_stop"):
        value = event["value"]
        assert (value["steps"], value["samples"], value["padded_samples"]) == (5, 33, 7)
        assert value["coverage"] == Coverage.expected(33).digest
    assert all(event["value"]["samples"] == 12 for event in iterate(record.events, "eval_accuracy"))
    assert len(json.loads((together / "system.json").read_text())["nodes"]) == 1


def test_what_communication_costs_is_in_the_record_and_the_result(together: Path) -> None:
    record, result = read_record(together), score_record(together)
    (costs,) = iterate(record.events, "communication")
    assert costs["value"]["bytes_per_step"]["gradient"] > 0
    assert (together / "trace" / "communication.json").is_file()
    assert 0 <= (result.communication_fraction or -1) < 1
    assert result.backend == "torch"
    assert result.world_size == 2


@pytest.fixture(scope="module")
def weather_alone(weather: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("weather") / "alone"
    assert train.main(weather_arguments(weather, out, *WEATHER, "hyperparameters.accumulation_steps=2")) == 0
    return out


def test_average_precision_of_two_ranks_is_that_of_one_process(
    weather_alone: Path, weather: Path, tmp_path: Path
) -> None:
    out = tmp_path / "two"
    codes, output = launch(weather_arguments(weather, out, *WEATHER, *TWO))
    assert codes == [0, 0], output
    assert_close(out, weather_alone)
    one, two = (next(iterate(read_record(path).events, "eval_accuracy"))["value"] for path in (weather_alone, out))
    assert one["samples"] == two["samples"] == 10
    assert two["value"] == pytest.approx(one["value"], abs=1e-3)
    assert two["per_class"].keys() == one["per_class"].keys()
    assert (out / "pictures" / "detections.png").is_file()


def test_a_signal_to_one_rank_stops_both_and_one_process_can_go_on(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "record"
    arguments = train_arguments(images, out, *TWO, "hyperparameters.batch_size=4", "problem.epochs=2000")
    command = [sys.executable, "-m", "hpcai500.train", *arguments]
    with started(command, 2, "processes") as (processes, log):
        wait_for(out, "epoch_stop", log)
        processes[1].send_signal(signal.SIGTERM)
        codes = [process.wait(60) for process in processes]
        assert codes == [1, 1], log.read_text()
    record = read_record(out)
    (interrupted,) = iterate(record.events, "interrupted")
    assert interrupted["value"]["signal"] == "SIGTERM"
    step = interrupted["value"]["step"]
    with started([sys.executable, "-m", "hpcai500.train", "--resume", "--out", str(out)], 1, "processes") as (
        processes,
        log,
    ):
        wait_for(out, "epoch_stop", log, after="run_resume")
        processes[0].send_signal(signal.SIGTERM)
        assert processes[0].wait(60) == 1, log.read_text()
    events = read_record(out).events
    (resumed,) = iterate(events, "run_resume")
    assert (resumed["value"]["step"], resumed["value"]["world_size"]) == (step, 1)
    complete = [event for event in iterate(events, "epoch_stop") if event["seq"] > resumed["seq"]]
    assert complete[0]["value"]["coverage"] == Coverage.expected(33).digest


def test_more_ranks_than_shares_cannot_go_on(together: Path) -> None:
    codes, output = launch(["--resume", "--out", str(together)], size=3)
    assert codes == [64, 64, 64]
    assert "3 ranks cannot share the 2 backward passes of an update evenly: go on with one of 1, 2" in output


def test_a_rank_that_is_killed_ends_the_other_by_name_and_the_run_goes_on(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "record"
    arguments = train_arguments(images, out, *TWO, "hyperparameters.batch_size=4", "problem.epochs=2000")
    with started([sys.executable, "-m", "hpcai500.train", *arguments], 2, "processes") as (processes, log):
        wait_for(out, "checkpoint", log)
        processes[1].kill()
        begin = time.monotonic()
        assert processes[0].wait(60) == 1
        assert time.monotonic() - begin < 20
        assert "rank 1 on host" in log.read_text()
    assert "rank 1 on host" in (out / "ERROR").read_text()
    assert read_record(out).status == "error"
    with started([sys.executable, "-m", "hpcai500.train", "--resume", "--out", str(out)], 2, "processes") as (_, log):
        wait_for(out, "epoch_stop", log, after="run_resume")


def test_an_error_of_one_rank_is_what_all_of_them_say(images: Path, tmp_path: Path) -> None:
    """The second rank finds other data, as on a host whose local copy is stale."""
    out = tmp_path / "record"
    other = tmp_path / "other"
    from hpcai500.data.imagenet.synthetic import SyntheticSet, make_images

    make_images(other, SyntheticSet(classes=3, train_per_class=11, val_per_class=4, seed=9), workers=1)
    arguments = train_arguments(images, out, *TWO)
    script = (
        "import os, sys; from hpcai500 import train; arguments = sys.argv[1:]; "
        f"arguments[arguments.index('--data') + 1] = {str(other)!r} if os.environ['RANK'] == '1' else {str(images)!r}; "
        "sys.exit(train.main(arguments))"
    )
    ended = start([sys.executable, "-c", script, *arguments], 2, "processes", timeout=60)
    assert 0 not in ended.exit_codes
    assert "rank 1 on" in (out / "ERROR").read_text()
    assert "another data fingerprint" in (out / "ERROR").read_text()


def wait_for(record: Path, key: str, log: Path, after: str = "init_start", starts: int = 1) -> None:
    """Until the record has an event `key` after the `starts`-th one named `after`."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        path = record / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        keys = [json.loads(line)["key"] for line in lines if line.endswith("}")]
        found = [place for place, one in enumerate(keys) if one == after]
        if len(found) >= starts and key in keys[found[starts - 1] :]:
            return
        time.sleep(0.05)
    raise AssertionError(f"no {key} after {after}:\n{log.read_text()}")


# A job in which the loss of the CALL-th pass is no number, on the ranks that BAD names, or, one pass before, a gradient
# on the ranks that BAD_GRADIENT names.
FAULTY = """
import os, sys
from hpcai500 import train
from hpcai500.workloads.ic import ImageClassificationWorkload

bad, bad_gradient = (os.environ[name].split(",") for name in ("BAD", "BAD_GRADIENT"))
rank, last, calls, real = os.environ["RANK"], int(os.environ["CALL"]), [], ImageClassificationWorkload.loss

def spoil(gradient):
    gradient = gradient.clone()
    gradient[-1] = float("inf")
    return gradient

def loss(self, model, payload):
    if model.training:
        calls.append(None)
        if rank in bad_gradient and len(calls) == last - 1:
            parameter = next(model.parameters())
            hook = parameter.register_hook(lambda gradient: (hook.remove(), spoil(gradient))[1])
    found = real(self, model, payload)
    return found * float("nan") if rank in bad and len(calls) == last else found

ImageClassificationWorkload.loss = loss
sys.exit(train.main(sys.argv[1:]))
"""


def run_faulty(
    images: Path, out: Path, monkeypatch: pytest.MonkeyPatch, bad: str, *settings: str, bad_gradient: str = ""
) -> tuple[list[int], str]:
    monkeypatch.setenv("BAD", bad)
    monkeypatch.setenv("BAD_GRADIENT", bad_gradient)
    # Past the updates before training that only measure.
    monkeypatch.setenv("CALL", "40")
    arguments = train_arguments(images, out, *TWO, "problem.epochs=30", "hyperparameters.batch_size=2", *settings)
    ended = start([sys.executable, "-c", FAULTY, *arguments], 2, "processes", timeout=120)
    return ended.exit_codes, ended.output


@pytest.mark.parametrize("bad", ["0", "1"])
def test_a_loss_that_is_no_number_on_one_rank_first_names_its_device_and_is_not_final(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    codes, output = run_faulty(images, tmp_path / "r", monkeypatch, bad)
    assert codes == [1, 1], output
    events = read_record(tmp_path / "r").events
    assert not list(iterate(events, "diverged"))
    (told,) = iterate(events, "not_finite")
    assert (told["value"]["ranks"], told["value"]["devices"]) == ([int(bad)], ["cpu"])
    said = f"the loss is nan at epoch {told['value']['epoch']}, step {told['value']['step']} on rank {bad} alone, host "
    assert said in output
    assert (tmp_path / "r" / "ERROR").read_text().startswith(said)
    assert list(order_violations(read_log(events).moments, 30)) == []


@pytest.mark.parametrize("bad", ["0", "1"])
def test_a_gradient_that_is_no_number_on_one_rank_first_names_its_device(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    codes, output = run_faulty(images, tmp_path / "r", monkeypatch, "", bad_gradient=bad)
    assert codes == [1, 1], output
    events = read_record(tmp_path / "r").events
    assert not list(iterate(events, "diverged"))
    (told,) = iterate(events, "not_finite")
    assert (told["value"]["ranks"], told["value"]["what"]) == ([int(bad)], "gradients are not finite")
    assert f"gradients are not finite at epoch {told['value']['epoch']}, step {told['value']['step']} on rank" in output


# A gradient that the loss scaler leaves out with its step has no part in what comes after it.
@pytest.mark.parametrize("settings", [(), ("accelerator.precision=fp16",)], ids=["fp32", "fp16"])
def test_a_loss_that_is_no_number_on_all_ranks_is_a_divergence(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...]
) -> None:
    gradient = "1" if settings else ""
    codes, output = run_faulty(images, tmp_path / "r", monkeypatch, "0,1", *settings, bad_gradient=gradient)
    assert codes == [1, 1], output
    events = read_record(tmp_path / "r").events
    assert len(list(iterate(events, "diverged"))) == 1
    assert not list(iterate(events, "not_finite"))
    assert "on 2 of 2 ranks: lower hyperparameters.base_learning_rate" in output
    # The recipe is in fp32 already.
    assert ("precision=fp32" in output) == bool(settings)
