"""Events of a run whose clock the test moves, and what they amount to."""

from __future__ import annotations

from typing import Any

from hpcai500.methodology.result import derive
from hpcai500.recipe import load_recipe, rulebook

IMAGENET = 1_281_167
COVERAGE = "1281167-abc"
# The reference on eight accelerators, in global batches of 1024.
STEPS, PADDED = 1252, 881


def tables(*settings: str) -> dict[str, Any]:
    """The recipe of these runs, changed by `settings` as given to --set."""
    ranks = ("communication.backend=torch", "hardware.accelerators_per_node=8")
    return load_recipe("ic/reference", [*ranks, *settings]).model_dump(mode="json")


class Log:
    """Builds the events of a run whose clock the test moves."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.wall_s = 1000.0
        self.clock_s = 5.0
        self.boot = "first boot"
        self.ranks = 8

    def after(self, seconds: float) -> Log:
        self.wall_s += seconds
        self.clock_s += seconds
        return self

    def add(self, key: str, value: Any = None) -> Log:
        time_ms = round(self.wall_s * 1000)
        event = {"seq": len(self.events), "time_ms": time_ms, "clock_s": self.clock_s, "key": key, "value": value}
        self.events.append(event)
        if key in ("run_start", "run_resume"):
            self.ranks = value.get("world_size", self.ranks)
        return self

    def initialise(self, *, accelerator: str = "H200", **dataset: Any) -> Log:
        facts = {"training_samples": IMAGENET, "evaluation_samples": 50_000, "classes": 1000, "coverage": COVERAGE}
        facts["fingerprint"] = "f" * 64
        node = {"cpu": None, "accelerators": [{"name": accelerator}], "software": {"torch": "2.13.0"}}
        self.add("init_start", {"boot_id": self.boot}).add("system", {"nodes": [node]}).add("dataset", facts | dataset)
        return self.add("flops", {"convention": "analytic", "per_sample": 24.3e9})

    def start(self) -> Log:
        return self.add("run_start", {"world_size": 8, "nodes": 1})

    def epoch(self, number: int, quality: float = 0.763, seconds: float = 100.0, **changes: Any) -> Log:
        done = {
            "epoch": number, "steps": STEPS, "samples": IMAGENET, "padded_samples": PADDED, "coverage": COVERAGE,
        }  # fmt: skip
        times = {"seconds": 0.8 * seconds, "data_wait_seconds": 0.2 * seconds}
        self.add("epoch_start", {"epoch": number}).after(0.8 * seconds)
        self.add("epoch_stop", {**done, **times, **changes})
        self.add("replicas", {"epoch": number, "ranks": self.ranks, "digest": f"{number:016x}"}).after(0.2 * seconds)
        said = {"epoch": number, "metric": "top1", "value": quality, "samples": 50_000, "seconds": 0.2 * seconds}
        return self.add("eval_accuracy", said)

    def restart(self, down_seconds: float, epoch: int, *, reboot: bool = True, **changes: Any) -> Log:
        self.wall_s += down_seconds
        self.clock_s += down_seconds
        if reboot:
            self.clock_s, self.boot = 3.0, "another boot"
        return self.initialise(**changes).after(10).add("run_resume", {"epoch": epoch, "step": 0})

    def result(self, recipe: dict[str, Any] | None = None, convention: str = "analytic") -> Any:
        return derive(recipe or tables(), rulebook("v2.0", "ic"), self.events, convention)


def complete(quality: float = 0.763, **changes: Any) -> Log:
    log = Log().initialise().start()
    for number in range(1, 91):
        log.epoch(number, quality if number == 90 else 0.5, **changes)
    return log.add("run_stop")


def restarted(down_seconds: float, **how: Any) -> Log:
    log = Log().initialise().start()
    for number in range(1, 46):
        log.epoch(number)
    log.restart(down_seconds, epoch=46, **how)
    for number in range(46, 91):
        log.epoch(number)
    return log.add("run_stop")
