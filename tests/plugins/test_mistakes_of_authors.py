"""What the author of a plug-in is told of his mistakes: what is wrong, and as soon as it can be known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from builders.commands import Ended
from builders.plugins import Clipped

from hpcai500 import train
from hpcai500.errors import EnvironmentLacksError, RunError
from hpcai500.plugins import function_of
from hpcai500.recipe import load_recipe
from hpcai500.record import read_record
from hpcai500.workloads import factory
from hpcai500.workloads.base import Evaluation, Place

SHORT = ("--set", "problem.epochs=1")
WHO = "clipped: the plug-in hpcai500-clipped 1.0 (entry point hpcai500.workloads: clipped = hpcai500_clipped:PLUGIN)"


@contextmanager
def changed(clipped: Clipped, old: str, new: str, file: str = "work.py") -> Iterator[None]:
    """The plug-in with another text in its code."""
    code = clipped.site / "hpcai500_clipped" / file
    before = code.read_text()
    assert old in before
    code.write_text(before.replace(old, new))
    try:
        yield
    finally:
        code.write_text(before)


def evaluating_to(clipped: Clipped, value: str) -> AbstractContextManager[None]:
    """The plug-in with another quality, of 30 samples."""
    other = (
        "def evaluate(self, model, on_batch):\n"
        "        from hpcai500.workloads.base import Evaluation\n"
        f"        return Evaluation({value}, 30)\n\n"
        "    def chain(self)"
    )
    return changed(clipped, "def chain(self)", other)


def error_of(ended: Ended) -> str:
    (line,) = [line for line in ended.stderr.splitlines() if "error:" in line]
    assert "Traceback" not in ended.stderr
    return line


def without(*names: str) -> Callable[[Any], object]:
    def some(workload: Any) -> object:
        members = {name: getattr(workload, name) for name in dir(workload) if not name.startswith("_")}
        return SimpleNamespace(**{name: one for name, one in members.items() if name not in names})

    return some


def with_(**members: Any) -> Callable[[Any], object]:
    return lambda workload: SimpleNamespace(**{**vars(without()(workload)), **members})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without("close"), "its workload, a SimpleNamespace, lacks close;"),
        (without("steps_per_epoch", "pictures"), "its workload, a SimpleNamespace, lacks steps_per_epoch, pictures;"),
        (lambda workload: None, "its workload, a NoneType, lacks model, metric, "),
        (with_(loss=lambda model: 0), "its workload's loss: expected a function with the arguments (model, payload): "),
        (with_(close=3), "its workload's close: expected a function with the arguments (): "),
        (with_(optimizer=lambda: 0), "its workload's optimizer: expected a function with the arguments (model): "),
        (with_(pictures=lambda size=3: {}), None),
        (without("optimizer", "graphed_parts"), None),
    ],
)
def test_what_the_workload_lacks_is_named_when_it_is_made(
    here: Clipped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], object], said: str | None
) -> None:
    build = function_of("clipped", "workload")
    function_of("clipped", "make_data")(tmp_path)
    monkeypatch.setattr("hpcai500_clipped.work.build", lambda recipe, data, place: change(build(recipe, data, place)))
    make = factory("clipped")
    recipe, place = load_recipe("clipped/reference"), Place(torch.device("cpu"), torch.float32, 1)
    if said is None:
        make(recipe, tmp_path, place)
        return
    with pytest.raises(EnvironmentLacksError) as caught:
        make(recipe, tmp_path, place)
    assert f"{WHO} is broken: {said}" in str(caught.value)


FACTS = '**super().dataset(), "unit": {"name": "numbers", "per_sample": self._recipe.workload.length}'
STEP = "def step(self, closure: None = None)"
NAMES = "Part(module, (name,))"
IN_STAGES = ("--procs", "2", "--set", "programming.parallel_mode=model", "--set", "programming.stages=2")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("def build(recipe: ClippedRecipe, data: Path, place: Place)", "def build(recipe: ClippedRecipe, data: Path)",
         "its workload's function: expected a function with the arguments (recipe, data, place): "),
        (FACTS, '"root": "here", "fingerprint": "f", "training_samples": 80, "evaluation_samples": 30',
         "its workload's dataset() lacks content_fingerprint, synthetic, coverage;"),
        (FACTS, f'{FACTS}, "training_samples": "many"',
         "its workload's dataset(): training_samples: expected a valid integer, got 'many';"),
        ('"name": "numbers"', '"name": "Numbers!"',
         "its workload's dataset(): unit.name: expected a plural noun of at most 24 lower-case letters, digits and _, "
         "which is not images or samples, got 'Numbers!';"),
        ('"per_sample": self._recipe.workload.length', '"per_sample": 0',
         "its workload's dataset(): unit.per_sample: "),
        (STEP, "def step(self, closure: object)",
         "the step of its workload's optimizer, a ClippedAdamW, needs arguments, but the engine calls step() without"),
    ],
)  # fmt: skip
def test_a_mistake_ends_the_run_before_it_trains(
    here: Clipped, tmp_path: Path, capfd: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    words = ["--recipe", "clipped/reference", "--data", str(tmp_path), "--out", str(tmp_path / "run"), *SHORT]
    with changed(here, old, new):
        function_of("clipped", "make_data")(tmp_path)
        assert train.main(words) == 69
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "error:" in line]
    assert f"{WHO} is broken: {said}" in line
    assert '"epoch_start"' not in (tmp_path / "run" / "events.jsonl").read_text()


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ('Part(module, (f"layer{name}",))', "its workload's chain(): part 1 names layer0, which is not in the model;"),
        ('Part(module, ("0", "1") if name == "1" else (name,))',
         "its workload's chain(): part 2 names 0.0.weight, which its module lacks;"),
    ],
)  # fmt: skip
def test_wrong_names_of_parts_end_a_run_of_stages(clipped: Clipped, tmp_path: Path, new: str, said: str) -> None:
    with changed(clipped, NAMES, new):
        ended = clipped.run("clipped", "--out", tmp_path / "run", *SHORT, *IN_STAGES)
    assert ended.returncode == 69, ended.stderr
    assert f"{WHO} is broken: {said}" in error_of(ended)
    assert '"epoch_start"' not in (tmp_path / "run" / "events.jsonl").read_text()


@pytest.mark.parametrize("value", [np.float32(0.25), np.float64(0.25), torch.tensor(0.25), 0.25])
def test_a_quality_may_be_a_number_of_any_type(value: Any) -> None:
    found = Evaluation(value, np.int64(4), {"one": value, "none": None})
    assert found == Evaluation(0.25, 4, {"one": 0.25, "none": None})
    assert {type(found.value), type(found.per_class["one"])} == {float}
    assert type(found.samples) is int


@pytest.mark.parametrize("arguments", [(None, 3), ("much", 3), (0.5, 3.5), (0.5, 3, {"one": "much"}), (0.5, 3, None)])
def test_what_is_not_a_number_is_refused_at_once(arguments: Any) -> None:
    with pytest.raises(RunError, match=r"^Evaluation\(value=.*\): expected a number, an integer, and for each class"):
        Evaluation(*arguments)


def test_predictions_that_differ_from_the_evaluation_may_be_the_plug_ins_fault(
    clipped: Clipped, tmp_path: Path
) -> None:
    with evaluating_to(clipped, "0.5"):
        ended = clipped.run("clipped", "--out", tmp_path / "run", *SHORT, "--set", "ensemble.members=2")
    assert ended.returncode == 1
    line = error_of(ended)
    assert (
        "but the last evaluation gave 0.5 of 30: either evaluate and predictions of the plug-in hpcai500-clip" in line
    )
    assert "disagree, or this machine or number of ranks does not reproduce it bit for bit" in line


def test_an_evaluation_that_differs_between_ranks_ends_the_run(clipped: Clipped, tmp_path: Path) -> None:
    with evaluating_to(clipped, "0.5 + 0.25 * self._place.rank"):
        ended = clipped.run("clipped", "--out", tmp_path / "run", *SHORT, "--procs", "2")
    assert (
        f"{WHO} is broken: its workload's evaluate gives 0.5 on rank 0, but 0.75 on rank 1, and must give"
        in error_of(ended)
    )
    assert ended.returncode == 69


def test_waiting_that_a_workload_does_not_report_is_measured(clipped: Clipped) -> None:
    slow = (
        "def training_batches(self, epoch, first_step):\n"
        "        import time\n"
        "        for batch in super().training_batches(epoch, first_step):\n"
        "            time.sleep(0.02)\n"
        "            yield batch\n\n"
        "    def chain(self)"
    )
    with changed(clipped, "def chain(self)", slow):
        events = read_record(clipped.trained("slow", SHORT[1])).events
    (trained,) = (event["value"] for event in events if event["key"] == "epoch_stop")
    assert trained["data_wait_seconds"] >= 0.02 * trained["steps"] > 0


def test_a_set_whose_code_was_changed_is_kept_with_a_warning(clipped: Clipped, tmp_path: Path) -> None:
    made = tmp_path / "set"
    assert "warning" not in clipped.run("data", "make", "clipped", made).stderr
    assert "warning" not in clipped.run("data", "make", "clipped", made).stderr
    with changed(clipped, "random.normal(0, 0.7", "random.normal(0, 0.8"):
        ended = clipped.run("data", "make", "clipped", made)
    assert ended.returncode == 0
    assert f"warning: {made}: made before " in ended.stderr
    assert "work.py was changed: if the set would differ now, remove the folder, and it is made anew" in ended.stderr


def test_help_offers_no_estimate_and_needs_no_description(clipped: Clipped) -> None:
    metadata = clipped.site / "hpcai500_clipped-1.0.dist-info" / "METADATA"
    before = metadata.read_text()
    try:
        metadata.write_text(before.replace("Summary: A test.\n", ""))
        shown = clipped.run("clipped", "--help").stdout
    finally:
        metadata.write_text(before)
    assert "of the plug-in hpcai500-clipped 1.0." in " ".join(shown.split())
    assert "unknown" not in shown
    assert "--estimate" not in shown
    assert "--machine" not in shown
    assert "--estimate" in clipped.run("ic", "--help").stdout


def test_operations_of_a_small_model_are_not_shown_as_zero(clipped: Clipped) -> None:
    shown = clipped.run("flops", "clipped").stdout.splitlines()
    assert shown[0].endswith("(kFLOP a sample)")
    # 12 x 16, 16 x 16 (twice) and 16 x 3 multiply-adds, of two operations each.
    assert shown[-2].split()[2] == "1.5040"
    assert shown[-1] == "parameters: 803; a sample is 12 numbers"


def test_stages_without_a_copy_exchange_no_gradients(clipped: Clipped) -> None:
    record = clipped.trained("stages", SHORT[1], *IN_STAGES[3::2], procs=2)
    said = "no gradients are sent, as each stage is on one rank; what stages pass on is not counted"
    assert f"bytes       {said}" in clipped.run("score", record).stdout
    assert said in clipped.run("timeline", record).stdout
