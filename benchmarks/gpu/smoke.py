"""The whole smoke run on the device, as a user starts it: data made, model trained, score printed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from options import Options

_PATIENCE_SECONDS = 540.0
# The smallest run that is one: an epoch of a few steps.
_SMALL = (
    "problem.epochs=1",
    "problem.target_quality=0.01",
    "hyperparameters.batch_size=8",
    "hyperparameters.warmup_epochs=1",
    "workload.width=4",
    "workload.image_size=32",
    "workload.evaluation_resize=36",
    "os.threads=1",
    "os.input_threads=2",
)
# Of result.json, by the name that the row has for it.
_KEYS = {
    "images_per_second": "images_per_second",
    "analytic_flops_per_second": "flops",
    "time_to_quality_seconds": "time_to_quality_seconds",
    "data_wait_fraction": "data_wait_fraction",
    "watts": "watts",
}


def measure(options: Options) -> dict[str, object]:
    """`hpcai500 ic`, and `hpcai500 ewa` but for a quick look."""
    benchmarks = ("ic",) if options.quick else ("ic", "ewa")
    rows = [_run(benchmark, options) for benchmark in benchmarks]
    return {"tables": {"The smoke run": rows}, "ratios": []}


def _run(benchmark: str, options: Options) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        changes = [f"accelerator.device={options.device.type}", *(_SMALL if options.quick else ())]
        command = [sys.executable, "-m", "hpcai500.cli", benchmark, "--out", str(Path(folder) / "record")]
        command += [token for change in changes for token in ("--set", change)]
        if options.quick:
            command += ["--data", str(_tiny_images(Path(folder) / "images"))]
        begin = time.perf_counter()
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            return {"benchmark": benchmark, "exit_code": None, "reason": f"not over after {_PATIENCE_SECONDS:g} s"}
        seconds = time.perf_counter() - begin
        result = Path(folder) / "record" / "result.json"
        found = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {}
    lines = done.stdout.strip().splitlines()
    last = lines[-1] if lines else None
    complaint = done.stderr.strip().splitlines()[-1:] if done.returncode else []
    return {
        "benchmark": benchmark,
        "exit_code": done.returncode,
        "seconds": seconds,
        "last_line": last,
        **{name: found.get(key) for name, key in _KEYS.items()},
        "quality": (found.get("quality") or {}).get("achieved"),
        "reason": complaint[0] if complaint else None,
    }


def _tiny_images(folder: Path) -> Path:
    from hpcai500.data.imagenet.synthetic import SyntheticSet, make_images  # needed by quick looks only

    make_images(folder, SyntheticSet(classes=3, train_per_class=11, val_per_class=4), workers=1)
    return folder
