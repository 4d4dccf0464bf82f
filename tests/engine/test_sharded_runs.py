"""Sharded models on real ranks: they learn what one process learns, and their checkpoints are read by any ranks."""

from __future__ import annotations

import io
import json
import os
import pickle
import runpy
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from builders import evidence
from builders.commands import ThreadsAtExit, python_with
from builders.plugins import install
from builders.ranks import Ended, start, started
from test_many_ranks import COMMAND, wait_for

from hpcai500.comm.communicator import LocalCommunicator
from hpcai500.engine.checkpoints import Checkpoint
from hpcai500.engine.ranks import Layout, layout_of, shares_of
from hpcai500.engine.sharded import ShardedCheckpointStore
from hpcai500.errors import RecipeError, RecordError, UsageError
from hpcai500.layers import Recipe
from hpcai500.methodology.conduct import conduct
from hpcai500.methodology.passes import last_pass
from hpcai500.methodology.sampling import Coverage
from hpcai500.recipe import global_batch, load_recipe, rulebook
from hpcai500.record import iterate, read_record
from hpcai500.results.score import score_record
from hpcai500.results.submission.gather import SHARDED_CHECKPOINT
from hpcai500.workloads.base import Place

SAMPLES = 70


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes that find the plug-in."""
    folder = tmp_path_factory.mktemp("site")
    install("blocks", folder)
    return {"PYTHONPATH": str(folder)}


@pytest.fixture(scope="module")
def points(site: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("points") / "data"
    runpy.run_path(str(Path(site["PYTHONPATH"]) / "hpcai500_blocks" / "data.py"))["make"](folder)
    return folder


Train = Callable[..., Ended]


def arguments_of(out: Path, points: Path, settings: tuple[str, ...]) -> list[str]:
    changes = [token for text in settings for token in ("--set", text)]
    return ["--recipe", "blocks/reference", "--data", str(points), "--out", str(out), *changes]


@pytest.fixture(scope="module")
def train(site: dict[str, str], points: Path) -> Train:
    """`train(out, ranks, "table.key=value", …)` runs a job to its end; without settings, it resumes the record."""

    def run(out: Path, ranks: int, *settings: str) -> Ended:
        arguments = arguments_of(out, points, settings) if settings else ["--resume", "--out", str(out)]
        return start([*COMMAND, *arguments], ranks, "processes", environment=site, timeout=300)

    return run


def sharded(ranks: int, *, tensor: int = 1, accumulation: int = 1) -> tuple[str, ...]:
    return (
        "programming.parallel_mode=sharded",
        f"programming.tensor_ranks={tensor}",
        f"hardware.accelerators_per_node={ranks}",
        f"hyperparameters.accumulation_steps={accumulation}",
        "communication.backend=torch",
    )


def losses(record: Path) -> list[float]:
    """Mean losses of the epochs that count."""
    return [event["value"]["loss"] for _, event in sorted(last_pass(read_record(record).events, "epoch_stop").items())]


def qualities(record: Path) -> list[tuple[float, int]]:
    found = iterate(read_record(record).events, "eval_accuracy")
    return [(event["value"]["value"], event["value"]["samples"]) for event in found]


def digests(record: Path) -> list[str]:
    return [event["value"]["digest"] for _, event in sorted(last_pass(read_record(record).events, "replicas").items())]


def saved(record: Path) -> list[Checkpoint]:
    return [Checkpoint(**event["value"]) for event in iterate(read_record(record).events, "checkpoint")]


def last_weights(record: Path) -> dict[str, torch.Tensor]:
    """The whole weights of the newest checkpoint, of a sharded model or another."""
    newest = record / "checkpoints" / saved(record)[-1].file
    if newest.is_file():
        weights: dict[str, torch.Tensor] = torch.load(newest, weights_only=True)["model"]
        return weights
    # Put together from the files as docs/plugins.md describes them, without torch.distributed.checkpoint.
    found = {}
    for key, tensor in json.loads((newest / "metadata.json").read_bytes()).items():
        if not key.startswith("model/"):
            continue
        found[key.removeprefix("model/")] = whole = torch.empty(tensor["shape"], dtype=getattr(torch, tensor["dtype"]))
        for part in tensor["parts"]:
            content = (newest / part["file"]).read_bytes()[part["start"] : part["start"] + part["bytes"]]
            shard = torch.load(io.BytesIO(content), weights_only=True)
            whole[tuple(slice(at, at + size) for at, size in zip(part["offsets"], shard.shape, strict=True))] = shard
    return found


def assert_same_weights(one: Path, other: Path) -> None:
    left, right = last_weights(one), last_weights(other)
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], rtol=1e-4, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")


# 9 updates of 8 samples in each epoch.
THREE_EPOCHS = "problem.epochs=3"


@pytest.fixture(scope="module")
def alone(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process, which accumulates two passes of four samples."""
    out = tmp_path_factory.mktemp("alone") / "record"
    ended = train(out, 1, THREE_EPOCHS)
    assert ended.exit_codes == [0], ended.output
    return out


