"""Complete campaigns that nobody ran: consistent in all that can be computed again, and false in every measurement.

For tests of what is done with campaigns, and of what verification can tell. `edit_record` and `edit_journal` change one
as a forger would who knows how records are chained.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builders.events import Clock, Story, begin, chained, train_epoch, write_story
from hpcai500 import __version__
from hpcai500.campaign.journal import JOURNAL, SCHEMA, Head, heads_of, read_campaign
from hpcai500.layers import Recipe
from hpcai500.methodology.energy import Window, window_of
from hpcai500.methodology.passes import target_checkpoint
from hpcai500.methodology.result import derive
from hpcai500.recipe import load_recipe, recipe_hash, rulebook, to_toml
from hpcai500.record import FIRST_PREVIOUS, Event, event_line, last_hash, line_hash, parse_events, read_record
from hpcai500.system.power_samples import Row, energy_of, file_name, format_samples, integral_entry, read_samples
from hpcai500.system.software import package_code_hash

# 16 accelerators on two nodes, mixed precision.
SYSTEM = (
    "accelerator.precision=bf16",
    "communication.backend=torch",
    "hardware.nodes=2",
    "hardware.accelerators_per_node=8",
)
# What such a system could do with each benchmark: batch of an accelerator, images a second, quality.
ABILITY = {"ic": (256, 40_000.0, 0.765), "ewa": (1, 600.0, 0.36)}
# Three epochs: never rankable, quickly written.
SHORT = ("problem.epochs=3", "hyperparameters.warmup_epochs=1")
_KEPT_CHECKPOINTS = 2


@dataclass(frozen=True)
class _Plan:
    """What all trials have in common."""

    folder: Path
    story: Story
    identity: str


def write_campaign(
    folder: Path,
    *settings: str,
    recipe: str = "ic/reference",
    trials: int = 12,
    quality: float | None = None,
    spread: float = 0.0015,
    failing: Collection[int] = (),
    done: int | None = None,
    idle_s: float = 0.0,
    **story: Any,
) -> Path:
    """A rankable campaign of the reference recipe on 16 made-up accelerators, made by nobody.

    Args:
        folder: where it goes.
        settings: as given to --set, after those of `SYSTEM`.
        recipe: name of the recipe.
        trials: how many runs are planned.
        quality: of the trial in the middle (a little more than the target).
        spread: most that a trial's quality differs from that.
        failing: trials whose first attempt ended by an error in its second epoch.
        done: how many trials were run (all).
        idle_s: seconds from the plan to the first run, beyond two minutes; a copy of a campaign differs in it.
        story: what else of `Story` is not its default: hosts, images_per_second, start_s, watts, dataset, …
    """
    batch, rate, usual = ABILITY[recipe.partition("/")[0]]
    resolved = load_recipe(recipe, [f"hyperparameters.batch_size={batch}", *SYSTEM, *settings])
    middle = usual if quality is None else quality
    hosts = tuple(f"node-{number}" for number in range(1, resolved.hardware.nodes + 1))
    first = Story(recipe=resolved, **{"hosts": hosts, "images_per_second": rate, **story})
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(to_toml(resolved), encoding="utf-8")
    journal = Clock(first.start_s - 600)
    journal.add("campaign_start", _start(resolved, trials, first.package_code))
    chained(journal.events)
    journal.wait(idle_s)
    plan = _Plan(folder, first, line_hash(event_line(journal.events[0])))
    for trial in range(1, (trials if done is None else done) + 1):
        # Neither in order of the trials nor at random.
        offset = spread * ((7 * trial) % 11 - 5) / 5
        if trial in failing:
            _attempt(plan, journal, trial, 1, middle + offset, fails=True)
        _attempt(plan, journal, trial, 2 if trial in failing else 1, middle + offset)
    (folder / JOURNAL).write_bytes(chained(journal.events))
    return folder


def edit_record(folder: Path, change: Callable[[list[Event]], object], *, rechain: bool = True) -> None:
    """Change the events of the record in `folder`, in place, as a clever forger would.

    Chain, DONE, system.json, result.json and the journal of the campaign around it are made to fit.

    Args:
        folder: of the record.
        change: gets all events and edits them; `seq` and `prev` are computed anew.
        rechain: whether the forger knows that; if not, only the lines of the log are changed.
    """
    if rechain:
        edit_records({folder: change})
        return
    events = _events(folder / "events.jsonl")
    change(events)
    (folder / "events.jsonl").write_bytes(b"".join(event_line(event) + b"\n" for event in events))


def edit_records(changes: Mapping[Path, Callable[[list[Event]], object]]) -> None:
    """As `edit_record`, of several records of one campaign."""
    for folder, change in changes.items():
        events = _events(folder / "events.jsonl")
        change(events)
        rewrite_record(folder, events)
    for campaign in {folder.parent for folder in changes}:
        if (campaign / JOURNAL).is_file():
            rechain_campaign(campaign)


def edit_journal(campaign: Path, change: Callable[[list[Event]], object]) -> None:
    """Change the events of a campaign's journal, and make it and all records fit again."""
    events = _events(campaign / JOURNAL)
    change(events)
    _write_journal(campaign, events)


