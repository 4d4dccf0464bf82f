"""How a comparison is to be run: what each `measure` of this folder takes.

The modules of this folder import each other by their plain names (`from options import Options`): the folder of a
script that Python is given (`benchmarks/gpu/run.py`) is where it looks first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Options:
    """What was asked for.

    Attributes:
        device: where to measure; a CPU only shows that the code runs.
        rounds: turns of each contestant.
        quick: tiny models and shapes: whatever comes out is no measurement.
    """

    device: torch.device
    rounds: int
    quick: bool
