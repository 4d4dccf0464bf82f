"""A site on which the plug-in `blocks` of these tests is installed, as pip would leave it."""

from __future__ import annotations

import shutil
from pathlib import Path

PACKAGE = Path(__file__).parent / "hpcai500_blocks"


def install_blocks(site: Path) -> dict[str, str]:
    """Install the plug-in `blocks` in the folder `site`; returns the environment of processes that find it."""
    about = site / "hpcai500_blocks-1.0.dist-info"
    about.mkdir(parents=True)
    shutil.copytree(PACKAGE, site / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hpcai500-blocks\nVersion: 1.0\nSummary: Blocks\n")
    (about / "entry_points.txt").write_text("[hpcai500.workloads]\nblocks = hpcai500_blocks:PLUGIN\n")
    return {"PYTHONPATH": str(site)}
