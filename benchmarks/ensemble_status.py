"""What it costs to watch an ensemble: `python benchmarks/ensemble_status.py [--rounds N] [--json FILE]`.

Members are made up (`tests/fakes/slurm.py`): their journals, records and progress are real files that grow on
a made-up clock, and programs that print what squeue and sacct would print of them stand for Slurm. All members run at
once, which is the most that there is to look at: an epoch takes ten minutes, and a look is taken every ten seconds.
Another process does what `hpcai500 ensemble status --follow` does, and is measured: asking and reading the answer, the
look at the records, the rows, and the text of 100 columns. Memory is the resident size above that of the same process
before its first look.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "ensemble")]

from fakes.slurm import MadeCluster, MadeSlurm, plan, submit_arrays  # noqa: E402 - the tests' fakes

from hpcai500.ensemble.journal import read_ensemble  # noqa: E402
from hpcai500.ensemble.members import MOST_FILES, Memory  # noqa: E402
from hpcai500.ensemble.slurm import SlurmScheduler  # noqa: E402
from hpcai500.ensemble.status import status_of  # noqa: E402
from hpcai500.launch.slurm.site import Site  # noqa: E402

SIZES = (100, 1000, 10_000)
EPOCH_SECONDS, INTERVAL_SECONDS = 600.0, 10.0


@dataclass(frozen=True)
class Look:
    """What one look has cost; seconds by the wall clock, and by processors: our own and those of the programs asked."""

    ask_seconds: float
    poll_seconds: float
    rows_seconds: float
    text_seconds: float
    cpu_seconds: float
    files: int
    read_bytes: int
    members: int
    memory_bytes: int


def watch(connection: Connection, folder: Path, path: str) -> None:
    """Look whenever the other side says which moment it is, and send what it cost."""
    ensemble, now_s = read_ensemble(folder), 0.0
    scheduler, memory = SlurmScheduler(Site(), {"PATH": path}), Memory(clock=lambda: now_s)
    before = resident_bytes()
    while now_s := connection.recv():
        cpu, moments = cpu_seconds(), [time.perf_counter()]
        jobs = scheduler.jobs(ensemble)
        moments.append(time.perf_counter())
        poll = memory.poll(ensemble, jobs)
        moments.append(time.perf_counter())
        status = status_of(ensemble, jobs, memory, [poll])
        moments.append(time.perf_counter())
        list(status.lines(100))
        moments.append(time.perf_counter())
        ask, look, rows, text = (end - start for start, end in pairwise(moments))
        used = resident_bytes() - before
        spent = cpu_seconds() - cpu
        connection.send(Look(ask, look, rows, text, spent, poll.files, poll.read_bytes, poll.members, used))


def cpu_seconds() -> float:
    """Of this process and of the programs that it has called."""
    return sum(os.times()[:4])


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(members: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Looks at an ensemble of so many: until all have been seen, and then `rounds` more."""
    cluster = MadeCluster(plan(folder / "e", members, epochs=90), members, EPOCH_SECONDS, submit=submit_arrays)
    # A few are done, whom squeue has forgotten: accounting is asked as well.
    for member in range(0, members, 100):
        cluster.finish(member)
    slurm = MadeSlurm(folder / "bin")
    slurm.tell(cluster.states)
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=watch, args=(there, folder / "e", slurm.environment["PATH"]))
    process.start()
    first, later = list[Look](), list[Look]()
    # Journal and progress of each, and in turn the progress of one that was seen before.
    enough = -(-3 * members // (MOST_FILES - 8)) if 2 * members > MOST_FILES - 8 else 1
    for number in range(enough + rounds):
        cluster.advance(INTERVAL_SECONDS)
        here.send(cluster.now_s)
        (first if number < enough else later).append(here.recv())
    here.send(0.0)
    process.join()
    return {
        "members": members,
        "looks_until_all_were_seen": len(first),
        "first": medians(first),
        "later": medians(later),
    }


def medians(looks: list[Look]) -> dict[str, float]:
    """Of each cost."""
    return {name: statistics.median(getattr(look, name) for look in looks) for name in asdict(looks[0])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="looks at each size (default 20)")
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    options = parser.parse_args()
    rows = []
    for members in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(members, options.rounds, Path(folder)))
    print(f"A look every {INTERVAL_SECONDS:g} s at members that all run, {MOST_FILES} files at most; medians")
    print("  members   look    cpu    ask   poll   rows   text  files    read   memory  all seen after")
    for row in rows:
        found = row["later"]
        parts = [found[f"{name}_seconds"] for name in ("ask", "poll", "rows", "text")]
        print(
            f"  {row['members']:>7}  {1e3 * sum(parts):4.0f} ms{1e3 * found['cpu_seconds']:4.0f} ms"
            + "".join(f"{1e3 * part:4.0f} ms" for part in parts)
            + f"  {found['files']:>5.0f}{found['read_bytes'] / 1e3:5.0f} kB{found['memory_bytes'] / 1e6:6.1f} MB"
            f"  {row['looks_until_all_were_seen']} looks"
        )
    if options.json:
        machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
        setting = {"interval_seconds": INTERVAL_SECONDS, "epoch_seconds": EPOCH_SECONDS, "most_files": MOST_FILES}
        document = {"machine": machine, "rounds": options.rounds, **setting, "results": rows}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
