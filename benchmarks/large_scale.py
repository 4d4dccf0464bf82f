"""What commands cost as ensembles, campaigns and runs grow: `python benchmarks/large_scale.py [--quick] [--json FILE]`.

Ensembles of 10 to 10,000 members are planned by the command; then each member gets a journal and a record with
predictions, all chained and as real as one that the tests' builders make (`tests/builders/`), from which the others
differ in number, seed, draws and host. A record of a run on up to 8,192 ranks is such a run of 90 epochs; each of its
nodes is described like this machine (`hpcai500 system`), with eight accelerators. What is
measured is the command in a process of its own: seconds by the clock (the median of three calls, or one call where that
takes long), and the peak of its memory or of the process that it starts, whichever is larger. Of `status --follow` it
is one look at members that all run, where programs that print what squeue and sacct would print stand for Slurm
(`tests/fakes/slurm.py`), and memory is what the looks have added.

The exponent says how seconds grow with size: the slope of log seconds over log size between the two largest sizes, each
less the seconds of the smallest, which are those of starting. 1 is linear. It is not known where the two largest sizes
take hardly longer than the smallest.

Every command should end within 60 s and 1 GiB; rows beyond say `TOO MUCH`, and the exit code is 1. A campaign has at
most 300 runs (`results/verification/context.py`), so that verification of more is not measured.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "ensemble")]

import numpy as np  # noqa: E402
from builders.campaigns import SHORT, edit_record, write_campaign  # noqa: E402 - the tests' builders
from builders.ensembles import Made, write_member  # noqa: E402
from fakes.slurm import MadeCluster, MadeSlurm, plan, submit_arrays  # noqa: E402

from hpcai500.campaign.journal import JOURNAL, RECIPE  # noqa: E402
from hpcai500.ensemble.journal import Ensemble, append, read_ensemble  # noqa: E402
from hpcai500.ensemble.members import Memory  # noqa: E402
from hpcai500.ensemble.slurm import SlurmScheduler  # noqa: E402
from hpcai500.ensemble.status import status_of  # noqa: E402
from hpcai500.launch.slurm.site import Site  # noqa: E402
from hpcai500.methodology.sampling import drawn_digest, drawn_facts, draws  # noqa: E402
from hpcai500.recipe import tables_hash  # noqa: E402
from hpcai500.record import FIRST_PREVIOUS, Event, event_line, line_hash, parse_events  # noqa: E402
from hpcai500.results.submission.pack import SubmitRequest, pack  # noqa: E402
from hpcai500.run_progress import PROGRESS, Progress  # noqa: E402
from hpcai500.workloads.voting import write_arrays  # noqa: E402

COMMAND = str(Path(sys.executable).with_name("hpcai500"))
MEMBERS, RANKS, RUNS = (10, 100, 1000, 10_000), (8, 64, 512, 8192), (10, 30, 100, 300)
MOST_SECONDS, MOST_BYTES = 60.0, 2**30
_REPEAT_WITHIN_SECONDS, _HARDLY = 3.0, 0.05
# Of the made-up data set: the vote's own cost per sample is not the subject.
_TRAINING, _EVALUATION, _CLASSES, _CORRECT = 640, 20, 10, 14
_EPOCH_SECONDS, _INTERVAL_SECONDS, _LOOKS = 600.0, 10.0, 5
# Calls a command from a small process: a large one that forks would count its own memory as the command's.
_MEASURE = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
ended = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
seconds = time.perf_counter() - start
peak = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(json.dumps([seconds, peak, ended.returncode, ended.stderr[-2000:]]))
"""


@dataclass(frozen=True)
class Cost:
    """Of one command at one size."""

    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class Row:
    """One command; seconds by the clock."""

    what: str
    unit: str
    sizes: list[int]
    seconds: list[float]
    peak_bytes: list[int]
    exponent: float | None

    @property
    def is_too_much(self) -> bool:
        return max(self.seconds) > MOST_SECONDS or max(self.peak_bytes) > MOST_BYTES


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float | None:
    """How seconds grow with size; None for fewer than three sizes, and where they hardly grow."""
    if len(sizes) < 3:
        return None
    before, last = (one - seconds[0] for one in seconds[-2:])
    if before < _HARDLY * seconds[0] or last < _HARDLY * seconds[0]:
        return None
    return math.log(last / before) / math.log(sizes[-1] / sizes[-2])


