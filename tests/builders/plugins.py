"""The plug-ins of these tests: `blocks` can be sharded; `clipped` has its own layer 8, update rule and units."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builders.commands import clean_environment


def install(name: str, site: Path) -> None:
    """Install a plug-in in the folder `site`, as pip would leave it."""
    module = f"hpcai500_{name}"
    about = site / f"{module}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: hpcai500-{name}\nVersion: 1.0\nSummary: A test.\n")
    (about / "entry_points.txt").write_text(f"[hpcai500.workloads]\n{name} = {module}:PLUGIN\n")
    source = Path(__file__).parent / module
    shutil.copytree(source, site / module, ignore=shutil.ignore_patterns("__pycache__"))


@dataclass(frozen=True)
class Clipped:
    """Where `clipped` is installed, and the environment that has it."""

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
