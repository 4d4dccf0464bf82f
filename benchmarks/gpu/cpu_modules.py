"""What the comparisons of CPUs have, which lie in the folder above, and those of GPUs take from them."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def cpu_module(name: str) -> Any:
    """The module `name` of the folder above, such as `detection_rivals`: plain torch's expressions of our kernels."""
    folder = str(Path(__file__).resolve().parents[1])
    if folder not in sys.path:
        # Behind all else: names there are plain ones, and must not hide another's.
        sys.path.append(folder)
    return import_module(name)
