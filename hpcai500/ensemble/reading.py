"""What an ensemble planned and where its parts are.

    ENSEMBLE/
        recipe.toml          resolved, of member 0
        plan.toml            which member runs where, for people
        ensemble.jsonl       the journal: events in a chain, as a record's
        members/00000/       a campaign of one trial each (`campaign.reading`): all attempts at member 0
        slurm/               scripts and their output
        vote.json            what the members say together (`engine.vote_command`)
        result.json          what the ensemble amounts to
        DONE                 hash of the journal's last line, written last

Keys of the journal, with their values:

    ensemble_start   {schema, benchmark, edition, recipe_hash, members, degree, scale, per_node, first_seed,
                      plan_sha256, data, stage, version, code_sha256,
                      [plugin: {name, package, version, code_sha256}]}
    submit           {scheduler: slurm|local, jobs: [id], members: [number], at_once, exclude: [host],
                      [after: id|null]}
    cancel           {jobs: [id]}
    collect          {status: complete|incomplete, missing: [number], heads: {number: head}, vote_sha256, result_sha256}

Each member's journal begins with `campaign_start`, which carries {ensemble: {id, member}} with this journal's identity:
no member can be made to fit another ensemble later. Only those who plan, submit, cancel and collect write here: ten
thousand members that begin at once share no file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from hpcai500.campaign.reading import Campaign, is_campaign, read_campaign
from hpcai500.chain import Event, last_hash, line_hash, parse_events
from hpcai500.ensemble.plan import Shape
from hpcai500.errors import RecordError, UsageError
from hpcai500.layers import Recipe
from hpcai500.recipe import parse_resolved, tables_hash
from hpcai500.toml_source import parse_toml

SCHEMA = "hpcai500-ensemble-1"
JOURNAL = "ensemble.jsonl"
RECIPE = "recipe.toml"
PLAN = "plan.toml"
VOTE = "vote.json"
RESULT = "result.json"
DONE = "DONE"
# In a member's folder, of whoever runs it: what it printed, and how its jobs failed.
OUTPUT = "output.txt"
FAILURES = "failures.jsonl"
_MEMBERS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


@dataclass(frozen=True)
class Ensemble:
    """An ensemble as it lies on disk, the chain of its journal checked.

    Attributes:
        path: its folder.
        identity: hash of the journal's first line: the plan's.
        head: hash of the journal's last line.
        tables: the recipe of member 0, as plain tables.
        start: value of `ensemble_start`.
        shape: members, and accelerators of each.
        events: the journal.
    """

    path: Path
    identity: str
    head: str
    tables: Mapping[str, Any]
    start: Mapping[str, Any]
    shape: Shape
    events: tuple[Event, ...] = field(repr=False)

    @property
    def members(self) -> range:
        """Numbers of the members."""
        return range(self.shape.members)

    @property
    def data(self) -> Path:
        """Folder of the data set."""
        return Path(self.start["data"])

    @property
    def stage(self) -> str | None:
        """Folder of each node where members' samples are staged, as the node's shell shall read it; None: nowhere."""
        stage = self.start["stage"]
        return None if stage is None else str(stage)

    def seed(self, member: int) -> int:
        """Of a member's weights, draws and order."""
        return int(self.start["first_seed"]) + member

    def folder(self, member: int) -> Path:
        """Where a member's campaign lies, or will lie."""
        return self.path / "members" / f"{member:05d}"

    def campaign(self, member: int) -> Campaign | None:
        """A member's campaign; None where it has not begun.

        Raises:
            RecordError: it cannot be read, or belongs to another plan.
        """
        folder = self.folder(member)
        if not is_campaign(folder):
            return None
        campaign = read_campaign(folder)
        if campaign.start.get("ensemble") != {"id": self.identity, "member": member}:
            raise RecordError(
                f"{folder}: not member {member} of this ensemble: its journal names another plan; move that folder "
                "away, and the member is run anew"
            )
        return campaign

    def recipe(self) -> Recipe:
        """The recipe of member 0, validated.

        Raises:
            RecipeError: this version of hpcai500 cannot run it.
        """
        path = self.path / RECIPE
        return parse_resolved(path.read_text(encoding="utf-8"), str(path))


def is_ensemble(folder: Path) -> bool:
    """Whether `folder` holds an ensemble."""
    return (folder / JOURNAL).is_file()


def read_ensemble(folder: Path) -> Ensemble:
    """Read the ensemble in `folder`.

    Raises:
        RecordError: it is none, its journal is broken, or its recipe or plan is not the one that the journal names.
    """
    path = folder / JOURNAL
    try:
        content, recipe, plan = (file.read_bytes() for file in (path, folder / RECIPE, folder / PLAN))
    except FileNotFoundError as error:
        raise RecordError(
            f"{folder}: not an ensemble: {Path(str(error.filename)).name} is missing; plan one: hpcai500 ensemble plan "
            f"{shlex.quote(str(folder))} --recipe NAME --members M"
        ) from error
    except OSError as error:
        raise RecordError(f"{error.filename}: cannot be read: {error.strerror}") from error
    tables = parse_toml(recipe, str(folder / RECIPE), RecordError)
    # A line that a crash cut off told nothing that anyone has acted on.
    whole = content[: content.rfind(b"\n") + 1]
    events, _ = parse_events(whole, str(path))
    if not events or events[0]["key"] != "ensemble_start":
        raise RecordError(f"{path}:1: expected the event ensemble_start first")
    try:
        start = events[0]["value"]
        if start["schema"] != SCHEMA:
            raise RecordError(f"{path}: expected the schema {SCHEMA}, got {start['schema']!r}")
        if start["recipe_hash"] != tables_hash(tables):
            raise RecordError(f"{folder / RECIPE}: not the recipe that the ensemble was planned with: its hash differs")
        if start["plan_sha256"] != sha256(plan).hexdigest():
            raise RecordError(
                f"{folder / PLAN}: was changed; it tells what was planned, and a change of it does nothing: "
                "restore it, or plan another ensemble in another folder"
            )
        shape = Shape(*(int(start[key]) for key in ("members", "degree", "per_node")))
        if min(shape.members, shape.degree, shape.per_node) < 1:
            raise ValueError(f"no ensemble has {shape.members} members of {shape.degree} on nodes of {shape.per_node}")
        str(start["data"]), int(start["first_seed"]), start["stage"]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RecordError(f"{path}: an event lacks something: {type(error).__name__} {error}") from error
    first = whole[: whole.index(b"\n")]
    return Ensemble(folder, line_hash(first), last_hash(whole), tables, start, shape, tuple(events))


def parse_members(text: str, ensemble: Ensemble) -> list[int]:
    """The members that `text` names: `3`, `0-7`, `1,4-6`.

    Raises:
        UsageError: it names something else, or members that the ensemble does not have.
    """
    found: set[int] = set()
    for word in text.split(","):
        match = _MEMBERS.fullmatch(word.strip())
        if match is None:
            raise UsageError(f"--member {text}: expected numbers, as in 3, 0-7 or 1,4-6")
        numbers = range(int(match[1]), int(match[2] or match[1]) + 1)
        if not numbers or numbers[-1] >= ensemble.shape.members:
            raise UsageError(f"--member {text}: {ensemble.path} has the members 0 to {ensemble.shape.members - 1}")
        found.update(numbers)
    return sorted(found)
