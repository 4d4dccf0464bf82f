"""A plug-in of the tests, `clipped`, installed as pip would: its own layer 8 and update rule, samples with units."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builders.commands import clean_environment, python_with

PACKAGE = Path(__file__).resolve().parents[1] / "plugins" / "packages" / "hpcai500_clipped"


@dataclass(frozen=True)
class Clipped:
    """Where it is installed, and the environment that has it."""

    site: Path
    python: Path
    work: Path

    def run(self, *words: str | Path, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """`hpcai500 WORDS…`, which sees the plug-in."""
        line = [self.python.with_name("hpcai500"), *map(str, words)]
        variables = {**clean_environment(), "OMP_NUM_THREADS": "1", **(environment or {})}
        return subprocess.run(line, capture_output=True, text=True, cwd=self.work, env=variables, check=False)

    def trained(self, name: str, *settings: str, procs: int = 1) -> Path:
        """The record of a run that passed; `settings` as for --set."""
        changes = [word for text in settings for word in ("--set", text)]
        ended = self.run("clipped", "--out", name, "--procs", str(procs), *changes)
        assert ended.returncode == 0, ended.stderr
        return self.work / name


def install(folder: Path) -> Clipped:
    """Install it below `folder`, in an environment of its own."""
    site = folder / "site"
    shutil.copytree(PACKAGE, site / PACKAGE.name)
    about = site / "hpcai500_clipped-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hpcai500-clipped\nVersion: 1.0\nSummary: A test.\n")
    (about / "entry_points.txt").write_text("[hpcai500.workloads]\nclipped = hpcai500_clipped:PLUGIN\n")
    return Clipped(site, python_with(folder / "python", site), folder)
