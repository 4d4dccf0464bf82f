"""What the record says before training: the code, the machine, the data, the model; the same on every rank."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hpcai500
from hpcai500.chain import iterate
from hpcai500.comm.identity import CONTENT, DATA, RECIPE, code_facts, plugin_code, require_same
from hpcai500.engine.journal import Journal
from hpcai500.engine.ranks import Ranks
from hpcai500.errors import DataError, RecipeError
from hpcai500.layers import Recipe
from hpcai500.measure.flops import CONVENTION, count_flops
from hpcai500.measure.host import boot_id, capture_nodes
from hpcai500.methodology.node_differences import node_differences
from hpcai500.recipe import recipe_hash
from hpcai500.record import Record
from hpcai500.streams import say
from hpcai500.system.container import find_container
from hpcai500.system.mpi import installed_mpi
from hpcai500.system.versions import version_document
from hpcai500.workloads.base import Workload

# Classes that are named in a warning; the record names all.
_MOST_NAMES = 5


def announce_start(
    journal: Journal,
    recipe: Recipe,
    ranks: Ranks,
    data: Path | None = None,
    campaign: Mapping[str, Any] | None = None,
) -> None:
    """Write down what begins, on which nodes, and say where these differ.

    Args:
        journal: where it is written.
        recipe: the nine layers.
        ranks: the processes.
        data: folder of the data set.
        campaign: {id, trial, attempt, head} where it is a run of one.

    Raises:
        UsageError: a rank runs other code, or another recipe.
    """
    journal.event(
        "init_start",
        {
            "benchmark": recipe.benchmark,
            "edition": recipe.edition,
            "recipe_hash": recipe_hash(recipe),
            "version": hpcai500.__version__,
            "process": os.getpid(),
            "boot_id": boot_id(),
            "campaign": campaign,
        },
    )
    require_same(ranks.world, {**code_facts(), **plugin_code(recipe.benchmark), RECIPE: recipe_hash(recipe)})
    places = {"data": data, "out": journal.path, "temporary": Path(tempfile.gettempdir())}
    nodes = capture_nodes(ranks.world, places, first_of_host=ranks.placement.local_rank == 0)
    journal.write_system({"nodes": nodes, "installation": _installation(ranks, recipe)})
    if len(nodes) > 1:
        differences = node_differences(nodes)
        journal.event("system_differences", {"differences": [one.document() for one in differences]})
        for one in differences:
            if one.matters:
                say(f"warning: nodes differ: {one.sentence()}")


def _installation(ranks: Ranks, recipe: Recipe) -> dict[str, Any] | None:
    """The software of rank 0, which is that of all; the file of an image is read by this rank alone."""
    if not ranks.leads:
        return None
    return version_document(find_container(os.environ), installed_mpi(os.environ), recipe.benchmark)


def announce(journal: Journal, recipe: Recipe, workload: Workload, old: Record | None, ranks: Ranks) -> None:
    """Write down what is trained on what; a resumed run must go on with the same data.

    Raises:
        RecipeError: the recipe names a metric that the workload does not measure.
        DataError: not the data that the run was started on.
        UsageError: a rank has other data.
    """
    if workload.metric != recipe.problem.metric:
        raise RecipeError(f"problem.metric: {recipe.benchmark} measures {workload.metric}, got {recipe.problem.metric}")
    dataset = workload.dataset()
    before = next(iterate(old.events, "dataset"), None) if old else None
    if before and before["value"]["fingerprint"] != dataset["fingerprint"]:
        raise DataError(
            f"{dataset['root']}: not the data that this run was started on ({before['value']['root']}): its files "
            "differ; give the same set with --data DIR, or start a new run"
        )
    require_same(ranks.world, {DATA: dataset["fingerprint"], CONTENT: dataset["content_fingerprint"]})
    counted, example = workload.counted()
    count = count_flops(counted, *example)
    journal.event("dataset", dataset)
    if ranks.leads and (absent := dataset.get("classes_not_evaluated")):
        say(f"warning: {_not_evaluated(dataset['root'], absent)}")
    journal.event("model", {"parameters": count.parameters, "steps_per_epoch": workload.steps_per_epoch})
    journal.event(
        "flops", {"convention": CONVENTION, "per_sample": count.training_flops, "forward": count.forward_flops}
    )


def _not_evaluated(root: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    classes = f"{len(names)} class{'es' * (len(names) > 1)} ({', '.join(names[:_MOST_NAMES])}{more})"
    return f"{root}: the evaluation set has no sample of {classes}: the quality is that of the others"
