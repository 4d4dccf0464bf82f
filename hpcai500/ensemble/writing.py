"""Writes an ensemble: the plan before the first member, then a line for all that is submitted, cancelled, collected."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from hpcai500 import __version__
from hpcai500.campaign.reading import Campaign, is_campaign
from hpcai500.campaign.writing import append_line, create_campaign
from hpcai500.chain import FIRST_PREVIOUS, event_line, new_event
from hpcai500.ensemble.plan import MemberJob, Shape
from hpcai500.ensemble.reading import (
    FAILURES,
    JOURNAL,
    OUTPUT,
    PLAN,
    RECIPE,
    SCHEMA,
    Ensemble,
    is_ensemble,
    read_ensemble,
)
from hpcai500.errors import RecordError
from hpcai500.files import write_atomically
from hpcai500.layers import Recipe
from hpcai500.plugins.code import plugin_facts
from hpcai500.recipe import parse_resolved, recipe_hash, to_toml
from hpcai500.system.versions import package_code_hash

_HEADER = """\
# Which member of the ensemble runs where (V3.0 section 3.3, step 2), written by `hpcai500 ensemble plan`.
# Sys_scale = M x P_degree (Eq. 5): {scale} accelerators = {members} members x {degree}, on nodes of {per_node}.
# Where the hosts are not named, a scheduler chooses them: members with the same node in this file may run side by side.
"""


def create_ensemble(
    folder: Path, recipe: Recipe, shape: Shape, jobs: Sequence[MemberJob], data: Path, stage: str | None
) -> Ensemble:
    """Fix a new ensemble in the folder `folder`, which must be empty or absent.

    Args:
        folder: where it lies; its members come into it.
        recipe: resolved, of member 0.
        shape: members, and accelerators of each.
        jobs: where each member goes.
        data: folder of the data set.
        stage: folder of each node in which samples are staged; None: they are read where they lie.

    Raises:
        RecordError: the folder is not empty or cannot be written.
    """
    plan = _plan_text(shape, jobs).encode()
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
    """Refuse a folder in which an ensemble cannot be fixed.

    Raises:
        RecordError: it holds an ensemble or anything else, or cannot be listed.
    """
    try:
        if is_ensemble(folder):
            raise RecordError(
                f"{folder}: holds an ensemble already: go on with it by `hpcai500 ensemble run "
                f"{shlex.quote(str(folder))}`, or give another folder"
            )
        if folder.exists() and any(folder.iterdir()):
            raise RecordError(f"{folder}: not empty; give another folder: an ensemble is fixed before its first member")
    except OSError as error:
        raise RecordError(f"{folder}: cannot be used: {error.strerror}; give another folder") from error


def append(ensemble: Ensemble, key: str, value: Mapping[str, Any]) -> Ensemble:
    """Add one event to the journal, on disk when this returns; returns the ensemble as it is then.

    Raises:
        RecordError: the journal cannot be written.
    """
    append_line(ensemble.path / JOURNAL, key, value)
    return read_ensemble(ensemble.path)


def begin_member(ensemble: Ensemble, member: int) -> Campaign:
    """The campaign of a member, made now where it has none: one trial, with the member's seed.

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
            # What was killed between the two files of a campaign has left the first one, which is the same again.
            beside=(OUTPUT, FAILURES, RECIPE),
        )
    campaign = ensemble.campaign(member)
    assert campaign is not None
    return campaign


def member_recipe(ensemble: Ensemble, member: int) -> Recipe:
    """The recipe of a member: that of the ensemble, with the member's seed."""
    tables = {**ensemble.tables, "hyperparameters": {**ensemble.tables["hyperparameters"]}}
    tables["hyperparameters"]["seed"] = ensemble.seed(member)
    return parse_resolved(tomli_w.dumps(tables), f"{ensemble.path / RECIPE}, member {member}")


def _plan_text(shape: Shape, jobs: Sequence[MemberJob]) -> str:
    header = _HEADER.format(scale=shape.scale, members=shape.members, degree=shape.degree, per_node=shape.per_node)
    counts = {
        "members": shape.members,
        "degree": shape.degree,
        "scale": shape.scale,
        "accelerators_per_node": shape.per_node,
    }
    # A line a job: ten thousand of them are looked through by eye and by grep.
    lines = [
        f"    {{ member = {job.member}, seed = {job.seed}, nodes = {json.dumps(job.nodes)}, "
        f"accelerators = {json.dumps(job.accelerators)} }},"
        for job in jobs
    ]
    return "\n".join([header, tomli_w.dumps(counts), "jobs = [", *lines, "]", ""])
