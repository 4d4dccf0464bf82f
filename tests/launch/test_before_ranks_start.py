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

from hpcai500.errors import RecipeError, UsageError
from hpcai500.hosts import Placement
from hpcai500.launch.launcher import launcher_of, require_room
from hpcai500.recipe import load_recipe
from hpcai500.record import RecordWriter, require_unused

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


def test_more_ranks_than_cores_are_refused_unless_a_flag_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    require_room(cores)
    with pytest.raises(UsageError, match=f"{cores + 1} ranks share {cores} core.*--procs {cores} .*--oversubscribe"):
        require_room(cores + 1)
    monkeypatch.setenv("HPCAI500_OVERSUBSCRIBE", "1")
    require_room(cores + 1)


def test_more_ranks_than_devices_are_refused_whatever_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCAI500_OVERSUBSCRIBE", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    require_room(3, "cpu")
    require_room(2, "cuda")
    with pytest.raises(UsageError, match="3 ranks, but 2 CUDA devices here: --procs 2"):
        require_room(3, "cuda")


@pytest.mark.parametrize(
    "command",
    [
        ("ic",),
        ("ewa",),
        ("micro", "copy"),
        ("profile", "ic", "--recipe", "ic/smoke"),
        ("system",),
        ("doctor", "--quick"),
        ("doctor", "ic", "--recipe", "ic/smoke"),
        ("scale", "ic"),
    ],
)
def test_every_command_that_starts_ranks_refuses_more_than_cores(command: tuple[str, ...], tmp_path: Path) -> None:
    procs = "1,99999" if command[0] == "scale" else "99999"
    ended = subprocess.run(
        [HPCAI500, *command, "--procs", procs],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 64, ended.stderr
    assert "99999 ranks share" in ended.stderr
    assert "--oversubscribe" in ended.stderr
    assert not list(tmp_path.glob("data/*"))


def test_a_command_that_may_oversubscribe_warns_once(images: Path, tmp_path: Path) -> None:
    size = len(os.sched_getaffinity(0)) + 1
    settings = [token for text in (*TINY, "problem.epochs=1") for token in ("--set", text)]
    ranks = ["--procs", size, "--oversubscribe"]
    tokens = [HPCAI500, "ic", "--recipe", "ic/smoke", "--data", images, *ranks, "--out", "r", *settings]
    ended = subprocess.run(
        list(map(str, tokens)), cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert ended.stderr.count(f"warning: {size} ranks share {size - 1} core") == 1


TORUS = ("communication.backend=torch", "communication.topology=torus", "accelerator.device=cpu")


def test_a_torus_over_nodes_of_different_sizes_is_refused_before_a_rank_starts() -> None:
    recipe = load_recipe("ic/smoke", [*TORUS, "hardware.nodes=3", "hardware.accelerators_per_node=1"])
    launcher = launcher_of(Placement(0, 3, 0, 2, "mpirun", "localhost:1", None), None)
    said = "0 makes a row of each node, but this one has 2 of the 3 ranks"
    with pytest.raises(RecipeError, match=said):
        launcher.check(recipe, 1)
    with pytest.raises(RecipeError, match=said):
        launcher.run(recipe, ["--resume", "--out", "nowhere"])


def test_a_torus_that_fewer_ranks_do_not_fill_is_refused_before_a_rank_starts() -> None:
    recipe = load_recipe("ic/smoke", [*TORUS, "communication.torus_columns=2", "hardware.accelerators_per_node=6"])
    launcher = launcher_of(Placement(0, 1, 0, 1, "none", None, None), 3)
    with pytest.raises(RecipeError, match="3 ranks do not fill rows of 2: use one of 1, 3"):
        launcher.run(recipe, ["--resume", "--out", "nowhere"])
