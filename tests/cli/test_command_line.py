"""Runs by the command line as people and harnesses start them: what is printed where, how it ends, how it goes on."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from builders.commands import HPCAI500, INVALID, Ended, Typed, error_of, hpcai500, set_options, stopped_at
from builders.runs import TINY, weather_arguments

from hpcai500.recipe import load_recipe, to_toml
from hpcai500.record import read_record

SHORT = ("problem.epochs=1", "hyperparameters.warmup_epochs=0")
DIVERGING = set_options("hyperparameters.base_learning_rate=1e30", "hyperparameters.warmup_epochs=0")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe file of the tiny run, on a CPU."""
    path = tmp_path_factory.mktemp("recipes") / "tiny.toml"
    path.write_text(to_toml(load_recipe("ic/smoke", [*TINY, "accelerator.device=cpu"])))
    return path


@pytest.fixture(scope="module")
def finished(recipe: Path, images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """A finished run: its record, and how the command ended, beside which nothing is left anywhere."""
    folder = tmp_path_factory.mktemp("finished")
    places = {name: folder / name.lower() for name in ("TMPDIR", "HOME")}
    for place in places.values():
        place.mkdir()
    ended = hpcai500(
        "ic", "--recipe", recipe, "--data", images, "--out", "record",
        cwd=folder, environment={name: str(place) for name, place in places.items()},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert [list(place.iterdir()) for place in places.values()] == [[], []]
    return folder / "record", ended


@pytest.fixture(scope="module")
def missed(recipe: Path, images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """A run that missed its target; nobody said where its record goes."""
    folder = tmp_path_factory.mktemp("missed")
    unreachable = set_options("problem.target_quality=1.0", *SHORT)
    ended = hpcai500("ic", "--recipe", recipe, "--data", images, *unreachable, cwd=folder)
    (record,) = (folder / "runs").iterdir()
    return record, ended


@pytest.fixture
def record(finished: tuple[Path, Ended], tmp_path: Path) -> Path:
    """A copy of the finished run, in the folder where commands are typed."""
    return Path(shutil.copytree(finished[0], tmp_path / "record"))


def test_the_last_lines_are_figures_of_merit_and_the_verdict(finished: tuple[Path, Ended], typed: Typed) -> None:
    printed = finished[1].stdout
    lines = printed.splitlines()
    assert lines[-1] == "HPCAI500 RESULT PASS"
    figures = [line for line in lines if line.startswith("HPCAI500 FOM ")]
    assert all(re.fullmatch(r"HPCAI500 FOM [a-z0-9_]+=[-+.e0-9]+ \S+", line) for line in figures)
    names = [line.split("=")[0].split()[-1] for line in figures]
    # Of a busy machine, utilisation is unknown.
    assert [name for name in names if name != "utilisation"][:3] == ["flops", "images_per_second", "top1"]
    assert "NOT RANKABLE: problem.dataset is synthetic-tiny; edition v2.0 fixes imagenet-1k" in printed
    assert "HPCAI500 NOTE not rankable: " in printed


def test_score_prints_the_same_result_again(finished: tuple[Path, Ended], record: Path, typed: Typed) -> None:
    ended = typed("score", "record")
    assert (ended.returncode, ended.stdout) == (0, finished[1].stdout)
    document = json.loads(typed("score", record, "--json").stdout)
    assert document == json.loads((record / "result.json").read_text())


def test_a_changed_result_is_a_wrong_answer(record: Path, typed: Typed) -> None:
    result = json.loads((record / "result.json").read_text())
    (record / "result.json").write_text(json.dumps(result | {"flops": 2 * result["flops"]}))
    ended = typed("score", record)
    assert ended.returncode == 2
    assert re.search("flops is .*but the events give", ended.stderr)


def test_a_missed_quality_is_a_fail_and_exit_code_2(missed: tuple[Path, Ended]) -> None:
    record, ended = missed
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (2, "HPCAI500 RESULT FAIL")
    assert re.search(r"FAILED: top1 [0-9.]+ is below the target 1", ended.stdout)
    assert record.name.startswith("ic-")


@pytest.mark.parametrize(("kind", "code"), [("finished", 0), ("missed", 2)])
def test_resuming_a_run_that_is_complete_prints_its_result_again(
    request: pytest.FixtureRequest, typed: Typed, tmp_path: Path, kind: str, code: int
) -> None:
    original, ended = request.getfixturevalue(kind)
    place = original.relative_to(original.parents[1 if kind == "missed" else 0])
    copy = Path(shutil.copytree(original, tmp_path / place))
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    again = typed("ic", "--resume", "--out", place)
    assert (again.returncode, again.stdout) == (code, ended.stdout)
    assert f"{place} is complete: this is its result" in again.stderr
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_trials_have_their_own_seeds_and_a_summary(recipe: Path, images: Path, tmp_path: Path) -> None:
    settings = set_options(*SHORT, "problem.target_quality=0.001")
    arguments = ["--recipe", recipe, "--data", images, "--trials", "3", "--out", "t", "--json", *settings]
    document = json.loads(hpcai500("ic", *arguments, cwd=tmp_path).stdout)
    seeds = [read_record(tmp_path / "t" / f"trial-0{n}").recipe().hyperparameters.seed for n in (1, 2, 3)]
    assert seeds == [1, 2, 3]
    assert len(document["runs"]) == document["trials"]["flops"]["runs"] == 3
    assert (document["verdict"], document["exit_code"]) == ("PASS", 0)


def test_runs_of_different_recipes_are_not_averaged(
    finished: tuple[Path, Ended], missed: tuple[Path, Ended], typed: Typed
) -> None:
    one, other = finished[0], missed[0]
    document = json.loads(typed("score", one, other, "--json").stdout)
    assert (len(document["runs"]), document["trials"]) == (2, {})
    printed = typed("score", one, other).stdout
    assert f"no mean: {other} differs from {one} in hyperparameters.warmup_epochs" in printed
    assert "HPCAI500 FOM" not in printed


def test_a_run_counts_once_however_often_it_is_named_or_copied(
    finished: tuple[Path, Ended], record: Path, typed: Typed
) -> None:
    for other in (finished[0], record):
        ended = typed("score", finished[0], other)
        assert f"the same run as {finished[0]}" in error_of(ended)
        assert ended.stdout == INVALID + "\n"


@pytest.mark.parametrize("missing", ["DONE", "result.json"])
def test_a_record_that_is_not_marked_complete_is_scored_and_not_rankable(
    record: Path, typed: Typed, missing: str
) -> None:
    (record / missing).unlink()
    assert "the record is not complete: DONE or result.json is missing" in typed("score", record).stdout


def test_a_machine_that_was_swapped_is_noticed_without_done_too(record: Path, typed: Typed) -> None:
    (record / "DONE").unlink()
    system = record / "system.json"
    system.write_text(system.read_text().replace('"host": "', '"host": "other-'))
    assert "differs from the system in the events" in error_of(typed("score", record))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("result.json", b"{"),
        ("result.json", b"[]"),
        ("system.json", b"{"),
        ("system.json", b"{}"),
        ("recipe.toml", b"\xff"),
        ("recipe.toml", b"= 1"),
        ("events.jsonl", b'{"prev":"0"}\n'),
        ("events.jsonl", b""),
        ("DONE", b"deadbeef"),
    ],
)
def test_a_damaged_record_is_one_line(record: Path, typed: Typed, name: str, content: bytes) -> None:
    (record / name).write_bytes(content)
    ended = typed("score", record)
    assert str(record) in error_of(ended)
    assert ended.stderr.count("\n") == 1


def test_a_good_record_is_scored_beside_a_bad_one(record: Path, typed: Typed) -> None:
    good, bad = json.loads(typed("score", record, "nowhere", "--json").stdout)["runs"]
    assert good["result"] == json.loads((record / "result.json").read_text())
    assert (bad["result"], bad["exit_code"]) == (None, 64)
    assert "nowhere: no such folder" in bad["error"]


# ----------------------------------------------------------------------------------------------------
# Streams that nobody reads, or that have no room.


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_stdout_is_one_line(finished: tuple[Path, Ended], unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*HPCAI500, "score", finished[0]], stdout=full, stderr=subprocess.PIPE, text=True, env=environment,
            check=False,
        )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == ["hpcai500: error: cannot write the result to stdout: No space left on device"]


