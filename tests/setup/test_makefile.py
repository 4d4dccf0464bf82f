"""What `make` would do: everything at first, nothing twice, only what a change calls for; what CI lets a test skip."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAMPS = [
    ".made-with-python3", ".runtime", ".extra-dali", ".core", ".dali", ".extra-test", ".extra-dev",
    ".extra-benchmark", ".horovod", ".with-cross", ".with-metrics", ".with-signing", ".with-site",
    ".tokenizers", ".lm",
]  # fmt: skip
# Of the make that runs the tests; they would reach the make under test.
INHERITED = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES", "PYTHON", "ARGS"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with all stamps newer than all inputs, in a folder whose name has a space."""
    tree = tmp_path / "a folder"
    (tree / "csrc" / "core").mkdir(parents=True)
    (tree / "hpcai500").mkdir()
    (tree / ".venv").mkdir()
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tree / name)
    for name in ("scripts", "containers"):
        shutil.copytree(ROOT / name, tree / name)
    inputs = ["Makefile", "constraints.txt", "pyproject.toml", "CMakeLists.txt", "csrc/core/a.cpp", "hpcai500/a.py"]
    inputs += ["scripts/horovod", "scripts/horovod-source", "scripts/plugin"]
    for second, name in enumerate([*inputs, *(f".venv/{stamp}" for stamp in STAMPS)]):
        (tree / name).touch()
        os.utime(tree / name, (1000 + second, 1000 + second))
    return tree


def make(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """One make, unaware of the one that may be running this test."""
    environment = {key: value for key, value in os.environ.items() if key not in INHERITED}
    return subprocess.run(["make", *words], cwd=tree, env=environment, text=True, capture_output=True, check=False)


def would_run(tree: Path, *words: str) -> str:
    """The recipes of a dry run."""
    result = make(tree, "-n", *words)
    assert result.returncode == 0, result.stderr
    return result.stdout


def in_order(commands: str, *steps: str) -> bool:
    """Whether all of `steps` are in `commands`, in this order."""
    places = [commands.index(step) for step in steps]
    return places == sorted(places)


def test_second_build_does_nothing(tree: Path) -> None:
    assert "Nothing to be done for 'build'" in would_run(tree, "build")


@pytest.mark.parametrize(
    ("target", "only"), [("ic", "hpcai500 ic"), ("lm", "hpcai500 lm"), ("test", "pytest"), ("lint", "zizmor --offline")]
)
def test_second_call_runs_only_the_target_itself(tree: Path, target: str, only: str) -> None:
    commands = would_run(tree, target)
    assert only in commands
    assert "scripts/" not in re.sub(r"scripts/(fuzz|lock|requirements|test-isa|wheelhouse)", "", commands)
    assert "-m pip" not in commands


@pytest.mark.parametrize(
    ("changed", "runs", "leaves"),
    [
        ("csrc/core/a.cpp", ["--editable"], ["scripts/install", "scripts/environment"]),
        ("CMakeLists.txt", ["--editable"], ["scripts/install", "scripts/environment"]),
        ("constraints.txt", ["scripts/install .venv build", "--editable"], ["scripts/environment"]),
        ("pyproject.toml", ["scripts/install .venv build", "--editable"], ["scripts/environment"]),
        ("hpcai500/a.py", [], ["scripts/", "-m pip"]),
    ],
)
def test_a_change_redoes_what_it_must(tree: Path, changed: str, runs: list[str], leaves: list[str]) -> None:
    (tree / changed).touch()
    commands = would_run(tree, "build")
    assert all(word in commands for word in runs)
    assert not any(word in commands for word in leaves)


def test_fresh_tree_does_everything_in_order(tree: Path) -> None:
    shutil.rmtree(tree / ".venv")
    assert in_order(
        would_run(tree, "test"),
        "scripts/bootstrap", "scripts/environment", "scripts/compile .venv scripts/install .venv runtime",
        ".venv dali dali-build", "--editable",
        ".venv test", "scripts/bootstrap --with mpi", "scripts/install .venv horovod", "scripts/horovod .venv",
        "-m pytest",
    )  # fmt: skip
    assert "dali" not in would_run(tree, "ic"), "no part of a first run"


@pytest.mark.parametrize(
    ("arguments", "installed"),
    [
        ("-k docs", {"dali", "horovod", "cross", "metrics"}),
        ("tests", {"dali", "horovod", "metrics"}),
        ("tests/test_b.py::test_it[x-1] -k crop", {"horovod"}),
        ("tests/test_a.py tests/test_b.py", {"dali", "horovod"}),
        ("tests/test_c.py", set()),
    ],
)
def test_only_what_the_named_tests_need_is_installed(tree: Path, arguments: str, installed: set[str]) -> None:
    needs = {"a": "needs_dali", "b": "needs_mpi", "c": "horovod", "d": "needs_promtool"}
    for name, text in needs.items():
        path = tree / "tests" / f"test_{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")
    (tree / "docs").mkdir()
    shutil.rmtree(tree / ".venv")
    commands = would_run(tree, "test", f"ARGS={arguments}")
    steps = {
        "dali": "install .venv dali", "horovod": "scripts/horovod .venv",
        "cross": "--with cross", "metrics": "--with metrics",
    }  # fmt: skip
    assert {name for name, step in steps.items() if step in commands} == installed
    assert in_order(commands, "--editable", "install .venv test", "-m pytest")


