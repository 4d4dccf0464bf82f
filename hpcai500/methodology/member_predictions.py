"""What a member of an ensemble leaves for the vote: files of its predictions, and the events that vouch for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

EVALUATION, OUT_OF_BAG = "evaluation", "out-of-bag"
FOLDER = "predictions"
# What is drawn whole leaves nothing out of the bag.
_WHOLE = "all"


def file_of(kind: str) -> str:
    """Where predictions of this kind lie in a record."""
    return f"{FOLDER}/{kind}.npz"


def expected_kinds(recipe: Mapping[str, Any]) -> tuple[str, ...]:
    """Which predictions a run of the recipe (as plain tables) leaves: none, where it is that of one model."""
    options = recipe.get("ensemble")
    if options is None:
        return ()
    judges_itself = options["out_of_bag_samples"] > 0 and options["sampling"] != _WHOLE
    return (EVALUATION, OUT_OF_BAG) if judges_itself else (EVALUATION,)


def vouched(events: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Value of the last event `predictions` of each kind: a file that was found damaged may have been made again."""
    return {event["value"]["kind"]: event["value"] for event in events if event["key"] == "predictions"}
