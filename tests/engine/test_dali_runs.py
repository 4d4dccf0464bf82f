"""A run whose input is DALI's is the run whose input is ours: losses, quality, weights."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders.needs import needs_dali
from builders.runs import same_weights

from hpcai500.job_options import ReplayOptions, as_argument
from hpcai500.record import iterate, read_record

pytestmark = needs_dali

Run = Callable[..., tuple[int, Path]]


def learnt(record: Path) -> list[Any]:
    """Loss and proof of the samples of each epoch, and the accuracy after it."""
    events = read_record(record).events
    epochs = [event["value"] for event in iterate(events, "epoch_stop")]
    found = [event["value"] for event in iterate(events, "eval_accuracy")]
    return [(one["loss"], one["coverage"]) for one in epochs] + [(one["value"], one["samples"]) for one in found]


@pytest.mark.parametrize("layout", ["framework.channels_last=false", "framework.channels_last=true"])
def test_a_run_by_dali_learns_what_a_native_run_learns(run: Run, layout: str) -> None:
    native = run(layout, "accelerator.loader=native", name="native")
    dali = run(layout, "accelerator.loader=dali", name="dali")
    assert native[0] == dali[0] == 0
    assert learnt(dali[1]) == learnt(native[1])
    assert len(learnt(dali[1])) == 6
    assert same_weights(native[1], dali[1])


def test_a_run_by_dali_says_so_in_its_record(run: Run) -> None:
    _, record = run("accelerator.loader=dali", "problem.epochs=1")
    assert read_record(record).tables["accelerator"]["loader"] == "dali"
    [system] = iterate(read_record(record).events, "system")
    software = system["value"]["nodes"][0]["software"]
    assert software["dali_operators"] == software["dali"]


def test_a_record_of_dali_is_evaluated_again_without_dali(run: Run, images: Path, tmp_path: Path) -> None:
    """On a CPU all loaders make the same images; whoever verifies a record need not have what it was made with."""
    _, record = run("accelerator.loader=dali", "problem.epochs=1")
    checkpoint = max((record / "checkpoints").glob("epoch-*.pt"))
    options = ReplayOptions(record / "recipe.toml", checkpoint, images, tmp_path / "found.json", device="cpu")
    script = "import sys; sys.modules['nvidia.dali'] = None; from hpcai500.engine import replay_command; "
    script += f"sys.exit(replay_command.main({[as_argument(options)]!r}))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    [recorded] = iterate(read_record(record).events, "eval_accuracy")
    assert json.loads((tmp_path / "found.json").read_text())["value"] == recorded["value"]["value"]
