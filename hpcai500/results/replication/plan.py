"""Prepares a folder to repeat a submission: the submitted recipe, a new campaign, a guide.

Everything that the guide quotes from the submission is untrusted and is shown as text only.
"""

from __future__ import annotations

import errno
import html
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from hpcai500.campaign.journal import Campaign, create_campaign
from hpcai500.campaign.standing import ODD, SEED, world
from hpcai500.errors import RunError, UsageError
from hpcai500.files import make_empty, write_atomically
from hpcai500.layers import Hardware, Recipe
from hpcai500.recipe import load_recipe, parse_resolved, table_differences
from hpcai500.results.replication.comparison import (
    BATCH_FIELDS,
    HIGHEST_SYSTEM_LAYER,
    Side,
    data_facts,
    fingerprints_of,
    make_line,
)
from hpcai500.results.submission.claim import framework_of, image_of, package_of, plain
from hpcai500.system.container import find_container
from hpcai500.system.mpi import installed_mpi
from hpcai500.system.node import describe_node
from hpcai500.system.software import version_document
from hpcai500.system.tables import memory, processors
from hpcai500.text import count, counted

# ----------------------------------------------------------------------------------------------------
# The system of a submission, compared with this machine.


System = Mapping[str, Any]


@dataclass(frozen=True)
class SystemFact:
    """One fact about both systems."""

    what: str
    theirs: str
    here: str

    @property
    def differs(self) -> bool:
        return self.theirs != self.here


def this_system() -> dict[str, Any]:
    """The `system.json` of this machine and installation; takes about a second."""
    installation = version_document(find_container(os.environ), installed_mpi(os.environ))
    return {"nodes": [describe_node({})], "installation": installation}


def compare_systems(theirs: System, here: System) -> list[SystemFact]:
    """The facts in a submission's `system.json` and in this machine's; `unknown` if one is missing."""
    return [SystemFact(what, _value(fact, theirs), _value(fact, here)) for what, fact in _FACTS.items()]


def _value(fact: Callable[[System], Any], system: System) -> str:
    try:
        found = fact(system)
    except ODD:
        # The submission is untrusted, and either document may be of another version.
        found = None
    return "unknown" if found is None else plain(str(found))


def _accelerators(system: System) -> str:
    return ", ".join(counted(str(device["name"]) for device in system["nodes"][0]["accelerators"])) or "none"


def _package(name: str) -> Callable[[System], Any]:
    return lambda system: system["installation"]["package"][name]


def _software(name: str) -> Callable[[System], Any]:
    return lambda system: system["nodes"][0]["software"][name]


_FACTS: Mapping[str, Callable[[System], Any]] = {
    "processors of a node": lambda system: processors(system["nodes"][0]),
    "memory of a node": lambda system: memory(system["nodes"][0]),
    "accelerators of a node": _accelerators,
    "operating system": lambda system: system["nodes"][0]["operating_system"],
    "kernel": lambda system: system["nodes"][0]["kernel"],
    "hpcai500": _package("version"),
    "its code (SHA-256)": _package("code_sha256"),
    "its core (SHA-256)": _package("core_sha256"),
    "image (SHA-256 of its content)": lambda system: system["installation"]["image"]["content_sha256"],
    "torch": _software("torch"),
    "CUDA": _software("cuda"),
    "cuDNN": _software("cudnn"),
}


# ----------------------------------------------------------------------------------------------------
# The guide for the team that repeats a submission.


_MOST_LINES = 20
# (launcher, hardware, campaign's folder) -> the command line that runs a campaign.
LaunchLine = Callable[[str, Hardware, Path], str]


@dataclass(frozen=True)
class Guide:
    """The content of the guide: the submission, the new campaign with its recipe, and both systems.

    `data` is the folder of the data set here; None if it is unknown.
    """

    original: Side
    campaign: Campaign
    recipe: Recipe
    data: Path | None
    same_seeds: bool
    systems: Sequence[SystemFact]
    launch_line: LaunchLine


def guide_text(guide: Guide) -> str:
    """The guide in Markdown."""
    parts = [_head(guide), _software_part(guide), _data(guide), _launch(guide), _systems(guide), _comparison(guide)]
    return "\n".join(parts)


def _head(guide: Guide) -> str:
    side, manifest = guide.original, guide.original.manifest
    assert manifest is not None
    signer = side.verification.signer if side.verification else None
    signature = f"signed by {_cell(signer)}" if signer else "not signed"
    return f"""\
# Repeat {_cell(manifest.system)} ({_cell(manifest.organisation)})

- Submission: `{shlex.quote(str(side.path))}`, verified; {signature}
- Benchmark: {_cell(manifest.benchmark)}, edition {_cell(manifest.edition)}, level {side.level or "none"}
- System: {_cell(manifest.accelerators_in_words)}; {_cell(framework_of(side.records[0]))}
- Runs: {len(side.results)} of {len(side.campaign.trials)} planned, {len(side.campaign.attempts)} attempts
- Recipe as submitted: `submitted-recipe.toml`, SHA-256 of its values {side.campaign.start["recipe_hash"]}

The commands below are quoted from the submission: read each one before you run it.
"""


