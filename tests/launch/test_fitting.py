"""What a recipe leaves open follows the ranks that there are; what it states must agree with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcai500.errors import RecipeError, UsageError
from hpcai500.launch.launcher import World, fitting_overrides
from hpcai500.recipe import load_recipe, reference_recipe, to_toml

HERE = {n: World(n, 1, "torch", f"--procs {n}", "the fix") for n in (1, 2, 4)}
SPREAD = World(8, 2, "torch", "srun", "the fix")


@pytest.fixture
def stating(tmp_path: Path) -> Path:
    """A recipe that states two ranks on this host, and their backend."""
    path = tmp_path / "two.toml"
    path.write_text(
        'benchmark = "ic"\n[hardware]\naccelerators_per_node = 2\n[communication]\nbackend = "horovod"\n'
        '[accelerator]\ndevice = "cpu"\n'
    )
    return path


@pytest.mark.parametrize(
    ("overrides", "world", "expected"),
    [
        ([], HERE[1], (1, 1, "local")),
        ([], HERE[2], (1, 2, "torch")),
        ([], SPREAD, (2, 4, "torch")),
        ([], World(2, 1, "horovod", "horovodrun", ""), (1, 2, "horovod")),
        (["communication.backend=horovod"], HERE[2], (1, 2, "horovod")),
        (["hardware.accelerators_per_node=4"], SPREAD, (2, 4, "torch")),
        (["hardware.nodes=4"], SPREAD, (4, 2, "torch")),  # a stated shape is believed: two nodes tried as four
        (["hardware.nodes=2", "hardware.accelerators_per_node=2"], HERE[4], (2, 2, "torch")),
        (["hardware.accelerators_per_node=4"], World(8, None, "torch", "srun", ""), (2, 4, "torch")),
    ],
)
def test_what_is_open_follows_the_ranks(overrides: list[str], world: World, expected: tuple[int, int, str]) -> None:
    fitted = fitting_overrides("ic/smoke", overrides, world)
    recipe = load_recipe("ic/smoke", [*overrides, *fitted])
    assert (recipe.hardware.nodes, recipe.hardware.accelerators_per_node, recipe.communication.backend) == expected


def test_the_reference_recipe_states_nothing_and_a_copy_of_it_everything(tmp_path: Path) -> None:
    assert "hardware.accelerators_per_node=2" in fitting_overrides("ic/reference", [], HERE[2])
    copy = tmp_path / "reference.toml"
    copy.write_text(to_toml(reference_recipe("ic")))
    with pytest.raises(UsageError, match=r"--procs 2: 2 ranks, but the recipe's hardware is 1 x 1 .*: the fix"):
        fitting_overrides(copy, [], HERE[2])


@pytest.mark.parametrize("overrides", [[], ["hyperparameters.seed=3"]])
def test_a_stated_number_must_agree(stating: Path, overrides: list[str]) -> None:
    recipe = load_recipe(stating, [*overrides, *fitting_overrides(stating, overrides, HERE[2])])
    assert (recipe.world_size, recipe.communication.backend) == (2, "horovod")
    for world in (HERE[1], HERE[4], SPREAD):
        with pytest.raises(UsageError, match=r"but the recipe's hardware is \d x 2 .*the fix"):
            fitting_overrides(stating, overrides, world)
    changed = [*overrides, "hardware.accelerators_per_node=4"]
    assert load_recipe(stating, [*changed, *fitting_overrides(stating, changed, HERE[4])]).world_size == 4


def test_ranks_that_do_not_divide_are_refused() -> None:
    with pytest.raises(UsageError, match="8 ranks, but the recipe's hardware is 3 x 2"):
        fitting_overrides("ic/smoke", ["hardware.nodes=3"], SPREAD)
    with pytest.raises(UsageError, match="nothing tells on how many nodes: set LOCAL_WORLD_SIZE"):
        fitting_overrides("ic/smoke", [], World(8, None, "torch", "srun", ""))


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("benchmark = ", [], "not valid TOML"),
        ('benchmark = "ic"\nhardware = 3\n', [], "hardware"),
        ('benchmark = "ic"\n[hardware]\nnodes = "two"\n', [], "nodes: expected a valid integer"),
        ('benchmark = "ic"\n', ["hardware.nodes=two"], "--set hardware.nodes"),
        ('benchmark = "ic"\n', ["hardware"], "--set hardware: expected table.key=value"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_recipe_is_told_by_the_recipe(
    tmp_path: Path, text: str, overrides: list[str], message: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(RecipeError) as refused:
        load_recipe(path, [*overrides, *fitting_overrides(path, overrides, HERE[2])])
    assert message in str(refused.value)
    with pytest.raises(RecipeError, match="no such recipe file"):
        fitting_overrides("nope", [], HERE[2])
