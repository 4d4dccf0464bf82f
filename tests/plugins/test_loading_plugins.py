"""A plug-in is loaded when it is used; a broken one is told in one line: which package, what, and what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from made_package import GOOD, write_package

from hpcai500.errors import EnvironmentLacksError, UsageError
from hpcai500.plugins import function_of, known_benchmarks, load_plugin, recipe_type, require_benchmark, usable_plugins

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


def test_a_module_that_cannot_be_imported_is_told_with_its_package(site: Path) -> None:
    said = broken(site, "import not_there_at_all", "tiny_lacking")
    assert "it cannot be loaded: ModuleNotFoundError: No module named 'not_there_at_all'" in said
    assert said.endswith("pip install --upgrade hpcai500-tiny")


def test_a_module_that_ends_python_is_told_too(site: Path) -> None:
    assert "it cannot be loaded: SystemExit: 3" in broken(site, "raise SystemExit(3)", "tiny_ending")


def test_an_entry_point_without_its_object_is_told(site: Path) -> None:
    assert "has no attribute 'PLUGIN'" in broken(site, "OTHER = 1", "tiny_empty")


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
        ("workload: Tiny\n", 'votes = ("box",)\n    workload: Tiny\n', "recipe: its votes are box; without a voter of"),
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
    assert "its module imports torch, which the command line must do without" in ended.stdout


def test_two_of_one_name_are_refused_until_one_is_gone(site: Path) -> None:
    write_package(site, "tiny", "tiny_left", package="hpcai500-tiny")
    write_package(site, "tiny", "tiny_right", package="hpcai500-zest")
    with pytest.raises(EnvironmentLacksError, match=WHO + ".*hpcai500-zest 1.0 brings a benchmark of this name too"):
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
    with pytest.raises(EnvironmentLacksError, match=r"its workload, tiny_idle\.work:build, is no function"):
        function_of("tiny", "workload")


def test_what_a_plug_in_leaves_out_is_told_with_its_package(site: Path) -> None:
    write_package(site, "tiny", "tiny_plain", package="hpcai500-tiny")
    with pytest.raises(EnvironmentLacksError, match=WHO + r".*\) has no `make_data`: its authors can add it"):
        function_of("tiny", "make_data")


def test_a_benchmark_that_nobody_brings_is_told_with_those_that_are_there(site: Path) -> None:
    write_package(site, "tiny", "tiny_known")
    with pytest.raises(UsageError, match=r"^flops: expected one of ic, ewa, tiny, got 'big'; a plug-in's benchmark is"):
        require_benchmark("big", "flops")
    require_benchmark("tiny", "flops")
    assert recipe_type("big") is None
