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

from cpu_ratios import SOURCES, machine, rows_of
from parts import PARTS
from results_file import SCHEMA
from tables import number, ratios, row_lines, tables, verdict

from hpcai500.files import write_atomically

RESULTS = Path(__file__).resolve().parents[1] / "results"

# What was promised of one H200, rivals measured in the same run; by the parts that measure it.
TARGETS = (
    (("ic_mixed",), "IC's step against eager channels_last AMP: ratio", "at least 1.3"),
    (("ewa_step",), "EWA's step against torchvision's eager Faster R-CNN R50-FPN: ratio", "at least 1.5"),
    (("bucket_kernels", "image_conversion"), "kernels: share of copy bandwidth", "at least 0.9"),
    (("data_wait",), "share of a step that waits for data, from JPEG files", "at most 0.02"),
)

_HEAD = """# Performance

This page compares the speed of hpcai500 with other software, on GPUs and on CPUs. To measure a GPU, run:

    make bench-gpu

A *ratio* is the rival's time divided by ours, so above 1 hpcai500 is faster. It is the median of all rounds, with the
range from the smallest to the largest round. `benchmarks/gpu/performance_page.py` writes the tables from
`benchmarks/results/`."""

_NOTHING = """**No GPU result is recorded in this repository yet.** The speed on a GPU is not known. These parts were
not run:"""

_HOW = """## Measure again

    make bench                                      # the CPU results: prints them beside what is recorded
    make bench ARGS="--visits 5 --record"           # and records them
    make bench ARGS=--quick                         # two minutes: only checks that the code runs
    python benchmarks/large_scale.py --json benchmarks/results/large_scale.json    # how cost grows; five minutes
    python benchmarks/growth.py --json benchmarks/results/growth.json              # the same of threads and ranks
    make bench-gpu                                  # all parts; requires a CUDA device and a torch built for it
    make bench-gpu ARGS="--only ceilings ic_mixed"  # some parts; the other results stay in the file
    make bench-gpu ARGS="--data /data/imagenet"     # real images instead of synthetic ones
    make bench-gpu ARGS="--device cpu --quick"      # only checks that the code runs

`make bench-gpu` writes `benchmarks/results/<device>.json` after each part, and then this page. The file also records
machine, clocks and all medians in seconds.

- If a part fails, its error is recorded and the other parts go on.
- The exit code of `python benchmarks/gpu/run.py` is 1 if a part failed, and 69 without a device.
- Rivals take turns in one process after a warm-up. Each round begins with another one.
- CUDA events time the devices. The engine's steps run from an idle device to an idle device.
- Of several variants of ours, or of several rivals of one kind, the fastest counts.

Each module of `benchmarks/gpu/` says in its first lines what it compares."""

# Why a row with a target is missed, and how far it can go: by device (None: the CPU results) and by the start of its
# name. Only shown where the row is missed.
_NOTES = {
    (None, "gradients: fp16 pack"): (
        "`_foreach_copy_` reads what it overwrites: it moves 8 bytes where pack moves 6, so memory limits that ratio "
        "to 1.33 where both use all of its bandwidth."
    ),
    (None, "gradients: fp16 pack and norms"): ("one pass over the gradients, at 0.8 of the copy bandwidth."),
    (None, "step on two ranks"): (
        "two ranks share two cores, so that the sums take time from the computation: without any exchange the step "
        "would be 1.28 times as fast as ours."
    ),
    (None, "step on two ranks, gradients alone"): ("Open MPI uses shared memory itself, as we do beside Gloo."),
    (None, "climate image"): (
        "we read by read(), which takes two thirds of our time and copies all bytes once more than a mapping would: "
        "mapped, the same conversion is 1.3 times as fast, but a file that somebody shortens would kill the process. "
        "It moves 0.73 to 0.80 of the bytes of a non-temporal copy."
    ),
    (None, "climate image, shipped gzip"): (
        "inflating by libdeflate on all cores allows 3.5; ISA-L and zlib-ng are slower. The rest of our time is mostly "
        "the kernel's, which clears the memory of two windows (2.6 GB) for each epoch, here of 276 images."
    ),
    (None, "JPEG files"): (
        "the loader is at 0.87 to 0.98 of decoding alone. Records are a prepared set, as is one with an index: compare "
        "those two."
    ),
    (None, "smoke epoch from files"): (
        "the fastest rival reads prepared records. Ours reads files, and is 1.1 times as fast as the bare loop without "
        "any input. It is at 0.89 of the engine's steps without input: decoding takes time of the same cores, and a "
        "lower priority for its threads (nice 5 to 19) changes nothing."
    ),
    (None, "JPEG"): (
        "entropy decoding alone takes 0.65 of our time (`plain`): `benchmarks/results/decode_stages.json`."
    ),
    ("NVIDIA H200", "ResNet-50: norms of all layers"): ("33.4 µs, against 30.0 µs for the copy; cause not known."),
    ("NVIDIA H200", "R50-FPN detector: dequantise from int8"): (
        "a third of this model's values are misaligned. For ResNet-50 the kernel reaches 0.98."
    ),
    ("NVIDIA H200", "ResNet-50, fp16, batch 256"): (
        "the compiled step, which brings 1.462 in bf16, was not measured in fp16."
    ),
    ("NVIDIA H200", "16 channels, float32, to channels last"): (
        "3,409 GB/s, against 4,154 for the copy; cause not known. With fp16 or bf16 output it reaches 0.99."
    ),
    ("NVIDIA H200", "3 channels"): ("2,902 to 3,336 GB/s, against 3,858 to 4,042 for the copy; cause not known."),
}


