"""A plug-in whose metric is a loss, installed and used as people would: its target is reached from above."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from builders.campaigns import edit_record, values
from builders.commands import python_with
from builders.ranks import clean_environment

from hpcai500.methodology.passes import target_checkpoint
from hpcai500.record import Event, iterate, read_record

INIT = '''\
"""Fits a curve by least squares; must not import torch."""

from pathlib import Path

from hpcai500.layers import LossProblem, Problem, Recipe
from hpcai500.layers.fields import Count, Layer
from hpcai500.plugins import Plugin


class Fit(Layer):
    width: Count


class CurvesRecipe(Recipe):
    problem: LossProblem
    workload: Fit


class RatesRecipe(Recipe):
    problem: Problem
    workload: Fit


# The same without a direction, which is a mistake of its author.
RATES = Plugin(
    recipe=RatesRecipe,
    recipes=Path(__file__).parent / "rates",
    workload="hpcai500_curves.work:build",
    voter="hpcai500_curves.work:voter",
    make_data="hpcai500_curves.data:make",
)
PLUGIN = Plugin(
    recipe=CurvesRecipe,
    recipes=Path(__file__).parent / "recipes",
    workload="hpcai500_curves.work:build",
    voter="hpcai500_curves.work:voter",
    make_data="hpcai500_curves.data:make",
)
'''
REFERENCE = """\
benchmark = "curves"
edition = "v3.0"

[problem]
dataset = "synthetic-curves"
metric = "mse"
target_quality = 0.13
better = "lower"
epochs = 8

[hyperparameters]
batch_size = 20
base_learning_rate = 0.05
base_batch = 20
warmup_epochs = 0
schedule = "constant"
momentum = 0.5
weight_decay = 0.0

[workload]
width = 32