def call(*arguments: str | Path, codes: Sequence[int] = (0,), times: int = 3) -> Cost:
    """The cost of a command, which must end with one of `codes`."""
    found: list[Cost] = []
    command = [sys.executable, "-I", "-c", _MEASURE, COMMAND, *arguments]
    while len(found) < times and sum(one.seconds for one in found) < _REPEAT_WITHIN_SECONDS:
        ended = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True)
        seconds, peak, code, said = json.loads(ended.stdout)
        if code not in codes:
            raise SystemExit(f"hpcai500 {' '.join(map(str, arguments))} ended with {code}:\n{said}")
        found.append(Cost(seconds, peak))
    return Cost(statistics.median(one.seconds for one in found), max(one.peak_bytes for one in found))


# ----------------------------------------------------------------------------------------------------
# Ensembles.


def of_ensemble(members: int, folder: Path) -> dict[str, Cost]:
    """Costs of an ensemble's commands, each member done."""
    path, settings = folder / "e", []
    for setting in (
        *("problem.epochs=2", "hyperparameters.warmup_epochs=1", "hyperparameters.batch_size=8"),
        *("problem.target_quality=0.7", "ensemble.out_of_bag_samples=0", "communication.backend=torch"),
    ):
        settings += ["--set", setting]
    options = ("--members", str(members), "--degree", "8", "--node-accelerators", "8", "--data", folder, *settings)
    costs = {"ensemble plan": call("ensemble", "plan", path, "--recipe", "ic/ensemble", *options, times=1)}
    fill(read_ensemble(path))
    costs["ensemble status"] = call("ensemble", "status", path)
    costs["ensemble collect"] = call("ensemble", "collect", path)
    document = json.loads((path / "result.json").read_text(encoding="utf-8"))
    if not document["complete"] or document["members_done"] != members:
        raise SystemExit(f"{path}: not all members counted: {document['missing'][:3]}")
    costs["ensemble status --follow, a look"] = look(members, folder)
    return costs


def fill(ensemble: Ensemble) -> None:
    """Journals and records of all members, as if each had run on a host of its own."""
    local = {"scheduler": "local", "jobs": ["1"], "members": list(ensemble.members), "at_once": None, "exclude": []}
    ensemble = append(ensemble, "submit", local)
    data = {"training_samples": _TRAINING, "evaluation_samples": _EVALUATION, "classes": _CLASSES}
    record = write_member(ensemble, 0, Made(quality=_CORRECT / _EVALUATION, predicts=False, dataset=data))
    (record / "predictions").mkdir()
    with (record / "predictions" / "evaluation.npz").open("wb") as stream:
        write_arrays(stream, predictions())
    edit_record(record, lambda events: events.append(predicted(record, events[-1])))
    first = MadeOnce(ensemble, record)
    for member in ensemble.members[1:]:
        first.copy(member)


def predictions() -> dict[str, Any]:
    """Logits that give the right class to `_CORRECT` samples."""
    labels = np.arange(_EVALUATION) % _CLASSES
    chosen = np.where(np.arange(_EVALUATION) < _CORRECT, labels, (labels + 1) % _CLASSES)
    logits = np.eye(_CLASSES, dtype=np.float32)[chosen]
    return {"samples": np.arange(_EVALUATION), "labels": labels, "logits": logits}


def predicted(record: Path, last: Event) -> Event:
    """The event of that file, after the `last` one."""
    file = "predictions/evaluation.npz"
    sha256 = hashlib.sha256((record / file).read_bytes()).hexdigest()
    value = {"kind": "evaluation", "file": file, "sha256": sha256, "samples": _EVALUATION}
    return {**last, "key": "predictions", "value": value}


