"""What a command says before it starts ranks: a used --out is refused once, crowded cores are told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from many_ranks import clean_environment
from tiny_runs import TINY

from hpcai500.launch.crew import crowding
from hpcai500.recipe import load_recipe
from hpcai500.record_writer import RecordWriter, require_unused

HPCAI500 = Path(sys.executable).with_name("hpcai500")


@pytest.mark.parametrize("data", [True, False])
def test_a_used_folder_is_refused_once_before_data_is_made_or_a_rank_is_started(
    images: Path, tmp_path: Path, data: bool
) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.tex").write_text("")
    where = ["--data", images, "--recipe", "ic/smoke"] if data else []
    tokens = [HPCAI500, "ic", *where, "--procs", "2", "--out", "used", "--json"]
    ended = subprocess.run(
        list(map(str, tokens)), cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 64
    said = "used: not empty; give another --out, or go on with it: --resume --out used"
    assert ended.stderr == f"hpcai500: error: {said}\n"
    assert said in json.dumps(json.loads(ended.stdout))
    assert {path.name for path in tmp_path.iterdir()} == {"used"}


def test_what_a_run_left_that_was_killed_before_its_first_event_is_no_use(tmp_path: Path) -> None:
    recipe = load_recipe("ic/smoke", ())
    RecordWriter.create(tmp_path / "record", recipe).close()
    require_unused(tmp_path / "record")
    require_unused(tmp_path / "nowhere")


@pytest.mark.parametrize(("size", "cores", "words"), [(4, 2, "4 ranks share 2 cores"), (2, 1, "2 ranks share 1 core:")])
def test_ranks_that_share_cores_are_told_in_one_line(size: int, cores: int, words: str) -> None:
    warning = crowding(size, cores)
    assert warning is not None
    assert words in warning
    assert "\n" not in warning
    assert crowding(cores, cores) is None


def test_a_command_with_more_ranks_than_cores_warns_once(images: Path, tmp_path: Path) -> None:
    size = len(os.sched_getaffinity(0)) + 1
    settings = [token for text in (*TINY, "problem.epochs=1") for token in ("--set", text)]
    tokens = [HPCAI500, "ic", "--recipe", "ic/smoke", "--data", images, "--procs", size, "--out", "r", *settings]
    ended = subprocess.run(
        list(map(str, tokens)), cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert ended.stderr.count(f"warning: {size} ranks share {size - 1} core") == 1
