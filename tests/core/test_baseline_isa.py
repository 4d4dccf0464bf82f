"""Our own decoder on every instruction set of this build: integers are the same, sums of floats to their last bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile

from hpcai500 import _core

_MAKE_IMAGES = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from jpeg_twin import outcome
from jpeg_files import PLAIN_CODES, Block, Frame, write_blocks
from jpeg_files import jpeg, photograph
from jpeg_twin import Box
from hpcai500 import _core
rng = np.random.default_rng(0)
images = {"isa": np.array(_core.cpu_isa())}

def keep(name, data, box, size, **settings):
    found = outcome(data, box, size, **settings)
    assert found.failure is None and found.warnings == 0
    images[name] = found.pixels

noise = rng.integers(0, 256, (43, 43, 3), dtype=np.uint8)
for quality in (5, 50, 95, 100):
    for kind in ({"mode": "L"}, {"subsampling": "4:4:4"}):
        data = jpeg(noise, quality=quality, **kind)
        keep(f"same {quality} {kind}", data, Box(0, 0, 43, 43, False), 43, dtype="uint8")
        keep(f"same part {quality} {kind}", data, Box(17, 9, 26, 26, False), 26, dtype="uint8")

# Coefficients that no picture has: sums wrap and results are cut, everywhere alike.
frame = Frame(64, 64, [(1, 1)], [PLAIN_CODES], quantiser=255)
blocks = []
for _ in range(64):
    dc, ac = (int(bits) for bits in rng.integers(0, (9, 11)))
    symbols = [(int(bits), int(rng.integers(1 << bits >> 1, 1 << bits))) for bits in rng.integers(1, ac + 2, 63)]
    symbols = [(min(bits, 10), value if bits < 11 else 1023) for bits, value in symbols]
    blocks.append([Block(0, [(dc, (1 << dc) - 1), *symbols])])
keep("same wild", write_blocks(frame, blocks), Box(0, 0, 64, 64, False), 64, dtype="uint8")

for kind in ("4:4:4", "4:2:2", "4:2:0"):
    data = jpeg(photograph(83, 61), subsampling=kind, restart_marker_blocks=2)
    for size in (30, 64):
        for layout in ("nchw", "nhwc"):
            keep(f"float {kind} {size} {layout}", data, Box(5, 7, 71, 50, True), size, layout=layout)
np.savez(sys.argv[2], **images)
"""


def images_on(isa: str, target: Path) -> NpzFile:
    command = [sys.executable, "-c", _MAKE_IMAGES, str(Path(__file__).parent), str(target)]
    subprocess.run(command, check=True, env={**os.environ, "HPCAI500_ISA": isa})
    images = np.load(target)
    assert images["isa"] == isa
    return images


def test_all_instruction_sets_of_this_build_agree(tmp_path: Path) -> None:
    compiled = _core.build_info()["isa"]
    first, *others = (images_on(isa, tmp_path / f"{isa}.npz") for isa in compiled[compiled.index(_core.cpu_isa()) :])
    for other in others:
        for name in set(first.files) - {"isa"}:
            # Levels, as in jpeg_twin.py: a fused multiply-add rounds once.
            atol = 0 if name.startswith("same") else 1e-4
            np.testing.assert_allclose(first[name], other[name], rtol=0, atol=atol, err_msg=name)