def rechain_campaign(campaign: Path) -> None:
    """Make journal and records fit each other again: each names the hashes of the other."""
    _write_journal(campaign, _events(campaign / JOURNAL))


def rewrite_recipe(record: Path, *settings: str) -> None:
    """Change the recipe of a record, and the hash that its events have of it."""
    recipe = load_recipe(record / "recipe.toml", settings)
    (record / "recipe.toml").write_text(to_toml(recipe), encoding="utf-8")

    def name(events: list[Event]) -> None:
        for event in events:
            if event["key"] == "init_start":
                event["value"]["recipe_hash"] = recipe_hash(recipe)

    edit_record(record, name)


def values(events: Sequence[Event], key: str) -> list[dict[str, Any]]:
    """Values of the events named `key`, to be changed in place."""
    return [event["value"] for event in events if event["key"] == key]


def _start(recipe: Recipe, trials: int, package_code: str | None) -> dict[str, Any]:
    first = recipe.hyperparameters.seed
    return {
        "schema": SCHEMA,
        "benchmark": recipe.benchmark,
        "edition": recipe.edition,
        "recipe_hash": recipe_hash(recipe),
        "trials": [{"trial": number, "seed": first + number - 1} for number in range(1, trials + 1)],
        "data": f"/data/{recipe.problem.dataset}",
        "version": __version__,
        "code_sha256": package_code or package_code_hash(),
    }


def _attempt(plan: _Plan, journal: Clock, trial: int, attempt: int, quality: float, *, fails: bool = False) -> None:
    """One run, and what the journal tells of it."""
    name = f"trial-{trial:02d}" + (f"-attempt-{attempt}" if attempt > 1 else "")
    number = {"trial": trial, "attempt": attempt}
    command = ["srun", "python", "-m", "hpcai500.train", "--out", name]
    started = {**number, "record": name, "command": command, "launcher": "slurm", "slurm_job_id": str(1000 + trial)}
    journal.add("attempt_start", started, after=120.0)
    chained(journal.events)
    head = line_hash(event_line(journal.events[-1]))
    recipe = plan.story.recipe
    seed = recipe.hyperparameters.seed + trial - 1
    own = recipe.model_copy(update={"hyperparameters": recipe.hyperparameters.model_copy(update={"seed": seed})})
    story = replace(
        plan.story,
        recipe=own,
        quality=quality,
        start_s=journal.now_s + 5,
        campaign={"id": plan.identity, **number, "head": head},
    )
    record = plan.folder / name
    ended_s = _write_failed(record, story) if fails else _write_record(record, story)
    end = {"status": "failed", "exit_code": 1, "reason": "node-2 was lost"} if fails else {"status": "done"}
    told = {"exit_code": 0, "reason": None, **number, **end, "head": last_hash((record / "events.jsonl").read_bytes())}
    journal.add("attempt_stop", told, after=ended_s - journal.now_s + 3)


def _write_record(record: Path, story: Story) -> float:
    """A complete record; returns when it ended (UNIX seconds)."""
    clock = write_story(story)
    _write_files(record, story, story.recipe.problem.epochs, clock.events)
    if story.watts is not None:
        _measure_power(record, clock, story)
    rewrite_record(record, clock.events)
    return clock.now_s


def _write_failed(record: Path, story: Story) -> float:
    """The record of a run that lost a node in its second epoch; returns when it ended."""
    clock = Clock(story.start_s)
    begin(clock, story)
    train_epoch(clock, story, 1)
    clock.add("epoch_start", {"epoch": 2, "step": 0})
    clock.add("run_error", {"reason": "node-2 was lost"}, after=5.0)
    _write_files(record, story, 1, clock.events)
    (record / "ERROR").write_text("node-2 was lost\n", encoding="utf-8")
    rewrite_record(record, clock.events)
    return clock.now_s


def _write_files(record: Path, story: Story, last_epoch: int, events: Sequence[Event]) -> None:
    (record / "checkpoints").mkdir(parents=True)
    (record / "recipe.toml").write_text(to_toml(story.recipe), encoding="utf-8")
    at_target = target_checkpoint(events, story.recipe.problem.model_dump())
    kept = {*range(max(2, last_epoch + 2 - _KEPT_CHECKPOINTS), last_epoch + 2)}
    for epoch in sorted(kept | ({at_target["epoch"]} if at_target else set())):
        (record / "checkpoints" / f"epoch-{epoch:04d}-step-0000000.pt").write_bytes(story.checkpoint(epoch))