@pytest.mark.parametrize(("before", "compilations"), [([], 1), ([".core"], 1), ([".extra-dali", ".core"], 0)])
def test_the_operators_for_dali_are_compiled_with_the_core_once(
    tree: Path, before: list[str], compilations: int
) -> None:
    """In an environment without a core, beside one that was compiled without DALI, and beside one with."""
    (tree / "scripts" / "install").write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    (tree / ".venv" / "bin").mkdir()
    pip = tree / ".venv" / "bin" / "python"
    pip.write_text("#!/bin/sh\necho $* >>compiled\n", encoding="utf-8")
    pip.chmod(0o755)
    for stamp in {".core", ".extra-dali", ".dali"} - set(before):
        (tree / ".venv" / stamp).unlink()
    for _ in range(2):
        result = make(tree, "dali")
        assert result.returncode == 0, result.stderr
    compiled = (tree / "compiled").read_text(encoding="utf-8").splitlines() if (tree / "compiled").exists() else []
    assert len(compiled) == compilations
    assert (tree / ".venv" / ".dali").exists()


def test_another_torch_or_another_script_asks_for_horovod_again(tree: Path) -> None:
    for changed in ("constraints.txt", "scripts/horovod"):
        assert "scripts/horovod .venv" not in would_run(tree, "test")
        (tree / changed).touch()
        assert "scripts/horovod .venv" in would_run(tree, "test")
        for stamp in STAMPS:
            (tree / ".venv" / stamp).touch()


def test_make_horovod_always_looks_for_the_mpi_of_today(tree: Path) -> None:
    commands = would_run(tree, "horovod")
    assert "scripts/bootstrap --with mpi" in commands
    assert "scripts/horovod .venv" in commands


def test_no_mpi_is_no_reason_to_stop_before_the_build(tree: Path) -> None:
    for script, code in {"bootstrap": 69, "install": 0, "horovod": 0}.items():
        (tree / "scripts" / script).write_text(f"#!/bin/sh\necho {script} $* >>called\nexit {code}\n", encoding="utf-8")
    result = make(tree, "horovod")
    assert result.returncode == 0, result.stderr
    called = (tree / "called").read_text(encoding="utf-8").splitlines()
    assert called == ["bootstrap --with mpi", "install .venv horovod", "horovod .venv"]
    (tree / "scripts" / "bootstrap").write_text("#!/bin/sh\nexit 64\n", encoding="utf-8")
    assert make(tree, "horovod").returncode != 0


def test_another_python_makes_the_environment_anew(tree: Path) -> None:
    assert "scripts/environment 'python3.12'" in would_run(tree, "build", "PYTHON=python3.12")
    (tree / ".venv" / STAMPS[0]).rename(tree / ".venv" / ".made-with-python3.12")
    assert "Nothing to be done" in would_run(tree, "build"), "without PYTHON, the environment that is there serves"


def test_unusable_python_is_refused_before_anything_is_made(tree: Path) -> None:
    shutil.rmtree(tree / ".venv")
    result = make(tree, "build", "PYTHON=no-such-python")
    assert result.returncode != 0
    assert "PYTHON=no-such-python: no such program" in result.stderr
    assert "Error 69" in result.stderr
    assert not (tree / ".venv").exists()


def test_make_alone_teaches(tree: Path) -> None:
    result = make(tree)
    assert result.returncode == 0
    assert "make ic" in result.stdout
    assert "make test" in result.stdout


def test_an_image_is_built_from_what_is_collected_first(tree: Path) -> None:
    commands = would_run(tree, "image")
    assert in_order(
        commands,
        "bootstrap --with image", "base-build.squashfs containers", "scripts/wheelhouse cpu", "scripts/build-wheels",
        "scripts/image cpu",
    )  # fmt: skip
    assert "base-cpu.squashfs containers/packages/runtime" in commands
    assert "cuda" not in commands


@pytest.mark.parametrize("flavour", ["cuda", "cuda12"])
def test_images_for_gpus_differ_in_what_is_collected(tree: Path, flavour: str) -> None:
    commands = would_run(tree, "image", f"FLAVOUR={flavour}")
    assert f"base-{flavour}.squashfs containers/packages/runtime containers/packages/cuda" in commands
    assert in_order(
        commands, f"scripts/wheelhouse {flavour} build/image/wheelhouse-{flavour}", f"scripts/image {flavour} "
    )
    kernels = would_run(tree, f"{flavour}-kernels")
    assert in_order(
        kernels,
        f"scripts/wheelhouse {flavour} build/image/wheelhouse-{flavour} build",
        f"scripts/image {flavour} build/image kernels",
    )


