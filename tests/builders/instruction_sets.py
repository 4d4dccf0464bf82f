"""What a script does on each instruction set of this build that this processor has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hpcai500 import _core

TESTS = Path(__file__).resolve().parents[1]


def on_each(script: str, *arguments: object) -> dict[str, str]:
    """What it prints, by instruction set, the best first; `{isa}` in an argument stands for the set's name.

    It may import the twins of tests/core, and has `_core`.
    """
    built = _core.build_info()["isa"]
    paths = [str(TESTS), str(TESTS / "core"), *filter(None, [os.environ.get("PYTHONPATH")])]
    printed = {}
    for isa in built[built.index(_core.cpu_isa()) :]:
        code = f"from hpcai500 import _core\nassert _core.cpu_isa() == '{isa}'\n{script}"
        command = [sys.executable, "-c", code, *(str(one).replace("{isa}", isa) for one in arguments)]
        environment = os.environ | {"HPCAI500_ISA": isa, "PYTHONPATH": os.pathsep.join(paths)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        printed[isa] = done.stdout
    return printed
