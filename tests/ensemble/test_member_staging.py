"""A member's samples on the storage of its nodes: staged by its ranks, trained on as the set itself, and gone after."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders.commands import HPCAI500
from builders.ranks import clean_environment
from builders.runs import member_recipe, same_weights, train_member, written

from hpcai500.campaign.journal import RECIPE
from hpcai500.data.staged import is_staged
from hpcai500.data.staging import StageRequest, stage
from hpcai500.ensemble.journal import Ensemble, begin_member, create_ensemble
from hpcai500.ensemble.journal import member_recipe as recipe_of
from hpcai500.ensemble.mapping import member_places, shape_of
from hpcai500.ensemble.member import staged
from hpcai500.errors import EnvironmentLacksError, UsageError
from hpcai500.hosts import find_placement
from hpcai500.job_options import StageOptions, as_argument
from hpcai500.launch.launcher import launcher_of
from hpcai500.launch.rendezvous import listen_at
from hpcai500.record import iterate, read_record
from hpcai500.system.process import owner_of

RANKS = ("hardware.accelerators_per_node=2", "communication.backend=torch")


def planned(folder: Path, data: Path, where: str | None, *settings: str, members: int = 2) -> Ensemble:
    recipe = member_recipe("ic", "ensemble.out_of_bag_samples=2", *settings)
    shape = shape_of(2, members=members, degree=recipe.world_size)
    ensemble = create_ensemble(folder, recipe, shape, member_places(shape, 1), data, where)
    for member in ensemble.members:
        begin_member(ensemble, member)
    return ensemble


def facts(record: Path) -> dict[str, Any]:
    events = read_record(record).events
    (dataset,) = (event["value"] for event in iterate(events, "dataset"))
    losses = [event["value"]["loss"] for event in iterate(events, "epoch_stop")]
    quality = [(event["value"]["epoch"], event["value"]["value"]) for event in iterate(events, "eval_accuracy")]
    return {**{key: value for key, value in dataset.items() if key != "root"}, "losses": losses, "quality": quality}


@pytest.mark.parametrize("benchmark", ["ic", "ewa"])
def test_a_run_on_staged_samples_is_the_run_on_the_set_itself(
    benchmark: str, images: Path, weather: Path, tmp_path: Path
) -> None:
    source = images if benchmark == "ic" else weather
    recipe = member_recipe(benchmark, "hyperparameters.seed=11")
    stage(StageRequest(benchmark, source, tmp_path / "set", "member", [recipe]))
    there = train_member(recipe, source, tmp_path / "there")
    here = train_member(recipe, tmp_path / "set", tmp_path / "here")
    assert facts(here) == facts(there)
    assert facts(here)["losses"]
    assert "drawn" in facts(here)
    assert same_weights(here, there)


def test_two_ranks_stage_once_and_take_it_away_in_the_end(images: Path, tmp_path: Path, capfd: Any) -> None:
    ensemble = planned(tmp_path / "e", images, "$NODE_STORAGE/${STAGE_IN}", *RANKS)
    environment = {"NODE_STORAGE": str(tmp_path / "node"), "STAGE_IN": "deep"}
    os.environ.update(environment)
    launcher = launcher_of(find_placement({}), 2)
    try:
        with staged(ensemble, 0, launcher, recipe_of(ensemble, 0)) as folder:
            assert folder.parent == tmp_path / "node" / "deep"
            assert is_staged(folder)
            (name,) = (folder / ".hpcai500-staging" / "names").iterdir()
            document = json.loads(name.read_text())
            assert document["owner"] == owner_of(os.getpid())
            assert document["complete"]
            staged_files = len(list(folder.rglob("*.JPEG")))
            assert 0 < staged_files < len(list(images.rglob("*.JPEG")))
    finally:
        for variable in environment:
            del os.environ[variable]
    assert list((tmp_path / "node" / "deep").iterdir()) == []
    err = capfd.readouterr().err
    # One rank speaks, and one has copied.
    assert err.count(" copied in ") + err.count("all present already") == 1
    assert err.count("2 ranks on this host, torch") == 2


def test_what_was_staged_goes_after_an_error_too(images: Path, tmp_path: Path) -> None:
    ensemble = planned(tmp_path / "e", images, str(tmp_path / "node"))
    launcher = launcher_of(find_placement({}), None)
    with pytest.raises(ZeroDivisionError), staged(ensemble, 0, launcher, recipe_of(ensemble, 0)) as folder:
        1 / len(files_of_others(folder))
    assert list((tmp_path / "node").iterdir()) == []


def files_of_others(folder: Path) -> list[Path]:
    assert is_staged(folder)
    return [path for path in folder.iterdir() if path.name == "of others"]


MEMBER = """
import sys
from pathlib import Path
from hpcai500.ensemble.journal import read_ensemble
from hpcai500.ensemble.member import staged
from hpcai500.ensemble.journal import member_recipe
from hpcai500.launch.launcher import launcher_of
from hpcai500.hosts import find_placement

