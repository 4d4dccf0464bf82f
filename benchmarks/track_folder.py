"""What it costs to read a folder of records: `python benchmarks/track_folder.py [--records N] [--json FILE]`.

Records of 90 epochs on 16 nodes of 8 ranks are made up (`tests/builders/months.py`), three a day. What is measured is
`hpcai500 track DIR -o PAGE --openmetrics FILE`: seconds of processors and by the wall clock, and the most memory.

Exit code 1 where it took more than 60 s of processors for 2000 records, or more than 1 GiB.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from builders.months import write_months

from hpcai500.errors import ExitCode

NODES, EPOCHS, APART_SECONDS = 16, 90, 86_400.0 / 3
MOST_SECONDS_OF_2000, MOST_BYTES = 60.0, 2**30


def track(folder: Path, outputs: Path) -> dict[str, Any]:
    """Cost of one call of the command; it must find the node that got slower."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [str(Path(sys.executable).with_name("hpcai500")), "track", str(folder), "--json"]
    files = ["-o", str(outputs / "page.html"), "--openmetrics", str(outputs / "metrics.prom")]
    ended = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode != ExitCode.TOO_SLOW:
        raise SystemExit(f"hpcai500 track ended with {ended.returncode}:\n{ended.stdout[-2000:]}{ended.stderr}")
    document = json.loads(ended.stdout)
    return {
        "sentence": document["sentence"],
        "trends": len(document["trends"]),
        "processor_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "wall_seconds": wall,
        "most_bytes": 1024 * after.ru_maxrss,
    }


def main() -> int:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--json", type=Path, help="write the results there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "records")
        settings = (f"problem.epochs={EPOCHS}", "hyperparameters.warmup_epochs=8")
        hosts = [f"node-{number}" for number in range(1, NODES + 1)]
        slow = {"node-7": (options.records * 3 // 4, 0.03)}
        write_months(folder, options.records, *settings, hosts=hosts, slow=slow, apart_s=APART_SECONDS)
        cost = track(folder, Path(scratch))
    document = {
        "records": options.records, "nodes": NODES, "epochs": EPOCHS, **cost,
        "processor": platform.processor() or platform.machine(), "cores": os.cpu_count(),
    }  # fmt: skip
    print(json.dumps(document, indent=2))
    if options.json:
        options.json.write_text(f"{json.dumps(document, indent=2)}\n", encoding="utf-8")
    most_seconds = MOST_SECONDS_OF_2000 * max(1.0, options.records / 2000)
    return int(cost["processor_seconds"] > most_seconds or cost["most_bytes"] > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
