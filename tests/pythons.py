"""Installations of tests: virtual environments that have our packages, and others beside or instead of some."""

from __future__ import annotations

import site
import venv
from pathlib import Path

_SCRIPT = """#!{python}
import sys
from hpcai500.cli import main
sys.exit(main())
"""


def python_with(folder: Path, *packages: Path) -> Path:
    """The interpreter of a new environment in `folder`, with `hpcai500` beside it as pip writes it.

    Modules in the folders `packages` come before those of this process's own installation.
    """
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    (found,) = folder.glob("lib/python3.*/site-packages")
    ours = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
    (found / "packages.pth").write_text("\n".join([*map(str, packages), *ours]))
    script = python.with_name("hpcai500")
    script.write_text(_SCRIPT.format(python=python))
    script.chmod(0o755)
    return python