def _software_part(guide: Guide) -> str:
    record = guide.original.records[0]
    package, image = package_of(record), image_of(record)
    where = "The runs used no image: install the same version."
    if image:
        where = f"""\
The runs used an image. Fetch or build the one whose content has the hash

    {plain(image)}

and check it with `apptainer run IMAGE.sif version`."""
    return f"""\
## 1. The software

{where}

    hpcai500 {plain(str(package.get("version")))}
    code     {plain(str(package.get("code_sha256")))}
    core     {plain(str(package.get("core_sha256")))}

`hpcai500 version` prints those of your installation. The Python sources of the runs are in the submission:

    unzip {shlex.quote(str(guide.original.path))} 'code/*'
"""


def _data(guide: Guide) -> str:
    record = guide.original.records[0]
    facts = data_facts(record)
    folder = shlex.quote(str(guide.data)) if guide.data else "DATA"
    samples, others = (_cell(str(facts.get(key))) for key in ("training_samples", "evaluation_samples"))
    made = ""
    if line := make_line(record, guide.original.tables, folder):
        made = f"""\
It is synthetic; this command makes it again, with the default `--seed` and layout, which records do not contain (if
the original had others, the fingerprint differs):

    {line}

"""
    known_by = "".join(f"    {kind:14} {plain(text)}\n" for kind, text in fingerprints_of(record).items())
    return f"""\
## 2. The data

`{plain(guide.recipe.problem.dataset)}`: {samples} samples to train on, {others} to evaluate on, identified by
the fingerprint of its

{known_by}
{made}Your data must have the same fingerprint, which this command prints; runs on other data are not a
repetition:

    hpcai500 data check {guide.recipe.benchmark} {folder}
"""


def _launch(guide: Guide) -> str:
    side, started = guide.original, world(guide.original.records[0])
    launchers, folder, hardware = _launchers(side.campaign), guide.campaign.path, guide.recipe.hardware
    commands = "".join(f"    {line}\n" for line in _commands(side.campaign))
    seeds = [trial.seed for trial in guide.campaign.trials]
    if guide.same_seeds:
        whose = """\
those of the original (--same-seeds). Such runs are not independent: they show that the submitted runs can be
repeated, but hardly that other seeds give the same result."""
    else:
        whose = """\
new ones, not those of the original. Such runs are independent, as the comparison assumes, and show whether
the original's seeds were lucky (`--same-seeds` uses those)."""
    launcher = launchers[0] if launchers else "none"
    line = guide.launch_line(launcher, hardware, folder)
    return f"""\
## 3. The runs

The original ran on {count(started.get("nodes"), "node")} with {count(started.get("world_size"), "rank")}, backend
{_cell(str(started.get("backend")))} ({_cell(str(started.get("library")))}), started by:

{commands}
(launcher: {", ".join(map(_cell, launchers)) or "unknown"})

A campaign of {len(seeds)} runs is planned in `{folder.name}/`, with the seeds {seeds[0]} to {seeds[-1]}:
{whose}
Its identity, to register before the first run: `{guide.campaign.identity}`

    {line}{"" if guide.data else " --data DATA"}

Every attempt counts and stays in its journal. If the campaign stops, the same command continues it
(docs/launching.md has the other launchers, and images).
"""


def _launchers(campaign: Campaign) -> list[str]:
    found = [event["value"].get("launcher") for event in campaign.events if event["key"].startswith("attempt_st")]
    return list(dict.fromkeys(plain(str(one)) for one in found if one))


def _commands(campaign: Campaign) -> list[str]:
    """Each command line that started or resumed a run, once."""
    lines = (shlex.join(map(str, command)) for attempt in campaign.attempts for command in attempt.commands)
    found = list(dict.fromkeys(plain(line) for line in lines))
    left_out = len(found) - _MOST_LINES
    return [*found[:_MOST_LINES], *([f"… and {left_out} more"] if left_out > 0 else [])]


def _systems(guide: Guide) -> str:
    rows = "".join(
        f"| {one.what} | {_cell(one.theirs)} | {_cell(one.here)} | {'differs' if one.differs else ''} |\n"
        for one in guide.systems
    )
    return f"""\
## 4. The system, compared with the machine that wrote this page

| | submission | here | |
|---|---|---|---|
{rows}
With other processors or accelerators, or another number of them, it is another system: quality and level must be
the same, speed is only reported. Plan for it with `--set hardware.nodes=…` and the like; keep the global batch
(`--set hyperparameters.batch_size=…`).
"""


def _comparison(guide: Guide) -> str:
    submission, folder = (shlex.quote(str(path)) for path in (guide.original.path, guide.campaign.path))
    return f"""\
## 5. The verdict

    hpcai500 replicate {submission} --with {folder}

docs/replication.md explains it.
"""