[accelerator]
device = "cpu"
"""
DATA = '''\
import numpy as np


def make(folder):
    """Points of sin(x), with the noise 0.2: no fit has a mean squared error much below 0.04."""
    random = np.random.default_rng(1)
    x = random.uniform(-3, 3, 400)
    y = np.sin(x) + random.normal(0, 0.2, 400)
    np.savez(folder / "curves.npz", points=np.stack([x, y], axis=1).astype(np.float32))
'''
WORK = '''\
import os
import signal

import numpy as np
import torch
from hpcai500.errors import WrongAnswerError
from hpcai500.workloads.base import Evaluation
from hpcai500.workloads.simple import ArrayClassifier, Arrays
from hpcai500.workloads.voting import places_of
from torch import nn
from torch.nn import functional as F


class Column(nn.Module):
    """Points (N, 2) -> x (N, 1)."""

    def forward(self, points):
        return points[:, :1]


def error_of(outputs, wanted):
    return float(np.mean((outputs.astype(np.float64) - wanted.astype(np.float64)) ** 2))


class Regression(ArrayClassifier):
    metric = "mse"
    evaluations = 0

    def loss(self, model, payload):
        points = payload[0].to(self._place.device)
        return F.mse_loss(model(points)[:, 0], points[:, 1])

    def evaluate(self, model, on_batch):
        self.evaluations += 1
        if os.environ.get("CURVES_KILLED_IN") == str(self.evaluations):
            os.kill(os.getpid(), signal.SIGKILL)
        found = self.predictions(model, None, on_batch)
        value = error_of(found["outputs"], found["wanted"]) if found else 0.0
        value = self._place.communicator.broadcast_object(value)
        return Evaluation(float(os.environ.get("CURVES_GIVES", value)), len(self._evaluation.labels))

    def predictions(self, model, samples, on_batch):
        found = super().predictions(model, samples, on_batch)
        if not found:
            return {}
        arrays = self._evaluation if samples is None else self._training
        ids = found["samples"]
        return {"samples": ids, "outputs": found["logits"][:, 0], "wanted": arrays.samples[ids][:, 1]}


class MeanOutput:
    form = {"samples": ("<i8", 1), "outputs": ("<f4", 1), "wanted": ("<f4", 1)}

    def __init__(self, samples):
        self._samples, self._sums = samples, np.zeros(samples.size)
        self._wanted, self._votes = np.zeros(samples.size, np.float32), np.zeros(samples.size, np.int64)

    def alone(self, predictions):
        if not np.isfinite(predictions["outputs"]).all():
            raise WrongAnswerError("outputs are not finite")
        count = len(predictions["wanted"])
        return Evaluation(error_of(predictions["outputs"], predictions["wanted"]), count) if count else None

    def add(self, predictions):
        places = places_of(predictions, self._samples)
        self._sums[places] += predictions["outputs"]
        self._wanted[places] = predictions["wanted"]
        self._votes[places] += 1

    def evaluation(self):
        voted = np.flatnonzero(self._votes)
        if not voted.size:
            return None
        return Evaluation(error_of(self._sums[voted] / self._votes[voted], self._wanted[voted]), int(voted.size))

    @property
    def votes(self):
        return int(self._votes.sum())


def voter(recipe, samples):
    return MeanOutput(samples)


def build(recipe, data, place):
    with np.load(data / "curves.npz") as file:
        points = file["points"]
    halves = (Arrays(half, np.zeros(len(half), np.int64)) for half in (points[:200], points[200:]))
    width = recipe.workload.width
    model = nn.Sequential(Column(), nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 1))
    return Regression(recipe, place, model, *halves, data)
'''
WHY = "problem.better is lower: VFLOPS are defined for a quality that grows"
Ended = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Curves:
    """The plug-in, installed; commands run in the folder `work`."""

    python: Path
    work: Path

    def run(self, *words: str | Path, **variables: str) -> Ended:
        """`hpcai500 WORDS…`."""
        line = [self.python.with_name("hpcai500"), *map(str, words)]
        environment = {**clean_environment(), "OMP_NUM_THREADS": "1", **variables}
        return subprocess.run(line, capture_output=True, text=True, cwd=self.work, env=environment, check=False)

    def good(self, *words: str | Path) -> str:
        """The output of a command that ends well."""
        ended = self.run(*words)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> Curves:
    folder = tmp_path_factory.mktemp("curves")
    package, about = folder / "site" / "hpcai500_curves", folder / "site" / "hpcai500_curves-1.0.dist-info"
    files = {
        package / "__init__.py": INIT,
        package / "recipes" / "reference.toml": REFERENCE,
        package / "rates" / "reference.toml": REFERENCE.replace("curves", "rates").replace('better = "lower"\n', ""),
        package / "data.py": DATA,
        package / "work.py": WORK,
        about / "METADATA": "Metadata-Version: 2.1\nName: hpcai500-curves\nVersion: 1.0\nSummary: Curves.\n",
        about
        / "entry_points.txt": "[hpcai500.workloads]\ncurves = hpcai500_curves:PLUGIN\nrates = hpcai500_curves:RATES\n",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    work = folder / "work"
    work.mkdir()
    return Curves(python_with(folder / "python", folder / "site"), work)


@pytest.fixture(scope="module")
def ran(curves: Curves) -> Path:
    """A run whose target is reached in one of its epochs, and its output beside it."""
    (curves.work / "run.txt").write_text(curves.good("curves", "--out", "run"))
    return curves.work / "run"


@pytest.fixture(scope="module")
def campaign(curves: Curves) -> Path:
    """Three runs, done."""
    curves.good("campaign", "init", "campaign", "--recipe", "curves/reference", "--trials", "3")
    curves.good("campaign", "run", "campaign")
    return curves.work / "campaign"


def result_of(record: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((record / "result.json").read_text())
    return found


def evaluated(record: Path) -> list[float]:
    return [event["value"]["value"] for event in iterate(read_record(record).events, "eval_accuracy")]


def test_a_run_reaches_its_target_from_above_and_tells_why_it_has_no_vflops(curves: Curves, ran: Path) -> None:
    output, result, found = (ran.parent / "run.txt").read_text(), result_of(ran), evaluated(ran)
    assert found[0] > 0.13 >= found[-1]
    assert output.splitlines()[-1] == "HPCAI500 RESULT PASS"
    assert f"quality     mse {found[-1]:.4f} (target 0.13 or less)" in output
    assert f"VFLOPS      not shown: {WHY}" in output
    assert f"HPCAI500 FOM mse={found[-1]:.6g} 1" in output
    assert (result["quality"]["better"], result["quality"]["achieved"]) == ("lower", found[-1])
    assert (result["vflops"], result["penalty_coefficient"], result["vflops_per_watt"]) == (None, None, None)
    assert WHY in result["reasons"]
    assert json.loads(curves.good("score", ran, "--json")) == result


def test_the_time_to_quality_ends_at_the_first_evaluation_at_the_target_or_below(ran: Path) -> None:
    record = read_record(ran)
    start = next(iterate(record.events, "run_start"))
    first = next(one for one in iterate(record.events, "eval_accuracy") if one["value"]["value"] <= 0.13)
    assert first["value"]["epoch"] > 1
    assert result_of(ran)["time_to_quality_seconds"] == pytest.approx(first["clock_s"] - start["clock_s"])


def test_its_first_checkpoint_at_the_target_is_kept(ran: Path) -> None:
    record = read_record(ran)
    kept = target_checkpoint(record.events, record.tables["problem"])
    saved = [event["value"]["file"] for event in iterate(record.events, "checkpoint")]
    assert kept is not None
    assert kept["file"] in saved[:-2], "or it would be kept for being new"
    assert sorted(path.name for path in (ran / "checkpoints").iterdir()) == sorted({kept["file"], *saved[-2:]})


def test_a_value_above_the_target_is_a_miss(curves: Curves, tmp_path: Path) -> None:
    ended = curves.run("curves", "--out", tmp_path / "missed", "--set", "problem.target_quality=0.001")
    achieved = evaluated(tmp_path / "missed")[-1]
    assert ended.returncode == 2
    assert f"FAILED: mse {achieved} is above the target 0.001" in ended.stdout
    assert result_of(tmp_path / "missed")["time_to_quality_seconds"] is None
    curves.run("report", tmp_path / "missed", "-o", tmp_path / "missed.html")
    page = (tmp_path / "missed.html").read_text()
    assert f"the quality mse is {achieved:.4f}, above the target 0.001" in page
    assert "target 0.001 or less: missed" in page


def test_a_target_above_one_is_allowed_and_one_of_zero_is_not(curves: Curves, tmp_path: Path) -> None:
    curves.good(
        "curves", "--out", tmp_path / "one", "--set", "problem.target_quality=25.5", "--set", "problem.epochs=1"
    )
    assert result_of(tmp_path / "one")["quality"]["target"] == 25.5
    for field, said in (("target_quality=0.0", "target_quality"), ('better="higher"', "better")):
        ended = curves.run("curves", "--out", tmp_path / "none", "--set", f"problem.{field}")
        assert ended.returncode == 64
        assert said in ended.stderr


def test_a_killed_run_goes_on_to_the_same_qualities(curves: Curves, ran: Path, tmp_path: Path) -> None:
    killed = curves.run("curves", "--out", tmp_path / "again", CURVES_KILLED_IN="8")
    assert killed.returncode != 0
    curves.good("curves", "--resume", "--out", tmp_path / "again")
    found, first = evaluated(tmp_path / "again"), evaluated(ran)
    assert found[-1] == first[-1]
    record = read_record(tmp_path / "again")
    at_target = target_checkpoint(record.events, record.tables["problem"])
    assert at_target is not None
    assert (tmp_path / "again" / "checkpoints" / at_target["file"]).is_file()


@pytest.mark.parametrize("value", ["nan", "inf", "-0.5"])
def test_what_no_loss_can_be_ends_the_run_in_one_line(curves: Curves, tmp_path: Path, value: str) -> None:
    ended = curves.run("curves", "--out", tmp_path / "odd", CURVES_GIVES=value)
    assert ended.returncode == 1
    (line,) = [line for line in ended.stderr.splitlines() if "error:" in line]
    assert f"evaluation after epoch 1: mse is {value}, expected a finite number of 0 or more" in line
    assert "Traceback" not in ended.stderr


def test_a_loss_without_a_direction_is_told_with_the_fix(curves: Curves, tmp_path: Path) -> None:
    ended = curves.run("rates", "--out", tmp_path / "odd", CURVES_GIVES="1.5")
    assert ended.returncode == 1
    (line,) = [line for line in ended.stderr.splitlines() if "error:" in line]
    assert "mse is 1.5, expected 0 to 1: " in line
    assert line.endswith("a benchmark whose metric is a loss needs a LossProblem (docs/plugins.md)")


def test_its_report_has_the_target_and_the_reason(curves: Curves, ran: Path, tmp_path: Path) -> None:
    curves.good("report", ran, "-o", tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text()
    for text in ("target 0.13 or less: reached", "the target is 0.13 or less", WHY):
        assert text in page
    reached = sum(value <= 0.13 for value in evaluated(ran))
    assert page.count(" ✓</td>") == reached < 8
    assert re.findall(r'<div class="tile[^"]*"><dt>(.*?)</dt>', page)[:2] == ["Quality, mse", "Time"]
    assert "Every field has the value of the reference of curves." in page
    assert "(target 0.13 or less)" in curves.good("watch", ran)


def test_the_axis_of_its_quality_begins_near_the_values(curves: Curves, ran: Path, tmp_path: Path) -> None:
    record = shutil.copytree(ran, tmp_path / "near")

    def bring_near(events: list[Event]) -> None:
        for value in values(events, "eval_accuracy"):
            value["value"] = 0.13 + 0.001 * value["epoch"]

    edit_record(record, bring_near)
    curves.run("report", record, "-o", tmp_path / "near.html")
    drawn = (tmp_path / "near.html").read_text().partition("Quality (mse) by epoch</title>")[2].partition("</svg>")[0]
    ticks = [float(text) for text in re.findall(r'text-anchor="end" class="tick">([\d.]+)<', drawn)]
    assert min(ticks) > 0.12, ticks


def test_its_export_and_its_mean_are_without_vflops(curves: Curves, campaign: Path) -> None:
    assert WHY in curves.good("export", campaign / "trial-01", "--mllog")
    mean = curves.good("score", campaign)
    assert "HPCAI500 FOM vflops" not in mean
    last = sorted(evaluated(campaign / f"trial-{trial:02}")[-1] for trial in (1, 2, 3))
    assert f"HPCAI500 FOM mse={last[1]:.6g} 1" in mean
    status = curves.good("campaign", "status", "campaign")
    assert f"all 3 finished runs: {WHY}" in status


def test_the_lower_loss_is_the_better_one(curves: Curves, ran: Path, tmp_path: Path) -> None:
    curves.good(
        "curves", "--out", tmp_path / "short", "--set", "problem.epochs=3", "--set", "problem.target_quality=9.0"
    )
    found = json.loads(curves.run("compare", ran, tmp_path / "short", "--json").stdout)
    document = found if "numbers" in found else found["comparisons"][0]
    (row,) = [row for row in document["numbers"] if row["name"] == "mse"]
    assert row["better"] == "lower"
    assert row["ratio"] > 1


# ----------------------------------------------------------------------------------------------------
# A submission of its campaign.


def submitted(curves: Curves, campaign: Path, file: Path) -> Ended:
    key = file.with_suffix(".key")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    who = ("--system", "Example-1", "--organisation", "University of Example", "--key", key)
    return curves.run("submit", campaign, "-o", file, *who)


def findings(curves: Curves, file: Path, *words: str | Path) -> Mapping[str, list[str]]:
    """Severity and name -> evidence."""
    found: dict[str, list[str]] = {}
    for one in json.loads(curves.run("verify", file, "--json", *words).stdout)["findings"]:
        found.setdefault(f"{one['severity']} {one['name']}", []).append(one["evidence"])
    return found


@pytest.fixture(scope="module")
def submission(curves: Curves, campaign: Path) -> Path:
    file = curves.work / "mine.zip"
    ended = submitted(curves, campaign, file)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return file


def test_its_submission_is_verified_with_both_checkpoints_of_each_run(curves: Curves, submission: Path) -> None:
    ended = curves.run("verify", submission)
    assert ended.returncode == 0, ended.stdout
    with zipfile.ZipFile(submission) as opened:
        saved = [name for name in opened.namelist() if name.endswith(".pt")]
    assert len(saved) == 6, "the last, and the first at the target, of three runs"
    found = findings(curves, submission)
    assert not [name for name in found if name.startswith("fail")]
    assert "skipped quality-leap" in found


def test_its_checkpoints_are_evaluated_again(curves: Curves, submission: Path, ran: Path) -> None:
    data = next(iterate(read_record(ran).events, "dataset"))["value"]["root"]
    found = findings(curves, submission, "--replay", data, "--replay-trials", "1")
    assert not [name for name in found if name.startswith("fail")], found
    assert "note replay-quality" in found
    assert "note replay-target" in found


def test_an_edited_value_is_noticed(curves: Curves, campaign: Path, tmp_path: Path) -> None:
    forged = tmp_path / "campaign"
    shutil.copytree(campaign, forged)
    record = forged / "trial-02"

    def praise(events: list[Any]) -> None:
        values(events, "eval_accuracy")[-1]["value"] = 0.01

    edit_record(record, praise, rechain=False)
    ended = curves.run("score", record)
    assert ended.returncode == 64
    assert "events.jsonl" in ended.stderr + ended.stdout
    shutil.rmtree(forged)
    shutil.copytree(campaign, forged)
    written = result_of(record)
    written["quality"]["achieved"] = 0.01
    (record / "result.json").write_text(json.dumps(written))
    ended = curves.run("score", record)
    assert ended.returncode == 2
    assert "quality is" in ended.stdout + ended.stderr


def forged(campaign: Path, folder: Path, value: float) -> Path:
    """A copy of the campaign in which the last evaluation of a run has another value, and all hashes fit."""
    shutil.copytree(campaign, folder)

    def edit(events: list[Any]) -> None:
        values(events, "eval_accuracy")[-1]["value"] = value

    edit_record(folder / "trial-02", edit)
    return folder


def test_a_plausible_loss_of_a_forger_who_knows_the_chain_differs_from_that_of_the_weights(
    curves: Curves, campaign: Path, ran: Path, tmp_path: Path
) -> None:
    file = tmp_path / "forged.zip"
    ended = submitted(curves, forged(campaign, tmp_path / "campaign", 0.01), file)
    assert ended.returncode == 0, ended.stderr
    data = next(iterate(read_record(ran).events, "dataset"))["value"]["root"]
    (told,) = findings(curves, file, "--replay", data)["warning replay-quality"]
    assert "epoch 8: mse " in told
    assert "here, 0.01 in the record" in told


def test_an_impossible_loss_is_refused(curves: Curves, campaign: Path, tmp_path: Path) -> None:
    ended = submitted(curves, forged(campaign, tmp_path / "campaign", -0.5), tmp_path / "forged.zip")
    assert ended.returncode == 2
    assert "epoch 8: mse -0.5, expected 0 or more" in ended.stdout + ended.stderr


# ----------------------------------------------------------------------------------------------------
# Contracts.


CONTRACT = """\
title = "Curves"
[require]
rankable = false
[[criteria]]
benchmark = "curves"
metric = "quality"
better = "lower"
reference = {most}
upper = 0.0
unit = "1"
statistic = "every"
[[criteria]]
benchmark = "curves"
metric = "flops"
reference = 1
lower = 0.0
unit = "FLOPS"
[[criteria]]
metric = "time_to_quality_seconds"
reference = 2
upper = 0.0
unit = "h"
[[criteria]]
metric = "goodput"
reference = 0.0001
lower = 0.0
unit = "%"
"""


def accepted(curves: Curves, folder: Path, text: str, *records: Path) -> Ended:
    (folder / "contract.toml").write_text(text)
    return curves.run("accept", folder / "contract.toml", *records)


def test_a_contract_that_is_kept_is_accepted(curves: Curves, campaign: Path, submission: Path, tmp_path: Path) -> None:
    ended = accepted(curves, tmp_path, CONTRACT.format(most=0.13), campaign)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "≤ 0.13" in ended.stdout
    assert "target 0.13 or less" in ended.stdout
    assert "4 of 4 criteria are met" in ended.stdout
    assert accepted(curves, tmp_path, CONTRACT.format(most=0.13), submission).returncode == 0


def test_a_loss_above_the_contracted_one_is_a_wrong_answer(curves: Curves, campaign: Path, tmp_path: Path) -> None:
    ended = accepted(curves, tmp_path, CONTRACT.format(most=0.01), campaign)
    assert ended.returncode == 2
    assert "3 of 4 criteria are met; 1 missed" in ended.stdout


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('better = "lower"\nreference = 0.13\nupper = 0.0\nunit = "1"',
         'reference = 0.13\nlower = 0.0\nunit = "fraction"',
         'lower is better for mse of .*: add better = "lower", with unit = "1" and upper instead of lower'),
        ("upper = 0.0\nunit", "lower = 0.0\nunit", "quality: lower is better, so give upper = 0.0"),
        ('unit = "1"', 'unit = "%"', 'quality of a loss, where better = "lower", is measured in 1; allowed: 1; got'),
        ('metric = "flops"', 'metric = "flops"\nbetter = "lower"', "better: only for quality; for flops leave it out"),
        ('"curves"\nmetric = "flops"', '"curve"\nmetric = "flops"',
         "no run of it is given: expected one of ic, ewa, curves"),
    ],
)  # fmt: skip
def test_a_contract_that_cannot_be_meant_is_refused(
    curves: Curves, ran: Path, tmp_path: Path, old: str, new: str, said: str
) -> None:
    text = CONTRACT.format(most=0.13)
    assert old in text
    ended = accepted(curves, tmp_path, text.replace(old, new, 1), ran)
    assert ended.returncode == 64, ended.stdout
    assert re.search(said, ended.stderr), ended.stderr


def test_vflops_are_missing_with_the_reason(curves: Curves, ran: Path, tmp_path: Path) -> None:
    ended = accepted(curves, tmp_path, CONTRACT.format(most=0.13).replace('"flops"', '"vflops"'), ran)
    assert ended.returncode == 5
    assert WHY in ended.stdout


def test_a_newer_run_may_not_have_a_much_larger_loss(curves: Curves, ran: Path, campaign: Path, tmp_path: Path) -> None:
    """The three runs have other seeds, and so other losses; what is better is never a miss."""
    best, worst = sorted((evaluated(path)[-1], path) for path in campaign.glob("trial-0?"))[::2]
    for old, new, verdict in ((best, worst, "FAIL"), (worst, best, "pass")):
        ended = curves.run("accept", new[1], "--baseline", old[1], "--min-ratio", "0.999")
        (line,) = [line for line in ended.stdout.splitlines() if line.startswith("quality against the baseline")]
        assert line.endswith(verdict), line


# ----------------------------------------------------------------------------------------------------
# Ensembles, trends, repetitions.


def test_an_ensemble_votes_to_a_loss_that_its_members_lack(curves: Curves) -> None:
    """The squared error of a mean of outputs is never above the mean of the squared errors."""
    curves.good("ensemble", "plan", "vote", "--recipe", "curves/reference", "--members", "3")
    output = curves.good("ensemble", "run", "vote")
    result = result_of(curves.work / "vote")
    vote = json.loads((curves.work / "vote" / "vote.json").read_text())
    assert vote["value"] <= sum(one["value"] for one in vote["members"]) / 3
    assert (result["vflops"], result["penalty_coefficient"], result["quality"]["better"]) == (None, None, "lower")
    assert f"VFLOPS      not shown: all members: {WHY}" in output
    assert "(target 0.13 or less)" in output
    assert f"HPCAI500 FOM mse={vote['value']:.6g} 1" in output


def test_an_ensemble_above_its_target_has_missed_it(curves: Curves) -> None:
    short = ("--set", "problem.epochs=1", "--set", "problem.target_quality=0.001")
    curves.good("ensemble", "plan", "bad", "--recipe", "curves/reference", "--members", "2", *short)
    ended = curves.run("ensemble", "run", "bad")
    assert ended.returncode == 2
    assert "is above the target 0.001" in ended.stdout


def test_its_records_are_tracked_without_vflops(curves: Curves, campaign: Path) -> None:
    found = json.loads(curves.good("track", campaign, "--json"))
    metrics = {trend["metric"] for trend in found["trends"]}
    assert "images_per_second" in metrics
    assert "vflops" not in metrics


def test_a_repetition_is_judged_by_the_difference_of_losses(
    curves: Curves, campaign: Path, submission: Path, tmp_path: Path
) -> None:
    again = curves.work / "again"
    curves.good("replicate", submission, "-o", again)
    (planned,) = [path.parent for path in again.rglob("campaign.jsonl")]
    curves.good("campaign", "run", planned)
    for words, limit in (((), 0.05), (("--quality-tolerance", "0.9"), 0.9)):
        found = json.loads(curves.run("replicate", submission, "--with", planned, "--json", *words).stdout)
        (row,) = [row for row in found["metrics"] if row["name"] == "mse"]
        assert row["decides"]
        assert row["limit"] == pytest.approx(limit * row["original"]["mean"])
        assert found["quality_tolerance"] == limit
