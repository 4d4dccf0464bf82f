"""Restarts that look again for luck: a run goes back over epochs that were evaluated, and the bad ones are lost."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from builders.campaigns import edit_journal, edit_record, sum_steps, values
from builders.forgeries import Bundle, Forgery
from builders.forgeries.campaigns import account, fit_power
from builders.forgeries.records import place, shifted
from hpcai500.record import Event, read_record

Change = Callable[[dict[str, Any]], object]


def gone_back(events: list[Event], killed: int, epoch: int, world: Change = lambda started: None) -> None:
    """A run that is killed after the evaluation of the epoch `killed`, and goes on at the beginning of `epoch`.

    Args:
        events: of a whole run; edited.
        killed: its last epoch whose evaluation is told.
        epoch: that is trained again.
        world: changes who goes on.
    """
    head = copy.deepcopy(events[: place(events, "run_start") + 1])
    thrown = copy.deepcopy(events[place(events, "epoch_start", epoch) : place(events, "eval_stop", killed) + 1])
    before, rest = events[: place(events, "epoch_start", epoch)], events[place(events, "epoch_start", epoch) :]
    for value in values(thrown, "eval_accuracy"):
        value["value"] = (round(value["value"] * value["samples"]) - 200) / value["samples"]
    for value in values(thrown, "epoch_stop"):
        value["loss"] *= 1.001
    for value in (*values(thrown, "replicas"), *values(thrown, "checkpoint")):
        name = "digest" if "digest" in value else "sha256"
        value[name] = value[name][::-1]
    resumed = head[-1]
    resumed["key"], resumed["value"] = (
        "run_resume",
        {**resumed["value"], "epoch": epoch, "step": 0, "after": "a kill", "torn_bytes": 0},
    )
    world(resumed["value"])
    shifted(head, 0, thrown[-1]["clock_s"] + 60 - head[0]["clock_s"])
    shifted(rest, 0, head[-1]["clock_s"] + 0.0003 - rest[0]["clock_s"])
    resumptions = [number for number, event in enumerate(rest) if event["key"] == "run_resume"]
    last = rest[max(resumptions, default=0) :]
    trained = sum(value["steps"] for value in values(last, "epoch_stop"))
    for told in (*values(rest, "steps"), *values(rest, "communication")):
        for part in (told, *told["ranks"]):
            part["steps"] = trained
    sum_steps(rest, last)
    events[:] = [*before, *thrown, *head, *rest]
    for number, event in enumerate(events):
        event["seq"] = number


def go_back(campaign: Path, record: Path, change: Callable[[list[Event]], object], *, is_told: bool = True) -> None:
    """Change the last record of a campaign by restarts, of which the journal tells, too, where `is_told`."""
    edit_record(record, change)
    read = read_record(record)
    resumptions = sum(event["key"] == "run_resume" for event in read.events) if is_told else 0

    def tell(events: list[Event]) -> None:
        start = [event for event in events if event["key"] == "attempt_start"][-1]
        stop = events.pop()
        again = {**start, "key": "attempt_resume", "value": dict(start["value"])}
        del again["value"]["record"]
        events += [copy.deepcopy(again) for _ in range(resumptions)]
        late = (read.events[-1]["time_ms"] - stop["time_ms"]) / 1000 + 3
        shifted([stop], 0, late)
        events.append(stop)

    edit_journal(campaign, tell)


def forged(*ways: tuple[int, int], is_told: bool = True) -> Callable[[Bundle], None]:
    """Trial 3 goes back as `gone_back` says, as often as there are `ways`; the journal tells it where `is_told`."""

    def forge(bundle: Bundle) -> None:
        def change(events: list[Event]) -> None:
            for killed, epoch in ways:
                gone_back(events, killed, epoch)
            fit_power(bundle.record(3))(events)

        go_back(bundle.campaign, bundle.record(3), change, is_told=is_told)
        events = bundle.read(3).events
        account(bundle.folder / "accounting" / "1003.json", events[0]["time_ms"], events[-1]["time_ms"])

    return forge


FORGERIES = (
    Forgery("bad-epochs-thrown-away", forged((3, 2)), "trained-again", "warning"),
    Forgery("bad-epochs-thrown-away-one-by-one", forged((3, 3), (2, 2)), "trained-again", "warning"),
)
