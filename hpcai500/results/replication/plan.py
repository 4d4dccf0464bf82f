"""Lays out what another team needs to repeat a submission: the recipe, a campaign of its own, a guide."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from hpcai500.campaign.likeness import SEED
from hpcai500.campaign.reading import Campaign
from hpcai500.campaign.writing import create_campaign
from hpcai500.errors import RunError, UsageError
from hpcai500.files import write_atomically
from hpcai500.layers import Recipe
from hpcai500.recipe import differences, load_recipe, parse_resolved
from hpcai500.results.replication.guide import Guide, guide_text
from hpcai500.results.replication.likeness import BATCH_FIELDS, HIGHEST_SYSTEM_LAYER
from hpcai500.results.replication.side import Side
from hpcai500.results.replication.system_table import System, side_by_side

SUBMITTED_RECIPE = "submitted-recipe.toml"
CAMPAIGN = "campaign"
GUIDE = "README.md"
_SEEDS = 2**63


@dataclass(frozen=True)
class PlanRequest:
    """What the user asked for.

    Attributes:
        folder: where all of it goes.
        data: folder of the data set here; None where it is told when the runs begin.
        overrides: as given to --set, for another system.
        same_seeds: whether the original's seeds are taken.
    """

    folder: Path
    data: Path | None = None
    overrides: Sequence[str] = ()
    same_seeds: bool = False


@dataclass(frozen=True)
class Plan:
    """What was laid out."""

    folder: Path
    campaign: Campaign
    guide: Path


# (launcher, nodes, ranks a node, campaign's folder) -> the line that runs a campaign.
LaunchLine = Callable[[str, int, int, Path], str]


def plan_replication(original: Side, request: PlanRequest, here: System, launch_line: LaunchLine) -> Plan:
    """Write recipe, campaign and guide into the folder of `request`, which must be empty or absent.

    Args:
        original: the submission.
        request: what the user asked for.
        here: a `system.json` of this machine.
        launch_line: writes the line that runs a campaign.

    Raises:
        UsageError: the folder is not empty or cannot be written, the recipe is of another version, or `overrides`
            change more than a system.
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
            systems=side_by_side(original.records[0].system, here),
            launch_line=launch_line,
        )
        write_atomically(folder / GUIDE, guide_text(guide).encode("utf-8", errors="replace"))
    return Plan(folder, campaign, folder / GUIDE)


@contextmanager
def _empty_again_on_failure(folder: Path) -> Iterator[None]:
    """`folder`, made or found empty; a full disk or Ctrl-C leaves nothing in it, so that the same line works again."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder}: not empty; give another folder: -o DIR")
        try:
            yield
        except BaseException:
            for name in (SUBMITTED_RECIPE, GUIDE):
                (folder / name).unlink(missing_ok=True)
            shutil.rmtree(folder / CAMPAIGN, ignore_errors=True)
            raise
    except OSError as error:
        # A disk that is full is no mistake of the line that was typed.
        kind = RunError if error.errno in (errno.ENOSPC, errno.EDQUOT) else UsageError
        raise kind(f"{folder}: cannot be written: {error.strerror}; give another folder: -o DIR") from error


def _planned_recipe(text: str, original: Side, request: PlanRequest) -> Recipe:
    """The submission's, changed as asked for, with the seed of the first trial."""
    recipe = submitted = parse_resolved(text, f"{original.path}: recipe.toml")
    if request.overrides:
        with tempfile.TemporaryDirectory(prefix="hpcai500-replicate-") as folder:
            path = Path(folder, SUBMITTED_RECIPE)
            path.write_text(text, encoding="utf-8")
            recipe = load_recipe(path, request.overrides)
        _require_same_work(recipe, submitted)
    if request.same_seeds or recipe.hyperparameters.seed != submitted.hyperparameters.seed:
        return recipe
    return _with_seed(recipe, _own_first_seed(original.campaign))


def _require_same_work(recipe: Recipe, submitted: Recipe) -> None:
    for one in differences(recipe, submitted):
        if one.layer > HIGHEST_SYSTEM_LAYER and one.field not in (*BATCH_FIELDS, SEED):
            raise UsageError(
                f"--set {one.field}: would be other work than the submission's, no repetition; another system may "
                f"change hardware, os, communication, accelerator, {' and '.join(BATCH_FIELDS)}"
            )
    if recipe.global_batch != submitted.global_batch:
        raise UsageError(
            f"an update would be over {recipe.global_batch} samples, the submission's is over "
            f"{submitted.global_batch}: keep it by --set {BATCH_FIELDS[0]}=… or {BATCH_FIELDS[1]}=… "
            f"(batch x accumulation x nodes x accelerators per node)"
        )


def _with_seed(recipe: Recipe, seed: int) -> Recipe:
    policy = recipe.hyperparameters.model_copy(update={"seed": seed})
    return recipe.model_copy(update={"hyperparameters": policy})


def _own_first_seed(campaign: Campaign) -> int:
    """The first of as many seeds that the original has not planned."""
    last = max(trial.seed for trial in campaign.trials)
    return last + 1 if last + len(campaign.trials) < _SEEDS else 0
