"""The modules of benchmarks/gpu, which import each other by their plain names, as their script's folder lets them."""

from __future__ import annotations

import sys
from pathlib import Path

GPU = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"
# Behind all else: their names are plain ones, and must not hide another's.
sys.path.append(str(GPU))
