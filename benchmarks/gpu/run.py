"""Measure a CUDA device: every comparison of this folder, written to benchmarks/results/<device>.json.

    python benchmarks/gpu/run.py [--device cuda|cpu] [--quick] [--rounds N] [--only NAME…] [--data DIR] [-o FILE]

`make bench-gpu` does this, and writes docs/performance.md anew. Each part is written down as soon as it is measured;
`--only` measures some, and the others of the file stay, each with its own date, commit and machine. A part that fails
is written down with its error, the rest goes on, and the exit code is 1. Without a CUDA device it is 69.
`--device cpu --quick` only shows that the code runs: nothing is written then, unless -o names a file.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from machine import ROOT, commit, describe, slug
from options import Options
from parts import PARTS, Part
from results_file import SCHEMA, merge, read, write
from rows import first_line
from tables import part_lines

from hpcai500.errors import EnvironmentLacksError, HpcAi500Error, UsageError
from hpcai500.measure.host import available_cores

RESULTS = ROOT / "benchmarks" / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for; returns the exit code."""
    asked = _parser().parse_args(arguments)
    try:
        device = _device(asked.device)
        parts = _chosen(asked.only)
        if asked.check:
            return 0
        if device.type == "cuda" and len(parts) > 1:
            return each_alone(parts, sys.argv[1:] if arguments is None else arguments, _start)
        options = Options(device, asked.rounds or (1 if asked.quick else 5), asked.quick)
        torch.set_num_threads(1 if asked.quick else available_cores())
        machine = describe(device)
        path = _file(asked, machine["device"])
        document = read(path) if path else None
        failed = []
        for number, part in enumerate(parts, start=1):
            if len(parts) > 1:
                _say(f"{number}/{len(parts)} {part.name}: {part.what}")
            done = _measured(part, options, asked.data, machine)
            document = merge(document, machine["device"], part.name, done)
            if path:
                write(path, document)
            failed += [part.name] if done["error"] else []
            print("\n".join(part_lines(part.name, done)), flush=True)
    except HpcAi500Error as error:
        _say(str(error))
        return error.exit_code
    if path:
        _say(f"written: {path}")
    if failed:
        _say(f'failed: {", ".join(failed)}; when it is mended: make bench-gpu ARGS="--only {" ".join(failed)}"')
    return 1 if failed else 0


def each_alone(parts: Sequence[Part], arguments: Sequence[str], start: Callable[[Sequence[str]], int]) -> int:
    """Measure each of `parts` in a process of its own; returns the exit code of all.

    A kernel that faults takes its process's device with it, and memory that a part leaves behind is the next one's.

    Args:
        parts: which.
        arguments: of the command line; `--only` in it is taken over by the last one, ours.
        start: runs this program with arguments and returns its exit code.
    """
    failed = []
    for number, part in enumerate(parts, start=1):
        _say(f"{number}/{len(parts)} {part.name}: {part.what}")
        if start([*arguments, "--only", part.name]) != 0:
            failed.append(part.name)
    if failed:
        _say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _start(arguments: Sequence[str]) -> int:
    return subprocess.run([sys.executable, __file__, *arguments], check=False).returncode


def _measured(part: Part, options: Options, data: Path | None, machine: Mapping[str, Any]) -> dict[str, Any]:
    """What the file keeps of one part."""
    begin, result, error = time.perf_counter(), None, None
    try:
        result = part.measure(options, data)
    except Exception as problem:  # noqa: BLE001 - whatever it is, it is written down, and the other parts go on
        error = first_line(problem)
        _say(f"{part.name}: {error}")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": dict(machine),
        "rounds": options.rounds,
        "quick": options.quick,
        "seconds": time.perf_counter() - begin,
        "error": error,
        "result": result,
    }


def _device(name: str) -> torch.device:
    """The device to measure.

    Raises:
        EnvironmentLacksError: there is none, and what to do about it.
    """
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        raise EnvironmentLacksError(
            f"torch {torch.__version__} ({built}) finds no CUDA device here: run it on a node that has one, with a "
            "torch that is built for CUDA (`hpcai500 doctor` says what is missing), or only look whether the code "
            'runs: make bench-gpu ARGS="--device cpu --quick"'
        )
    torch.cuda.set_device(0)
    return torch.device("cuda", 0)


def _chosen(names: Sequence[str] | None) -> list[Part]:
    """The parts to measure.

    Raises:
        UsageError: there is none of such a name.
    """
    there = {part.name: part for part in PARTS}
    if unknown := [name for name in names or () if name not in there]:
        raise UsageError(f"--only: no part is called {', '.join(unknown)}; there are {', '.join(there)}")
    return [part for part in there.values() if not names or part.name in names]


def _file(asked: argparse.Namespace, device: str) -> Path | None:
    """Where results go; None for nowhere. Tiny shapes, and a CPU, never get a file of their own.

    Raises:
        UsageError: a measurement of a CPU at full size, which would take hours and say nothing.
    """
    if asked.device == "cpu" and not asked.quick:
        raise UsageError("--device cpu: shapes are those of a GPU and would take hours; add --quick")
    if asked.output:
        return Path(asked.output)
    return None if asked.quick else RESULTS / f"{slug(device)}.json"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where (default cuda)")
    parser.add_argument("--check", action="store_true", help="only whether it could be measured here")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, one round: no measurement")
    parser.add_argument("--rounds", type=int, help="turns of each contestant (default 5)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="parts: " + ", ".join(part.name for part in PARTS))
    parser.add_argument("--data", type=Path, help="images in ImageNet's layout (default: made ones)")
    parser.add_argument("-o", "--output", help=f"results (default benchmarks/results/<device>.json, {SCHEMA})")
    return parser


def _say(line: str) -> None:
    print(f"bench-gpu: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