ensemble, member = read_ensemble(Path(sys.argv[1])), int(sys.argv[2])
with staged(ensemble, member, launcher_of(find_placement({}), None), member_recipe(ensemble, member)) as folder:
    print("ready", folder, flush=True)
    input()
"""


def test_two_members_at_once_share_a_folder_and_a_killed_one_leaves_it_to_the_other(
    images: Path, tmp_path: Path
) -> None:
    ensemble = planned(tmp_path / "e", images, str(tmp_path / "node"))
    members = [
        subprocess.Popen(
            [sys.executable, "-c", MEMBER, str(ensemble.path), str(member)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for member in (0, 1)
    ]  # fmt: skip
    folders = set()
    for process in members:
        assert process.stdout is not None
        folders.add(process.stdout.readline())
    assert len(folders) == 1
    (folder,) = (Path(line.removeprefix("ready ").strip()) for line in folders)
    assert len(list((folder / ".hpcai500-staging" / "names").iterdir())) == 2
    members[0].kill()
    members[0].communicate()
    assert is_staged(folder)
    members[1].communicate("\n")
    assert members[1].returncode == 0
    assert list((tmp_path / "node").iterdir()) == []


def test_without_a_folder_to_stage_in_the_set_itself_is_read(images: Path, tmp_path: Path) -> None:
    ensemble = planned(tmp_path / "e", images, None)
    with staged(ensemble, 0, launcher_of(find_placement({}), None), recipe_of(ensemble, 0)) as folder:
        assert folder == images


def test_what_keeps_a_member_from_staging_is_raised_with_its_exit_code(images: Path, tmp_path: Path) -> None:
    launcher = launcher_of(find_placement({}), None)
    for number, (where, told) in enumerate(
        (
            ("$NOT_SET_ANYWHERE/x", r"\$NOT_SET_ANYWHERE is not set here"),
            ("here/below", "give an absolute folder"),
        )
    ):
        ensemble = planned(tmp_path / f"e{number}", images, where)
        with pytest.raises(UsageError, match=told), staged(ensemble, 0, launcher, recipe_of(ensemble, 0)):
            raise AssertionError("nothing was staged")
    ensemble = planned(tmp_path / "e", images, str(images))
    refused = pytest.raises(UsageError, match="member 1: its data could not be staged")
    with refused, staged(ensemble, 1, launcher, recipe_of(ensemble, 1)):
        raise AssertionError("nothing was staged")


def test_a_rank_that_cannot_stage_ends_all_of_them_with_its_exit_code(images: Path, tmp_path: Path) -> None:
    recipe = member_recipe("ic", *RANKS)
    file = written(recipe, tmp_path / "recipe.toml")
    launcher = launcher_of(find_placement({}), 2)
    tight = StageOptions(images, tmp_path / "node", (str(file),), limit_bytes=1000)
    # A node on which a variable differs would train on another folder.
    elsewhere = StageOptions(images, Path("$HOME/set"), (str(file),), expand=tmp_path / "elsewhere")
    for options, error in ((tight, EnvironmentLacksError), (elsewhere, UsageError)):
        assert launcher.run(recipe, ["stage", "ic", as_argument(options)], module="data") == error.exit_code


def test_ranks_on_several_nodes_end_together(images: Path, tmp_path: Path) -> None:
    file = written(member_recipe("ic", *RANKS), tmp_path / "recipe.toml")
    (tmp_path / "b").write_text("no folder")
    for roots, codes in ((("a", "c"), [0, 0]), (("a", "b"), [64, 64])):
        with listen_at("127.0.0.1") as listener:
            port = str(listener.getsockname()[1])
        # As two nodes with a rank each: what one node stages the other one does not see.
        started = [
            subprocess.Popen(
                [*HPCAI500, "data", "stage", "ic", images, tmp_path / root, "--recipe", file],
                env={**clean_environment(), "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0",
                     "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
                stderr=subprocess.PIPE, text=True,
            )
            for rank, root in enumerate(roots)
        ]  # fmt: skip
        told = [process.communicate()[1] for process in started]
        assert [process.returncode for process in started] == codes, told
        if codes[0]:
            assert "rank 1 on " in told[0]
            assert "could not stage its files (see its error above)" in told[0]
    assert is_staged(tmp_path / "a")


def test_the_recipe_that_is_staged_for_is_that_of_the_member(images: Path, tmp_path: Path) -> None:
    ensemble = planned(tmp_path / "e", images, None)
    assert (ensemble.folder(1) / RECIPE).read_text() != (ensemble.folder(0) / RECIPE).read_text()
