"""What decode_crop's time goes to: `python benchmarks/decode_stages.py [--passes N] [--json FILE]`.

One thread makes a random-resized crop of each file of the sets of decode_crop.py in each pass, from memory, with and
without a seek index. Reported are the medians over the passes, as microseconds an image. Stages: copying the codes
without their stuffed zeros ("unstuff"), passing over the blocks that the crop does not need ("pass"), reading the codes
of those that it does ("codes"), making samples of them ("IDCT"), and all else: headers, resize, colours, the batch.
The first three are entropy decoding. Its share of the time bounds what is left to win: "others free" is the speed
that there would be if everything but entropy decoding took no time, "codes free" if entropy decoding took none.

Each stage is timed in a run of its own (csrc/tests/drivers/decode_stages.cpp), and "codes" by a kernel that makes no
samples, so the stages add up to the whole only within the noise of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from decode_images import SETS, ImageSet, paths_of
from decode_rivals import write_index

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "stages"
SETTINGS = {
    "CMAKE_BUILD_TYPE": "Release",
    "HPCAI500_CUDA": "OFF",
    "HPCAI500_DALI": "OFF",
    "HPCAI500_PYTHON": "OFF",
    "HPCAI500_TEST_DRIVERS": "ON",
}
WAYS = {"whole": "without an index", "index": "with its index"}


@dataclass(frozen=True)
class Stages:
    """Microseconds an image."""

    total: float
    unstuff: float
    passing: float
    codes: float
    idct: float

    @property
    def rest(self) -> float:
        """Headers, resize, colours, the batch; with an index, also the checksum that finds the file in it."""
        return self.total - self.unstuff - self.passing - self.codes - self.idct

    @property
    def entropy_share(self) -> float:
        """Entropy decoding's part of the time."""
        return (self.unstuff + self.passing + self.codes) / self.total


def build() -> Path:
    """The driver, compiled."""
    tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    settings = [f"-D{name}={value}" for name, value in SETTINGS.items()]
    for command in (
        ["cmake", "-S", str(ROOT), "-B", str(BUILD), "-G", "Ninja", *settings],
        ["cmake", "--build", str(BUILD), "--target", "decode_stages"],
    ):
        result = subprocess.run(command, env=tools, text=True, capture_output=True, check=False)
        if result.returncode != 0:
            raise SystemExit(f"{result.stdout}{result.stderr}{' '.join(command)} failed: read its message above")
    return BUILD / "csrc" / "drivers" / "decode_stages"


def measure_set(driver: Path, image_set: ImageSet, passes: int) -> tuple[str, dict[str, Stages]]:
    """What the driver says of itself, and the medians of each way."""
    paths = paths_of(image_set)
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder, "index")
        write_index(paths, index)
        command = [str(driver), str(passes), str(index), *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr.strip() or f"decode_stages ended with exit code {done.returncode}")
    itself, *lines = done.stdout.splitlines()
    found = {}
    for way in WAYS:
        runs = [line.split()[1:] for line in lines if line.startswith(way)]
        medians = (statistics.median(map(int, column)) / len(paths) / 1000 for column in zip(*runs, strict=True))
        total, unstuff, passing, codes, decoding = medians
        found[way] = Stages(total, unstuff, passing, codes, decoding - codes)
    return itself, found


def print_set(image_set: ImageSet, ways: dict[str, Stages]) -> None:
    """One table."""
    print(f"\n{image_set.name}: {image_set.width}x{image_set.height} quality {image_set.quality}, us an image")
    columns = ("total", "unstuff", "pass", "codes", "IDCT", "rest", "entropy", "others free", "codes free")
    print(f"  {'':18s}" + "".join(f"{column:>12s}" for column in columns))
    for way, stages in ways.items():
        values = (stages.total, stages.unstuff, stages.passing, stages.codes, stages.idct, stages.rest)
        share = stages.entropy_share
        bounds = f"{100 * share:>10.0f} %{1 / share:>11.2f}x{1 / (1 - share):>11.2f}x"
        print(f"  {WAYS[way]:18s}" + "".join(f"{value:12.0f}" for value in values) + bounds)


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--passes", type=int, default=15, help="default: %(default)s")
    parser.add_argument("--sets", nargs="+", choices=[s.name for s in SETS], default=[s.name for s in SETS])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    driver = build()
    document: dict[str, object] = {"passes": options.passes}
    sets = {}
    for image_set in SETS:
        if image_set.name in options.sets:
            document["driver"], ways = measure_set(driver, image_set, options.passes)
            print_set(image_set, ways)
            sets[image_set.name] = {
                way: {**asdict(stages), "rest": stages.rest, "entropy_share": stages.entropy_share}
                for way, stages in ways.items()
            }
    if options.json:
        options.json.write_text(json.dumps({**document, "sets": sets}, indent=1) + "\n")


if __name__ == "__main__":
    main()
