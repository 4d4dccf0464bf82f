"""DALI that is missing, of another version, or without our operators: one line each, with what to type."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from dali_here import needs_dali
from tiny_runs import train_arguments

from hpcai500.data.imagenet.dali import check_versions, first_line, load_operators
from hpcai500.errors import EnvironmentLacksError, ExitCode
from hpcai500.system.software import DaliPlugin, find_plugin

PLUGIN = DaliPlugin(Path("libhpcai500_dali-2.4.0.so"), "2.4.0")


def test_another_version_of_dali_is_refused_in_one_line() -> None:
    with pytest.raises(EnvironmentLacksError) as caught:
        check_versions(PLUGIN, "2.5.0")
    assert str(caught.value) == (
        "accelerator.loader is dali, but DALI 2.5.0 is installed, and our operators were built for DALI 2.4.0, whose "
        "symbols are its own: run `make dali` to build them anew, or install nvidia-dali-cuda130==2.4.0, or set "
        "accelerator.loader=native"
    )


def test_the_version_that_it_was_built_for_is_welcome() -> None:
    check_versions(PLUGIN, "2.4.0")


def test_of_what_dali_says_the_first_line_is_kept() -> None:
    assert first_line(RuntimeError("\n  the reason\nStacktrace (17 entries):\n[frame 0]: libdali.so")) == "the reason"
    assert first_line(RuntimeError("")) == "RuntimeError"


RUN = """
import sys
{before}
from hpcai500 import train
sys.exit(train.main({arguments!r}))
"""


def run_in_fresh_process(before: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """A run of IC in a process of its own, in which `before` has happened."""
    script = RUN.format(before=before, arguments=arguments)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def test_a_run_without_dali_says_so_and_writes_no_result(images: Path, tmp_path: Path) -> None:
    arguments = train_arguments(images, tmp_path / "record", "accelerator.loader=dali")
    result = run_in_fresh_process("sys.modules['nvidia.dali'] = None", arguments)
    assert result.returncode == ExitCode.ENVIRONMENT, result.stderr
    assert "DALI is not installed: run `make dali`" in result.stderr
    assert "Traceback" not in result.stderr


@needs_dali
def test_a_native_run_never_imports_dali(images: Path, tmp_path: Path) -> None:
    arguments = train_arguments(images, tmp_path / "record", "problem.epochs=1")
    result = run_in_fresh_process("sys.modules['nvidia.dali'] = None", arguments)
    assert result.returncode in (ExitCode.PASS, ExitCode.WRONG_ANSWER), result.stderr


@needs_dali
def test_operators_are_loaded_once() -> None:
    load_operators()
    load_operators()
    from nvidia.dali import fn

    assert "Decodes JPEG files to crops" in fn.hpcai500.decode_crop.__doc__
    assert "Draws the crop of each sample" in fn.hpcai500.draw_crop.__doc__


@needs_dali
def test_the_library_brings_no_path_of_the_machine_that_built_it_and_shows_no_decoder() -> None:
    plugin = find_plugin()
    assert plugin is not None
    dynamic = output_of("readelf", "--dynamic", plugin.path)
    assert "[libdali.so]" in dynamic
    assert "RUNPATH" not in dynamic
    assert "RPATH" not in dynamic
    names = [line.split()[-1] for line in output_of("nm", "--dynamic", "--defined-only", plugin.path).splitlines()]
    assert [name for name in names if "jpeg" in name.lower() or "hpcai500" in name.lower()] == []


def output_of(*command: str | Path) -> str:
    """What a program printed."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
