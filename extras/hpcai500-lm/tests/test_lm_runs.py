"""Whole runs by the command line: as in plain torch, resumed bit by bit, and through all other commands."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lm_in_plain_torch as plain
import numpy as np
import pytest
import torch
from hpcai500.data.samplers import epoch_order
from hpcai500.methodology.passes import last_pass
from hpcai500.record import read_record

from hpcai500_lm import Shape
from hpcai500_lm.grammar import BEGIN, LENGTH, VOCABULARY, write_documents
from hpcai500_lm.model import initialised
from hpcai500_lm.tokens import Part, write_set

TINY: dict[str, Any] = {"layers": 2, "width": 16, "heads": 4, "key_value_heads": 2, "head_width": 4, "hidden_width": 24}
SEED, RATE = 1, 0.001


@dataclass(frozen=True)
class Commands:
    """`hpcai500` with this package, in a folder that has a small set `data`."""

    program: Path
    work: Path

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *map(str, words)], cwd=self.work, capture_output=True, text=True, check=False
        )

    def good(self, *words: str | Path) -> str:
        ended = self.run(*words)
        assert ended.returncode == 0, ended.stderr + ended.stdout
        return ended.stdout

    def words(self, name: str, data: str = "data", **settings: Any) -> list[str]:
        """The words of a run of the tiny model; `settings` have two underscores for the dot."""
        values = {"problem.epochs": 2, "problem.target_quality": 9.0, "os.threads": 1}
        values |= {f"workload.{key}": value for key, value in TINY.items()}
        values |= {key.replace("__", "."): value for key, value in settings.items()}
        changed = [word for key, value in values.items() for word in ("--set", f"{key}={json.dumps(value)}")]
        return ["lm", "--recipe", "lm/smoke", "--data", data, "--out", name, *changed]

    def values(self, name: str, key: str) -> list[dict[str, Any]]:
        return [event["value"] for event in read_record(self.work / name).events if event["key"] == key]

    def weights(self, name: str) -> dict[str, torch.Tensor]:
        last = self.values(name, "checkpoint")[-1]["file"]
        found: dict[str, torch.Tensor] = torch.load(self.work / name / "checkpoints" / last, weights_only=True)["model"]
        return found


@pytest.fixture(scope="module")
def lm(hpcai500: Path, tmp_path_factory: pytest.TempPathFactory) -> Commands:
    work = tmp_path_factory.mktemp("work")
    for name, training, evaluation in (("data", 32, 8), ("large", 256, 16)):
        end = np.array([BEGIN])
        parts = {Part.TRAINING: (training, 1), Part.EVALUATION: (evaluation, 2)}
        made = {part: [[write_documents(*numbers)[0].ravel(), end]] for part, numbers in parts.items()}
        write_set(work / name, VOCABULARY, made, {})
    return Commands(hpcai500, work)


# ----------------------------------------------------------------------------------------------------
# The mathematics of training.


EPOCHS, STEPS, BATCH = 25, 8, 32


def losses_in_plain_torch(data: Path) -> tuple[list[float], list[float]]:
    """Of each epoch of `STEPS` steps: the mean loss of its steps, and the loss on the evaluation set after it."""
    torch.manual_seed(SEED)
    options: dict[str, Any] = {"rope_theta": 10_000.0, "norm_epsilon": 1e-5, "sequence_length": LENGTH}
    model = initialised(Shape(vocabulary=VOCABULARY, recompute_activations=False, tail="pad", **options, **TINY))
    weights = {name: one.detach().clone().requires_grad_() for name, one in model.named_parameters()}
    rule = plain.AdamW(weights, betas=(0.9, 0.95), epsilon=1e-8, decay=0.1, largest=1.0)

    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        scores = plain.logits(weights, tokens[:, :-1], heads=4, shared=2, theta=10_000.0, epsilon=1e-5)
        return plain.loss(scores, tokens[:, 1:])

    training, evaluation = (
        torch.from_numpy(np.fromfile(data / f"{part}-00000.bin", "<u2").astype(np.int64)).unfold(0, LENGTH + 1, LENGTH)
        for part in Part
    )
    assert len(training) == STEPS * BATCH
    losses, evaluated = [], []
    for epoch in range(EPOCHS):
        found = []
        for step, ids in enumerate(np.split(epoch_order(len(training), SEED, epoch + 1), STEPS)):
            loss = loss_of(training[ids])
            loss.backward()
            found.append(loss.item())
            rule.step(RATE * 0.5 * (1 + math.cos(math.pi * (epoch * STEPS + step) / (EPOCHS * STEPS))))
        losses.append(math.fsum(found) / STEPS)
        with torch.no_grad():
            evaluated.append(loss_of(evaluation).item())
    return losses, evaluated


@pytest.mark.slow
def test_losses_over_200_steps_equal_those_of_plain_torch(lm: Commands) -> None:
    name = "plain"
    settings = {
        "problem__epochs": EPOCHS,
        "hyperparameters__batch_size": BATCH // 2,
        "hyperparameters__warmup_epochs": 0,
    }
    lm.good(*lm.words(name, "large", hyperparameters__base_learning_rate=RATE, **settings), "--procs", "2")
    losses, evaluated = losses_in_plain_torch(lm.work / "large")
    found = [epoch["loss"] for epoch in lm.values(name, "epoch_stop")]
    assert found == pytest.approx(losses, abs=1e-5)
    assert found[-1] < found[0] - 0.4
    assert [one["value"] for one in lm.values(name, "eval_accuracy")] == pytest.approx(evaluated, abs=1e-5)


@pytest.fixture(scope="module")
def whole(lm: Commands) -> str:
    """The record of a run on one rank."""
    lm.good(*lm.words("whole", hyperparameters__batch_size=16))
    return "whole"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("two-ranks", "--set hyperparameters.batch_size=8 --procs 2"),
        ("accumulated", "--set hyperparameters.batch_size=4 --set hyperparameters.accumulation_steps=4"),
        (
            "pipeline",
            "--set hyperparameters.batch_size=16 --procs 2 --set programming.parallel_mode=pipeline "
            "--set programming.stages=2 --set programming.micro_batches=4",
        ),
        (
            "sharded",
            "--set hyperparameters.batch_size=8 --procs 2 --set programming.parallel_mode=sharded",
        ),
        (
            "sharded-fused",
            "--set hyperparameters.batch_size=8 --procs 2 --set programming.parallel_mode=sharded "
            "--set framework.fused_optimizer=true",
        ),
        (
            "tensor",
            "--set hyperparameters.batch_size=16 --procs 2 --set programming.parallel_mode=sharded "
            "--set programming.tensor_ranks=2",
        ),
        ("recomputed", "--set hyperparameters.batch_size=16 --set workload.recompute_activations=true"),
    ],
)
def test_every_way_to_share_the_work_gives_the_same_model(lm: Commands, whole: str, name: str, words: str) -> None:
    lm.good(*lm.words(name), *words.split())
    for key, field in (("epoch_stop", "loss"), ("eval_accuracy", "value")):
        found, expected = ([value[field] for value in lm.values(run, key)] for run in (name, whole))
        assert found == pytest.approx(expected, abs=1e-5)


def kill_after_checkpoint(lm: Commands, words: Sequence[str], name: str) -> None:
    """Start or resume a run, and kill all its processes soon after its next checkpoint."""
    journal = lm.work / name / "events.jsonl"

    def checkpoints() -> int:
        return journal.read_text().count('"checkpoint"') if journal.is_file() else 0

    before = checkpoints()
    started = subprocess.Popen(
        [lm.program, *words], cwd=lm.work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    while checkpoints() == before:
        assert started.poll() is None, "the run ended before it was killed"
        time.sleep(0.02)
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    assert not lm.values(name, "run_stop")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["data", "sharded"])
def test_a_killed_run_is_resumed_bit_by_bit(lm: Commands, mode: str) -> None:
    settings = {"problem__epochs": 4, "hyperparameters__batch_size": 8, "programming__parallel_mode": mode}
    undisturbed, killed = f"undisturbed-{mode}", f"killed-{mode}"
    lm.good(*lm.words(undisturbed, "large", **settings), "--procs", "2")
    kill_after_checkpoint(lm, [*lm.words(killed, "large", **settings), "--procs", "2"], killed)
    lm.good("lm", "--resume", "--out", killed, "--procs", "2")
    assert lm.values(killed, "run_resume")
    last = [{key: lm.values(run, key)[-1] for key in ("replicas", "eval_accuracy")} for run in (undisturbed, killed)]
    assert last[0]["eval_accuracy"]["value"] == last[1]["eval_accuracy"]["value"]
    assert last[0]["replicas"] == last[1]["replicas"]
    if mode == "data":
        expected, found = lm.weights(undisturbed), lm.weights(killed)
        assert all(torch.equal(found[name], weight) for name, weight in expected.items())


@pytest.mark.slow
def test_a_killed_sharded_run_goes_on_with_another_number_of_ranks(lm: Commands) -> None:
    settings = {"problem__epochs": 5, "hyperparameters__batch_size": 8, "programming__parallel_mode": "sharded"}
    lm.good(*lm.words("undisturbed", "large", **settings), "--procs", "2")
    kill_after_checkpoint(lm, [*lm.words("moved", "large", **settings), "--procs", "2"], "moved")
    kill_after_checkpoint(lm, ["lm", "--resume", "--out", "moved", "--procs", "1"], "moved")
    lm.good("lm", "--resume", "--out", "moved", "--procs", "2")
    assert [value["world_size"] for value in lm.values("moved", "run_resume")] == [1, 2]
    losses = [
        [
            event["value"]["loss"]
            for _, event in sorted(last_pass(read_record(lm.work / run).events, "epoch_stop").items())
        ]
        for run in ("undisturbed", "moved")
    ]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    qualities = [lm.values(run, "eval_accuracy")[-1]["value"] for run in ("undisturbed", "moved")]
    assert qualities[1] == pytest.approx(qualities[0], abs=1e-5)


# ----------------------------------------------------------------------------------------------------
# All else works with it.


@pytest.fixture(scope="module")
def recipe(lm: Commands, whole: str) -> Path:
    """The resolved recipe of a tiny run, for what takes a recipe."""
    return lm.work / whole / "recipe.toml"


def test_a_result_has_tokens_a_second_and_a_loss_but_no_vflops(lm: Commands, whole: str) -> None:
    result = json.loads(lm.good("score", whole, "--json"))
    assert result["vflops"] is None
    assert result["unit"] == {"name": "tokens", "per_sample": LENGTH}
    assert result["units_per_second"] == pytest.approx(result["images_per_second"] * LENGTH)
    assert "uncertain" in result["utilisation_note"] if result["utilisation"] is None else 0 < result["utilisation"] < 1
    assert result["quality"]["metric"] == "validation_loss"
    assert math.log(VOCABULARY) > result["quality"]["achieved"] > 1.1
    assert "tokens/s" in lm.good("score", whole)
    assert "VFLOPS      not shown" in lm.good("score", whole)


def test_a_campaign_is_submitted_verified_and_accepted(lm: Commands, recipe: Path) -> None:
    lm.good("campaign", "init", "campaign", "--recipe", recipe, "--data", "data", "--trials", "3")
    lm.good("campaign", "run", "campaign")
    key = lm.work / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    who = ["--system", "Example-1", "--organisation", "University of Example", "--key", key]
    lm.good("submit", "campaign", "-o", "submission.zip", *who)
    assert lm.good("verify", "submission.zip").startswith("VERIFIED")
    (lm.work / "contract.toml").write_text(CONTRACT)
    lm.good("accept", "contract.toml", "campaign")


CONTRACT = """
title = "Tokens"
[require]
rankable = false
[[criteria]]
benchmark = "lm"
metric = "quality"
better = "lower"
reference = 3.6
upper = 0.0
unit = "1"
statistic = "every"
[[criteria]]
benchmark = "lm"
metric = "flops"
reference = 1
lower = 0.0
unit = "FLOPS"
"""


def test_the_loss_of_a_vote_is_below_the_mean_of_its_members(lm: Commands, recipe: Path) -> None:
    lm.good("ensemble", "plan", "vote", "--recipe", recipe, "--data", "data", "--members", "3")
    lm.good("ensemble", "run", "vote")
    vote = json.loads((lm.work / "vote" / "vote.json").read_text())
    # The logarithm of a mean is above the mean of logarithms.
    assert vote["value"] < math.fsum(member["value"] for member in vote["members"]) / 3
    assert vote["out_of_bag"]["samples"] > 0


def test_its_operations_are_counted_without_data(lm: Commands) -> None:
    text = lm.good("flops", "lm", "--json")
    shape = {"layers": 32, "width": 4096, "heads": 32, "key_value_heads": 8, "head_width": 128, "hidden_width": 14_336}
    weights = 6 * 8192 * (32 * (4096 * 128 * 2 * 40 + 3 * 4096 * 14_336) + 4096 * 128_256)
    attention = 12 * shape["layers"] * 8192**2 * 4096
    assert json.loads(text)["training_flops"] == weights + attention


def test_data_are_made_and_checked(lm: Commands) -> None:
    lm.good("data", "make", "lm", "made")
    text = lm.good("data", "check", "lm", "made")
    assert "524289" in text.replace(",", "")
    shard = lm.work / "made" / "evaluation-00000.bin"
    content = bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)
    ended = lm.run("data", "check", "lm", "made")
    assert ended.returncode != 0
    assert "evaluation-00000.bin: not the file of the index" in ended.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"programming__tensor_ranks": 3}, "tensor_ranks"),
        (
            {"workload__vocabulary": 8},
            "has a vocabulary of 32, but the model knows 8 tokens: --set workload.vocabulary=32",
        ),
        ({"workload__sequence_length": 9999}, "lower workload.sequence_length"),
        ({"workload__heads": 3}, "key_value_heads: expected a divisor of heads (3), got 2"),
        ({"hyperparameters__optimizer": "sgd"}, "optimizer"),
    ],
)
def test_a_mistake_is_told_in_one_line(lm: Commands, settings: dict[str, Any], message: str) -> None:
    ended = lm.run(*lm.words(f"mistake-{next(iter(settings))}", **settings))
    assert ended.returncode != 0
    (line,) = [line for line in ended.stderr.splitlines() if "error" in line]
    assert message in line


def test_a_report_is_made_and_the_machine_examined(lm: Commands, whole: str) -> None:
    lm.good("report", whole, "-o", "report.html")
    page = (lm.work / "report.html").read_text()
    assert "validation_loss" in page
    assert "tokens/s" in page
    lm.good("doctor", "lm")
