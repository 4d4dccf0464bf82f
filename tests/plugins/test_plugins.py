"""Plug-ins: found by entry points, loaded when they are used; what is wrong with one is told, and hides no other."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from importlib import invalidate_caches
from pathlib import Path

import pytest
from builders.commands import started_here

from hpcai500.cli import commands
from hpcai500.cli.commands import app
from hpcai500.data.derived import MANIFEST
from hpcai500.errors import EnvironmentLacksError, RecipeError, UsageError
from hpcai500.layers import RECIPE_TYPES
from hpcai500.plugins import (
    TAKEN,
    code_hash,
    find_plugin,
    function_of,
    installed_plugins,
    known_benchmarks,
    load_plugin,
    plugin_facts,
    recipe_type,
    require_benchmark,
    usable_plugins,
)
from hpcai500.recipe import (
    default_recipe,
    find_recipe,
    is_shipped,
    load_recipe,
    parse_resolved,
    reference_recipe,
    rulebook,
    shipped_recipes,
    to_toml,
)
from hpcai500.self_test import command


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where packages are found while the test runs."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


GROUP = "hpcai500.workloads"
# The least that a plug-in is: a recipe type and a folder with the reference.
GOOD = """\
from pathlib import Path
from hpcai500.layers import Recipe
from hpcai500.layers.fields import Count, Layer
from hpcai500.plugins import Plugin

class Tiny(Layer):
    width: Count

class TinyRecipe(Recipe):
    workload: Tiny

PLUGIN = Plugin(recipe=TinyRecipe, recipes=Path(__file__).parent / "recipes", workload="{module}.work:build")
"""
REFERENCE = """\
benchmark = "{name}"
edition = "v3.0"

[problem]
dataset = "synthetic-{name}"
metric = "top1"
target_quality = 0.5
epochs = 2

[hyperparameters]
warmup_epochs = 1

[workload]
width = 4

