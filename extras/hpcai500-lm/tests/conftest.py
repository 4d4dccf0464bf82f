"""What the tests share: the package on the path, and an installation of it that commands see."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builders.commands import python_with

PACKAGE = Path(__file__).resolve().parents[1]
# The source folder has no metadata: here modules can be imported, and no test of hpcai500 finds a plug-in.
sys.path.insert(0, str(PACKAGE))


@pytest.fixture(scope="session")
def hpcai500(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `hpcai500` of an environment in which this package is installed."""
    folder = tmp_path_factory.mktemp("lm")
    # Building leaves files in the folder of the source.
    source = shutil.copytree(
        PACKAGE, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    )
    words = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation"]
    site = folder / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *words, "--target", site, source], check=True, capture_output=True
    )
    return python_with(folder / "python", site).with_name("hpcai500")
