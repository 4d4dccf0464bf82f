"""How long from a killed rank to the first new step: `python benchmarks/restart.py [--rounds N] [--json FILE]`.

Two ranks train the smoke recipe. One is killed (SIGKILL), and the run continues in one of two ways: by `--restarts`, or
by another command, `--resume`, that a script starts as soon as the first has ended. Rounds alternate the two. Parts, in
seconds:

    detect   from the kill until the record says which rank is lost
    start    until the first event of the resumed run: the other ranks leave, the lost one starts, all connect
    set up   until the clock runs again: nodes, data, FLOPs, checkpoint, warm-up, ceilings
    step     the first step, as the mean of its epoch

The whole is without the queue and without the time of a larger checkpoint, which adds to `set up`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from hpcai500.measure.host import available_cores

PARTS = ("detect", "start", "set up", "step")
WAYS = ("--restarts 1", "another command")
COMMAND = [sys.executable, "-m", "hpcai500.cli", "ic", "--procs", "2"]


def events(record: Path) -> list[dict[str, Any]]:
    """Whole events; the last line may still be in the making."""
    log = record / "events.jsonl"
    return [json.loads(line) for line in log.read_bytes().split(b"\n")[:-1]] if log.exists() else []


def wait_for(record: Path, key: str, count: int, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The event named `key` that is number `count` (from 1) of them.

    Raises:
        SystemExit: the command ended before.
    """
    while len(found := [event for event in events(record) if event["key"] == key]) < count:
        if process.poll() is not None:
            sys.exit(f"the command ended before {count} events {key} in {record}")
        time.sleep(0.01)
    return found[count - 1]


def rank(command: subprocess.Popen[bytes], number: int) -> int:
    """The process of a rank of `command`."""
    for child in Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split():
        if f"RANK={number}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    sys.exit(f"no rank {number}")


def start(words: Sequence[str | Path]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*COMMAND, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def measure(way: str, folder: Path) -> dict[str, float]:
    """Seconds of each part, and `whole`."""
    record = folder / "record"
    restarts = ["--restarts", "1"] if way == WAYS[0] else []
    command = start(["--out", record, "--set", "problem.epochs=1000", *restarts])
    try:
        wait_for(record, "checkpoint", 1, command)
        wait_for(record, "epoch_start", 2, command)
        time.sleep(0.5)
        begun, kill_s = len(events(record)), time.time()
        os.kill(rank(command, 1), signal.SIGKILL)
        if not restarts:
            command.wait()
            command = start(["--out", record, "--resume"])
        wait_for(record, "run_resume", 1, command)
        epochs = sum(event["key"] == "epoch_stop" for event in events(record))
        epoch = wait_for(record, "epoch_stop", epochs + 1, command)["value"]
        after = {event["key"]: event["time_ms"] / 1000 for event in reversed(events(record)[begun:])}
    finally:
        command.terminate()  # the ranks then end before it
        command.wait()
    moments = [kill_s, after["run_error"], after["init_start"], after["run_resume"]]
    seconds = [later - before for before, later in pairwise(moments)]
    parts = dict(zip(PARTS, [*seconds, epoch["seconds"] / epoch["steps"]], strict=True))
    return {**parts, "whole": sum(parts.values())}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    rounds: list[dict[str, dict[str, float]]] = []
    for _ in range(options.rounds):
        found = {}
        for way in WAYS:
            with tempfile.TemporaryDirectory() as folder:
                found[way] = measure(way, Path(folder))
        rounds.append(found)
    names = (*PARTS, "whole")
    medians = {way: {name: statistics.median(it[way][name] for it in rounds) for name in names} for way in WAYS}
    print(f"{'seconds, medians':18}" + "".join(f"{name:>9}" for name in names))
    for way, row in medians.items():
        print(f"{way:18}" + "".join(f"{row[name]:9.2f}" for name in names))
    machine = {
        "machine": platform.machine(),
        "cores": available_cores(),
        "torch": torch.__version__,
    }
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "medians": medians, "rounds": rounds}, indent=2) + "\n")


if __name__ == "__main__":
    main()
