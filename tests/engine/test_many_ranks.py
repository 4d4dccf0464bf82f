"""Whole jobs of two real ranks: the same mathematics as one process, one record, one way to stop and to go on.

Before their clock starts, they choose the bucket size and time their steps.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from builders.ranks import run_ranks, start, started
from builders.runs import last_weights, train_arguments, weather_arguments
from comm.thread_ranks import run_threads
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hpcai500 import train
from hpcai500.comm.communicator import Communicator
from hpcai500.data.imagenet.synthetic import SyntheticSet, make_images
from hpcai500.engine.evidence import digest_of
from hpcai500.engine.precision import Precision
from hpcai500.engine.ranks import Ranks
from hpcai500.engine.signals import StopRequest
from hpcai500.engine.updates import Updater
from hpcai500.engine.warm_up import WarmUp, bucket_candidates, choose_bucket_bytes
from hpcai500.errors import UsageError
from hpcai500.hosts import find_placement
from hpcai500.methodology.events import order_violations, read_log
from hpcai500.methodology.sampling import Coverage
from hpcai500.recipe import load_recipe
from hpcai500.record import iterate, read_record
from hpcai500.results.score import score_record
from hpcai500.workloads.base import Place, Workload
from hpcai500.workloads.blank import BlankWorkload

TWO = ("hardware.accelerators_per_node=2", "communication.backend=torch", "communication.timeout_seconds=20")
COMMAND = (sys.executable, "-m", "hpcai500.train")


def launch(arguments: list[str], size: int = 2, launcher: str = "processes") -> tuple[list[int], str]:
    ended = start([*COMMAND, *arguments], size, launcher, timeout=300)
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
    # Equal replicas share a digest, which other weights do not have.
    digests = [event["value"]["digest"] for event in iterate(record.events, "replicas")]
    assert {len(digest) for digest in digests} == {16}
    assert len(set(digests)) == len(digests) == 3


class LargestResult(TorchDispatchMode):
    """The bytes of the largest tensor that an operator has made."""

    bytes = 0

    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        made = operator(*arguments, **(named or {}))
        self.bytes = max(self.bytes, made.nbytes if isinstance(made, torch.Tensor) else 0)
        return made


def test_a_digest_of_weights_takes_little_memory_and_tells_each_byte_and_place() -> None:
    weights = torch.arange(2**21, dtype=torch.float32)
    with LargestResult() as largest:
        digest = digest_of([weights, torch.tensor(3)])
    assert largest.bytes <= weights.nbytes
    weighted = np.arange(1, 2**23 + 1, dtype=np.uint64) * weights.numpy().view(np.uint8)
    assert digest == (int(weighted.sum(dtype=np.uint64)) * 1_000_003 + 3) % 2**64
    weights[[5, 2**20]] = weights[[2**20, 5]]
    assert digest_of([weights, torch.tensor(3)]) != digest


def test_what_communication_costs_is_in_the_record_and_the_result(together: Path) -> None:
    record, result = read_record(together), score_record(together)
    (costs,) = iterate(record.events, "communication")
    assert costs["value"]["bytes_per_step"]["gradient"] > 0
    assert (together / "trace" / "communication.json").is_file()
    assert 0 <= (result.communication_fraction or -1) < 1
    assert result.backend == "torch"
    assert result.world_size == 2


def test_average_precision_of_two_ranks_is_that_of_one_process(weather: Path, tmp_path: Path) -> None:
    # Group norm has no statistics of a batch: nothing may depend on how a batch is cut.
    settings = ("workload.norm=group", "problem.epochs=1", "hyperparameters.batch_size=1")
    alone, out = tmp_path / "alone", tmp_path / "two"
    assert train.main(weather_arguments(weather, alone, *settings, "hyperparameters.accumulation_steps=2")) == 0
    codes, output = launch(weather_arguments(weather, out, *settings, *TWO))
    assert codes == [0, 0], output
    assert_close(out, alone)
    one, two = (next(iterate(read_record(path).events, "eval_accuracy"))["value"] for path in (alone, out))
    assert one["samples"] == two["samples"] == 10
    assert two["value"] == pytest.approx(one["value"], abs=1e-3)
    assert two["per_class"].keys() == one["per_class"].keys()
    assert (out / "pictures" / "detections.png").is_file()


def test_a_signal_to_one_rank_stops_both_and_one_process_can_go_on(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "record"
    arguments = train_arguments(images, out, *TWO, "hyperparameters.batch_size=4", "problem.epochs=2000")
    with started([*COMMAND, *arguments], 2, "processes") as (processes, log):
        wait_for(out, "epoch_stop", log)
        processes[1].send_signal(signal.SIGTERM)
        codes = [process.wait(240) for process in processes]
        assert codes == [1, 1], log.read_text()
    record = read_record(out)
    (interrupted,) = iterate(record.events, "interrupted")
    assert interrupted["value"]["signal"] == "SIGTERM"
    step = interrupted["value"]["step"]
    with started([*COMMAND, "--resume", "--out", str(out)], 1, "processes") as (processes, log):
        wait_for(out, "epoch_stop", log, after="run_resume")
        processes[0].send_signal(signal.SIGTERM)
        assert processes[0].wait(240) == 1, log.read_text()
    events = read_record(out).events
    (resumed,) = iterate(events, "run_resume")
    assert (resumed["value"]["step"], resumed["value"]["world_size"]) == (step, 1)
    complete = [event for event in iterate(events, "epoch_stop") if event["seq"] > resumed["seq"]]
    assert complete[0]["value"]["coverage"] == Coverage.expected(33).digest


def test_more_ranks_than_shares_cannot_go_on(together: Path) -> None:
    codes, output = launch(["--resume", "--out", str(together)], size=3)
    assert codes == [64, 64, 64]
    message = (
        "3 ranks cannot share the 2 backward passes of an update evenly; resume with one of these numbers of ranks"
    )
    assert f"{message}: 1, 2" in output


def test_a_rank_that_is_killed_ends_the_other_by_name_and_the_run_goes_on(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "record"
    arguments = train_arguments(images, out, *TWO, "hyperparameters.batch_size=4", "problem.epochs=2000")
    with started([*COMMAND, *arguments], 2, "processes") as (processes, log):
        wait_for(out, "checkpoint", log)
        processes[1].kill()
        assert processes[0].wait(240) == 1
        assert "rank 1 on host" in log.read_text()
    assert "rank 1 on host" in (out / "ERROR").read_text()
    assert read_record(out).status == "error"
    with started([*COMMAND, "--resume", "--out", str(out)], 2, "processes") as (_, log):
        wait_for(out, "epoch_stop", log, after="run_resume")


def test_an_error_of_one_rank_is_what_all_of_them_say(images: Path, tmp_path: Path) -> None:
    """The second rank finds other data, as on a host whose local copy is stale."""
    out = tmp_path / "record"
    other = tmp_path / "other"
    make_images(other, SyntheticSet(classes=3, train_per_class=11, val_per_class=4, seed=9), workers=1)
    arguments = train_arguments(images, out, *TWO)
    script = (
        "import os, sys; from hpcai500 import train; arguments = sys.argv[1:]; "
        f"arguments[arguments.index('--data') + 1] = {str(other)!r} if os.environ['RANK'] == '1' else {str(images)!r}; "
        "sys.exit(train.main(arguments))"
    )
    ended = start([sys.executable, "-c", script, *arguments], 2, "processes", timeout=300)
    assert 0 not in ended.exit_codes
    assert "rank 1 on" in (out / "ERROR").read_text()
    assert "another data fingerprint" in (out / "ERROR").read_text()


def wait_for(record: Path, key: str, log: Path, after: str = "init_start", starts: int = 1) -> None:
    """Until the record has an event `key` after the `starts`-th one named `after`."""
    limit = time.monotonic() + 300
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


@pytest.mark.parametrize(
    ("loss", "gradient", "settings", "ranks"),
    [
        ("1", "", (), [1]),
        ("", "0", (), [0]),
        ("0,1", "", (), None),
        # A gradient that the loss scaler leaves out with its step has no part in what comes after it.
        ("0,1", "1", ("accelerator.precision=fp16",), None),
    ],
    ids=["loss of 1", "gradient of 0", "all losses", "all losses in fp16"],
)
def test_a_device_with_what_is_no_number_first_is_named_and_all_ranks_together_have_diverged(
    images: Path, tmp_path: Path, loss: str, gradient: str, settings: tuple[str, ...], ranks: list[int] | None
) -> None:
    # Past the updates before training that only measure.
    faults = {"BAD": loss, "BAD_GRADIENT": gradient, "CALL": "40"}
    options = (*TWO, "problem.epochs=30", "hyperparameters.batch_size=2", *settings)
    arguments = train_arguments(images, tmp_path / "r", *options)
    ended = start([sys.executable, "-c", FAULTY, *arguments], 2, "processes", environment=faults, timeout=300)
    assert ended.exit_codes == [1, 1], ended.output
    events = read_record(tmp_path / "r").events
    told, diverged = list(iterate(events, "not_finite")), list(iterate(events, "diverged"))
    if ranks is None:
        assert (len(told), len(diverged)) == (0, 1)
        assert "on 2 of 2 ranks: lower hyperparameters.base_learning_rate" in ended.output
        # Or the recipe is in fp32 already.
        assert ("precision=fp32" in ended.output) == bool(settings)
        return
    assert (len(told), len(diverged)) == (1, 0)
    value = told[0]["value"]
    assert (value["ranks"], value["devices"]) == (ranks, ["cpu"])
    what = "the loss is nan" if loss else "gradients are not finite"
    said = f"{what} at epoch {value['epoch']}, step {value['step']} on rank {ranks[0]} alone, host "
    assert said in ended.output
    assert (tmp_path / "r" / "ERROR").read_text().startswith(said)
    assert list(order_violations(read_log(events).moments, 30)) == []


# ----------------------------------------------------------------------------------------------------
# Before the clock starts: the bucket size is the one that is fastest for the slowest rank, and the same on all.


def test_what_counts_is_the_slowest_rank_and_the_median_round() -> None:
    # Seconds by rank, candidate and round. 1 is fastest on rank 0 but slow on rank 1; 3 has one lucky round.
    seconds = {
        0: {1: [1.0, 1.0, 1.0], 2: [3.0, 3.0, 9.0], 3: [5.0, 5.0, 0.1]},
        1: {1: [4.0, 4.0, 4.0], 2: [2.0, 2.0, 2.0], 3: [5.0, 5.0, 0.1]},
    }

    def on_rank(communicator: Communicator) -> tuple[tuple[int, dict[int, float]], list[int]]:
        order: list[int] = []

        def measure(candidate: int) -> float:
            order.append(candidate)
            return seconds[communicator.rank][candidate][order.count(candidate) - 1]

        return choose_bucket_bytes([1, 2, 3], measure, communicator), order

    assert run_threads(on_rank, "ab") == [((2, {1: 4.0, 2: 3.0, 3: 5.0}), [1, 2, 3] * 3)] * 2


def test_of_sizes_that_are_as_fast_as_each_other_the_usual_one_is_taken() -> None:
    seconds = {2**20: 1.0, 16 * 2**20: 1.04, 64 * 2**20: 1.06}
    choices = run_threads(lambda ranks: choose_bucket_bytes(list(seconds), seconds.__getitem__, ranks)[0], "ab")
    assert choices == [16 * 2**20] * 2


def test_candidates_end_with_the_whole_model() -> None:
    mib = 2**20 // 4
    assert bucket_candidates([nn.Parameter(torch.zeros(100))]) == [400]
    large = [nn.Parameter(torch.zeros(3 * mib)), nn.Parameter(torch.zeros(2 * mib)), torch.zeros(mib)]
    assert bucket_candidates(large) == [2**20, 4 * 2**20, 5 * 2**20]
    assert bucket_candidates([nn.Parameter(torch.zeros(4 * mib))]) == [2**20, 4 * 2**20]
    with pytest.raises(UsageError, match="no parameter is trained"):
        bucket_candidates([torch.zeros(3)])


SMALL = (
    "workload.width=8",
    "workload.image_size=32",
    "hyperparameters.batch_size=2",
    "hardware.accelerators_per_node=2",
    "communication.backend=torch",
)


def warm_ups(communicator: Communicator) -> list[tuple[int, signal.Signals | None]]:
    """How many passes this rank makes: in a job that nothing stops, and where rank 1 has heard a signal before."""
    return [warm_up(communicator, stopped) for stopped in (None, 1)]


def warm_up(communicator: Communicator, stopped_rank: int | None) -> tuple[int, signal.Signals | None]:
    recipe, cpu = load_recipe("ic/smoke", SMALL), torch.device("cpu")
    workload = BlankWorkload(recipe, Place(cpu, torch.float32, 1, communicator=communicator), 3)
    passes: list[int] = []
    workload.after_loss = lambda: passes.append(1)
    stop = StopRequest(announce=False)
    if communicator.rank == stopped_rank:
        stop.signal = signal.SIGTERM
    updater = Updater(
        workload=cast(Workload, workload),
        model=workload.model,
        optimizer=torch.optim.SGD(workload.model.parameters(), lr=0.1),
        precision=Precision("fp32", cpu),
        passes=1,
        reducer=None,
        stop=stop,
        sink=None,
        phase=lambda name: None,
    )
    ranks = Ranks(find_placement(os.environ), communicator, 60.0)
    WarmUp(updater, workload.model, ranks, recipe.communication).with_ranks()
    assert updater.reducer
    updater.reducer.close()
    return len(passes), stop.agreed


def test_a_signal_to_one_rank_cuts_the_warm_up_of_all_short() -> None:
    one, other = run_ranks(warm_ups, 2, timeout=300)
    assert one == other
    whole, cut = one
    # The first step, three alone, one by buckets, one with those that are chosen, one pair.
    assert cut == (8, signal.SIGTERM)
    assert whole[0] > 2 * cut[0]