def test_what_was_collected_is_not_collected_again(tree: Path) -> None:
    folder = tree / "build" / "image" / "wheelhouse-cpu"
    folder.mkdir(parents=True)
    for path in (folder.parent / "base-build.squashfs", folder.parent / "base-cpu.squashfs", folder / ".complete"):
        path.touch()
    (tree / ".venv" / ".with-image").touch()
    (tree / ".venv" / ".extra-horovod").touch()
    commands = would_run(tree, "image")
    assert "scripts/image cpu" in commands
    assert "wheelhouse cpu build/image/wheelhouse-cpu\n" not in commands
    assert "scripts/base" not in commands


def test_another_list_of_plug_ins_or_another_file_of_one_makes_another_image(tree: Path) -> None:
    folder, plugin = tree / "build" / "image" / "wheelhouse-cpu", tree / "mine" / "pyproject.toml"
    folder.mkdir(parents=True)
    plugin.parent.mkdir()
    (folder.parent / "plugins-cpu").write_text("'mine' 'other>=1'\n")
    made = [folder.parent / f"base-{name}.squashfs" for name in ("build", "cpu")]
    made += [tree / ".venv" / ".with-image", tree / ".venv" / ".extra-horovod", folder / ".complete", plugin]
    for path in (*made, folder / ".plugins", folder.parent / "hpcai500-cpu.sif"):
        path.touch()
    given = "PLUGINS=mine other>=1"
    # This tree has no Python that could collect anything.
    assert make(tree, "image", given).returncode == 0
    os.utime(plugin, (4e9, 4e9))
    again = would_run(tree, "image", given)
    assert in_order(again, "wheelhouse-cpu plugins 'mine' 'other>=1'\n", "scripts/image cpu build/image")
    os.utime(plugin, (1000, 1000))
    assert make(tree, "image", given).returncode == 0
    assert make(tree, "image", "PLUGINS=mine").returncode != 0
    again = would_run(tree, "image", "PLUGINS=mine")
    assert in_order(again, "scripts/wheelhouse cpu build/image/wheelhouse-cpu plugins 'mine'\n", "scripts/image cpu")


CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
# What CI lets a test skip (tests/conftest.py).
SKIPS = {
    "excused": "def test_a():\n    pytest.skip('no CUDA device')\n\ndef test_b():\n    pass\n",
    "in a test": "def test_a():\n    pytest.skip('no ffmpeg')\n\ndef test_b():\n    pass\n",
    "of a module": "pytest.skip('no ffmpeg', allow_module_level=True)\n",
    "by mark": "@pytest.mark.skipif(True, reason='no ffmpeg')\ndef test_a():\n    pass\n",
    "expected failure": "@pytest.mark.xfail\ndef test_a():\n    raise ValueError\n",
}


def run_pytest(folder: Path, source: str, *options: str, require_all: str) -> subprocess.CompletedProcess[str]:
    """Pytest on one file beside a copy of our conftest.py and one test that passes."""
    shutil.copy(CONFTEST, folder / "conftest.py")
    (folder / "test_it.py").write_text(f"import pytest\n\n{source}", encoding="utf-8")
    (folder / "test_other.py").write_text("def test_passes():\n    pass\n", encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "."],
        cwd=folder,
        env={**os.environ, "HPCAI500_REQUIRE_ALL": require_all},
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("kind", "options"),
    [(kind, options) for options in ((), ("-n", "2")) for kind in ("in a test", "of a module", "by mark")],
)
def test_unexcused_skip_fails_the_run(tmp_path: Path, kind: str, options: tuple[str, ...]) -> None:
    result = run_pytest(tmp_path, SKIPS[kind], *options, require_all="1")
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stdout
    assert "SKIPPED WITHOUT AN EXCUSE test_it.py" in result.stdout
    assert result.stdout.count("no ffmpeg") == 1
    assert "1 skipped" in result.stdout.splitlines()[-1]


@pytest.mark.parametrize(("kind", "require_all"), [("excused", "1"), ("expected failure", "1"), ("in a test", "")])
def test_other_runs_stay_as_they_are(tmp_path: Path, kind: str, require_all: str) -> None:
    result = run_pytest(tmp_path, SKIPS[kind], require_all=require_all)
    assert result.returncode == pytest.ExitCode.OK, result.stdout
    assert "WITHOUT AN EXCUSE" not in result.stdout


@pytest.mark.parametrize(
    ("reason", "without_device", "with_device"),
    [
        ("no CUDA device", True, False),
        ("no CUDA device can be used by a build without CUDA", True, False),
        ("no CUDA device with it: its generation came before tf32", True, True),
        ("this machine has a CUDA device", True, True),
        ("no ffmpeg", False, False),
    ],
)
def test_a_machine_with_a_device_is_not_excused_by_the_lack_of_one(
    reason: str, without_device: bool, with_device: bool
) -> None:
    conftest = runpy.run_path(str(CONFTEST))
    assert conftest["is_excused"](reason, has_device=False) is without_device
    assert conftest["is_excused"](reason, has_device=True) is with_device