[accelerator]
device = "cpu"
"""


def write_package(
    site: Path,
    name: str,
    module: str,
    code: str = GOOD,
    *,
    package: str | None = None,
    version: str = "1.0",
    entry: str | None = None,
    recipes: bool = True,
) -> Path:
    """Lay a package into the folder `site`, as pip leaves it; returns the folder of its module.

    Args:
        site: a folder on the module path.
        name: of the entry point.
        module: of the package.
        code: of the module; `{module}` stands for its name.
        package: of the distribution; by default as the module.
        version: of the distribution.
        entry: what the entry point names; by default `module:PLUGIN`.
        recipes: whether it has a reference recipe.
    """
    # As pip names it: what is before the first dash is all that tells one distribution from another.
    about = site / f"{(package or module).replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    header = f"Metadata-Version: 2.1\nName: {package or module}\nVersion: {version}\nSummary: A test of plug-ins.\n"
    (about / "METADATA").write_text(header)
    (about / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {entry or f'{module}:PLUGIN'}\n")
    folder = site / module
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").write_text(code.replace("{module}", module))
    if recipes:
        (folder / "recipes").mkdir(exist_ok=True)
        (folder / "recipes" / "reference.toml").write_text(REFERENCE.replace("{name}", name))
    return folder


def test_a_plug_in_is_found_with_its_package_and_nothing_of_it_is_imported(site: Path) -> None:
    write_package(site, "tiny", "tiny_found", "raise RuntimeError('imported')", package="hpcai500-tiny", version="2.1")
    (found,) = installed_plugins()
    assert (found.name, found.package, found.version, found.problem) == ("tiny", "hpcai500-tiny", "2.1", None)
    assert (find_plugin("tiny"), find_plugin("other")) == (found, None)
    assert "tiny_found" not in sys.modules


@pytest.mark.parametrize("name", sorted(TAKEN & {"ic", "score"}))
def test_a_name_of_ours_is_never_a_plug_ins(site: Path, name: str) -> None:
    write_package(site, name, "taker", package="hpcai500-taker")
    assert find_plugin(name) is None
    (found,) = installed_plugins()
    assert found.problem == (
        "hpcai500 has a command of this name: ask the authors for another name, or: pip uninstall hpcai500-taker"
    )


def test_all_commands_and_benchmarks_of_ours_are_taken() -> None:
    commands = {one.name or one.callback.__name__ for one in app.registered_commands if one.callback}
    groups = {one.name for one in app.registered_groups}
    assert commands | groups | set(RECIPE_TYPES) | {"help"} == TAKEN


def test_two_plug_ins_of_one_name_both_say_so(site: Path) -> None:
    write_package(site, "tiny", "tiny_one", package="first", version="1.0")
    write_package(site, "tiny", "tiny_two", package="second", version="3.0")
    one, other = installed_plugins()
    assert one.problem == "second 3.0 has a benchmark of the same name: keep one of them: pip uninstall first"
    assert other.problem == "first 1.0 has a benchmark of the same name: keep one of them: pip uninstall second"


def test_a_name_that_no_command_line_can_hold_is_a_problem(site: Path) -> None:
    write_package(site, "My Task", "tiny_named")
    (found,) = installed_plugins()
    assert found.problem
    assert "lower-case" in found.problem


def test_a_broken_list_of_entry_points_hides_no_other_plug_in(site: Path) -> None:
    write_package(site, "tiny", "tiny_beside")
    write_package(site, "other", "tiny_torn", package="torn")
    (site / "torn-1.0.dist-info" / "entry_points.txt").write_text("[hpcai500.workloads]\nno equals sign\n")
    assert [found.name for found in installed_plugins()] == ["tiny"]


def test_the_hash_is_that_of_all_code_of_the_package_and_of_nothing_else(site: Path) -> None:
    folder = write_package(site, "tiny", "tiny_hashed")
    (found,) = installed_plugins()
    first = code_hash(found)
    assert first
    (folder / "recipes" / "reference.toml").write_text("# another recipe")
    (folder / "notes.txt").write_text("read me")
    assert code_hash(found) == first
    (folder / "recipes" / "tool.py").write_text("hidden = True")
    second = code_hash(found)
    assert second != first
    (folder / "fast.abi3.so").write_bytes(b"\x7fELF")
    assert code_hash(found) not in (first, second)


def test_a_module_without_a_package_has_a_hash_too(site: Path) -> None:
    write_package(site, "tiny", "tiny_folder", entry="tiny_single:PLUGIN")
    (site / "tiny_single.py").write_text("PLUGIN = None")
    (found,) = installed_plugins()
    first = code_hash(found)
    (site / "tiny_single.py").write_text("PLUGIN = 1")
    assert first
    assert code_hash(found) != first


def test_code_that_is_not_there_has_no_hash(site: Path) -> None:
    write_package(site, "tiny", "tiny_gone", entry="not_there_at_all:PLUGIN")
    assert plugin_facts("tiny") == {"name": "tiny", "package": "tiny_gone", "version": "1.0", "code_sha256": None}


def test_finding_imports_neither_the_layers_nor_the_standard_library_for_packages() -> None:
    code = (
        "import sys, hpcai500.plugins as finding; finding.find_plugin('ic')\n"
        "print(sorted({'pydantic', 'importlib.metadata'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


WHO = r"tiny: the plug-in hpcai500-tiny 1.0 \(entry point hpcai500.workloads: tiny = "


def broken(site: Path, code: str, module: str) -> str:
    """What is said of a plug-in of this code."""
    write_package(site, "tiny", module, code, package="hpcai500-tiny")
    with pytest.raises(EnvironmentLacksError, match=WHO) as caught:
        load_plugin("tiny")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_plug_in_is_loaded_by_the_name_of_its_benchmark(site: Path) -> None:
    write_package(site, "tiny", "tiny_loaded")
    plugin = load_plugin("tiny")
    assert plugin is not None
    assert plugin.recipe.__name__ == "TinyRecipe"
    assert recipe_type("tiny") is plugin.recipe
    assert known_benchmarks() == ["ic", "ewa", "tiny"]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import not_there_at_all", "it cannot be loaded: ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("raise SystemExit(3)", "it cannot be loaded: SystemExit: 3"),
        ("OTHER = 1", "has no attribute 'PLUGIN'"),
    ],
)
def test_a_module_that_cannot_be_loaded_is_told_with_its_package_and_the_fix(site: Path, code: str, told: str) -> None:
    said = broken(site, code, "tiny_lacking")
    assert told in said
    assert said.endswith("pip install --upgrade hpcai500-tiny")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("PLUGIN = Plugin(", "PLUGIN = dict(", "expected an object of hpcai500.plugins.Plugin, got dict"),
        ("recipe=TinyRecipe", "recipe=Tiny", "recipe: expected a subclass of hpcai500.layers.Recipe, got "),
        ('parent / "recipes"', 'parent / "nowhere"', "recipes: expected the folder (a Path) of its reference.toml"),
        ("{module}.work:build", "{module}.work.build", "workload: expected module:function, got "),
        (
            "{module}.work:build",
            "numpy:zeros",
            "workload: expected a function of tiny_odd or hpcai500, got ",
        ),
        (
            "workload: Tiny\n",
            'votes = ("box",)\n    workload: Tiny\n',
            "recipe: its votes are box, but without a voter",
        ),
    ],
)
def test_an_odd_field_is_named(site: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    assert said in broken(site, GOOD.replace(old, new), "tiny_odd")


def test_a_module_that_imports_torch_is_refused_where_the_command_line_loads_it(site: Path) -> None:
    write_package(site, "tiny", "tiny_heavy", "import torch\n" + GOOD)
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r}); from hpcai500.plugins import load_plugin\n"
        "try:\n    load_plugin('tiny')\nexcept Exception as error:\n    print(error)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "its module imports torch, but the command line also runs without" in ended.stdout


def test_two_of_one_name_are_refused_until_one_is_gone(site: Path) -> None:
    write_package(site, "tiny", "tiny_left", package="hpcai500-tiny")
    write_package(site, "tiny", "tiny_right", package="hpcai500-zest")
    with pytest.raises(EnvironmentLacksError, match=WHO + ".*hpcai500-zest 1.0 has a benchmark of the same name"):
        load_plugin("tiny")
    assert list(usable_plugins()) == []


def test_a_function_is_imported_when_it_is_asked_for(site: Path) -> None:
    folder = write_package(site, "tiny", "tiny_working")
    (folder / "work.py").write_text("def build():\n    return 'built'\n")
    load_plugin("tiny")
    assert "tiny_working.work" not in sys.modules
    assert function_of("tiny", "workload")() == "built"


def test_a_function_that_is_not_there_is_told_with_its_field(site: Path) -> None:
    folder = write_package(site, "tiny", "tiny_idle")
    with pytest.raises(EnvironmentLacksError, match=r"its workload, tiny_idle\.work:build, cannot be imported: Module"):
        function_of("tiny", "workload")
    (folder / "work.py").write_text("build = 3\n")
    with pytest.raises(EnvironmentLacksError, match=r"its workload, tiny_idle\.work:build, is not a function"):
        function_of("tiny", "workload")


def test_what_a_plug_in_leaves_out_is_told_with_its_package(site: Path) -> None:
    write_package(site, "tiny", "tiny_plain", package="hpcai500-tiny")
    with pytest.raises(EnvironmentLacksError, match=WHO + r".*\) has no `make_data`: its authors can add it"):
        function_of("tiny", "make_data")


def test_a_benchmark_that_nobody_brings_is_told_with_those_that_are_there(site: Path) -> None:
    write_package(site, "tiny", "tiny_known")
    with pytest.raises(
        UsageError, match=r"^flops: expected one of ic, ewa, tiny, got 'big', which may be a plug-in that is not"
    ):
        require_benchmark("big", "flops")
    require_benchmark("tiny", "flops")
    assert recipe_type("big") is None


def test_its_recipes_have_short_names(site: Path) -> None:
    folder = write_package(site, "tiny", "tiny_named")
    (folder / "recipes" / "large.toml").write_text('benchmark = "tiny"\n[workload]\nwidth = 99\n')
    assert {"tiny/reference", "tiny/large"} <= set(shipped_recipes())
    assert load_recipe("tiny/large").workload.model_dump() == {"width": 99}
    assert is_shipped(find_recipe("tiny/large"))
    assert not is_shipped(site / "mine.toml")


def test_what_its_reference_leaves_out_is_as_in_that_of_ic(site: Path) -> None:
    write_package(site, "tiny", "tiny_short")
    ours, theirs = load_recipe("tiny/reference"), reference_recipe("ic")
    assert ours.communication == theirs.communication
    assert ours.hyperparameters.momentum == theirs.hyperparameters.momentum
    assert ours.problem.dataset == "synthetic-tiny"
    assert ours.workload.model_dump() == {"width": 4}
    assert rulebook("v3.0", "tiny") == {}, "no edition has rules for it"


def test_a_mistake_in_its_own_table_is_told_by_line_and_key(site: Path) -> None:
    write_package(site, "tiny", "tiny_strict")
    path = site / "mine.toml"
    path.write_text('benchmark = "tiny"\n\n[workload]\nwidht = 3\n')
    with pytest.raises(RecipeError, match=r"mine.toml:4: \[workload\] widht: unknown key; did you mean width\?"):
        load_recipe(path)


def test_an_ensemble_of_it_votes_by_the_mean_of_the_bootstrap_unless_it_says_otherwise(site: Path) -> None:
    folder = write_package(site, "tiny", "tiny_voting")
    plain = load_recipe("tiny/reference", ["ensemble.members=3"]).ensemble
    assert plain is not None
    assert (plain.members, plain.sampling, plain.strata, plain.vote) == (3, "bootstrap", "none", "mean")
    (folder / "recipes" / "ensemble.toml").write_text('benchmark = "tiny"\n[ensemble]\nout_of_bag_samples = 7\n')
    assert load_recipe("tiny/ensemble").ensemble == plain.model_copy(update={"members": 8, "out_of_bag_samples": 7})


def test_its_type_says_how_members_may_vote_and_draw(site: Path) -> None:
    code = GOOD.replace("workload: Tiny\n", 'strata = ("none", "class")\n    workload: Tiny\n')
    write_package(site, "tiny", "tiny_grouped", code)
    assert load_recipe("tiny/reference", ["ensemble.strata=class"]).ensemble is not None
    with pytest.raises(RecipeError, match=r"ensemble\.vote: expected mean for tiny, got nms"):
        load_recipe("tiny/reference", ["ensemble.vote=nms"])


def test_a_record_s_recipe_is_read_where_the_plug_in_is_installed_and_told_where_it_is_not(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(site, "tiny", "tiny_recorded")
    text = to_toml(load_recipe("tiny/reference"))
    assert to_toml(parse_resolved(text, "recipe.toml")) == text
    monkeypatch.syspath_prepend("/")
    (site / "tiny_recorded-1.0.dist-info" / "entry_points.txt").unlink()
    with pytest.raises(
        RecipeError,
        match=r"recipe\.toml: benchmark: expected one of ic, ewa, got 'tiny', which may be a plug-in that is not",
    ):
        parse_resolved(text, "recipe.toml")


def test_a_broken_plug_in_is_told_by_its_own_recipes_and_by_no_other(site: Path) -> None:
    write_package(site, "tiny", "tiny_broken", "raise ValueError('no')")
    assert load_recipe("ic/smoke").benchmark == "ic"
    assert "ic/smoke" in shipped_recipes()
    with pytest.raises(EnvironmentLacksError, match="it cannot be loaded: ValueError: no; fix it"):
        load_recipe("tiny/reference")


def test_without_a_smoke_recipe_the_reference_is_what_runs(site: Path) -> None:
    folder = write_package(site, "tiny", "tiny_default")
    assert default_recipe("tiny", has_data=False) == "tiny/reference"
    (folder / "recipes" / "smoke.toml").write_text('benchmark = "tiny"\n')
    assert default_recipe("tiny", has_data=False) == "tiny/smoke"
    assert default_recipe("tiny", has_data=True) == "tiny/reference"
    assert (default_recipe("ic", has_data=False), default_recipe("ic", has_data=True)) == ("ic/smoke", "ic/reference")


WITH_DATA = GOOD.replace('workload="', 'make_data="{module}.data:make", check_data="{module}.data:check", workload="')
DATA = """\
from hpcai500.errors import DataError

