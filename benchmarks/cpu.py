"""Every comparison that a CPU can make, in one run: `python benchmarks/cpu.py [--visits N] [--quick] [--only NAME…]`.

Each visit runs all benchmarks one after the other, so that a machine that slows down for a while does not slow down one
of them alone; within a benchmark, ours and its rivals take turns. A row shows the median of the visits' ratios, their
range, the limit that binds it where one is measured beside it, and what was recorded before. It says `slower` where
even its best visit is below the worst recorded one.

`--record` writes the visits to benchmarks/results/ and docs/performance.md anew. `--quick` takes two minutes, checks
that all of it runs, and records nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "gpu"))

from cpu_ratios import SOURCES, Row, Source, rows_of  # noqa: E402 - shared with the page

RESULTS = HERE / "results"
# The years of climate_reader take minutes to make and 5 GB.
KEPT = HERE.parent / "build" / "benchmarks"
# What makes each one short.
QUICK = {
    "decode_crop": ["--rounds", "1", "--seconds", "0.2", "--sets", "plain"],
    "input_loaders": ["--rounds", "1", "--seconds", "0.1", "--sets", "plain", "--copies", "2", "--workers", "2"],
    "climate_reader": ["--rounds", "1", "--scale", "8"],
    "compression": ["--rounds", "1"],
    "detection_operators": ["--rounds", "1", "--scale", "4"],
    "engine_step": ["--rounds", "1", "--scale", "3"],
    "training_step": ["--rounds", "1"],
    "micro_ceilings": ["--rounds", "1", "--seconds", "0.2", "--scale", "4"],
}


def visit(source: Source, quick: bool, folder: Path) -> dict[str, Any]:
    """Run one benchmark and return its document; SystemExit with its output where it fails."""
    document = folder / f"{source.document}.json"
    options = [*(QUICK[source.document] if quick else ()), "--json", str(document)]
    if source.document == "climate_reader" and not quick:
        options += ["--folder", str(KEPT / "climate")]
    command = [sys.executable, str(HERE / f"{source.document}.py"), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{ended.stdout}{ended.stderr}")
    found: dict[str, Any] = json.loads(document.read_text(encoding="utf-8"))
    return found


def recorded(source: Source) -> dict[tuple[str, str], Row]:
    """The rows of what was recorded before, by what was measured and against whom."""
    path = RESULTS / f"{source.document}.json"
    if not path.is_file():
        return {}
    return {row.key: row for row in rows_of(source, json.loads(path.read_text(encoding="utf-8")))}


def line(row: Row, before: Row | None) -> str:
    """One row, as it is printed."""
    parts = [f"{row.what:44.44s} {row.rival:36.36s} {row.ratio:6.2f} ({min(row.ratios):.2f}-{max(row.ratios):.2f})"]
    if row.limit is not None:
        parts.append(f"{row.share:.2f} of {row.limit}")
    if row.required is not None:
        parts.append(f"wanted {row.required:g}" + ("" if row.ratio >= row.required else ", missed"))
    if before is not None:
        parts.append(f"recorded {before.ratio:.2f}" + (", slower" if max(row.ratios) < min(before.ratios) else ""))
    return "; ".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 where a row has become slower than what is recorded."""
    names = [source.document for source in SOURCES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--visits", type=int, default=3, help="how often each benchmark runs; default: %(default)s")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="one short visit: checks that all of it runs")
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/ and docs/performance.md anew")
    asked = parser.parse_args(arguments)
    if asked.quick and asked.record:
        parser.error("--quick measures too little to be recorded")
    chosen = [source for source in SOURCES if source.document in asked.only]
    visits: dict[str, list[dict[str, Any]]] = {source.document: [] for source in chosen}
    started = time.monotonic()
    with TemporaryDirectory() as folder:
        for number in range(1 if asked.quick else asked.visits):
            for source in chosen:
                print(f"[{time.monotonic() - started:4.0f} s] visit {number + 1}: {source.work}", file=sys.stderr)
                visits[source.document].append(visit(source, asked.quick, Path(folder)))
    slower = 0
    for source in chosen:
        before = {} if asked.quick else recorded(source)
        for row in rows_of(source, {"visits": visits[source.document]}):
            said = line(row, before.get(row.key))
            slower += said.endswith(", slower")
            print(said)
    if asked.record:
        for name, documents in visits.items():
            (RESULTS / f"{name}.json").write_text(json.dumps({"visits": documents}, indent=1) + "\n", encoding="utf-8")
        from performance_page import main as write_page

        write_page(HERE.parent / "docs" / "performance.md")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
