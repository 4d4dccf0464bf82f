"""Writes a campaign: the plan before the first run, then a line for all that is begun and all that ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpcai500 import __version__
from hpcai500.campaign.reading import JOURNAL, RECIPE, SCHEMA, Campaign, is_campaign, read_campaign
from hpcai500.campaign.turns import NO_LOCKS
from hpcai500.chain import FIRST_PREVIOUS, event_line, last_hash, new_event
from hpcai500.errors import RecordError
from hpcai500.files import write_atomically
from hpcai500.layers import Recipe
from hpcai500.plugins.code import plugin_facts
from hpcai500.recipe import recipe_hash, to_toml
from hpcai500.system.versions import package_code_hash


def create_campaign(
    folder: Path,
    recipe: Recipe,
    trials: int,
    data: Path | None,
    ensemble: Mapping[str, Any] | None = None,
    beside: Collection[str] = (),
) -> Campaign:
    """Fix a new campaign in the folder `folder`, which must be empty or absent: its recipe, its runs and their seeds.

    Trial k has the recipe's seed plus k - 1.

    Args:
        folder: where it lies; its runs come into it.
        recipe: resolved, with the seed of the first trial.
        trials: how many runs.
        data: folder of the data set; None where it is made for each run.
        ensemble: {id, member} where it holds the attempts at a member of one (`ensemble.reading`).
        beside: names of what may be in the folder already, besides hidden files: locks, and what a crash has left.

    Raises:
        RecordError: the folder is not empty or cannot be written.
    """
    first = recipe.model_dump(mode="json")["hyperparameters"]["seed"]
    value = {
        "schema": SCHEMA,
        "benchmark": recipe.benchmark,
        "edition": recipe.edition,
        "recipe_hash": recipe_hash(recipe),
        "trials": [{"trial": number, "seed": first + number - 1} for number in range(1, trials + 1)],
        "data": str(data.absolute()) if data else None,
        "version": __version__,
        "code_sha256": package_code_hash(),
        **({"plugin": plugin} if (plugin := plugin_facts(recipe.benchmark)) else {}),
        **({"ensemble": dict(ensemble)} if ensemble else {}),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if is_campaign(folder):
            raise RecordError(
                f"{folder}: holds a campaign already: go on with it by `hpcai500 campaign run {folder}`, or give "
                "another folder"
            )
        if any(not entry.name.startswith(".") and entry.name not in beside for entry in folder.iterdir()):
            raise RecordError(f"{folder}: not empty; give another folder: a campaign is fixed before its first run")
        write_atomically(folder / RECIPE, to_toml(recipe).encode())
        line = event_line(new_event(FIRST_PREVIOUS, 0, "campaign_start", value))
        write_atomically(folder / JOURNAL, line + b"\n")
    except OSError as error:
        raise RecordError(f"{folder}: cannot be written: {error.strerror}; mend it, or give another folder") from error
    return read_campaign(folder)


def append(folder: Path, key: str, value: Mapping[str, Any]) -> Campaign:
    """Add one event to the journal of the campaign in `folder`, on disk when this returns; returns it as it is then.

    Raises:
        RecordError: there is no campaign, or its journal cannot be written.
    """
    append_line(folder / JOURNAL, key, value)
    return read_campaign(folder)


def append_line(path: Path, key: str, value: Mapping[str, Any]) -> None:
    """Add one event to the chained journal `path`, on disk when this returns; what a crash cut off there is removed.

    Raises:
        RecordError: it is missing, or cannot be written.
    """
    try:
        with path.open("r+b") as stream, _alone(stream.fileno()):
            content = stream.read()
            whole = content[: content.rfind(b"\n") + 1]
            event = new_event(last_hash(whole), whole.count(b"\n"), key, value)
            stream.truncate(len(whole))
            stream.seek(len(whole))
            stream.write(event_line(event) + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise RecordError(f"{path}: cannot be written: {error.strerror}; mend it, then go on") from error


@contextmanager
def _alone(descriptor: int) -> Iterator[None]:
    """Two writers at once would fork the chain. Where the file system has no locks, as for records, we go without."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    yield
