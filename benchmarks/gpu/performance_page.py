"""Writes docs/performance.md from what lies in benchmarks/results/.

    python benchmarks/gpu/performance_page.py docs/performance.md

`make bench-gpu` does it after measuring. Nothing on the page is typed by hand but its words.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cpu_ratios import SOURCES
from parts import PARTS
from results_file import SCHEMA
from tables import number, part_lines, ratios, verdict

from hpcai500.files import write_atomically

RESULTS = Path(__file__).resolve().parents[1] / "results"

# What was promised of one H200, rivals measured in the same run; by the parts that measure it.
TARGETS = (
    (("ic_mixed",), "IC's step beside eager channels_last AMP", "at least 1.3"),
    (("ewa_step",), "EWA's step beside torchvision's eager Faster R-CNN R50-FPN", "at least 1.5"),
    (("bucket_kernels", "image_conversion"), "kernels: share of the bandwidth of a copy", "at least 0.9"),
    (("data_wait",), "waiting for data, from JPEG files", "at most 0.02"),
)

_HEAD = """# Performance

How fast this is, beside the strongest rivals that could be had: medians of the ratios of interleaved rounds, above 1
where ours is the faster. This page is written by `python benchmarks/gpu/performance_page.py docs/performance.md` from
the files in [benchmarks/results/](../benchmarks/results); no number of a measurement on it was typed."""

_NOTHING = """**No GPU result is recorded in this repository yet.** No machine with a GPU was at hand when the
code for GPUs was written: **nothing of it has run on one**, neither a kernel of ours, nor a training step on CUDA, nor
DALI's decoder on a device. How fast it is, and whether a target is met, is not known. This was not run:"""

_INSTEAD = """What stands in its place, and how far it reaches:

- **Compiled** by nvcc 13.0 for each architecture of the release build: it is a program, no more.
- **CUDA kernels run on CPUs** by an emulator ([csrc/tests/cuda_on_cpu](../csrc/tests/cuda_on_cpu/README.md)), thread
  by thread, under sanitizers, against the CPU's kernels: that they compute the right thing, stay within their memory
  and wait for each other where they must. It says nothing of speed, nor of what a device does otherwise than it is
  documented.
- **Machine code looked at** ([tests/core/test_cuda_code.py](../tests/core/test_cuda_code.py)): what the compiler made
  of the kernels for each architecture. That finds mistakes, and bounds nothing.
- **Host and error paths**: recipes, arguments, what is said without a device, run on CPUs. Each comparison of this page
  runs on a CPU with tiny shapes in the tests, but for torchvision, which is not installed there; those numbers are
  recorded nowhere.
- **Tests marked `gpu`** are written, and skipped without a device. `make test` runs them where there is one, and
  says so in red where a machine has a device and a test skipped it all the same."""

_HOW = """## Measure it

    make bench-gpu                                  # all parts, where there is a CUDA device, and a torch built for it
    make bench-gpu ARGS="--only ceilings ic_mixed"  # some of them: the others of the file stay
    make bench-gpu ARGS="--data /data/imagenet"     # real images instead of made ones
    make bench-gpu ARGS="--device cpu --quick"      # only whether the code runs

It writes `benchmarks/results/<device>.json` after each part, with the machine, driver, libraries, clocks, power limit,
date and commit that the part was measured with, and then this page. Each part runs in a process of its own. A part that
fails is written down with its error and the rest goes on; the exit code of `python benchmarks/gpu/run.py` is then 1,
and 69 without a device. torchvision is a rival where it imports; nothing here installs it.

What is compared, and why it is fair, is said at the head of each module of [benchmarks/gpu/](../benchmarks/gpu). In all
of them rivals take turns in one process, each round begins with another one, and everything is warmed up before.
Devices are timed by CUDA events, the engine's steps from an idle device to an idle device. Of several ways to do ours,
and of several rivals of one kind, the fastest counts."""


def page(results: Path) -> str:
    """The page, from the documents in the folder `results`."""
    lines = [_HEAD, ""]
    devices = device_documents(results)
    if devices:
        lines += [*_targets(devices), *(line for one in devices for line in _device(one))]
    else:
        lines += ["## On GPUs", "", _NOTHING, "", *_missing(), "", _INSTEAD, ""]
    lines += [*_cpu(results), _HOW]
    return "\n".join(lines) + "\n"


