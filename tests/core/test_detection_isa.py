"""NMS and RoIAlign give the same bits on every processor: each instruction set does the same operations in order."""

from __future__ import annotations

import os
import subprocess
import sys

from hpcai500 import _core

SCRIPT = """
import hashlib
import numpy as np
from hpcai500 import _core

random = np.random.default_rng(3)
digest = hashlib.sha256()
boxes = random.random((3000, 4), np.float32) * 50
boxes[:, 2:] = boxes[:, :2] + 8
for real in (np.float32, np.float64):
    scores = random.random(3000).astype(real)
    digest.update(_core.nms(boxes.astype(real), scores, None, iou_threshold=0.5, threads=2).tobytes())
rois = np.concatenate([random.integers(0, 2, (40, 1)), random.random((40, 4)) * 60 - 15], axis=1)
for item in ("f4", "f2", "u2", "f8"):
    sampling = {"spatial_scale": 0.5, "sampling_ratio": 0, "aligned": True, "threads": 2}
    numbers = random.standard_normal((2, 83, 17, 19))
    features = (numbers.astype("f4").view("u4") >> 16).astype("u2") if item == "u2" else numbers.astype(item)
    last = features.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)
    places = rois.astype("f8" if item == "f8" else "f4")
    for layout in (features, last):
        pooled = np.empty((40, 83, 3, 5), item)
        gradient = np.empty_like(layout)
        _core.roi_align(layout, places, pooled, **sampling)
        _core.roi_align_backward(pooled, places, gradient, **sampling)
        digest.update(pooled.tobytes() + gradient.tobytes())
print(digest.hexdigest())
"""


def digest(isa: str) -> str:
    environment = os.environ | {"HPCAI500_ISA": isa}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_every_instruction_set_gives_the_same_bits() -> None:
    kernels = _core.build_info()["isa"]
    here = kernels[kernels.index(_core.cpu_isa()) :]
    assert len({digest(isa) for isa in here}) == 1
