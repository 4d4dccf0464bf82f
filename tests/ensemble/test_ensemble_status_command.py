"""`hpcai500 ensemble status` whole: with fakes of Slurm's commands at ten thousand members, and without any."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_members import START_S, MadeCluster, MadeMember, plan
from made_slurm import MadeSlurm, submit_arrays

from hpcai500.ensemble.members import MOST_FILES, Memory
from hpcai500.ensemble.slurm import SlurmScheduler
from hpcai500.ensemble.status import Watch
from hpcai500.launch.slurm.site import Site

HPCAI500 = [sys.executable, "-c", "import sys; from hpcai500.cli import main; sys.exit(main())"]


def status(folder: Path, *arguments: str, path: str = "/nowhere") -> subprocess.CompletedProcess[str]:
    command = [*HPCAI500, "ensemble", "status", "e", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env={"PATH": path}, check=False)


@pytest.mark.parametrize(("end", "code"), [("done", 0), ("stopped", 0), ("failed", 2), ("running", 0)])
def test_the_exit_code_says_whether_something_is_lost(tmp_path: Path, end: str, code: int) -> None:
    ensemble = plan(tmp_path / "e", 2)
    one = MadeMember(ensemble, 1)
    one.begin(START_S)
    if end != "running":
        one.end(START_S, end, "why")
    ended = status(tmp_path)
    assert (ended.returncode, ended.stderr) == (code, "")
    assert f"1 {end}" in ended.stdout
    assert "scheduler  none: nothing was submitted yet\n" in ended.stdout


def test_json_is_one_document_with_all_members(tmp_path: Path) -> None:
    plan(tmp_path / "e", 30)
    document = json.loads(status(tmp_path, "--json").stdout)
    assert document["schema"] == "hpcai500-ensemble-status-1"
    assert len(document["rows"]) == 30
    assert document["states"]["waiting"] == 30


def test_where_slurm_is_not_the_records_tell_and_why_is_one_line(tmp_path: Path) -> None:
    ensemble = submit_arrays(plan(tmp_path / "e", 2), 1)
    MadeMember(ensemble, 0).begin(START_S)
    ended = status(tmp_path)
    assert ended.returncode == 0
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("scheduler")]
    assert line.startswith("scheduler  slurm: no squeue here: ")
    assert line.endswith("; who runs is told by the records alone")
    assert "1 waiting, 1 running" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--follow", "--json"], "--json prints one document"),
        (["--interval", "0"], "--interval"),
        (["--site", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(tmp_path: Path, arguments: list[str], words: str) -> None:
    submit_arrays(plan(tmp_path / "e", 1), 1)
    ended = status(tmp_path, *arguments)
    assert ended.returncode == 64
    assert words in ended.stderr


def test_what_is_no_ensemble_is_refused_with_the_line_to_type(tmp_path: Path) -> None:
    (tmp_path / "e").mkdir()
    ended = status(tmp_path)
    assert ended.returncode == 64
    assert "not an ensemble: ensemble.jsonl is missing; plan one: hpcai500 ensemble plan e" in ended.stderr


def test_ten_thousand_members_in_slurms_words(tmp_path: Path) -> None:
    """Fake programs, the real `SlurmScheduler`: one question each a look, and so many files."""
    cluster = MadeCluster(
        plan(tmp_path / "e", 10_000), at_once=300, epoch_seconds=60.0, failing=[7], submit=submit_arrays
    )
    slurm = MadeSlurm(tmp_path / "bin")
    scheduler = SlurmScheduler(Site(), slurm.environment)
    watch = Watch(tmp_path / "e", {"slurm": lambda: scheduler}, Memory(clock=cluster.clock))
    for _ in range(12):
        cluster.advance(30)
        slurm.tell(cluster.states)
        seen = watch.look()
        # Accounting is asked for those whom the queue has forgotten: as soon as there are any.
        forgotten = any(state in ("ended", "failed") for state in cluster.states.values())
        assert [line.split()[0] for line in slurm.asked()] == ["squeue", *["sacct"] * forgotten]
        assert seen.polls[0].files <= MOST_FILES
    seen = watch.look_at_all()
    slurm.asked()
    expected = {member: _as_read(cluster, member) for member in seen.ensemble.members}
    assert {row.member: row.state for row in seen.rows} == expected
    assert seen.states["failed"] == 1
    assert seen.rows[7].wrong == "FAILED exit code 1; node lost"
    assert (seen.rows[7].hosts, seen.rows[7].job) == (("n0007",), "100_7")
    document = _by_command(tmp_path, slurm)
    assert document["states"] == seen.states
    assert [line.split()[0] for line in slurm.asked()] == ["squeue", "sacct"]


def _as_read(cluster: MadeCluster, member: int) -> str:
    state = cluster.states[member]
    return "done" if state == "ended" else state


def _by_command(folder: Path, slurm: MadeSlurm) -> dict[str, Any]:
    ended = status(folder, "--json", path=slurm.environment["PATH"])
    assert (ended.returncode, ended.stderr) == (2, "")
    document: dict[str, Any] = json.loads(ended.stdout)
    return document
