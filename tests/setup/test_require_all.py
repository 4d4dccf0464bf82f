"""A skip that the machine does not excuse fails the run where HPCAI500_REQUIRE_ALL=1."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"

SKIPS = {
    "excused": "import pytest\n\ndef test_a():\n    pytest.skip('no CUDA device')\n\ndef test_b():\n    pass\n",
    "in a test": "import pytest\n\ndef test_a():\n    pytest.skip('no ffmpeg')\n\ndef test_b():\n    pass\n",
    "of a module": "import pytest\n\npytest.skip('no ffmpeg', allow_module_level=True)\n",
    "by mark": "import pytest\n\n@pytest.mark.skipif(True, reason='no ffmpeg')\ndef test_a():\n    pass\n",
    "expected failure": "import pytest\n\n@pytest.mark.xfail\ndef test_a():\n    raise ValueError\n",
}


def run(folder: Path, source: str, *options: str, require_all: str) -> subprocess.CompletedProcess[str]:
    """Pytest on one file beside a copy of our conftest.py and one test that passes."""
    shutil.copy(CONFTEST, folder / "conftest.py")
    (folder / "test_it.py").write_text(source, encoding="utf-8")
    (folder / "test_other.py").write_text("def test_passes():\n    pass\n", encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "."],
        cwd=folder,
        env={**os.environ, "HPCAI500_REQUIRE_ALL": require_all},
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize("kind", ["in a test", "of a module", "by mark"])
@pytest.mark.parametrize("options", [(), ("-n", "2")])
def test_unexcused_skip_fails_the_run(tmp_path: Path, kind: str, options: tuple[str, ...]) -> None:
    result = run(tmp_path, SKIPS[kind], *options, require_all="1")
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stdout
    assert "SKIPPED WITHOUT AN EXCUSE test_it.py" in result.stdout
    assert result.stdout.count("no ffmpeg") == 1
    assert "1 skipped" in result.stdout.splitlines()[-1]


@pytest.mark.parametrize(("kind", "require_all"), [("excused", "1"), ("expected failure", "1"), ("in a test", "")])
def test_other_runs_stay_as_they_are(tmp_path: Path, kind: str, require_all: str) -> None:
    result = run(tmp_path, SKIPS[kind], require_all=require_all)
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
    spec = importlib.util.spec_from_file_location("conftest_under_test", CONFTEST)
    assert spec is not None
    assert spec.loader is not None
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    assert conftest.is_excused(reason, has_device=False) is without_device
    assert conftest.is_excused(reason, has_device=True) is with_device