def closed(words: list[str], streams: str) -> Ended:
    """How a module of ours ended that was started without these streams: `hpcai500 … >&-`."""
    line = f"OMP_NUM_THREADS=1 {shlex.join([sys.executable, '-m', *words])} {streams}"
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("streams", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_a_run_does_not_die_of_its_last_line(weather: Path, tmp_path: Path, streams: str) -> None:
    out = tmp_path / "record"
    ended = closed(["hpcai500.train", *weather_arguments(weather, out, "problem.epochs=1")], streams)
    assert ended.returncode == 0, ended.stderr
    assert read_record(out).status == "done"


@pytest.mark.parametrize("streams", [">&-", "2>&-"])
def test_a_command_keeps_its_exit_code(tmp_path: Path, streams: str) -> None:
    ended = closed(["hpcai500.cli", "data", "check", "ewa", str(tmp_path / "nowhere")], streams)
    assert ended.returncode == 64
    assert "Traceback" not in ended.stderr


# ----------------------------------------------------------------------------------------------------
# Runs that are stopped, and gone on with.


def test_a_signal_to_the_command_reaches_the_job_which_resume_goes_on_with(
    recipe: Path, images: Path, tmp_path: Path
) -> None:
    words = ["ic", "--recipe", recipe, "--data", images]
    long = set_options("problem.epochs=40")
    stopped = stopped_at(tmp_path / "stopping", "/checkpoints/epoch-", signal.SIGTERM, *words, *long, cwd=tmp_path)
    assert (stopped.returncode, stopped.stdout.splitlines()[-1]) == (1, INVALID)
    assert "stopped by SIGTERM at epoch" in stopped.stderr
    failed = hpcai500(*words, "--out", "runs/last", *DIVERGING, cwd=tmp_path)
    lines = failed.stdout.splitlines()
    assert (failed.returncode, lines[0], lines[-1]) == (1, "record      runs/last", INVALID)
    assert lines[1].startswith("error       the loss is ")
    # It prefers a run that was stopped to one that failed.
    ended = hpcai500("ic", "--resume", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "resuming runs/ic-" in ended.stderr
    assert "restarts    1" in ended.stdout


def test_a_series_of_trials_that_was_stopped_goes_on_where_it_was(recipe: Path, images: Path, tmp_path: Path) -> None:
    words = ["--recipe", recipe, "--data", images, "--trials", "3", "--out", "runs/ic-t", *set_options(*SHORT)]
    place = "trial-02/system.json"
    stopped = stopped_at(tmp_path / "stopping", place, signal.SIGINT, "ic", *words, cwd=tmp_path)
    assert stopped.returncode == 1, stopped.stderr
    first = tmp_path / "runs" / "ic-t" / "trial-01" / "events.jsonl"
    before = first.read_bytes()
    ended = hpcai500("ic", "--resume", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert first.read_bytes() == before
    assert "HPCAI500 FOM flops_variation=" in ended.stdout
    assert ended.stdout.count("HPCAI500 FOM flops=") == 1
    assert hpcai500("score", "runs/ic-t", cwd=tmp_path).stdout == ended.stdout