def make(folder):
    (folder / "set.txt").write_text("1 2 3")

def check(folder):
    if (folder / "set.txt").read_text() != "1 2 3":
        raise DataError(f"{folder}: set.txt: not what make writes")
    return {"samples": 3}
"""


# `hpcai500 data make|check NAME`: its functions make and read, the order of things is ours.
def tiny(site: Path, module: str, data: str = DATA, version: str = "1.0") -> None:
    folder = write_package(site, "tiny", module, WITH_DATA, package="hpcai500-tiny", version=version)
    (folder / "data.py").write_text(data)


def data(*words: str) -> int:
    """Run `hpcai500 data WORDS` in this process; returns its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        started_here(patch)
        patch.setattr(sys, "argv", ["hpcai500", "data", *words])
        return commands.run()


def test_a_set_is_made_once_and_marked_as_made(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny(site, "tiny_made")
    assert data("make", "tiny", str(tmp_path / "deep" / "set")) == 0
    assert "written, by the plug-in hpcai500-tiny 1.0" in capsys.readouterr().out
    marks = json.loads((tmp_path / "deep" / "set" / MANIFEST).read_text())
    code = sha256((site / "tiny_made" / "data.py").read_bytes()).hexdigest()
    assert marks == {"benchmark": "tiny", "package": "hpcai500-tiny", "version": "1.0", "code_sha256": code}
    (tmp_path / "deep" / "set" / "set.txt").write_text("changed by hand")
    assert data("make", "tiny", str(tmp_path / "deep" / "set"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["written"] is False
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["set"]


def test_a_set_that_could_not_be_made_leaves_nothing_and_is_told_with_its_place(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny(site, "tiny_torn", "def make(folder):\n    (folder / 'half').write_text('x')\n    return 1 / 0\n")
    assert data("make", "tiny", str(tmp_path / "set")) == 1
    said = capsys.readouterr().err
    assert "tiny: make_data of the plug-in hpcai500-tiny 1.0 failed at " in said
    assert "data.py:3: ZeroDivisionError: division by zero" in said
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("folder", ["file", "file/set"])
def test_where_no_folder_can_be_nothing_is_made(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    module = f"tiny_filed_{len(folder)}"
    tiny(site, module, "def make(folder):\n    return 1 / 0\n")
    (tmp_path / "file").touch()
    assert data("make", "tiny", str(tmp_path / folder)) == 64
    assert capsys.readouterr().err == (
        f"hpcai500: error: cannot write the synthetic set: {tmp_path / 'file'}: File exists; choose a folder with "
        "space that you may write to\n"
    )


def test_data_of_others_and_of_another_version_are_left_alone(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny(site, "tiny_shy", version="1.1")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "photo.jpeg").write_text("")
    assert data("make", "tiny", str(tmp_path / "theirs")) == 64
    assert "already has files, not made by this command" in capsys.readouterr().err
    (tmp_path / "old").mkdir()
    old = {"benchmark": "tiny", "package": "hpcai500-tiny", "version": "1.0"}
    (tmp_path / "old" / MANIFEST).write_text(json.dumps(old))
    assert data("make", "tiny", str(tmp_path / "old")) == 64
    assert "holds a synthetic set made with version 1.0, not 1.1" in capsys.readouterr().err


def test_a_set_is_checked_by_the_plug_in(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny(site, "tiny_checked")
    data("make", "tiny", str(tmp_path / "set"))
    capsys.readouterr()
    assert data("check", "tiny", str(tmp_path / "set"), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"samples": 3}
    (tmp_path / "set" / "set.txt").write_text("1 2")
    assert data("check", "tiny", str(tmp_path / "set")) == 64
    assert "set.txt: not what make writes" in capsys.readouterr().err


def test_what_the_plug_in_does_not_do_is_told(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_package(site, "tiny", "tiny_mute", package="hpcai500-tiny")
    assert data("make", "tiny", str(tmp_path / "set")) == 69
    assert "has no `make_data`" in capsys.readouterr().err
    assert data("repack", "tiny", str(tmp_path), str(tmp_path)) == 64


def test_the_self_test_loads_all_that_a_plug_in_names(site: Path, tmp_path: Path) -> None:
    folder = write_package(site, "tiny", "tiny_tested", package="hpcai500-tiny", version="2.1")
    check = command._checks("libraries", ["no-gpu"], tmp_path)["plug-in: tiny"]
    with pytest.raises(
        EnvironmentLacksError, match=r"hpcai500-tiny 2\.1 .* its workload, tiny_tested\.work:build, cannot"
    ):
        check()
    (folder / "work.py").write_text("def build(recipe, data, place): ...\n")
    invalidate_caches()
    assert check().startswith("hpcai500-tiny 2.1, recipe ")
    (folder / "recipes" / "reference.toml").write_text(REFERENCE.replace("{name}", "tiny").replace("= 2", "= -2"))
    with pytest.raises(RecipeError, match=r"\[problem\] epochs"):
        check()
