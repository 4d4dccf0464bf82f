"""The journal of an ensemble: its plan, fixed before the first member, and what was submitted, cancelled, collected.

Only the commands that plan, submit, cancel and collect write it. Members do not, so ten thousand that start at once
share no file.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import tomli_w

from hpcai500 import __version__
from hpcai500.campaign.journal import Campaign, append_line, create_campaign, is_campaign, read_campaign
from hpcai500.ensemble.mapping import MemberPlace, Shape
from hpcai500.errors import RecordError, UsageError
from hpcai500.files import why_not, write_atomically
from hpcai500.layers import Recipe
from hpcai500.plugins import plugin_facts
from hpcai500.recipe import parse_resolved, read_resolved, recipe_hash, tables_hash, to_toml
from hpcai500.record import FIRST_PREVIOUS, Event, event_line, last_hash, line_hash, new_event, parse_journal
from hpcai500.system.software import package_code_hash
from hpcai500.toml_source import parse_toml

# ----------------------------------------------------------------------------------------------------
# The files of an ensemble.
#
#     ENSEMBLE/
#         recipe.toml          resolved, of member 0
#         plan.toml            which member runs where, for people
#         ensemble.jsonl       the journal: events in a chain, as a record's
#         members/00000/       a campaign of one trial each (`campaign.journal`): all attempts at member 0
#         slurm/               scripts and their output
#         vote.json            the vote of the members (`engine.vote`)
#         result.json          the result of the ensemble
#         DONE                 hash of the journal's last line, written last
#
# Keys of the journal, with their values:
#
#     ensemble_start   {schema, benchmark, edition, recipe_hash, members, degree, scale, per_node, first_seed,
#                       plan_sha256, data, stage, version, code_sha256,
#                       [plugin: {name, package, version, code_sha256}]}
#     submit           {scheduler: slurm|local, jobs: [id], members: [number], at_once, exclude: [host],
#                       [after: id|null]}
#     cancel           {jobs: [id]}
#     collect          {status: complete|incomplete, missing: [number], heads: {number: head}, vote_sha256,
#                       result_sha256}
#
# Each member's journal begins with `campaign_start`, which has {ensemble: {id, member}} with this journal's identity,
# so a member cannot be moved to another ensemble later.


SCHEMA = "hpcai500-ensemble-1"
JOURNAL = "ensemble.jsonl"
RECIPE = "recipe.toml"
PLAN = "plan.toml"
VOTE = "vote.json"
RESULT = "result.json"
DONE = "DONE"
# In a member's folder, written by the process that runs it: its output, and how its jobs failed.
OUTPUT = "output.txt"
FAILURES = "failures.jsonl"
_MEMBERS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


@dataclass(frozen=True)
class Ensemble:
    """An ensemble on disk; the hash chain of its journal was checked.

    Attributes:
        identity: hash of the journal's first line, the plan.
        head: hash of the journal's last line.
        tables: the recipe of member 0, as plain tables.
        start: value of `ensemble_start`.
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
        return range(self.shape.members)

    @property
    def data(self) -> Path:
        """Folder of the data set."""
        return Path(self.start["data"])

    @property
    def stage(self) -> str | None:
        """Folder on each node for copies of samples, may have shell variables; None: nothing is staged."""
        stage = self.start["stage"]
        return None if stage is None else str(stage)

    def seed(self, member: int) -> int:
        """Seed of a member's weights, draws and order."""
        return int(self.start["first_seed"]) + member

    def folder(self, member: int) -> Path:
        """Where a member's campaign is, or will be."""
        return self.path / "members" / f"{member:05d}"

    def campaign(self, member: int) -> Campaign | None:
        """A member's campaign; None if it has not begun.

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
                "away to run the member again"
            )
        return campaign

    def recipe(self) -> Recipe:
        """The recipe of member 0, validated.

        Raises:
            RecipeError: this version of hpcai500 cannot run it.
        """
        return read_resolved(self.path / RECIPE)


def is_ensemble(folder: Path) -> bool:
    return (folder / JOURNAL).is_file()


def read_ensemble(folder: Path) -> Ensemble:
    """Read the ensemble in `folder`.

    Raises:
        RecordError: there is none, its journal is broken, or its recipe or plan is not the one that the journal names.
    """
    path = folder / JOURNAL
    planned_by = f"plan one: hpcai500 ensemble plan {shlex.quote(str(folder))} --recipe NAME --members M"
    if why := why_not("folder", folder):
        raise RecordError(f"{folder}: {why}; give the folder of an ensemble, or {planned_by}")
    try:
        content, recipe, plan = (file.read_bytes() for file in (path, folder / RECIPE, folder / PLAN))
    except FileNotFoundError as error:
        raise RecordError(
            f"{folder}: not an ensemble: {Path(str(error.filename)).name} is missing; {planned_by}"
        ) from error
    except OSError as error:
        raise RecordError(f"{error.filename}: cannot be read: {error.strerror}") from error
    tables = parse_toml(recipe, str(folder / RECIPE), RecordError)
    whole, events = parse_journal(content, str(path), "ensemble_start")
    try:
        start = events[0]["value"]
        if start["schema"] != SCHEMA:
            raise RecordError(f"{path}: expected the schema {SCHEMA}, got {start['schema']!r}")
        if start["recipe_hash"] != tables_hash(tables):
            raise RecordError(f"{folder / RECIPE}: not the recipe that the ensemble was planned with: its hash differs")
        if start["plan_sha256"] != sha256(plan).hexdigest():
            raise RecordError(
                f"{folder / PLAN}: was changed after planning, which has no effect: restore it, or plan another "
                "ensemble in another folder"
            )
        shape = Shape(*(int(start[key]) for key in ("members", "degree", "per_node")))
        if min(shape.members, shape.degree, shape.per_node) < 1:
            raise ValueError(f"no ensemble has {shape.members} members of {shape.degree} on nodes of {shape.per_node}")
        str(start["data"]), int(start["first_seed"]), start["stage"]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RecordError(f"{path}: an event is malformed: {type(error).__name__} {error}") from error
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


# ----------------------------------------------------------------------------------------------------
# Writing the plan, the journal and the members' campaigns.


_HEADER = """\
# Which member of the ensemble runs where (V3.0 section 3.3, step 2), written by `hpcai500 ensemble plan`.
# Sys_scale = M x P_degree (Eq. 5): {scale} accelerators = {members} members x {degree}, on nodes of {per_node}.
# Where the hosts are not named, a scheduler chooses them: members with the same node in this file may run side by side.
"""


def create_ensemble(
    folder: Path, recipe: Recipe, shape: Shape, places: Sequence[MemberPlace], data: Path, stage: str | None
) -> Ensemble:
    """Write the plan of a new ensemble to `folder`, which must be empty or absent.

    `recipe` is the resolved one of member 0. `stage` is the folder on each node for copies of samples; None: samples
    are read in place.

    Raises:
        RecordError: the folder is not empty or cannot be written.
    """
    plan = _plan_text(shape, places).encode()
    value = {
        "schema": SCHEMA,
        "benchmark": recipe.benchmark,
        "edition": recipe.edition,
        "recipe_hash": recipe_hash(recipe),
        "members": shape.members,
        "degree": shape.degree,
        "scale": shape.scale,
        "per_node": shape.per_node,
        "first_seed": recipe.hyperparameters.seed,
        "plan_sha256": hashlib.sha256(plan).hexdigest(),
        "data": str(data.absolute()),
        "stage": stage,
        "version": __version__,
        "code_sha256": package_code_hash(),
        **({"plugin": plugin} if (plugin := plugin_facts(recipe.benchmark)) else {}),
    }
    require_new(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / RECIPE, to_toml(recipe).encode())
        write_atomically(folder / PLAN, plan)
        line = event_line(new_event(FIRST_PREVIOUS, 0, "ensemble_start", value))
        write_atomically(folder / JOURNAL, line + b"\n")
    except OSError as error:
        raise RecordError(f"{folder}: cannot be written: {error.strerror}; give another folder") from error
    return read_ensemble(folder)


def require_new(folder: Path) -> None:
    """Refuse a folder that cannot hold a new ensemble.

    Raises:
        RecordError: it holds an ensemble or anything else, or cannot be listed.
    """
    try:
        if is_ensemble(folder):
            raise RecordError(
                f"{folder}: already holds an ensemble: continue it with `hpcai500 ensemble run "
                f"{shlex.quote(str(folder))}`, or give another folder"
            )
        if folder.exists() and any(folder.iterdir()):
            raise RecordError(f"{folder}: not empty; give an empty or new folder for the ensemble")
    except OSError as error:
        raise RecordError(f"{folder}: cannot be used: {error.strerror}; give another folder") from error


def append(ensemble: Ensemble, key: str, value: Mapping[str, Any]) -> Ensemble:
    """Append one event to the journal, sync it to disk, and return the updated ensemble.

    Raises:
        RecordError: the journal cannot be written.
    """
    append_line(ensemble.path / JOURNAL, key, value)
    return read_ensemble(ensemble.path)


def begin_member(ensemble: Ensemble, member: int) -> Campaign:
    """The campaign of a member, created if it has none: one trial, with the member's seed.

    Raises:
        RecordError: it belongs to another plan, or cannot be written.
    """
    folder = ensemble.folder(member)
    if not is_campaign(folder):
        create_campaign(
            folder,
            member_recipe(ensemble, member),
            1,
            ensemble.data,
            ensemble={"id": ensemble.identity, "member": member},
            # A crash may have left the recipe without a journal; it is written again, unchanged.
            beside=(OUTPUT, FAILURES, RECIPE),
        )
    campaign = ensemble.campaign(member)
    assert campaign is not None
    return campaign


def member_recipe(ensemble: Ensemble, member: int) -> Recipe:
    """The ensemble's recipe with the member's seed."""
    tables = {**ensemble.tables, "hyperparameters": {**ensemble.tables["hyperparameters"]}}
    tables["hyperparameters"]["seed"] = ensemble.seed(member)
    return parse_resolved(tomli_w.dumps(tables), f"{ensemble.path / RECIPE}, member {member}")


def _plan_text(shape: Shape, places: Sequence[MemberPlace]) -> str:
    header = _HEADER.format(scale=shape.scale, members=shape.members, degree=shape.degree, per_node=shape.per_node)
    counts = {
        "members": shape.members,
        "degree": shape.degree,
        "scale": shape.scale,
        "accelerators_per_node": shape.per_node,
    }
    # One line for each member, so that grep finds it.
    lines = [
        f"    {{ member = {place.member}, seed = {place.seed}, nodes = {json.dumps(place.nodes)}, "
        f"accelerators = {json.dumps(place.accelerators)} }},"
        for place in places
    ]
    return "\n".join([header, tomli_w.dumps(counts), "jobs = [", *lines, "]", ""])