def _cell(text: str) -> str:
    """`text` escaped for a line or a cell of Markdown."""
    shown = html.escape(plain(text), quote=False)
    return "".join(f"\\{letter}" if letter in "\\|`*_[]" else letter for letter in shown)


# ----------------------------------------------------------------------------------------------------
# The plan.


SUBMITTED_RECIPE = "submitted-recipe.toml"
CAMPAIGN = "campaign"
GUIDE = "README.md"
_SEEDS = 2**63


@dataclass(frozen=True)
class PlanRequest:
    """The options of the user.

    Attributes:
        folder: for all files.
        data: folder of the data set here; None if it is given when the runs start.
        overrides: as given to --set, for another system.
        same_seeds: whether to use the original's seeds.
    """

    folder: Path
    data: Path | None = None
    overrides: Sequence[str] = ()
    same_seeds: bool = False


@dataclass(frozen=True)
class Plan:
    """The written files."""

    folder: Path
    campaign: Campaign
    guide: Path


def plan_replication(original: Side, request: PlanRequest, here: System, launch_line: LaunchLine) -> Plan:
    """Write recipe, campaign and guide into the folder of `request`, which must be empty or absent.

    `here` is the `system.json` of this machine.

    Raises:
        UsageError: the folder is not empty or cannot be written, the recipe is of another version, or `overrides`
            change more than the system.
        RunError: the disk is full.
    """
    folder = request.folder
    text = tomli_w.dumps(dict(original.tables))
    recipe = _planned_recipe(text, original, request)
    with _empty_again_on_failure(folder):
        write_atomically(folder / SUBMITTED_RECIPE, text.encode())
        campaign = create_campaign(folder / CAMPAIGN, recipe, len(original.campaign.trials), request.data)
        guide = Guide(
            original=original,
            campaign=campaign,
            recipe=recipe,
            data=request.data,
            same_seeds=request.same_seeds,
            systems=compare_systems(original.records[0].system, here),
            launch_line=launch_line,
        )
        write_atomically(folder / GUIDE, guide_text(guide).encode("utf-8", errors="replace"))
    return Plan(folder, campaign, folder / GUIDE)


@contextmanager
def _empty_again_on_failure(folder: Path) -> Iterator[None]:
    """`folder`, created or found empty; emptied again on a full disk or Ctrl-C, so that a retry works."""
    try:
        make_empty(folder, UsageError, "give another folder: -o DIR")
        try:
            yield
        except BaseException:
            for name in (SUBMITTED_RECIPE, GUIDE):
                (folder / name).unlink(missing_ok=True)
            shutil.rmtree(folder / CAMPAIGN, ignore_errors=True)
            raise
    except OSError as error:
        # A full disk is not a mistake in the command.
        kind = RunError if error.errno in (errno.ENOSPC, errno.EDQUOT) else UsageError
        raise kind(f"{folder}: cannot be written: {error.strerror}; give another folder: -o DIR") from error


def _planned_recipe(text: str, original: Side, request: PlanRequest) -> Recipe:
    """The submission's recipe with the user's changes and the seed of the first trial."""
    recipe = submitted = parse_resolved(text, f"{original.path}: recipe.toml")
    if request.overrides:
        with tempfile.TemporaryDirectory(prefix="hpcai500-replicate-") as folder:
            path = Path(folder, SUBMITTED_RECIPE)
            path.write_text(text, encoding="utf-8")
            recipe = load_recipe(path, request.overrides)
        _require_same_work(recipe, submitted)
    if request.same_seeds or recipe.hyperparameters.seed != submitted.hyperparameters.seed:
        return recipe
    policy = recipe.hyperparameters.model_copy(update={"seed": _own_first_seed(original.campaign)})
    return recipe.model_copy(update={"hyperparameters": policy})


def _require_same_work(recipe: Recipe, submitted: Recipe) -> None:
    for one in table_differences(recipe.model_dump(mode="json"), submitted.model_dump(mode="json")):
        if one.layer > HIGHEST_SYSTEM_LAYER and one.field not in (*BATCH_FIELDS, SEED):
            raise UsageError(
                f"--set {one.field}: changes the work, so the runs would be no repetition; allowed are hardware, os, "
                f"communication, accelerator, {' and '.join(BATCH_FIELDS)}"
            )
    if recipe.global_batch != submitted.global_batch:
        raise UsageError(
            f"the global batch would be {recipe.global_batch} samples, the submission's is {submitted.global_batch}: "
            f"keep it with --set {BATCH_FIELDS[0]}=… or {BATCH_FIELDS[1]}=… "
            f"(batch x accumulation x nodes x accelerators per node)"
        )


def _own_first_seed(campaign: Campaign) -> int:
    """The first of as many consecutive seeds that the original did not plan."""
    last = max(trial.seed for trial in campaign.trials)
    return last + 1 if last + len(campaign.trials) < _SEEDS else 0
