"""Events of a made-up run, whole or stopped and gone on with, for what reads logs."""

from __future__ import annotations

from typing import Any

from written_run import BOOT, Clock, Story, begin, conclude, train_epoch, write_story

from hpcai500.methodology.events import Log, read_log
from hpcai500.recipe import load_recipe
from hpcai500.record import Event

SETTINGS = (
    "problem.epochs=3",
    "hyperparameters.warmup_epochs=1",
    "hyperparameters.batch_size=2048",
    "communication.backend=torch",
    "hardware.nodes=2",
)


def story(**changes: Any) -> Story:
    """A run of three epochs on two ranks."""
    facts = {"hosts": ("node-1", "node-2"), "images_per_second": 40_000.0, "quality": 0.7, **changes}
    return Story(recipe=load_recipe("ic/reference", SETTINGS), **facts)


def whole() -> list[Event]:
    """Its events, in one go."""
    return write_story(story()).events


def interrupted(*, boot: str = BOOT, down_seconds: float = 300.0) -> list[Event]:
    """Stopped by a signal at step 100 of epoch 2, and gone on with, perhaps after another start of the machine."""
    told, clock = story(), Clock(story().start_s)
    begin(clock, told)
    train_epoch(clock, told, 1)
    clock.add("epoch_start", {"epoch": 2, "step": 0})
    clock.add("interrupted", {"signal": "SIGTERM", "epoch": 2, "step": 100}, after=10.0)
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


def read(events: list[Event]) -> Log:
    """The log of events, numbered anew."""
    return read_log([{**event, "seq": number} for number, event in enumerate(events)])