LAYOUTS = {"samples": sharded(2), "tensor": sharded(2, tensor=2, accumulation=2), "both": sharded(4, tensor=2)}


@pytest.fixture(scope="module", params=LAYOUTS)
def together(request: pytest.FixtureRequest, train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two or four ranks that distribute the model by FSDP2, by tensor parallelism, or by both."""
    settings, out = LAYOUTS[request.param], tmp_path_factory.mktemp(request.param) / "record"
    ended = train(out, 4 if request.param == "both" else 2, THREE_EPOCHS, *settings)
    assert set(ended.exit_codes) == {0}, ended.output
    return out


def test_a_sharded_model_learns_what_one_process_learns(together: Path, alone: Path) -> None:
    assert losses(together) == pytest.approx(losses(alone), abs=1e-5)
    assert_same_weights(together, alone)
    assert qualities(together) == qualities(alone)


def test_the_record_of_a_sharded_model_counts_samples_once_and_is_refused_by_no_check(together: Path) -> None:
    record = read_record(together)
    for event in iterate(record.events, "epoch_stop"):
        assert (event["value"]["samples"], event["value"]["padded_samples"]) == (SAMPLES, 2)
        assert event["value"]["coverage"] == Coverage.expected(SAMPLES).digest
    assert all(event["value"]["samples"] == 21 for event in iterate(record.events, "eval_accuracy"))
    assert len(set(digests(together))) == 3
    # Where the plug-in of these tests is installed is told, too.
    against = [one for one in evidence.against(evidence.findings(together)) if "PYTHONPATH" not in one.evidence]
    assert against == []
    rules = conduct(record.tables, rulebook("v3.0", "blocks"), record.events)
    assert [problem for rule in rules for problem in rule.problems] == []


def test_what_communication_of_a_sharded_model_costs_is_unknown_and_not_0(together: Path, tmp_path: Path) -> None:
    (costs,) = iterate(read_record(together).events, "communication")
    value, result = costs["value"], score_record(together)
    assert [value[name] for name in ("all_reduces", "overlap", "stragglers")] == [None] * 3
    assert set(value["bytes_per_step"].values()) == {None}
    assert value["network"]["counted_bytes"] is None
    assert result.communication_fraction is None
    assert "parallel_efficiency" not in {event["key"] for event in read_record(together).events}
    for command in (["timeline", str(together)], ["score", str(together)], ["report", str(together)]):
        line = [Path(sys.executable).with_name("hpcai500"), *command]
        ended = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        assert "None" not in ended.stdout


def test_a_sharded_checkpoint_is_a_folder_of_which_the_event_has_hash_and_size(together: Path) -> None:
    found = saved(together)
    kept = sorted(path.name for path in (together / "checkpoints").iterdir())
    # The first reaches the target; the last two are kept, too.
    assert kept == [one.file for one in found] == [f"epoch-{epoch:04d}-step-0000000.dcp" for epoch in (2, 3, 4)]
    store = ShardedCheckpointStore(together, 0, LocalCommunicator())
    for one in found:
        files = list((together / "checkpoints" / one.file).iterdir())
        assert store._hash_of(together / "checkpoints" / one.file) == one.sha256
        assert sum(file.stat().st_size for file in files) == one.bytes


def test_gradients_of_accumulated_passes_are_averaged(train: Train, tmp_path: Path) -> None:
    """Of eight shares, four ranks do two each."""
    one, four = tmp_path / "one", tmp_path / "four"
    assert train(one, 1, "hyperparameters.accumulation_steps=8").exit_codes == [0]
    ended = train(four, 4, *sharded(4, accumulation=2))
    assert ended.exit_codes == [0] * 4, ended.output
    assert losses(four) == pytest.approx(losses(one), abs=1e-5)
    assert_same_weights(four, one)


# ----------------------------------------------------------------------------------------------------
# Stopped, killed, resumed.


LONG = "problem.epochs=8"
# A job that takes a moment for each update, so that a signal meets it in training.
SLOWLY = (
    sys.executable,
    "-c",
    """
import sys, time
from hpcai500 import train
from hpcai500.engine.updates import Updater

real = Updater.update
Updater.update = lambda *given: (time.sleep(0.05), real(*given))[1]
sys.exit(train.main(sys.argv[1:]))
""",
)


def test_a_killed_run_that_is_resumed_has_the_same_weights_bit_for_bit(
    train: Train, site: dict[str, str], points: Path, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    settings = (*sharded(2), LONG)
    assert train(whole, 2, *settings).exit_codes == [0, 0]
    arguments = arguments_of(killed, points, settings)
    with started([*SLOWLY, *arguments], 2, "processes", environment=site) as (ranks, log):
        wait_for(killed, "checkpoint", log)
        ranks[1].send_signal(signal.SIGKILL)
        assert ranks[0].wait(240) in (1, -signal.SIGALRM), log.read_text()
        assert "rank 1 on host" in (killed / "ERROR").read_text()
    ended = train(killed, 2)
    assert ended.exit_codes == [0, 0], ended.output
    assert len(list(iterate(read_record(killed).events, "run_resume"))) == 1
    assert digests(killed) == digests(whole)
    assert losses(killed) == losses(whole)
    left, right = last_weights(whole), last_weights(killed)
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_stopped_run_is_resumed_on_other_numbers_of_ranks(
    train: Train, site: dict[str, str], points: Path, tmp_path: Path
) -> None:
    """Started on two tensor ranks, resumed by one process, then by four ranks."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    settings = (*sharded(2, tensor=2, accumulation=2), LONG)
    assert train(whole, 2, *settings).exit_codes == [0, 0]
    at_exit = ThreadsAtExit(tmp_path / "at-exit")
    commands = [arguments_of(stopped, points, settings), ["--resume", "--out", str(stopped)]]
    for size, arguments in zip((2, 1), commands, strict=True):
        folders = [site["PYTHONPATH"], *([at_exit.environment["PYTHONPATH"]] if size > 1 else [])]
        environment = {"PYTHONPATH": os.pathsep.join(folders)}
        with started([*SLOWLY, *arguments], size, "processes", environment=environment) as (ranks, log):
            wait_for(stopped, "epoch_stop", log, after="init_start" if size == 2 else "run_resume")
            ranks[-1].send_signal(signal.SIGINT)
            assert [rank.wait(240) for rank in ranks] == [1] * size, log.read_text()
            assert "nothing is lost: go on with `hpcai500 blocks --resume" in log.read_text()
            assert at_exit.counts == [0, 0], f"threads of Gloo: {log.read_text()}"
    ended = train(stopped, 4)
    assert ended.exit_codes == [0] * 4, ended.output
    events = read_record(stopped).events
    assert [event["value"]["world_size"] for event in iterate(events, "run_resume")] == [1, 4]
    assert losses(stopped) == pytest.approx(losses(whole), abs=1e-5)
    assert_same_weights(stopped, whole)
    assert {event["value"]["coverage"] for event in last_pass(events, "epoch_stop").values()} == {
        Coverage.expected(SAMPLES).digest
    }


def test_damaged_checkpoints_are_skipped_and_the_older_one_is_resumed(train: Train, tmp_path: Path) -> None:
    out = tmp_path / "record"
    assert train(out, 2, *sharded(2), "problem.epochs=4").exit_codes == [0, 0]
    log = out / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    end = next(place for place, line in enumerate(lines) if json.loads(line)["key"] == "run_stop")
    log.write_bytes(b"".join(lines[:end]))
    for name in ("DONE", "result.json"):
        (out / name).unlink()
    newest = max((out / "checkpoints").glob("epoch-*.dcp"))
    assert newest.name.startswith("epoch-0005")
    shard = newest / "__1_0.distcp"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    ended = train(out, 2)
    assert ended.exit_codes == [0, 0], ended.output
    assert "the checkpoint of epoch 5, step 0 is damaged or missing: skipped" in ended.output
    (resumed,) = iterate(read_record(out).events, "run_resume")
    assert resumed["value"]["epoch"] == 4


# A job whose rank 1 finds the disk full when it writes its second checkpoint.
FULL = """
import errno, os, sys
from hpcai500 import train
from hpcai500.engine import sharded

calls, real = [], sharded._Writer.write_data

def write_data(*given):
    calls.append(None)
    if os.environ["RANK"] == "1" and len(calls) == 2:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return real(*given)

sharded._Writer.write_data = write_data
sys.exit(train.main(sys.argv[1:]))
"""


def test_a_disk_that_is_full_on_one_rank_is_told_with_the_command_to_go_on(
    train: Train, site: dict[str, str], points: Path, tmp_path: Path
) -> None:
    out = tmp_path / "record"
    arguments = arguments_of(out, points, (*sharded(2), THREE_EPOCHS))
    ended = start([sys.executable, "-c", FULL, *arguments], 2, "processes", environment=site, timeout=300)
    # On a busy machine, the end of the interpreter may take longer than a rank may take.
    assert set(ended.exit_codes) <= {1, -signal.SIGALRM}, ended.output
    assert "No space left on device: all saved epochs are kept: free some space, then continue with" in ended.output
    assert [path.name[:10] for path in (out / "checkpoints").iterdir()] == ["epoch-0002"]
    ended = train(out, 2)
    assert ended.exit_codes == [0, 0], ended.output
    (resumed,) = iterate(read_record(out).events, "run_resume")
    assert resumed["value"]["epoch"] == 2


# ----------------------------------------------------------------------------------------------------
# A campaign of such runs.


def test_a_campaign_of_a_sharded_model_is_verified_without_its_checkpoints(
    site: dict[str, str], points: Path, tmp_path: Path
) -> None:
    command = python_with(tmp_path / "python", Path(site["PYTHONPATH"])).with_name("hpcai500")

    def run(*words: str, code: int = 0) -> str:
        ended = subprocess.run([command, *words], capture_output=True, text=True, cwd=tmp_path, check=False)
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout

    plan = ("--recipe", "blocks/reference", "--trials", "1", "--procs", "2", "--data", str(points))
    run("campaign", "init", "campaign", *plan, "--set", "programming.parallel_mode=sharded")
    run("campaign", "run", "campaign", "--oversubscribe")
    run("submit", "campaign", "-o", "it.zip", "--system", "S", "--organisation", "O", "--unsigned")
    # It is not signed.
    document = json.loads(run("verify", "it.zip", "--json", code=2))
    found = {(one["severity"], one["name"]): one["evidence"] for one in document["findings"]}
    assert [name for severity, name in found if severity == "fail"] == ["signature"]
    assert found["skipped", "checkpoints"] == "those of 1 trials were left out: sharded models cannot be replayed"
    with zipfile.ZipFile(tmp_path / "it.zip") as archive:
        left_out = json.loads(archive.read("manifest.json"))["left_out"]
        assert not [name for name in archive.namelist() if "/checkpoints/" in name]
    assert [one["path"][-4:] for one in left_out] == [".dcp"] * 2
    assert {one["reason"] for one in left_out} == {SHARDED_CHECKPOINT}


# ----------------------------------------------------------------------------------------------------
# What the workload or the recipe does wrong.


@pytest.mark.parametrize(
    ("mistake", "settings", "said"),
    [
        ("whole", sharded(2), "does not distribute its model on 2 ranks (no parameter is a DTensor); use data"),
        ("replicas", sharded(4, tensor=2), "over all 2 groups of ranks with different samples"),
        ("seed", sharded(4, tensor=2), "shards differ: rank 1 on"),
        ("counted", sharded(2), "counted() gives a distributed model"),
        (
            "mode",
            ("hardware.accelerators_per_node=2", "communication.backend=torch"),
            "is a DTensor), but the mode is data; use sharded",
        ),
    ],
)
def test_a_workload_that_distributes_its_model_wrongly_is_refused_at_the_start(
    train: Train, tmp_path: Path, mistake: str, settings: tuple[str, ...], said: str
) -> None:
    size = 4 if "hardware.accelerators_per_node=4" in settings else 2
    out = tmp_path / "record"
    ended = train(out, size, *settings, f"workload.mistake={mistake}")
    assert 0 not in ended.exit_codes, ended.output
    assert said in ended.output
    assert "Traceback" not in ended.output
    assert "epoch_start" not in {event["key"] for event in read_record(out).events}


@pytest.fixture
def blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recipe]:
    """`blocks("table.key=value", …)` is a recipe of the plug-in, which this process finds."""
    install("blocks", tmp_path / "here")
    monkeypatch.syspath_prepend(tmp_path / "here")
    return lambda *settings: load_recipe("blocks/reference", settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ((*sharded(4), "programming.stages=2"), "programming.stages: a sharded model has no stages"),
        (sharded(4, tensor=3), "programming.tensor_ranks: expected a divisor of the 4 ranks"),
        (("programming.tensor_ranks=2",), "programming.tensor_ranks: only `sharded` has ranks that share samples"),
        (("programming.parallel_mode=sharded",), "programming.parallel_mode: `sharded` distributes a model over two"),
        ((*sharded(2), "communication.backend=horovod"), "communication.backend: .* expected torch, got horovod"),
        ((*sharded(2), "communication.topology=torus"), "communication.topology: .* expected flat, got torus"),
        ((*sharded(2), "communication.compression=fp16"), "communication.compression: .* expected none, got fp16"),
        ((*sharded(2), "accelerator.precision=fp16"), "accelerator.precision: .* expected fp32 or tf32 or bf16"),
        ((*sharded(2), "framework.compile=true"), "framework.compile: .* expected false, got true"),
    ],
)
def test_what_sharded_models_cannot_have_is_refused(
    blocks: Callable[..., Recipe], settings: tuple[str, ...], said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        blocks(*settings)


class World(LocalCommunicator):
    """A rank of `size` that never communicates."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self.rank, self.size = rank, size


def test_ranks_of_a_tensor_group_get_the_same_shares(blocks: Callable[..., Recipe]) -> None:
    recipe = blocks(*sharded(8, tensor=2, accumulation=2))
    assert (recipe.replicas, recipe.shards, recipe.global_batch) == (4, 8, 32)
    assert global_batch(recipe.model_dump(mode="json")) == 32
    layout = layout_of(recipe, 8)
    assert layout == Layout(1, 4, tensor_ranks=2)
    assert [shares_of(recipe, World(rank, 8)) for rank in range(8)] == [
        (0, 4), (0, 4), (1, 5), (1, 5), (2, 6), (2, 6), (3, 7), (3, 7),
    ]  # fmt: skip
    assert layout_of(recipe, 4) == Layout(1, 2, tensor_ranks=2)
    # An odd number has no tensor groups.
    assert layout_of(recipe, 1) == Layout(1, 1)
    assert layout_of(recipe, 3) is None


def test_a_mesh_needs_the_backend_torch() -> None:
    with pytest.raises(UsageError, match="got local and 1: a workload on one rank must not distribute its model"):
        Place(torch.device("cpu"), torch.float32, 1).device_mesh((1,), ("samples",))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (pickle.dumps(slice(3)), "Invalid JSON"),
        (b'{"model/weight": {"dtype": "float32", "shape": [3]}}', "model/weight.parts: Field required"),
        (
            b'{"model/weight": {"dtype": "float32", "shape": [3], "parts": '
            b'[{"offsets": [0], "shape": [3], "file": "../state.pt", "start": 0, "bytes": 9}]}}',
            r"model/weight.parts.0.file: String should match",
        ),
        (b'{"model/weight": {"dtype": "load", "shape": [3], "parts": []}}', "tensors of type load"),
    ],
    ids=["pickle", "lacking", "path", "dtype"],
)
def test_metadata_of_a_checkpoint_is_json_and_names_only_its_files(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "checkpoints").mkdir()
    store = ShardedCheckpointStore(tmp_path, 0, LocalCommunicator())
    checkpoint = store.save({"model": {"weight": torch.ones(3)}}, 2, 0)
    target = torch.zeros(3)
    store.reader(checkpoint)({("model", "weight"): target})
    assert target.tolist() == [1, 1, 1]
    folder = tmp_path / "checkpoints" / checkpoint.file
    (folder / "metadata.json").write_bytes(content)
    assert store._hash_of(folder) != checkpoint.sha256
    with pytest.raises(RecordError, match=reason):
        store.reader(checkpoint)({("model", "weight"): target})


def test_a_checkpoint_is_read_without_unpickling_its_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checkpoints").mkdir()
    store = ShardedCheckpointStore(tmp_path, 0, LocalCommunicator())
    saved = {("model", "weight"): torch.arange(6.0, dtype=torch.float64).view(2, 3), ("model", "seen"): torch.tensor(7)}
    checkpoint = store.save({"model": {name: value for (_, name), value in saved.items()}}, 2, 0)
    for name in ("load", "loads"):
        monkeypatch.setattr(pickle, name, lambda *_: pytest.fail("a pickle was read"))
    targets = {path: torch.zeros_like(value) for path, value in saved.items()}
    store.reader(checkpoint)(targets)
    assert all(torch.equal(targets[path], value) for path, value in saved.items())


def test_a_checkpoint_of_another_shape_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    store = ShardedCheckpointStore(tmp_path, 0, LocalCommunicator())
    checkpoint = store.save({"model": {"weight": torch.ones(3)}}, 2, 0)
    for wrong in ({("model", "weight"): torch.zeros(4)}, {("model", "bias"): torch.zeros(3)}):
        with pytest.raises(RecordError, match="reading a checkpoint failed on rank 0"):
            store.reader(checkpoint)(wrong)