def device_documents(results: Path) -> list[dict[str, Any]]:
    """Those of devices, by name; none that only shows that the code runs."""
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    found = [one for one in documents if isinstance(one, dict) and one.get("schema") == SCHEMA]
    return [one for one in found if any(not part["quick"] for part in one["parts"].values())]


def _missing() -> Iterator[str]:
    yield "| part | what | target | |"
    yield "|---|---|---|---|"
    for part in PARTS:
        bounds = "; ".join(f"{what}: {bound}" for parts, what, bound in TARGETS if part.name in parts)
        yield f"| {part.name} | {part.what} | {bounds} | not run |"


def _targets(devices: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What was promised, and how it came out on each device."""
    yield "## On GPUs"
    yield ""
    yield "| target | bound | " + " | ".join(one["device"] for one in devices) + " |"
    yield "|---|---|" + "---|" * len(devices)
    for parts, what, bound in TARGETS:
        yield f"| {what} | {bound} | " + " | ".join(_standing(one, parts) for one in devices) + " |"
    yield ""


def _standing(document: Mapping[str, Any], names: Sequence[str]) -> str:
    """How the rows with a target came out: all of them, not the best."""
    parts = [document["parts"][name] for name in names if name in document["parts"]]
    rows = [row for part in parts for row in ratios(part["result"]) if row.get("target")]
    said = [verdict(row) for row in rows]
    counts = {word: said.count(word) for word in dict.fromkeys(said)}
    return ", ".join(f"{count} of {len(said)} {word}" for word, count in counts.items()) or "not measured"


def _device(document: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {document['device']}"
    yield ""
    yield from _machines(document["parts"])
    yield ""
    for name, part in document["parts"].items():
        yield from part_lines(name, part)
    if absent := [part.name for part in PARTS if part.name not in document["parts"]]:
        yield f"Not run on this device: {', '.join(absent)}."
        yield ""


def _machines(parts: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Of each different machine, its facts and which parts were measured on it."""
    names: dict[str, list[str]] = {}
    for name, part in parts.items():
        names.setdefault(_facts(part["machine"]), []).append(name)
    for facts, of in names.items():
        yield facts if len(names) == 1 else f"{', '.join(of)}: {facts}"
        yield ""


def _facts(machine: Mapping[str, Any]) -> str:
    words = [f"driver {machine['driver']}" if machine.get("driver") else "driver unknown"]
    words += [f"{label} {machine[key]}" for key, label in (("torch", "torch"), ("cuda", "CUDA"), ("cudnn", "cuDNN"))]
    for key, label in (("application_sm_hz", "SM clock"), ("max_sm_hz", "highest SM clock")):
        words += [f"{label} {number(machine[key] / 1e6)} MHz"] if machine.get(key) else []
    if machine.get("power_limit_watts"):
        words.append(f"power limit {number(machine['power_limit_watts'])} W")
    return "; ".join([*words, f"{machine['cores']} cores of {machine['host_processor']}"]) + "."


def _cpu(results: Path) -> Iterator[str]:
    yield "## On CPUs"
    yield ""
    yield "Two cores, which other programs used as well; `make bench`. The pages say how it was measured, and on what."
    yield ""
    yield "| what | rival | rival's time / ours | target | | numbers | page |"
    yield "|---|---|---|---|---|---|---|"
    for source in SOURCES:
        path = results / f"{source.document}.json"
        if not path.is_file():
            continue
        link = f"[{source.page}]({source.page})" if source.page else ""
        for row in source.rows(json.loads(path.read_text(encoding="utf-8"))):
            numbers = f"[{source.document}](../benchmarks/results/{source.document}.json)"
            bound = f"at least {number(row.required)}" if row.required else ""
            met = "" if not row.required else "met" if row.ratio >= row.required else "**missed**"
            yield f"| {row.what} | {row.rival} | {number(round(row.ratio, 2))} | {bound} | {met} | {numbers} | {link} |"
    yield ""


def main(path: Path) -> None:
    """Write the page to `path`."""
    write_atomically(path, page(RESULTS).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