def page(results: Path) -> str:
    """The page, from the documents in the folder `results`."""
    devices = device_documents(results)
    lines = [_HEAD, "", "## GPU results", ""]
    if devices:
        lines += [*_targets(devices), *(line for one in devices for line in _device(one))]
    else:
        lines += [_NOTHING, "", *_not_run(), ""]
    lines += [*_cpu(results), *_growth(results), _HOW]
    return "\n".join(lines) + "\n"


def device_documents(results: Path) -> list[dict[str, Any]]:
    """Those of devices, by name; none that only shows that the code runs."""
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    found = [one for one in documents if isinstance(one, dict) and one.get("schema") == SCHEMA]
    return [one for one in found if any(not part["quick"] for part in one["parts"].values())]


def _not_run() -> Iterator[str]:
    yield "| part | what | target | |"
    yield "|---|---|---|---|"
    for part in PARTS:
        bounds = "; ".join(f"{what}: {bound}" for parts, what, bound in TARGETS if part.name in parts)
        yield f"| {part.name} | {part.what} | {bounds} | not run |"


def _targets(devices: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What was promised, and how it came out on each device."""
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
    yield f"### {document['device']}"
    yield ""
    yield from _machines(document["parts"])
    rows = [row for part in document["parts"].values() for row in _merged(list(ratios(part["result"])))]
    if rows:
        yield "| work | rival | ratio | share of copy bandwidth | target |"
        yield "|---|---|---|---|---|"
        yield from (f"| {' | '.join(row)} |" for row in rows)
        yield ""
    yield "Share of copy bandwidth: our bytes/s divided by those of a device copy of as many bytes."
    yield ""
    for part in document["parts"].values():
        yield from _steps(part["result"])
    when: dict[str, list[str]] = {}
    for name, part in document["parts"].items():
        when.setdefault(_when(part), []).append(name)
    yield from (f"- {', '.join(names)}: {words}" for words, names in when.items())
    if absent := [part.name for part in PARTS if part.name not in document["parts"]]:
        yield f"- Not run on this device: {', '.join(absent)}."
    yield ""
    missed = [row[0] for row in rows if "missed" in row[-1]]
    yield from _missed(document["device"], missed)


# The columns of steps that the page shows.
_STEP = ("case", "precision", "batch", "contestant", "images_per_second", "analytic_flops_per_second", "reason")
_COPY = "share of copy bandwidth"
_KERNEL, _CALLS = ": kernel alone, ", ": whole calls, "


def _steps(result: Any) -> Iterator[str]:
    """The speed of those whose ratio is on the page, where it is told in images/s."""
    compared = {row[who] for row in ratios(result) for who in ("ours", "rival")}
    for title, rows in tables(result):
        if any("images_per_second" in row for row in rows):
            shown = [row for row in rows if row.get("contestant") is None or row["contestant"] in compared]
            yield f"{title}:"
            yield ""
            yield from row_lines([{key: row[key] for key in _STEP if key in row} for row in shown])
            yield ""


def _merged(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """A line for each case: its rival, and its share of a copy's bandwidth, of the kernel where there are two."""
    shares: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        for before in (_KERNEL, ": "):
            if row["case"].endswith(before + _COPY) and _CALLS not in row["case"]:
                shares.setdefault(row["case"].removesuffix(before + _COPY), row)
    for row in rows:
        case = row["case"]
        if case.endswith(_COPY):
            bare = case.removesuffix(_KERNEL + _COPY)
            if bare != case and bare not in {other["case"] for other in rows}:
                yield bare, "", "", _value(row), verdict(row)
            continue
        share = shares.get(case)
        said = [verdict(one) for one in (row, share) if one and one.get("target")]
        yield case, row["rival"], _value(row), _value(share) if share else "", "; ".join(said)


def _value(row: Mapping[str, Any]) -> str:
    if row.get("value") is None:
        return f"not measured: {row.get('reason') or 'no reason given'}"
    spread = "" if row.get("least") is None else f" ({number(row['least'])}-{number(row['greatest'])})"
    return number(row["value"]) + spread


def _when(part: Mapping[str, Any]) -> str:
    source = f"commit `{part['commit']}`" if part["commit"] else "an unknown commit"
    quick = ", **quick: tiny shapes, no measurement**" if part["quick"] else ""
    words = f"{part['date'][:10]}, {source}, {part['rounds']} rounds{quick}."
    if part["error"]:
        return f"{words} Not measured: {part['error']}"
    if last := part.get("last_error"):
        return f"{words} A later attempt failed ({last['date'][:10]}): {last['error']}"
    return words


def _missed(device: str | None, cases: Sequence[str]) -> Iterator[str]:
    """The notes on missed rows; of several that fit a row, the longest name's."""
    notes: dict[str, str] = {}
    for case in cases:
        fitting = [name for of, name in _NOTES if of == device and case.startswith(name)]
        if fitting:
            name = max(fitting, key=len)
            notes[name] = _NOTES[device, name]
    if notes:
        yield "Missed targets:"
        yield ""
        yield from (f"- {name}: {note}" for name, note in notes.items())
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
    found = {}
    for source in SOURCES:
        path = results / f"{source.document}.json"
        if path.is_file():
            found[source] = json.loads(path.read_text(encoding="utf-8"))
    yield "## CPU results"
    yield ""
    if found:
        yield _CPU
        yield ""
        yield "| work | rival | ratio | share of the limit | target |"
        yield "|---|---|---|---|---|"
    missed = []
    for source, document in found.items():
        for row in rows_of(source, document):
            bound = ""
            if row.required:
                bound = f"{number(row.required)}: {'met' if row.ratio >= row.required else '**missed**'}"
                missed += [row.what] if row.ratio < row.required else []
            spread = "-".join(number(round(one, 2)) for one in (min(row.ratios), max(row.ratios)))
            value = f"{number(round(row.ratio, 2))} ({spread})"
            share = "" if row.share is None else f"{number(round(row.share, 2))} of {row.limit}"
            yield f"| {row.what} | {row.rival} | {value} | {share} | {bound} |"
    yield ""
    yield "| work | machine, as recorded | numbers | page |"
    yield "|---|---|---|---|"
    for source, document in found.items():
        link = f"[{source.page}]({source.page})" if source.page else ""
        numbers = f"`benchmarks/results/{source.document}.json`"
        yield f"| {source.work} | {machine(document)} | {numbers} | {link} |"
    yield ""
    yield from _missed(None, missed)


_CPU = """Two cores, which other programs shared. JPEG sets: `plain` 500 x 375, 56 KB; `heavy` 500 x 375, 104 KB;
`large` 1600 x 1200, 540 KB; `index`: with a seek index ([input.md](input.md#seek-index));
`cold`: not in the page cache. FFCV could not be built: "records and threads" does the same with simplejpeg, OpenCV and
Numba. torchvision's images are decoded by Pillow. Each rival with its best number of workers (0, 2, 4 or 8)."""


# What grows: commands with members, ranks and runs, and what others measure in rows of the same form.
GROWTH = ("large_scale.json", "growth.json")
_GROWTH = """## How cost grows

Seconds by the clock at each size. The exponent is the slope of log seconds over log size between the two largest sizes,
each less the seconds of the smallest: 1 is linear, and a dash means that it is not known, as they take hardly longer
than the smallest. Commands should end within {seconds:g} s and {memory}. Memory is the peak at the largest size.
`benchmarks/large_scale.py` measures commands, and says how; `benchmarks/growth.py` measures threads, where perfect
scaling is -1, and ranks, whose work grows with their number."""


def _growth(results: Path) -> Iterator[str]:
    """A row for everything whose cost was measured at several sizes."""
    documents = [json.loads(path.read_text(encoding="utf-8")) for name in GROWTH if (path := results / name).is_file()]
    if not documents:
        return
    limits = next((one["limits"] for one in documents if "limits" in one), {"seconds": 60, "peak_bytes": 2**30})
    yield _GROWTH.format(seconds=limits["seconds"], memory=_memory(limits["peak_bytes"]))
    yield ""
    yield "| what | sizes | seconds | memory | exponent |"
    yield "|---|---|---|---|---|"
    for row in (row for document in documents for row in document["rows"]):
        sizes = ", ".join(f"{size:,}" for size in row["sizes"]) + f" {row['unit']}"
        seconds = ", ".join(f"{one:.3g}" for one in row["seconds"])
        memory = _memory(row["peak_bytes"][-1]) if "peak_bytes" in row else ""
        grows = "-" if row["exponent"] is None else f"{row['exponent']:.2f}"
        yield f"| {row['what']} | {sizes} | {seconds} | {memory} | {grows} |"
    yield ""


def _memory(count: int) -> str:
    return f"{count / 2**30:g} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def main(path: Path) -> None:
    """Write the page to `path`."""
    write_atomically(path, page(RESULTS).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
