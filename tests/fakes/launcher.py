"""A launcher whose jobs train nothing: each writes the record that a job with a certain fate would have left.

It stands for the engine where only what a campaign makes of its end is looked at; tests/cli/test_campaign_commands.py
has the real one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hpcai500 import train
from hpcai500.errors import ExitCode
from hpcai500.layers import Recipe
from hpcai500.methodology.result import derive
from hpcai500.recipe import load_recipe, recipe_hash, rulebook
from hpcai500.record import RecordWriter, read_record
from hpcai500.restarts import Restarts

NODE = {"host": "n0", "cpu": {"Model name": "Zen 4"}, "accelerators": [], "software": {"torch": "2.13.0"}}
TRAINED = {"samples": 100, "padded_samples": 0, "coverage": "all", "seconds": 1.0, "data_wait_seconds": 0.0}

Fate = Callable[[RecordWriter, Recipe], int]


class ActedLauncher:
    """Gives each job the next of `fates`; the words of each are kept."""

    is_local = True

    def __init__(self, *fates: Fate | None) -> None:
        self.size: int | None = None
        self.jobs: list[argparse.Namespace] = []
        self.checked: list[int] = []
        self._fates: Iterator[Fate | None] = iter(fates)

    def open(self) -> None:
        """Nothing to wait for."""

    def fit(self, name: str | Path, overrides: Sequence[str]) -> list[str]:
        """The recipe is as it is."""
        return []

    def check(self, recipe: Recipe, jobs: int) -> None:
        """Any number of runs will do."""
        self.checked.append(jobs)

    def run(
        self,
        recipe: Recipe,
        arguments: Sequence[str | Path],
        module: str = "train",
        patience: object = None,
        restarts: Restarts | None = None,
    ) -> int:
        """The job, as far as its record tells of it."""
        options = train._options([str(word) for word in arguments])
        self.jobs.append(options)
        fate = next(self._fates)
        if fate is None:
            return ExitCode.ENVIRONMENT
        if options.resume:
            return self._go_on(options, fate)
        own = load_recipe(options.recipe, options.set)
        with RecordWriter.create(options.out, own) as writer:
            told = {"recipe_hash": recipe_hash(own), "boot_id": "b", "process": 1, "campaign": options.campaign}
            writer.event("init_start", told)
            writer.write_system({"nodes": [NODE]})
            writer.event("dataset", {"coverage": "all", "root": str(options.data), "fingerprint": "f"})
            writer.event("flops", {"convention": "analytic", "per_sample": 1e9})
            return fate(writer, own)

    def end(self, code: int) -> None:
        """Nobody is left."""

    def _go_on(self, options: argparse.Namespace, fate: Fate) -> int:
        old = read_record(options.out)
        with RecordWriter.reopen(old) as writer:
            writer.event("init_start", old.events[0]["value"])
            writer.event("run_resume", {"epoch": 2, "step": 0, "world_size": 1, "nodes": 1, "backend": "local"})
            return fate(writer, old.recipe())


def _begin(writer: RecordWriter) -> None:
    writer.event("run_start", {"world_size": 1, "nodes": 1, "backend": "local", "library": None})


def _epoch(writer: RecordWriter, number: int) -> None:
    writer.event("epoch_stop", {"epoch": number, **TRAINED})
    writer.event("eval_accuracy", {"epoch": number, "metric": "top1", "value": 0.3 * number, "seconds": 0.1})
    writer.event("checkpoint", {"epoch": number + 1, "step": 0})


def finishes(writer: RecordWriter, recipe: Recipe) -> int:
    """Trains two epochs, those that are not done yet."""
    events = read_record(writer.path).events
    if not any(event["key"] == "run_start" for event in events):
        _begin(writer)
        _epoch(writer, 1)
    _epoch(writer, 2)
    writer.event("run_stop", {"status": "success"})
    record = read_record(writer.path)
    rules = rulebook(recipe.edition, recipe.benchmark)
    writer.finish(derive(record.tables, rules, record.events).as_json())
    return ExitCode.PASS


def is_killed_at_its_start(writer: RecordWriter, recipe: Recipe) -> int:
    """Before it began to train."""
    return ExitCode.RUN_FAILED


def is_killed(writer: RecordWriter, recipe: Recipe) -> int:
    """After its first epoch."""
    _begin(writer)
    _epoch(writer, 1)
    return ExitCode.RUN_FAILED


def is_stopped(writer: RecordWriter, recipe: Recipe) -> int:
    """After its first epoch, on request."""
    is_killed(writer, recipe)
    writer.event("interrupted", {"signal": "SIGTERM", "epoch": 2, "step": 0})
    writer.fail("stopped by SIGTERM")
    return ExitCode.RUN_FAILED


def loses_a_rank(writer: RecordWriter, recipe: Recipe) -> int:
    """After its first epoch."""
    is_killed(writer, recipe)
    writer.fail("rank 1 was lost")
    return ExitCode.RUN_FAILED


def loses_its_data(writer: RecordWriter, recipe: Recipe) -> int:
    """After the clock has started, before there is anything to go on with."""
    _begin(writer)
    writer.fail("a file cannot be read")
    return ExitCode.USAGE


def diverges(writer: RecordWriter, recipe: Recipe) -> int:
    """In its second epoch."""
    is_killed(writer, recipe)
    writer.event("diverged", {"epoch": 2, "step": 3, "rank": 0, "what": "the loss is nan"})
    writer.fail("the loss is nan")
    return ExitCode.RUN_FAILED


def is_interrupted_at_once(writer: RecordWriter, recipe: Recipe) -> int:
    """By a second Ctrl-C, which the job does not catch."""
    is_killed(writer, recipe)
    raise KeyboardInterrupt
