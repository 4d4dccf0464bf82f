"""What it costs to rank submissions: `python benchmarks/rank_submissions.py [--submissions N] [--json FILE]`.

Campaigns of ten runs of 90 epochs are made up (`tests/builders/campaigns.py`), each with hosts, seeds and times of its
own and with samples of the power of its two nodes, packed and signed. What is measured is `hpcai500 rank FILE…`, which
verifies each of them: seconds of processors, of it and of the programs that it calls, and by the wall clock.
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
import uuid
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS))

from builders import events  # noqa: E402 - the tests' fakes
from builders.campaigns import ABILITY, write_campaign  # noqa: E402

from hpcai500.results.submission.pack import SubmitRequest, pack  # noqa: E402

TRIALS, EPOCHS, DAY_SECONDS = 10, 90, 86_400.0
# A committee that has a hundred submissions can wait for ten minutes.
MOST_SECONDS_OF_TEN = 60.0


def write_submission(number: int, folder: Path, key: Path) -> Path:
    """A signed submission of a system of its own."""
    events.BOOT = str(uuid.UUID(int=number + 1))
    _, rate, quality = ABILITY["ic"]
    campaign = write_campaign(
        folder / f"campaign-{number}",
        f"hyperparameters.seed={1 + 1000 * number}",
        trials=TRIALS,
        quality=quality + number / 50_000,
        hosts=(f"node-{number}-1", f"node-{number}-2"),
        images_per_second=rate * (1 + number / 1000),
        start_s=events.STARTED_S + (7 + number) * DAY_SECONDS,
        watts=6500.0 + number,
    )
    request = SubmitRequest(campaign, folder / f"{number}.zip", f"System {number}", "A made-up one", key=key)
    return pack(request).path


def rank(files: list[Path]) -> dict[str, Any]:
    """Cost and outcome of one call of the command."""
    before, started = processor_seconds(), time.perf_counter()
    command = [str(Path(sys.executable).with_name("hpcai500")), "rank", *map(str, files), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    wall, spent = time.perf_counter() - started, processor_seconds() - before
    if ended.returncode != 0:
        raise SystemExit(f"rank ended with {ended.returncode}: {ended.stderr.strip()}")
    document = json.loads(ended.stdout)
    for one in document["unverified"]:
        print(f"{one['file']}: {one['status']}: {one['reason']}", file=sys.stderr)
    return {"cpu_seconds": spent, "wall_seconds": wall, "ranked": len(document["entries"])}


def processor_seconds() -> float:
    """Of all programs that were called so far and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--submissions", type=int, default=100, help="how many (default 100)")
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder, "key")
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        files = [write_submission(number, Path(folder), key) for number in range(options.submissions)]
        size = sum(file.stat().st_size for file in files)
        found = rank(files)
    of_ten = 10 * found["cpu_seconds"] / len(files)
    print(
        f"{len(files)} submissions of {TRIALS} runs of {EPOCHS} epochs, {size / 1e6:.1f} MB; {found['ranked']} ranked"
    )
    print(f"  {found['cpu_seconds']:.1f} s of processors, {found['wall_seconds']:.1f} s by the clock")
    print(f"  {of_ten:.1f} s of processors for ten submissions (at most {MOST_SECONDS_OF_TEN:g})")
    if options.json:
        machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
        setting = {"submissions": len(files), "trials": TRIALS, "epochs": EPOCHS, "bytes": size}
        document = {"machine": machine, **setting, **found, "cpu_seconds_of_ten": of_ten, "target": MOST_SECONDS_OF_TEN}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