class MadeOnce:
    """Member 0, whose files become those of others: another number, seed, draws and host, and new hashes."""

    def __init__(self, ensemble: Ensemble, record: Path) -> None:
        self._ensemble, self._folder = ensemble, record.parent
        self._journal, _ = parse_events((self._folder / JOURNAL).read_bytes(), JOURNAL)
        self._events, _ = parse_events((record / "events.jsonl").read_bytes(), "events.jsonl")
        self._texts = {name: (record / name).read_text(encoding="utf-8") for name in ("system.json", "result.json")}
        self._recipe = (record / RECIPE).read_text(encoding="utf-8")
        self._votes = (record / "predictions" / "evaluation.npz").read_bytes()
        self._name, self._progress = record.name, Progress()
        self._progress.fold(self._events)

    def copy(self, member: int) -> None:
        """Write the files of this member."""
        seed, hyper = self._ensemble.seed(member), self._ensemble.tables["hyperparameters"]
        recipe_hash = tables_hash({**self._ensemble.tables, "hyperparameters": {**hyper, "seed": seed}})
        recipe = self._recipe.replace(f"\nseed = {self._ensemble.seed(0)}\n", f"\nseed = {seed}\n")
        folder = self._ensemble.folder(member)
        record = folder / self._name
        (record / "predictions").mkdir(parents=True)
        journal = Chain()
        start, begun, stopped = self._journal
        plan_of = {**start["value"]["ensemble"], "member": member}
        trials = [{"trial": 1, "seed": seed}]
        journal.add(start, {**start["value"], "recipe_hash": recipe_hash, "ensemble": plan_of, "trials": trials})
        identity = journal.head
        journal.add(begun, begun["value"])
        log = Chain()
        campaign = {"id": identity, "trial": 1, "attempt": 1, "head": journal.head}
        for event in self._events_of(seed, recipe_hash, campaign):
            log.add(event, event["value"], lambda line: self._moved(line, member))
        journal.add(stopped, {**stopped["value"], "head": log.head})
        (folder / RECIPE).write_text(recipe, encoding="utf-8")
        (folder / JOURNAL).write_bytes(journal.content)
        (record / RECIPE).write_text(recipe, encoding="utf-8")
        (record / "events.jsonl").write_bytes(log.content)
        progress = self._progress.model_copy(update={"campaign": campaign}).model_dump_json(by_alias=True)
        for name, text in {**self._texts, PROGRESS: progress}.items():
            (record / name).write_bytes(self._moved(text.encode(), member))
        (record / "predictions" / "evaluation.npz").write_bytes(self._votes)
        (record / "DONE").write_text(log.head + "\n", encoding="utf-8")

    def _events_of(self, seed: int, recipe_hash: str, campaign: dict[str, Any]) -> Iterator[Event]:
        """The events with what the seed determines."""
        drawn = draws(_TRAINING, seed, "bootstrap")
        facts, digest = drawn_facts(drawn, _TRAINING, "bootstrap"), drawn_digest(drawn)
        for event in self._events:
            value = event["value"]
            match event["key"]:
                case "init_start":
                    value = {**value, "recipe_hash": recipe_hash, "campaign": campaign}
                case "dataset":
                    drawn_there = {**value["drawn"], "distinct": facts.distinct, "share": facts.share}
                    value = {**value, "drawn": drawn_there, "coverage": digest}
                case "epoch_stop":
                    value = {**value, "coverage": digest}
            yield {**event, "value": value}

    def _moved(self, content: bytes, member: int) -> bytes:
        return content.replace(b'"node-0"', f'"node-{member}"'.encode())


class Chain:
    """A log that is written anew."""

    def __init__(self) -> None:
        self.content, self.head = b"", FIRST_PREVIOUS

    def add(self, event: Event, value: Any, change: Callable[[bytes], bytes] = bytes) -> None:
        line = change(event_line({**event, "prev": self.head, "value": value}))
        self.content += line + b"\n"
        self.head = line_hash(line)


def look(members: int, folder: Path) -> Cost:
    """A look of `status --follow`: asking Slurm, reading records, the rows, and their text of 100 columns."""
    ensemble = plan(folder / "f", members, epochs=90)
    cluster = MadeCluster(ensemble, members, _EPOCH_SECONDS, submit=submit_arrays)
    # A few are done, whom squeue has forgotten: accounting is asked as well.
    for member in range(0, members, 100):
        cluster.finish(member)
    slurm = MadeSlurm(folder / "bin")
    slurm.tell(cluster.states)
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=watch, args=(there, folder / "f", slurm.environment["PATH"]))
    process.start()
    found: list[Cost] = []
    for _ in range(_LOOKS):
        cluster.advance(_INTERVAL_SECONDS)
        here.send(cluster.now_s)
        found.append(Cost(*here.recv()))
    here.send(0.0)
    process.join()
    return Cost(statistics.median(one.seconds for one in found), max(one.peak_bytes for one in found))


