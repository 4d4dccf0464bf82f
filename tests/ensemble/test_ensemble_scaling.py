"""`scale --ensemble`: what is run, on which cores, what the tables say, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.ensembles import Made, made_up_vote, write_ensemble
from builders.runs import TINY
from typer.testing import CliRunner

from hpcai500.cli.commands import app
from hpcai500.ensemble.collect import CollectOrder, collect_ensemble
from hpcai500.ensemble.journal import append
from hpcai500.ensemble.scaling import (
    EnsemblePoint,
    EnsembleScaleRequest,
    EnsembleScaling,
    compared,
    cores_of,
    draw_ensemble_scaling,
    fewer_members,
    point_of,
    read_result,
    run_ensemble_scaling,
)
from hpcai500.errors import RecordError, UsageError
from hpcai500.launch.scale import ScaleRequest
from hpcai500.record import read_record
from hpcai500.results.scaling import Scaling, ScalingPoint

SHORT = (*(one for one in TINY if not one.startswith(("os.", "problem.epochs", "hyperparameters.warmup"))),
         "problem.epochs=1", "hyperparameters.warmup_epochs=0")  # fmt: skip


def point(members: int, flops: float, *, degree: int = 1, speed: float = 100.0, overlap: float = 1.0) -> EnsemblePoint:
    return EnsemblePoint(
        f"ensemble-{members}x{degree}", members, degree, members * degree, 100.0 * members, flops, 0.9 * flops, speed,
        0.7 + 0.01 * members, members, overlap,
    )  # fmt: skip


def scaling(points: Sequence[EnsemblePoint]) -> EnsembleScaling:
    alone = tuple(
        ScalingPoint(f"procs-{one.ranks}", one.ranks, 1, "torch", "gloo", 90.0, rate, 1.0, share, None, None)
        for one, rate, share in zip(points, (1e9, 1.5e9, 2e9), (1.0, 0.75, 0.5), strict=False)
    )
    trade_off = (point(4, 3.9e9), point(2, 3e9, degree=2, speed=150), point(1, 2e9, degree=4, speed=200))
    return EnsembleScaling("ic", "top1", 1, compared(points), Scaling("ic", alone), trade_off)


def test_the_tables_have_both_ways_and_their_ratio() -> None:
    told = scaling([point(1, 1e9), point(2, 1.96e9), point(4, 3.9e9)])
    lines = list(told.lines())
    assert lines[3].split() == [
        "2", "2", "1.96", "GFLOPS", "1.76", "GFLOPS", "0.980", "100%", "1.5", "GFLOPS", "0.750", "1.31",
    ]  # fmt: skip
    assert lines[-1].split() == ["1", "4", "0.7100", "200.0"]
    assert list(told.figure_of_merit_lines()) == [
        "HPCAI500 FOM ensemble_efficiency_2=0.98 fraction",
        "HPCAI500 FOM data_parallel_efficiency_2=0.75 fraction",
        "HPCAI500 FOM ensemble_over_data_parallel_2=1.30667 times",
        "HPCAI500 FOM ensemble_efficiency_4=0.975 fraction",
        "HPCAI500 FOM data_parallel_efficiency_4=0.5 fraction",
        "HPCAI500 FOM ensemble_over_data_parallel_4=1.95 times",
    ]
    assert not list(told.doubts())
    assert json.loads(json.dumps(told.document()))["points"][1]["efficiency"] == pytest.approx(0.98)


def test_the_pictures_are_the_same_files_for_the_same_numbers() -> None:
    told = scaling([point(1, 1e9), point(2, 1.96e9), point(4, 3.9e9)])
    files = draw_ensemble_scaling(told)
    assert sorted(files) == ["ensemble-scaling.png", "ensemble-scaling.svg", "trade-off.png", "trade-off.svg"]
    assert files == draw_ensemble_scaling(told)
    assert b"data parallelism" in files["ensemble-scaling.svg"]
    assert b"VFLOPS" in files["ensemble-scaling.svg"]
    # Qualities far from the target make VFLOPS that leave no room for the rest.
    without = replace(told, points=tuple(replace(one, vflops=None) for one in told.points))
    assert b"VFLOPS" not in draw_ensemble_scaling(without)["ensemble-scaling.svg"]
    assert list(without.lines())[3].split()[:5] == ["2", "2", "1.96", "GFLOPS", "-"]
    far = replace(told, points=tuple(replace(one, vflops=1e6 * one.flops) for one in told.points))
    assert b"VFLOPS" not in draw_ensemble_scaling(far)["ensemble-scaling.svg"]


def test_members_that_did_not_run_side_by_side_scale_nothing() -> None:
    told = scaling([point(1, 1e9), point(2, 2e9, overlap=0.51)])
    (doubt,) = told.doubts()
    assert "ensemble-2x1: the members overlapped too little for V3.0 Eq. 6: the slowest ran for 51%" in doubt
    assert not list(told.figure_of_merit_lines())


def test_a_point_has_the_rates_of_its_training_steps(tmp_path: Path) -> None:
    ensemble = write_ensemble(tmp_path / "e", [Made(rate=100), Made(rate=80)])
    with pytest.raises(RecordError, match="not collected in its current state: hpcai500 ensemble collect"):
        read_result(ensemble.path)
    collected = collect_ensemble(CollectOrder(ensemble.path), voting=made_up_vote)
    found = point_of(ensemble.path, read_result(ensemble.path))
    assert read_result(ensemble.path) == collected.result
    # Two epochs of 640 samples of each, by the steps of the slower one; the made-up rates vary by half a per cent.
    assert found.images_per_second == pytest.approx(2 * 80, rel=0.01)
    assert found.member_images_per_second == pytest.approx(80, rel=0.01)
    assert (found.members, found.degree, found.ranks) == (2, 8, 16)
    assert found.flops == pytest.approx(found.images_per_second * 24_299_077_632)
    result = (ensemble.path / "result.json").read_text()
    (ensemble.path / "result.json").write_text(result.replace('"images": 2560', '"images": 9999'))
    with pytest.raises(RecordError, match=r"result\.json: changed since it was collected"):
        read_result(ensemble.path)
    append(ensemble, "cancel", {"jobs": []})
    with pytest.raises(RecordError, match="not collected in its current state"):
        read_result(ensemble.path)


def test_fewer_members_share_the_ranks_down_to_one() -> None:
    assert fewer_members(8) == [8, 4, 2, 1]
    assert fewer_members(6) == [6, 3, 1]
    assert fewer_members(1) == [1]


def test_a_smaller_point_has_no_more_cores_a_rank() -> None:
    before = os.sched_getaffinity(0)
    with cores_of(1, len(before)):
        assert len(os.sched_getaffinity(0)) == 1
    with pytest.raises(ZeroDivisionError), cores_of(1, len(before)):
        _ = 1 / 0
    assert os.sched_getaffinity(0) == before


def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCAI500_OVERSUBSCRIBE", "1")

    def run(*overrides: str, procs: str = "1,2", degree: int = 1, recipe: str = "ic/smoke") -> None:
        request = ScaleRequest("ic", procs, recipe, None, None, overrides)
        run_ensemble_scaling(EnsembleScaleRequest(request, degree), tmp_path / "out")

    with pytest.raises(UsageError, match=r"--procs: 1, 3: members of 2 ranks \(--degree\) need multiples of 2"):
        run(procs="1,2,3", degree=2)
    with pytest.raises(
        UsageError, match="a recipe of an ensemble; give that of one member, as in --recipe ic/reference"
    ):
        run(recipe="ic/ensemble")
    with pytest.raises(UsageError, match="--degree 64: this machine is too small for two multiples of it"):
        run_ensemble_scaling(EnsembleScaleRequest(ScaleRequest("ic"), 64), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--degree", "2"], "--degree is for ensembles only: add --ensemble"),
        (["--ensemble", "--records"], "--records draws runs of one model only: leave out --ensemble"),
        (["--ensemble", "--predict", "4"], "--predict runs nothing: leave out --ensemble"),
    ],
)
def test_options_that_contradict_each_other_are_told(options: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["scale", "ic", *options])
    assert words in str(result.exception)


@pytest.mark.slow
def test_a_real_scaling_of_ensembles_is_made_kept_and_told(images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "scaling"
    chosen = ("--procs", "1,2", "--recipe", "ic/smoke", "--data", str(images), "--json", "-o", str(folder))
    settings = [token for text in (*SHORT, "ensemble.out_of_bag_samples=20") for token in ("--set", text)]
    # In a process of its own, whose cores may be changed.
    command = [sys.executable, "-m", "hpcai500.cli", "scale", "ic", "--ensemble", *chosen, *settings]

    def run(*more: str) -> dict[str, Any]:
        done = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
        assert done.stdout, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    document = run()
    assert [(one["members"], one["ranks"]) for one in document["points"]] == [(1, 1), (2, 2)]
    assert [one["processes"] for one in document["data_parallel"]] == [1, 2]
    assert [(one["members"], one["degree"]) for one in document["trade_off"]] == [(2, 1), (1, 2)]
    # So short a training may be over in one member before it begins in another: then that is told, and nothing else.
    assert (document["error"] is None) is (document["points"][1]["overlap"] >= 0.9)
    records = [folder / "procs-2", folder / "ensemble-2x1" / "members" / "00001" / "trial-01"]
    recipes = [read_record(record).recipe() for record in records]
    assert {(one.os.threads, one.os.input_threads) for one in recipes} == {
        (max(1, len(os.sched_getaffinity(0)) // 2),) * 2
    }
    assert (recipes[0].ensemble, recipes[1].ensemble.out_of_bag_samples) == (None, 20)  # type: ignore[union-attr]
    journal = (folder / "ensemble-1x2" / "ensemble.jsonl").read_bytes()
    assert run()["points"] == document["points"]
    assert (folder / "ensemble-1x2" / "ensemble.jsonl").read_bytes() == journal
    assert "has another ensemble " in run("--set", "ensemble.out_of_bag_samples=9")["error"]
