"""The events of a run that nobody made: told as a story, stopped and gone on with, or added one by one."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from hpcai500 import __version__
from hpcai500.layers import Recipe
from hpcai500.methodology.events import Log, read_log
from hpcai500.methodology.result import derive
from hpcai500.methodology.sampling import Coverage
from hpcai500.recipe import load_recipe, recipe_hash, rulebook
from hpcai500.record import FIRST_PREVIOUS, Event, event_line, line_hash
from hpcai500.system.software import version_document

# The first node was started at this moment (UNIX seconds).
STARTED_S = 1_716_800_000.0
BOOT = "5f0c1c1e-6b0d-4d3a-9a53-0d5f1f6b2a11"
_PARTS = ("data_wait_seconds", "compute_seconds", "communication_wait_seconds")
# Of an all-reduce, in the event `communication`.
STAGE = {"mean_seconds": 0.002, "median_seconds": 0.001, "p95_seconds": 0.004}
STAGES: dict[str, Any] = {
    "negotiation": None, "wait_for_data": STAGE, "wait_for_other_data": STAGE, "queuing": STAGE, "memcpy_in": STAGE,
    "all_reduce": STAGE, "memcpy_out": STAGE,
}  # fmt: skip
# Facts of the reference data sets and models: what `data check` and `hpcai500 flops` print for them.
DATASETS: dict[str, dict[str, Any]] = {
    "ic": {"training_samples": 1_281_167, "evaluation_samples": 50_000, "classes": 1000},
    "ewa": {
        "training_samples": 13_140,
        "evaluation_samples": 1460,
        "classes": 4,
        "grid": [768, 1152],
        "images_per_window": 1,
    },
}
MODELS = {"ic": 25_557_032, "ewa": 41_408_424}
FLOPS = {"ic": (24_299_077_632.0, 8_178_368_512.0), "ewa": (1_070_099_509_248.0, 364_098_588_672.0)}
WEATHER = ("tropical depression", "tropical cyclone", "extratropical cyclone", "atmospheric river")


@dataclass(frozen=True)
class Story:
    """What a made-up run is told to have been.

    Attributes:
        recipe: what it followed.
        hosts: its nodes; the recipe says how many accelerators each has.
        images_per_second: rate of its training steps.
        quality: after the last epoch; put on the grid that the evaluation samples give.
        start_s: when its process began (UNIX seconds).
        accelerator: name of each device.
        rank_flops: ceiling of one rank (FLOPS).
        watts: mean power of a node; None where nothing was measured.
        campaign: value of `init_start.campaign`.
        dataset: changes of the data set's facts.
        package_code: code hash of the software that ran.
    """

    recipe: Recipe
    hosts: Sequence[str]
    images_per_second: float
    quality: float = 0.0
    start_s: float = 1_717_405_200.0
    accelerator: str = "NVIDIA H100 80GB HBM3"
    rank_flops: float = 6.0e14
    watts: float | None = None
    campaign: Mapping[str, Any] | None = None
    dataset: Mapping[str, Any] = field(default_factory=dict)
    package_code: str | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The event `dataset`."""
        facts = {
            "root": f"/data/{self.recipe.problem.dataset}",
            "fingerprint": _sha256(f"files of {self.recipe.problem.dataset}"),
            "content_fingerprint": _sha256(f"content of {self.recipe.problem.dataset}"),
            **DATASETS[self.recipe.benchmark],
            "synthetic": False,
            "classes_not_evaluated": [],
            **self.dataset,
        }
        return {**facts, "coverage": _coverage(facts["training_samples"])}

    @property
    def steps(self) -> int:
        """Updates of an epoch."""
        return -(-int(self.facts["training_samples"]) // self.recipe.global_batch)

    def checkpoint(self, epoch: int) -> bytes:
        """Stands for the checkpoint that the run would go on from at `epoch`."""
        return f"stands for weights, seed {self.recipe.hyperparameters.seed}, epoch {epoch}\n".encode() * 8


class Clock:
    """A log whose clock the story moves; the machine was started long before."""

    def __init__(self, start_s: float) -> None:
        self.events: list[Event] = []
        self._start_s, self._elapsed_s = start_s, 0.0

    def add(self, key: str, value: Any = None, after: float = 0.0003) -> None:
        """One event, so many seconds after the one before it."""
        self._elapsed_s += after
        self.events.append(
            {
                "prev": "",
                "seq": len(self.events),
                "time_ms": round((self._start_s + self._elapsed_s) * 1000),
                "clock_s": round(self._start_s - STARTED_S + self._elapsed_s, 6),
                "key": key,
                "value": value,
            }
        )

    def wait(self, seconds: float) -> None:
        """Nothing happens for so long."""
        self._elapsed_s += seconds

    @property
    def now_s(self) -> float:
        """UNIX seconds of the last event."""
        return self._start_s + self._elapsed_s


def write_story(story: Story) -> Clock:
    """The events of a whole run, from its first one to `power` (which is for the caller to fill in), unchained."""
    clock = Clock(story.start_s)
    begin(clock, story)
    sums = {"seconds": 0.0, **dict.fromkeys(_PARTS, 0.0)}
    for epoch in range(1, story.recipe.problem.epochs + 1):
        done = train_epoch(clock, story, epoch)
        sums = {name: total + done[name] for name, total in sums.items()}
    clock.add("run_stop", {"status": "success"})
    conclude(clock, story, sums)
    return clock


def begin(clock: Clock, story: Story) -> None:
    """From `init_start` to `run_start`."""
    recipe, ranks = story.recipe, story.recipe.world_size
    clock.add("init_start", {
        "benchmark": recipe.benchmark, "edition": recipe.edition, "recipe_hash": recipe_hash(recipe),
        "version": __version__, "process": 4711, "boot_id": BOOT, "campaign": story.campaign,
        "launch": {
            "process_seconds": 8.0, "scheduler": True, "job_submitted_s": None, "job_started_s": None,
            "alive_ms": None, "pause_seconds": None,
        },
    })  # fmt: skip
    clock.add("system", system_of(story), after=2.0)
    if len(story.hosts) > 1:
        clock.add("system_differences", {"differences": []})
    clock.add("dataset", story.facts, after=11.0)
    clock.add("model", {"parameters": MODELS[recipe.benchmark], "steps_per_epoch": story.steps}, after=3.0)
    per_sample, forward = FLOPS[recipe.benchmark]
    clock.add("flops", {"convention": "analytic", "per_sample": per_sample, "forward": forward})
    clock.add("ceilings", {
        "precision": recipe.accelerator.precision, "side": 4096, "flops": story.rank_flops * ranks,
        "slowest_flops": story.rank_flops * 0.99, "slowest_host": story.hosts[-1], "ranks": ranks, "spread": 0.02,
        "waited": None, "seconds": 0.9,
    }, after=1.0)  # fmt: skip
    if ranks > 1:
        step = 0.99 * recipe.global_batch / story.images_per_second
        clock.add("rehearsal", {"bucket_bytes": 26214400, "step_seconds_by_bucket_bytes": {"26214400": step}}, after=9)
        clock.add("parallel_efficiency", {
            "step_seconds_alone": 0.94 * step, "step_seconds": step, "efficiencies": [0.94, 0.938, 0.942, 0.94, 0.941],
        })  # fmt: skip
    clock.add("init_stop", {"seconds": 27.0, "compile_seconds": 3.1})
    clock.add("run_start", {
        "world_size": ranks, "nodes": recipe.hardware.nodes, "hosts": list(story.hosts),
        "backend": recipe.communication.backend, "library": "NCCL 2.29.2" if ranks > 1 else "none",
    })  # fmt: skip


def train_epoch(clock: Clock, story: Story, epoch: int) -> dict[str, Any]:
    """From `epoch_start` to `checkpoint`; returns the value of `epoch_stop`."""
    recipe, facts = story.recipe, story.facts
    chance = random.Random(f"{recipe.hyperparameters.seed} {epoch}")
    trained = story.steps * recipe.global_batch
    seconds = trained / story.images_per_second * chance.uniform(0.995, 1.005)
    parts = {"data_wait_seconds": 0.01, "compute_seconds": 0.93, "communication_wait_seconds": 0.05}
    done = {
        "steps": story.steps, "samples": facts["training_samples"],
        "padded_samples": trained - facts["training_samples"], "warnings": 0, "indexed_samples": 0,
        "loss": 1.9 + 5.0 * 0.95**epoch * chance.uniform(0.99, 1.01), "seconds": round(seconds, 6),
        **{name: round(seconds * share, 6) for name, share in parts.items()}, "coverage": facts["coverage"],
    }  # fmt: skip
    clock.add("epoch_start", {"epoch": epoch, "step": 0})
    clock.add("epoch_stop", {"epoch": epoch, **done}, after=seconds + 0.004)
    digest = _sha256(f"{recipe.hyperparameters.seed} {epoch}")[:16] if recipe.world_size > 1 else None
    clock.add("replicas", {"epoch": epoch, "ranks": recipe.world_size, "digest": digest}, after=0.05)
    clock.add("eval_start", {"epoch": epoch})
    clock.add("eval_accuracy", evaluation(story, epoch, chance), after=_evaluation_seconds(story) + 0.001)
    clock.add("eval_stop", {"epoch": epoch})
    content = story.checkpoint(epoch + 1)
    clock.add("checkpoint", {
        "epoch": epoch + 1, "step": 0, "file": f"epoch-{epoch + 1:04d}-step-0000000.pt",
        "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content),
    }, after=0.8)  # fmt: skip
    return done


def evaluation(story: Story, epoch: int, chance: random.Random) -> dict[str, Any]:
    """The value of `eval_accuracy`."""
    problem, samples = story.recipe.problem, story.facts["evaluation_samples"]
    is_last = epoch == problem.epochs
    value = story.quality if is_last else story.quality * (1 - 0.8 * 0.94**epoch) * chance.uniform(0.98, 1.0)
    told = {"epoch": epoch, "metric": problem.metric, "value": round(value * samples) / samples, "samples": samples}
    if problem.metric == "map50":
        told["per_class"] = dict.fromkeys(WEATHER, told["value"])
    return {**told, "seconds": round(_evaluation_seconds(story), 6)}


def conclude(clock: Clock, story: Story, sums: Mapping[str, float]) -> None:
    """From `steps` to `power`."""
    recipe, ranks = story.recipe, story.recipe.world_size
    hosts = [host for host in story.hosts for _ in range(recipe.hardware.accelerators_per_node)]
    steps = story.steps * recipe.problem.epochs
    times = {name: round(total, 6) for name, total in sums.items()}
    other = round(times["seconds"] - sum(times[part] for part in _PARTS), 6)
    rows = [{"rank": n, "host": host, "steps": steps, **times, "other_seconds": other} for n, host in enumerate(hosts)]
    clock.add("steps", {"ranks": rows})
    if ranks > 1:
        clock.add("communication", _costs(hosts, steps, sums, 4.0 * MODELS[recipe.benchmark]), after=0.1)
    clock.add("power", {"nodes": [], "reason": "not measured (--power none)", "note": None}, after=0.1)


def system_of(story: Story) -> dict[str, Any]:
    """The content of `system.json`."""
    recipe = story.recipe
    device = {"name": story.accelerator, "memory_bytes": 85_520_809_984, "multiprocessors": 132}
    document = _versions()
    if story.package_code:
        document = {**document, "package": {**document["package"], "code_sha256": story.package_code}}
    nodes = [
        {
            "schema": "hpcai500-node-1", "host": host, "cpu": {"Model name": "AMD EPYC 9654 96-Core Processor"},
            "processor": {"model": "AMD EPYC 9654 96-Core Processor", "vendor": "AuthenticAMD", "architecture":
                          "x86_64", "sockets": 2, "cores_per_socket": 96, "threads_per_core": 1, "cores": 192,
                          "threads": 192},
            "memory": {"total_bytes": 1_622_000_000_000, "swap_bytes": 0, "limit_bytes": None},
            "devices": None, "network": [], "infiniband": [], "disks": [], "cores_available": 192,
            "memory_bytes": 1_622_000_000_000, "kernel": "5.14.0-503.el9.x86_64",
            "operating_system": "Rocky Linux 9.5 (Blue Onyx)", "python": "3.11.7",
            "software": {"hpcai500": __version__, "torch": "2.13.0", "cuda": "13.0", "cudnn": 91300, "nccl": "2.29.2"},
            "container": None, "environment": {}, "preloaded": [], "command": ["python", "-m", "hpcai500.train"],
            "accelerators": [
                {**device, "uuid": f"GPU-{_sha256(f'{host} {number}')[:32]}"}
                for number in range(recipe.hardware.accelerators_per_node)
            ],
            "absent": [], "slow_seconds": {}, "raw": None,
        }
        for host in story.hosts
    ]  # fmt: skip
    return {"nodes": nodes, "installation": document}


def chained(events: Iterable[Event]) -> bytes:
    """The log of `events`: numbered anew, each with the hash of the line before it."""
    lines: list[bytes] = []
    for number, event in enumerate(events):
        event["seq"] = number
        event["prev"] = line_hash(lines[-1]) if lines else FIRST_PREVIOUS
        lines.append(event_line(event))
    return b"".join(line + b"\n" for line in lines)


def _evaluation_seconds(story: Story) -> float:
    return float(story.facts["evaluation_samples"]) / (2.5 * story.images_per_second)


def _costs(hosts: Sequence[str], steps: int, sums: Mapping[str, float], size: float) -> dict[str, Any]:
    row = {
        "steps": steps, "step_seconds": sums["seconds"] / steps,
        "data_wait_seconds": sums["data_wait_seconds"] / steps, "compute_seconds": sums["compute_seconds"] / steps,
        "communication_wait_seconds": sums["communication_wait_seconds"] / steps,
        "own_seconds": sums["compute_seconds"] / steps, "all_reduce_seconds": 0.01, "sent_bytes": 1.875 * size,
        "straggler": False,
    }  # fmt: skip
    return {
        "steps": steps, "all_reduces": 4 * steps, "overlap": 0.75,
        "bytes_per_step": {"gradient": size, "sent": 1.875 * size},
        "stages": STAGES,
        "buckets": [], "ranks": [{"rank": rank, "host": host, **row} for rank, host in enumerate(hosts)],
        "stragglers": [], "network": None,
    }  # fmt: skip


@cache
def _coverage(samples: int) -> str:
    return Coverage.expected(samples).digest


@cache
def _versions() -> dict[str, Any]:
    return version_document(None, None)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# ----------------------------------------------------------------------------------------------------
TWO_RANKS = (
    "problem.epochs=3",
    "hyperparameters.warmup_epochs=1",
    "hyperparameters.batch_size=2048",
    "communication.backend=torch",
    "hardware.nodes=2",
)


def three_epochs(**changes: Any) -> Story:
    """A run of three epochs on two ranks."""
    facts = {"hosts": ("node-1", "node-2"), "images_per_second": 40_000.0, "quality": 0.7, **changes}
    return Story(recipe=load_recipe("ic/reference", TWO_RANKS), **facts)


def uninterrupted() -> list[Event]:
    """Its events, in one go."""
    return write_story(three_epochs()).events


def interrupted(*, boot: str = BOOT, down_seconds: float = 300.0) -> list[Event]:
    """Stopped by a signal at step 100 of epoch 2, and gone on with, perhaps after another start of the machine."""
    told, clock = three_epochs(), Clock(three_epochs().start_s)
    begin(clock, told)
    train_epoch(clock, told, 1)
    clock.add("epoch_start", {"epoch": 2, "step": 0})
    spent = {"seconds": 9.9, "data_wait_seconds": 0.1, "compute_seconds": 9.3, "communication_wait_seconds": 0.5}
    clock.add("interrupted", {"signal": "SIGTERM", "epoch": 2, "step": 100, **spent}, after=10.0)
    saved = {"epoch": 2, "step": 100, "file": "epoch-0002-step-0000100.pt", "sha256": "0" * 64, "bytes": 8}
    clock.add("checkpoint", saved, after=0.8)
    clock.add("run_error", {"reason": "stopped by SIGTERM"})
    first = len(clock.events)
    clock.add("init_start", None, after=down_seconds)
    clock.events.pop()
    begin(clock, told)
    clock.events[first]["value"]["boot_id"] = boot
    started = clock.events[-1]
    started["key"], started["value"] = (
        "run_resume",
        {**started["value"], "epoch": 2, "step": 100, "after": "SIGTERM", "torn_bytes": 0},
    )
    sums = dict.fromkeys(("data_wait_seconds", "compute_seconds", "communication_wait_seconds"), 0.0)
    sums["seconds"] = 30.0
    for epoch in (2, 3):
        place = len(clock.events)
        done = train_epoch(clock, told, epoch)
        if epoch == 2:
            clock.events[place]["value"]["step"] = 100
            clock.events[place + 1]["value"]["seconds"] = done["seconds"] + 10.0
    clock.add("run_stop", {"status": "success"})
    conclude(clock, told, sums)
    for event in clock.events:
        if event["key"] in ("steps", "communication"):
            for part in (event["value"], *event["value"]["ranks"]):
                part["steps"] = 2 * told.steps - 100
    if boot != BOOT:
        for event in clock.events[first:]:
            event["clock_s"] -= 600_000.0
    for number, event in enumerate(clock.events):
        event["seq"] = number
    return clock.events


def with_last(events: list[Event], key: str, **changes: Any) -> list[Event]:
    """Events of which the last one named `key` says something else."""
    last = [event for event in events if event["key"] == key][-1]
    last["value"] = {**last["value"], **changes}
    return events


def log_of(events: list[Event]) -> Log:
    """The log of events, numbered anew."""
    return read_log([{**event, "seq": number} for number, event in enumerate(events)])


# ----------------------------------------------------------------------------------------------------
IMAGENET = 1_281_167
COVERAGE = "1281167-abc"
# The reference on eight accelerators, in global batches of 1024.
STEPS, PADDED = 1252, 881


def tables(*settings: str) -> dict[str, Any]:
    """The recipe of these runs, changed by `settings` as given to --set."""
    ranks = ("communication.backend=torch", "hardware.accelerators_per_node=8")
    return load_recipe("ic/reference", [*ranks, *settings]).model_dump(mode="json")


class EventLog:
    """Builds the events of a run whose clock the test moves."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.wall_s = 1000.0
        self.clock_s = 5.0
        self.boot = "first boot"
        self.ranks = 8

    def after(self, seconds: float) -> EventLog:
        self.wall_s += seconds
        self.clock_s += seconds
        return self

    def add(self, key: str, value: Any = None) -> EventLog:
        time_ms = round(self.wall_s * 1000)
        event = {"seq": len(self.events), "time_ms": time_ms, "clock_s": self.clock_s, "key": key, "value": value}
        self.events.append(event)
        if key in ("run_start", "run_resume"):
            self.ranks = value.get("world_size", self.ranks)
        return self

    def initialise(self, *, accelerator: str = "H200", **dataset: Any) -> EventLog:
        facts = {"training_samples": IMAGENET, "evaluation_samples": 50_000, "classes": 1000, "coverage": COVERAGE}
        facts["fingerprint"] = "f" * 64
        node = {"cpu": None, "accelerators": [{"name": accelerator}], "software": {"torch": "2.13.0"}}
        self.add("init_start", {"boot_id": self.boot}).add("system", {"nodes": [node]}).add("dataset", facts | dataset)
        return self.add("flops", {"convention": "analytic", "per_sample": 24.3e9})

    def start(self) -> EventLog:
        return self.add("run_start", {"world_size": 8, "nodes": 1})

    def epoch(self, number: int, quality: float = 0.763, seconds: float = 100.0, **changes: Any) -> EventLog:
        done = {
            "epoch": number, "steps": STEPS, "samples": IMAGENET, "padded_samples": PADDED, "coverage": COVERAGE,
        }  # fmt: skip
        times = {"seconds": 0.8 * seconds, "data_wait_seconds": 0.2 * seconds}
        self.add("epoch_start", {"epoch": number}).after(0.8 * seconds)
        self.add("epoch_stop", {**done, **times, **changes})
        self.add("replicas", {"epoch": number, "ranks": self.ranks, "digest": f"{number:016x}"}).after(0.2 * seconds)
        said = {"epoch": number, "metric": "top1", "value": quality, "samples": 50_000, "seconds": 0.2 * seconds}
        return self.add("eval_accuracy", said)

    def restart(self, down_seconds: float, epoch: int, *, reboot: bool = True, **changes: Any) -> EventLog:
        self.wall_s += down_seconds
        self.clock_s += down_seconds
        if reboot:
            self.clock_s, self.boot = 3.0, "another boot"
        return self.initialise(**changes).after(10).add("run_resume", {"epoch": epoch, "step": 0})

    def without(self, key: str, epoch: int | None = None) -> EventLog:
        kept = [one for one in self.events if one["key"] != key or (epoch and one["value"]["epoch"] != epoch)]
        self.events = [{**event, "seq": number} for number, event in enumerate(kept)]
        return self

    def result(self, recipe: dict[str, Any] | None = None, convention: str = "analytic") -> Any:
        return derive(recipe or tables(), rulebook("v2.0", "ic"), self.events, convention)


def complete(quality: float = 0.763, **changes: Any) -> EventLog:
    log = EventLog().initialise().start()
    for number in range(1, 91):
        log.epoch(number, quality if number == 90 else 0.5, **changes)
    return log.add("run_stop")


def restarted(down_seconds: float, **how: Any) -> EventLog:
    log = EventLog().initialise().start()
    for number in range(1, 46):
        log.epoch(number)
    log.restart(down_seconds, epoch=46, **how)
    for number in range(46, 91):
        log.epoch(number)
    return log.add("run_stop")
