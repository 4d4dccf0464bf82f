"""A profile by hand, as the job writes it, for tests of what is told and drawn of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hpcai500.methodology.kernel_classes import CLASSES

SHARES = (0.5, 0.125, 0.125, 0.125, 0.0, 0.0, 0.125, 0.0)


def profile(**changes: Any) -> dict[str, Any]:
    """Four steps of a second each, on two ranks; `changes` replace parts of it."""
    rows = {
        name: {"seconds": 4 * share, "share": share, "calls": 8 if share else 0}
        for name, share in zip(CLASSES, SHARES, strict=True)
    }
    sampled = {"steps": 2, "seconds": 2.0, "data_wait_seconds": 0.5, "compute_seconds": 1.0}
    return {
        "schema": 1, "benchmark": "ic", "device": "cpu", "device_name": "processor", "precision": "fp32",
        "batch_size": 8, "channels_last": False, "compiled": False, "compression": "fp16", "input": "real",
        "ranks": 2, "nodes": 1, "library": "Gloo", "cores": 1, "torch": "2.13.0",
        "seconds": 4.0, "steps": 4, "kernel_seconds": 4.0, "host_seconds": 0.5,
        "classes": rows, "unclassified_share": 0.0, "unclassified": [],
        "top": [{"name": "aten::mkldnn_convolution", "class": "convolution", "seconds": 2.0, "share": 0.5, "calls": 8}],
        "layout": {"seconds": 0.2, "share": 0.05, "hidden_share": 0.04, "conversions": [
            {"from": "convolution", "source": "NCHW", "target": "blocks aBcd16b", "shape": "8x3x4x4", "hidden": True,
             "seconds": 0.16, "share": 0.04, "calls": 8},
            {"from": "aten::conv2d", "source": "NHWC", "target": "NCHW", "shape": "8x3x4x4", "hidden": False,
             "seconds": 0.04, "share": 0.01, "calls": 4},
        ]},
        "utilisation": [[0.5, 0.5], [1.0, 1.0]], "utilisation_of": "this rank's cores", "driver_utilisation": [],
        "bandwidth": [
            {"t_s": 0.5, "sent_bytes_per_second": 1e6, "received_bytes_per_second": 1e6},
            {"t_s": 1.0, "sent_bytes_per_second": 3e6, "received_bytes_per_second": 3e6},
        ],
        "bandwidth_of": "loopback of a", "bandwidth_nodes": [],
        "sampled": {**sampled, "communication_wait_seconds": 0.5, "step_seconds": 1.0},
        "overhead": {"step_seconds": 1.0, "profiled_step_seconds": 1.25, "fraction": 0.25},
        **changes,
    }  # fmt: skip


def write_profile(folder: Path, **changes: Any) -> Path:
    """A folder that holds such a profile."""
    folder.mkdir()
    (folder / "profile.json").write_text(json.dumps(profile(**changes)))
    return folder