def watch(connection: Connection, folder: Path, path: str) -> None:
    """Look whenever the other side says which moment it is, and send seconds and the memory that looks have added."""
    ensemble, now_s = read_ensemble(folder), 0.0
    scheduler, memory = SlurmScheduler(Site(), {"PATH": path}), Memory(clock=lambda: now_s)
    before = resident_bytes()
    while now_s := connection.recv():
        start = time.perf_counter()
        jobs = scheduler.jobs(ensemble)
        status = status_of(ensemble, jobs, memory, [memory.poll(ensemble, jobs)])
        list(status.lines(100))
        connection.send((time.perf_counter() - start, resident_bytes() - before))


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ----------------------------------------------------------------------------------------------------
# Records and campaigns.


def of_record(ranks: int, folder: Path) -> dict[str, Cost]:
    """Costs of the commands that read the record of a run on so many ranks, eight on a node."""
    settings = (f"hardware.nodes={ranks // 8}", "hyperparameters.batch_size=16")
    record = write_campaign(folder / "campaign", *settings, trials=1) / "trial-01"
    edit_record(record, describe)
    return {
        "score": call("score", record),
        "report": call("report", record, "-o", folder / "page.html"),
        "timeline": call("timeline", record),
        "verify": call("verify", packed(folder)),
    }


@cache
def this_node() -> dict[str, Any]:
    """What the job writes about this machine."""
    said = subprocess.run([COMMAND, "system", "--json"], capture_output=True, text=True, check=True).stdout
    node: dict[str, Any] = json.loads(said)["nodes"][0]
    return node


def describe(events: list[Event]) -> None:
    """Give each node a description of real length."""
    for event in events:
        if event["key"] == "system":
            event["value"]["nodes"] = [{**this_node(), **known(node)} for node in event["value"]["nodes"]]


def known(node: dict[str, Any]) -> dict[str, Any]:
    """What the builder says about a node."""
    return {key: value for key, value in node.items() if value is not None}


def of_campaign(runs: int, folder: Path) -> dict[str, Cost]:
    """Costs of a campaign's commands, each run done and of three epochs."""
    write_campaign(folder / "campaign", *SHORT, trials=runs)
    return {
        "campaign status": call("campaign", "status", folder / "campaign"),
        "verify": call("verify", packed(folder)),
    }


def packed(folder: Path) -> Path:
    """The signed submission of the campaign in `folder`."""
    key = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    return pack(SubmitRequest(folder / "campaign", folder / "s.zip", "System", "A made-up one", key=key)).path


# ----------------------------------------------------------------------------------------------------
# All of them.


SUBJECTS = (("members", MEMBERS, of_ensemble), ("ranks", RANKS, of_record), ("runs", RUNS, of_campaign))


def measure(*, quick: bool) -> Iterator[Row]:
    """A row for each command; `quick` takes sizes up to 100."""
    for unit, sizes, costs_of in SUBJECTS:
        taken = [size for size in sizes if not quick or size <= (100 if unit != "runs" else 10)]
        found: list[dict[str, Cost]] = []
        for size in taken:
            print(f"{size} {unit}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                found.append(costs_of(size, Path(folder)))
        for what in found[0]:
            costs = [one[what] for one in found]
            seconds = [round(cost.seconds, 4) for cost in costs]
            yield Row(what, unit, taken, seconds, [cost.peak_bytes for cost in costs], exponent(taken, seconds))


def line(row: Row) -> str:
    """One row, as it is printed."""
    parts = [f"{size}: {s:.2f} s {b / 2**20:.0f} MiB" for size, s, b in
             zip(row.sizes, row.seconds, row.peak_bytes, strict=True)]  # fmt: skip
    grows = "unknown" if row.exponent is None else f"{row.exponent:.2f}"
    return f"{row.what:33} {row.unit:8} {', '.join(parts)}; exponent {grows}{'  TOO MUCH' * row.is_too_much}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a command takes too long or too much memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="sizes up to 100: checks that all of it runs")
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    options = parser.parse_args(arguments)
    rows = []
    for row in measure(quick=options.quick):
        rows.append(row)
        print(line(row), flush=True)
    if options.json:
        machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
        limits = {"seconds": MOST_SECONDS, "peak_bytes": MOST_BYTES}
        document = {"machine": machine, "limits": limits, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return int(any(row.is_too_much for row in rows))


if __name__ == "__main__":
    sys.exit(main())