def _measure_power(record: Path, clock: Clock, story: Story) -> None:
    """Samples of each node, once a second, and what the event `power` tells of them."""
    watts, window = story.watts or 0.0, window_of(clock.events)
    zero = window.start_s - next(event["clock_s"] for event in clock.events if event["key"] == "run_start")
    (record / "power").mkdir()
    for host in story.hosts:
        moments = [window.start_s - 1 + second for second in range(int(window.seconds) + 3)]
        rows = [Row(moment - zero, moment, watts + (number % 7 - 3)) for number, moment in enumerate(moments)]
        (record / file_name(host)).write_bytes(format_samples((), rows))
    clock.events[-1]["value"] = {
        "nodes": [power_entry(record, host, window) for host in story.hosts],
        "reason": None,
        "note": None,
    }


def power_entry(record: Path, host: str, window: Window) -> dict[str, Any]:
    """What the event `power` tells of one node, from its file of samples."""
    content = (record / file_name(host)).read_bytes()
    entry = {
        "host": host, "covers": [host], "source": "nvml", "scope": "device", "interval_seconds": 1.0,
        "seconds": window.seconds, "clock_offset_seconds": 0.0, "failures": 0, "failure": None, "bad_rows": 0,
        "cpu_seconds": 1.5, "file": file_name(host), "sha256": hashlib.sha256(content).hexdigest(), "note": None,
    }  # fmt: skip
    return {**entry, **integral_entry(energy_of(read_samples(record / file_name(host)), entry, window))}


def rewrite_record(record: Path, events: list[Event]) -> None:
    """Log, system, result and DONE of `events`; what cannot be derived any more stays as it was."""
    content = chained(events)
    (record / "events.jsonl").write_bytes(content)
    _write_json(record / "system.json", values(events, "system")[-1])
    if (record / "ERROR").exists():
        return
    (record / "DONE").write_text(last_hash(content) + "\n", encoding="utf-8")
    with contextlib.suppress(Exception):  # a forger does not mind
        _write_json(record / "result.json", derived(record))


def derived(record: Path) -> Mapping[str, Any]:
    """What the events of a record give as `result.json`."""
    read = read_record(record)
    return derive(read.tables, rulebook(read.tables["edition"], read.tables["benchmark"]), read.events).as_json()


def _write_journal(campaign: Path, events: list[Event]) -> None:
    """The journal, with the hashes of the records as they are, which get those of the journal as it becomes."""
    previous, identity = FIRST_PREVIOUS, ""
    for number, event in enumerate(events):
        value = event["value"]
        if event["key"] == "attempt_stop":
            record = _record_of(campaign, events, value)
            value["head"] = last_hash((record / "events.jsonl").read_bytes()) if record else value["head"]
        event["seq"], event["prev"] = number, previous
        previous = line_hash(event_line(event))
        identity = identity or previous
        if event["key"] == "attempt_start" and (campaign / value["record"] / "events.jsonl").is_file():
            told = {"id": identity, "trial": value["trial"], "attempt": value["attempt"], "head": previous}
            _rename(campaign / value["record"], told)
    (campaign / JOURNAL).write_bytes(b"".join(event_line(event) + b"\n" for event in events))


def _record_of(campaign: Path, events: Sequence[Event], value: Mapping[str, Any]) -> Path | None:
    number = (value["trial"], value["attempt"])
    starts = (start for start in values(events, "attempt_start") if (start["trial"], start["attempt"]) == number)
    folder = next((campaign / start["record"] for start in starts), None)
    return folder if folder and (folder / "events.jsonl").is_file() else None


def _rename(record: Path, told: Mapping[str, Any]) -> None:
    """Let a record say that it is the run of this journal line."""
    events = _events(record / "events.jsonl")
    starts = values(events, "init_start")
    if all(start["campaign"] == told for start in starts):
        return
    for start in starts:
        start["campaign"] = dict(told)
    rewrite_record(record, events)


def sum_steps(events: list[Event], epochs: list[Event]) -> None:
    """Let each rank's sums over its steps be those of `epochs`, events of the last process."""
    done = values(epochs, "epoch_stop")
    for told in values(events, "steps"):
        for rank in told["ranks"]:
            for name in ("seconds", "data_wait_seconds", "compute_seconds", "communication_wait_seconds"):
                rank[name] = sum(value[name] for value in done)


def heads_given(campaign: Path, after_s: float = 5.0) -> dict[Head, int]:
    """The heads of the campaign in this folder, as if each was received so long after its line was written."""
    read = read_campaign(campaign)
    return {
        head: event["time_ms"] + round(1000 * after_s)
        for head, event in zip(heads_of(read), read.events[1:], strict=True)
    }


def write_heads(path: Path, heads: Mapping[Head, int]) -> Path:
    """A committee's file of heads; it has whole seconds."""
    moments = {
        head: datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for head, ms in heads.items()
    }
    path.write_text("".join(f"{head} {moment}\n" for head, moment in moments.items()), encoding="utf-8")
    return path


def copy_campaign(campaign: Path, folder: Path) -> Path:
    """A copy, to be edited."""
    shutil.copytree(campaign, folder)
    return folder


def _events(path: Path) -> list[Event]:
    return parse_events(path.read_bytes(), str(path))[0]


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
