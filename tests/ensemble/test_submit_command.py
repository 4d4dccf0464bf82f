"""`hpcai500 ensemble submit` and `cancel` as people and scripts use them, with stand-ins for Slurm's programs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from test_slurm_submission import ready, site_file

from hpcai500.cli import main
from hpcai500.ensemble.journal import read_ensemble

Command = Callable[..., tuple[int, str, str]]
HPCAI500 = Path(sys.executable).with_name("hpcai500")


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run `hpcai500 ensemble …` in this process: (exit code, stdout, stderr); `programs` are scripts on PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def run(*arguments: str | Path, **programs: str) -> tuple[int, str, str]:
        for name, text in programs.items():
            (folder / name).write_text(f"#!/bin/bash\nPATH={folder}:/usr/bin:/bin\n{text}\n")
            (folder / name).chmod(0o755)
        monkeypatch.setattr(sys, "argv", ["hpcai500", "ensemble", *map(str, arguments)])
        code = main()
        streams = capfd.readouterr()
        return int(code), streams.out, streams.err

    return run


SBATCH = "[[ $1 == --test-only ]] || { if [[ $* == *--dependency* ]]; then echo 8; else echo 7; fi; }"


def test_inside_a_container_the_line_to_type_on_the_host_is_all_that_is_printed(
    ended: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPTAINER_CONTAINER", "/images/hpcai500.sif")
    ensemble = ready(tmp_path)
    code, out, err = ended("submit", ensemble.path, "--site", site_file(tmp_path))
    assert (code, out) == (0, f"bash {ensemble.path}/slurm/submit.sh\n")
    assert err == "hpcai500: submit it on the host:\n"


def test_where_there_is_no_slurm_nothing_was_submitted_and_both_ways_on_are_told(
    ended: Command, tmp_path: Path
) -> None:
    ensemble = ready(tmp_path)
    code, out, err = ended("submit", ensemble.path, "--site", site_file(tmp_path))
    assert (code, out) == (69, "")
    assert f"type this on a host of the cluster: bash {ensemble.path}/slurm/submit.sh;" in err
    assert err.endswith(f"on this machine: hpcai500 ensemble run {ensemble.path}\n")


def test_a_dry_run_submits_nothing(ended: Command, tmp_path: Path) -> None:
    ensemble = ready(tmp_path)
    site = site_file(tmp_path)
    code, out, _ = ended("submit", ensemble.path, "--site", site, "--dry-run", sbatch=f"touch {tmp_path}/called")
    assert (code, out) == (0, f"bash {ensemble.path}/slurm/submit.sh\n")
    assert not (tmp_path / "called").exists()


def test_what_was_submitted_is_in_the_journal(ended: Command, tmp_path: Path) -> None:
    ensemble = ready(tmp_path)
    words = ["--site", site_file(tmp_path), "--at-once", "2", "--exclude", "n[8-9]", "--member", "0,2"]
    code, out, _ = ended("submit", ensemble.path, *words, sbatch=SBATCH, hpcai500=f'exec {HPCAI500} "$@"')
    assert (code, out) == (0, "submitted  2 members as job 7; job 8 collects\n")
    event = read_ensemble(ensemble.path).events[-1]
    assert (event["key"], event["value"]) == (
        "submit",
        {
            "scheduler": "slurm",
            "jobs": ["7", "8"],
            "members": [0, 2],
            "at_once": 2,
            "exclude": ["n8", "n9"],
            "after": None,
        },
    )


def test_what_slurm_refuses_is_told_in_its_words(ended: Command, tmp_path: Path) -> None:
    ensemble = ready(tmp_path)
    refusing = 'echo "allocation failure: Requested node configuration is not available" >&2; exit 1'
    code, out, err = ended("submit", ensemble.path, "--site", site_file(tmp_path), sbatch=refusing, hpcai500="exit 1")
    assert (code, out) == (64, "")
    assert "slurm/member.sh: allocation failure: Requested node configuration is not available\n" in err
    assert err.endswith("submit.sh: nothing was submitted (see above)\n")


def test_cancelling_what_was_never_submitted_changes_nothing(ended: Command, tmp_path: Path) -> None:
    ensemble = ready(tmp_path)
    assert ended("cancel", ensemble.path)[:2] == (0, "cancelled  nothing: no job of it is in the queue\n")
    assert len(read_ensemble(ensemble.path).events) == 1


def test_a_cancellation_is_in_the_journal(ended: Command, tmp_path: Path) -> None:
    ensemble = ready(tmp_path)
    ended("submit", ensemble.path, "--queued", "7,8")
    queue = tmp_path / "queue"
    queue.write_text("7|0-2|PENDING||0|None|\n8|N/A|PENDING||0|Dependency|\n")
    code, out, _ = ended("cancel", ensemble.path, squeue=f"cat {queue}", scancel=f": >{queue}")
    assert (code, out) == (0, "cancelled  4 jobs: 7_0, 7_1, 7_2, 8\n")
    event = read_ensemble(ensemble.path).events[-1]
    assert (event["key"], event["value"]) == ("cancel", {"jobs": ["7", "8"]})
