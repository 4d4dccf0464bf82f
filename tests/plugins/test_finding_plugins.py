"""Plug-ins are found by their entry points alone; what is wrong with one hides no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from made_package import write_package

from hpcai500.cli.commands import app
from hpcai500.layers import RECIPE_TYPES
from hpcai500.plugins import TAKEN, code_hash, find_plugin, installed_plugins, plugin_facts


def test_a_plug_in_is_found_with_its_package_and_nothing_of_it_is_imported(site: Path) -> None:
    write_package(site, "tiny", "tiny_found", "raise RuntimeError('imported')", package="hpcai500-tiny", version="2.1")
    (found,) = installed_plugins()
    assert (found.name, found.package, found.version, found.problem) == ("tiny", "hpcai500-tiny", "2.1", None)
    assert find_plugin("tiny") == found
    assert "tiny_found" not in sys.modules


def test_where_none_is_installed_none_is_found() -> None:
    assert find_plugin("tiny") is None


@pytest.mark.parametrize("name", sorted(TAKEN & {"ic", "score"}))
def test_a_name_of_ours_is_never_a_plug_ins(site: Path, name: str) -> None:
    write_package(site, name, "taker", package="hpcai500-taker")
    assert find_plugin(name) is None
    (found,) = installed_plugins()
    assert found.problem == (
        "hpcai500 has a command of this name itself: ask its authors for another one, or: pip uninstall hpcai500-taker"
    )


def test_all_commands_and_benchmarks_of_ours_are_taken() -> None:
    commands = {one.name or one.callback.__name__ for one in app.registered_commands if one.callback}
    groups = {one.name for one in app.registered_groups}
    assert commands | groups | set(RECIPE_TYPES) == TAKEN


def test_two_plug_ins_of_one_name_both_say_so(site: Path) -> None:
    write_package(site, "tiny", "tiny_one", package="first", version="1.0")
    write_package(site, "tiny", "tiny_two", package="second", version="3.0")
    one, other = installed_plugins()
    assert one.problem == "second 3.0 brings a benchmark of this name too: keep one: pip uninstall first"
    assert other.problem == "first 1.0 brings a benchmark of this name too: keep one: pip uninstall second"


def test_a_name_that_no_command_line_can_hold_is_a_problem(site: Path) -> None:
    write_package(site, "My Task", "tiny_named")
    (found,) = installed_plugins()
    assert found.problem
    assert "all small" in found.problem


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
