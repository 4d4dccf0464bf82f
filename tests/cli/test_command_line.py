"""The command as people and harnesses use it: what it prints where, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tiny_runs import TINY

from hpcai500.recipe import load_recipe
from hpcai500.record import read_record

INVALID = "HPCAI500 RESULT INVALID"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe file of the tiny run."""
    tables: dict[str, list[str]] = {}
    for setting in TINY:
        field, _, value = setting.partition("=")
        table, _, key = field.partition(".")
        value = value if re.fullmatch(r"[\d.]+", value) else f'"{value}"'
        tables.setdefault(table, []).append(f"{key} = {value}")
    tables["accelerator"] = ['device = "cpu"']
    body = "\n".join(f"[{table}]\n" + "\n".join(lines) for table, lines in tables.items())
    path = tmp_path_factory.mktemp("recipes") / "tiny.toml"
    path.write_text(
        f'benchmark = "ic"\n{body}\n[workload]\n' if "workload" not in tables else f'benchmark = "ic"\n{body}\n'
    )
    assert load_recipe(path).problem.epochs == 3
    return path


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", "import sys; from hpcai500.cli import main; sys.exit(main())", *map(str, arguments)]


def hpcai500(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, cwd=cwd, check=False)


@pytest.fixture(scope="module")
def finished(recipe: Path, images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished run: its record, and what the command printed on stdout."""
    folder = tmp_path_factory.mktemp("finished")
    ended = hpcai500("ic", "--recipe", recipe, "--data", images, "--out", folder / "record", cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return folder / "record", ended.stdout


def test_the_login_half_starts_without_torch_numpy_or_rich() -> None:
    code = "import sys, hpcai500.cli; print(sorted({'torch', 'numpy', 'rich', 'PIL'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_the_last_lines_are_figures_of_merit_and_the_verdict(finished: tuple[Path, str]) -> None:
    lines = finished[1].splitlines()
    assert lines[-1] == "HPCAI500 RESULT PASS"
    figures = [line for line in lines if line.startswith("HPCAI500 FOM ")]
    assert all(re.fullmatch(r"HPCAI500 FOM [a-z0-9_]+=[-+.e0-9]+ \S+", line) for line in figures)
    assert [line.split("=")[0].split()[-1] for line in figures][:3] == ["flops", "images_per_second", "top1"]


def test_a_run_that_cannot_be_ranked_says_so(finished: tuple[Path, str]) -> None:
    assert "NOT RANKABLE: problem.dataset is synthetic-tiny; edition v2.0 fixes imagenet-1k" in finished[1]
    assert "HPCAI500 NOTE not rankable: " in finished[1]


def test_score_prints_the_same_result_again(finished: tuple[Path, str], tmp_path: Path) -> None:
    record, printed = finished
    ended = hpcai500("score", record, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, printed)


def test_json_is_exactly_one_document_and_equals_the_record(finished: tuple[Path, str], tmp_path: Path) -> None:
    record, _ = finished
    ended = hpcai500("score", record, "--json", cwd=tmp_path)
    assert json.loads(ended.stdout) == json.loads((record / "result.json").read_text())


def test_a_changed_result_is_a_wrong_answer(finished: tuple[Path, str], tmp_path: Path) -> None:
    record = tmp_path / "record"
    shutil.copytree(finished[0], record)
    result = json.loads((record / "result.json").read_text())
    (record / "result.json").write_text(json.dumps(result | {"flops": 2 * result["flops"]}))
    ended = hpcai500("score", record, cwd=tmp_path)
    assert ended.returncode == 2
    assert "flops is" in ended.stderr
    assert "but the events give" in ended.stderr


def test_a_missed_quality_is_a_fail_and_exit_code_2(recipe: Path, images: Path, tmp_path: Path) -> None:
    unreachable = ["--set", "problem.target_quality=1.0", "--set", "problem.epochs=1"]
    ended = hpcai500("ic", "--recipe", recipe, "--data", images, *unreachable, cwd=tmp_path)
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (2, "HPCAI500 RESULT FAIL")
    assert re.search(r"FAILED: top1 [0-9.]+ is below the target 1", ended.stdout)
    (record,) = (tmp_path / "runs").iterdir()
    assert record.name.startswith("ic-")


def test_a_failed_run_is_invalid(recipe: Path, images: Path, tmp_path: Path) -> None:
    diverging = ["--set", "hyperparameters.base_learning_rate=1e30", "--set", "hyperparameters.warmup_epochs=0"]
    ended = hpcai500("ic", "--recipe", recipe, "--data", images, *diverging, cwd=tmp_path)
    (record,) = (tmp_path / "runs").iterdir()
    printed = ended.stdout.splitlines()
    assert (ended.returncode, printed[0], printed[-1]) == (1, f"record      runs/{record.name}", INVALID)
    assert printed[1].startswith("error       the loss is ")


def test_trials_have_their_own_seeds_and_a_summary(recipe: Path, images: Path, tmp_path: Path) -> None:
    short = ["problem.epochs=1", "hyperparameters.warmup_epochs=0", "problem.target_quality=0.001"]
    settings = [token for text in short for token in ("--set", text)]
    arguments = ["--recipe", recipe, "--data", images, "--trials", "3", "--out", "t", "--json", *settings]
    ended = hpcai500("ic", *arguments, cwd=tmp_path)
    document = json.loads(ended.stdout)
    seeds = [read_record(tmp_path / "t" / f"trial-0{n}").recipe().hyperparameters.seed for n in (1, 2, 3)]
    assert seeds == [1, 2, 3]
    assert len(document["runs"]) == document["trials"]["flops"]["runs"] == 3
    assert (document["verdict"], document["exit_code"]) == ("PASS", 0)


def test_a_series_of_trials_that_was_stopped_goes_on_where_it_was(recipe: Path, images: Path, tmp_path: Path) -> None:
    short = ["--set", "problem.epochs=1", "--set", "hyperparameters.warmup_epochs=0"]
    process = subprocess.Popen(
        command("ic", "--recipe", recipe, "--data", images, "--trials", "3", "--out", "runs/ic-t", *short),
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    second = tmp_path / "runs" / "ic-t" / "trial-02" / "events.jsonl"
    while not second.exists() or b"init_start" not in second.read_bytes():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 1
    first = (tmp_path / "runs" / "ic-t" / "trial-01" / "events.jsonl").read_bytes()
    ended = hpcai500("ic", "--resume", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "runs" / "ic-t" / "trial-01" / "events.jsonl").read_bytes() == first
    assert "HPCAI500 FOM flops_variation=" in ended.stdout
    assert ended.stdout.count("HPCAI500 FOM flops=") == 1
    assert hpcai500("score", "runs/ic-t", cwd=tmp_path).stdout == ended.stdout


def test_runs_of_different_recipes_are_not_averaged(
    finished: tuple[Path, str], recipe: Path, images: Path, tmp_path: Path
) -> None:
    other = ["--set", "problem.epochs=1", "--set", "hyperparameters.warmup_epochs=0"]
    assert hpcai500("ic", "--recipe", recipe, "--data", images, "--out", "o", *other, cwd=tmp_path).returncode == 0
    document = json.loads(hpcai500("score", finished[0], "o", "--json", cwd=tmp_path).stdout)
    assert (len(document["runs"]), document["trials"]) == (2, {})
    printed = hpcai500("score", finished[0], "o", cwd=tmp_path).stdout
    assert f"no mean: o differs from {finished[0]} in hyperparameters.warmup_epochs" in printed
    assert "HPCAI500 FOM" not in printed


def test_a_run_counts_once_however_often_it_is_named_or_copied(finished: tuple[Path, str], tmp_path: Path) -> None:
    shutil.copytree(finished[0], tmp_path / "copy")
    for records in ([finished[0], finished[0]], [finished[0], "copy"]):
        ended = hpcai500("score", *records, cwd=tmp_path)
        assert (ended.returncode, ended.stdout) == (64, INVALID + "\n")
        assert f"the same run as {finished[0]}" in ended.stderr


@pytest.mark.parametrize("missing", ["DONE", "result.json"])
def test_a_record_that_is_not_marked_complete_is_scored_and_not_rankable(
    finished: tuple[Path, str], tmp_path: Path, missing: str
) -> None:
    shutil.copytree(finished[0], tmp_path / "record")
    (tmp_path / "record" / missing).unlink()
    assert (
        "the record is not complete: DONE or result.json is missing" in hpcai500("score", "record", cwd=tmp_path).stdout
    )


def test_a_machine_that_was_swapped_is_noticed_without_done_too(finished: tuple[Path, str], tmp_path: Path) -> None:
    shutil.copytree(finished[0], tmp_path / "record")
    (tmp_path / "record" / "DONE").unlink()
    system = tmp_path / "record" / "system.json"
    system.write_text(system.read_text().replace('"host": "', '"host": "other-'))
    ended = hpcai500("score", "record", cwd=tmp_path)
    assert ended.returncode == 64
    assert "not the system that the events name" in ended.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_stdout_is_one_line(finished: tuple[Path, str], unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            command("score", finished[0]), stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False
        )
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == ["hpcai500: error: the result cannot be written: No space left on device"]


@pytest.mark.parametrize(("target", "code"), [("0.01", 0), ("0.999", 2)])
def test_resuming_a_run_that_is_complete_prints_its_result_again(
    recipe: Path, images: Path, tmp_path: Path, target: str, code: int
) -> None:
    short = ["problem.epochs=1", "hyperparameters.warmup_epochs=0", f"problem.target_quality={target}"]
    settings = [token for text in short for token in ("--set", text)]
    first = hpcai500("ic", "--recipe", recipe, "--data", images, "--out", "r", *settings, cwd=tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()}
    again = hpcai500("ic", "--resume", "--out", "r", cwd=tmp_path)
    assert (first.returncode, again.returncode, again.stdout) == (code, code, first.stdout)
    assert "r is complete: this is its result" in again.stderr
    assert {path: path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()} == before


def test_resume_prefers_a_run_that_was_killed_to_one_that_failed(recipe: Path, images: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("ic", "--recipe", recipe, "--data", images, "--set", "problem.epochs=40", "--out", "runs/mine"),
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    log = tmp_path / "runs" / "mine" / "events.jsonl"
    while not log.exists() or b"epoch_stop" not in log.read_bytes():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.wait()
    diverging = ["--set", "hyperparameters.base_learning_rate=1e30", "--set", "hyperparameters.warmup_epochs=0"]
    assert hpcai500("ic", "--recipe", recipe, "--data", images, *diverging, cwd=tmp_path).returncode == 1
    assert "going on with runs/mine" in hpcai500("ic", "--resume", cwd=tmp_path).stderr


@pytest.mark.parametrize("arguments", [["score", "nowhere"], ["ic", "--recipe", "nope"]], ids=["score", "ic"])
def test_a_failure_is_a_json_document_and_a_verdict_too(tmp_path: Path, arguments: list[str]) -> None:
    document = json.loads(hpcai500(*arguments, "--json", cwd=tmp_path).stdout)
    assert (document["verdict"], document["exit_code"]) == ("INVALID", 64)
    assert hpcai500(*arguments, cwd=tmp_path).stdout.splitlines()[-1] == INVALID


def test_a_good_record_is_scored_beside_a_bad_one(finished: tuple[Path, str], tmp_path: Path) -> None:
    document = json.loads(hpcai500("score", finished[0], "nowhere", "--json", cwd=tmp_path).stdout)
    good, bad = document["runs"]
    assert good["result"] == json.loads((finished[0] / "result.json").read_text())
    assert (bad["result"], bad["exit_code"]) == (None, 64)
    assert "not a record" in bad["error"]


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
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_damaged_record_is_one_line(finished: tuple[Path, str], tmp_path: Path, name: str, content: bytes) -> None:
    record = tmp_path / "record"
    shutil.copytree(finished[0], record)
    (record / name).write_bytes(content)
    ended = hpcai500("score", record, cwd=tmp_path)
    assert ended.returncode == 64
    assert ended.stderr.count("\n") == 1
    assert str(record) in ended.stderr


def test_a_signal_to_the_command_reaches_the_job_which_resume_goes_on_with(
    recipe: Path, images: Path, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        command("ic", "--recipe", recipe, "--data", images, "--set", "problem.epochs=40"),
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not [p for p in tmp_path.glob("runs/*/events.jsonl") if b"epoch_stop" in p.read_bytes()]:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, error = process.communicate()
    assert (process.returncode, out.splitlines()[-1]) == (1, INVALID)
    assert "stopped by SIGTERM at epoch" in error
    ended = hpcai500("ic", "--resume", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "restarts    1" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ic", "--recpe", "x"], "No such option: --recpe"),
        (["icc"], "No such command 'icc'"),
        (["score"], "Missing argument"),
        (["ic", "--trials", "0"], "--trials"),
        (["ic", "--recipe", "nope.toml"], "nope.toml: no such recipe file; the recipes that come with hpcai500 are"),
        (["ic", "--set", "problem.epochs=many"], "--set problem.epochs: [problem] epochs: expected a valid integer"),
        (["ic", "--recipe", "ic/reference"], "the recipe trains on imagenet-1k; give its folder with --data DIR"),
        (["ic", "--data", "nowhere", "--set", "accelerator.device=cpu"], "nowhere"),
        (["ic", "--resume"], "no unfinished ic run to resume; name its record: --resume --out DIR"),
        (["ic", "--resume", "--trials", "2"], "leave out --recipe, --set, --input and --trials"),
        (["score", "nowhere"], "nowhere: not a record: recipe.toml is missing"),
        (["flops", "icc"], "icc"),
        (["data", "chek", "ic", "x"], "chek"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_exit_code_64(tmp_path: Path, arguments: Sequence[str], expected: str) -> None:
    ended = hpcai500(*arguments, cwd=tmp_path)
    errors = [line for line in ended.stderr.splitlines() if "error: " in line]
    assert ended.returncode == 64
    assert len(errors) == 1
    assert expected in errors[0]
    assert "Traceback" not in ended.stderr


def test_a_traceback_is_shown_on_request(tmp_path: Path) -> None:
    ended = subprocess.run(
        command("score", "nowhere"), cwd=tmp_path, env=os.environ | {"HPCAI500_TRACEBACK": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" in ended.stderr


def test_help_teaches_every_command(tmp_path: Path) -> None:
    for arguments in (["--help"], ["ic", "-h"], ["score", "--help"], ["flops", "--help"], ["data", "--help"]):
        ended = hpcai500(*arguments, cwd=tmp_path)
        assert ended.returncode == 0
        assert len(ended.stdout.split()) > 20
