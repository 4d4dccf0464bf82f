"""Weak scaling on this machine: what is started with which threads, what is kept, what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.runs import TINY

from hpcai500.errors import ExitCode, RecordError, UsageError
from hpcai500.launch import scale
from hpcai500.launch.processes import run_to_end
from hpcai500.launch.runs import Outcome, Request
from hpcai500.launch.scale import ScaleRequest, parse_procs, run_scaling
from hpcai500.record import iterate, read_record
from hpcai500.results.scaling import read_scaling
from hpcai500.stopping import Stopped

SHORT = (*(one for one in TINY if not one.startswith(("os.", "problem.epochs", "hyperparameters.warmup"))),
         "problem.epochs=1", "hyperparameters.warmup_epochs=0")  # fmt: skip


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Request, int | None]]:
    """What would be started, by request and number of ranks, on a machine with 12 cores; every run ends at once."""
    seen: list[tuple[Request, int | None]] = []

    def run(request: Request, launcher: Any) -> Iterator[Outcome]:
        seen.append((request, launcher.size))
        yield Outcome(request.out or Path(), ExitCode.PASS)

    monkeypatch.setattr(scale, "run_benchmark", run)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(12)))
    return seen


def test_a_real_scaling_is_made_kept_and_told(images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "scaling"
    request = ScaleRequest("ic", "2,1", "ic/smoke", images, folder, [*SHORT, "communication.compression=fp16"])
    outcomes = list(run_scaling(request, folder))
    assert [(one.record.name, one.exit_code) for one in outcomes] == [("procs-1", 0), ("procs-2", 0)]
    scaling = read_scaling([one.record for one in outcomes])
    assert [(p.processes, p.backend) for p in scaling.points] == [(1, "local"), (2, "torch")]
    assert scaling.points[1].communication_fraction is not None
    recipes = [read_record(one.record).recipe() for one in outcomes]
    assert {(recipe.os.threads, recipe.os.input_threads) for recipe in recipes} == {
        (max(1, len(os.sched_getaffinity(0)) // 2),) * 2
    }
    logs = [(one.record / "events.jsonl").read_bytes() for one in outcomes]
    assert list(run_scaling(request, folder)) == outcomes
    assert [(one.record / "events.jsonl").read_bytes() for one in outcomes] == logs
    (start,) = iterate(read_record(outcomes[1].record).events, "run_start")
    assert start["value"]["world_size"] == 2


def test_all_points_have_the_threads_of_the_largest_unless_they_are_stated(started: list[Any], tmp_path: Path) -> None:
    list(run_scaling(ScaleRequest("ic", "4,1,2", out=tmp_path), tmp_path))
    assert [size for _, size in started] == [1, 2, 4]
    for request, size in started:
        assert (request.recipe, request.out) == ("ic/smoke", tmp_path / f"procs-{size}")
        assert {"os.threads=3", "os.input_threads=3"} <= set(request.overrides)
    started.clear()
    list(run_scaling(ScaleRequest("ic", "1,2", overrides=["os.threads=5"]), tmp_path / "stated"))
    assert [one for one in started[0][0].overrides if "os.threads" in one] == ["os.threads=5"]


def test_without_a_word_the_points_double_up_to_the_cores(started: list[Any], tmp_path: Path) -> None:
    list(run_scaling(ScaleRequest("ewa"), tmp_path))
    assert [size for _, size in started] == [1, 2, 4, 8]


def test_a_backend_for_many_does_not_stop_the_point_of_one(started: list[Any], tmp_path: Path) -> None:
    far = ["communication.backend=horovod", "communication.topology=hierarchical"]
    list(run_scaling(ScaleRequest("ic", "1,2", overrides=far), tmp_path))
    assert started[0][0].overrides[-2:] == ["communication.backend=local", "communication.topology=flat"]
    assert "communication.backend=local" not in started[1][0].overrides


def test_an_unfinished_point_is_gone_on_with_and_a_finished_one_is_kept(started: list[Any], tmp_path: Path) -> None:
    request = ScaleRequest("ic", "1,2,4")
    list(run_scaling(request, tmp_path))
    started.clear()
    for name, file in (("procs-1", "DONE"), ("procs-2", "events.jsonl")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    outcomes = list(run_scaling(request, tmp_path))
    assert [(one.out, one.resume) for one, _ in started] == [
        (tmp_path / "procs-2", True),
        (tmp_path / "procs-4", False),
    ]
    assert [one.record.name for one in outcomes] == ["procs-1", "procs-2", "procs-4"]


def test_a_point_that_fails_or_is_stopped_when_it_has_just_ended_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(request: Request, launcher: Any) -> Iterator[Outcome]:
        yield Outcome(request.out or Path(), ExitCode.RUN_FAILED)

    # Its process no longer listens, and ends as if nothing had come.
    deaf = ["sh", "-c", "trap '' TERM; kill -TERM $PPID; sleep 0.2"]

    def stop(request: Request, launcher: Any) -> Iterator[Outcome]:
        yield Outcome(request.out or Path(), run_to_end(deaf))

    monkeypatch.setattr(scale, "run_benchmark", fail)
    assert [one.exit_code for one in run_scaling(ScaleRequest("ic", "1,2"), tmp_path)] == [ExitCode.RUN_FAILED]
    monkeypatch.setattr(scale, "run_benchmark", stop)
    outcomes = run_scaling(ScaleRequest("ic", "1,2"), tmp_path)
    assert next(outcomes).exit_code == ExitCode.PASS
    with pytest.raises(Stopped, match="stopped by SIGTERM"):
        next(outcomes)


def test_points_may_join_but_must_be_alike(started: list[Any], tmp_path: Path) -> None:
    stated = ["os.threads=1", "os.input_threads=1"]
    list(run_scaling(ScaleRequest("ic", "1,2", overrides=stated), tmp_path))
    list(run_scaling(ScaleRequest("ic", "1,2,4", overrides=stated), tmp_path))
    assert json.loads((tmp_path / "scale.json").read_text())["threads"] == 1
    with pytest.raises(
        UsageError, match=r"scale.json: has another threads \(1, not 6\): it must be the same for all points"
    ):
        list(run_scaling(ScaleRequest("ic", "1,2"), tmp_path))
    with pytest.raises(UsageError, match="has another recipe hash"):
        list(run_scaling(ScaleRequest("ic", "1,2", overrides=[*stated, "problem.epochs=3"]), tmp_path))


def test_what_cannot_be_scaled_is_refused_before_anything_is_written(
    started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "new"
    with pytest.raises(UsageError, match="ewa/smoke: a recipe of ewa; run `hpcai500 scale ewa --recipe ewa/smoke`"):
        list(run_scaling(ScaleRequest("ic", "1,2", "ewa/smoke"), folder))
    assert not folder.exists()
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RecordError, match="not empty, and not a scaling; give another --out"):
        list(run_scaling(ScaleRequest("ic", "1,2"), tmp_path))
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=r"torchrun has started 2: run each point with `hpcai500 ic`, then draw them"):
        list(run_scaling(ScaleRequest("ic", "1,2"), folder))
    assert not started


@pytest.mark.parametrize("text", ["", "2", "1,x", "1,-2", "0,1", "2,2", "1,,2", "1;2", "1,٣"])
def test_numbers_of_processes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected two numbers of processes or more, for example 1,2,4"):
        parse_procs(text)
    assert parse_procs(" 8, 1,2 ,8") == [1, 2, 8]


def test_a_scaling_that_takes_longer_than_it_may_is_stopped_and_says_how_to_go_on(images: Path, tmp_path: Path) -> None:
    without_end = [token for one in (*SHORT[:-2], "problem.epochs=100000") for token in ("--set", one)]
    command = "import sys; from hpcai500.cli import main; sys.exit(main())"
    arguments = ["scale", "ic", "--procs", "1,2", "--recipe", "ic/smoke", "--data", str(images), "--out", "s"]
    ended = subprocess.run(
        [sys.executable, "-c", command, *arguments, "--minutes", "0.15", "--oversubscribe", *without_end],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == ExitCode.RUN_FAILED
    assert "stops with a checkpoint after 0.15 min (--minutes)" in ended.stderr
    error = "stopped after 0.15 min: to continue, use the same command with --out s, or with more --minutes"
    assert ended.stdout.splitlines()[-2:] == [f"error       {error}", "HPCAI500 RESULT INVALID"]
    assert "Traceback" not in ended.stderr
