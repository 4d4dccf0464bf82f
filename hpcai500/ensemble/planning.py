"""Plans an ensemble: from what the user asked for to recipe, shape, mapping and data on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcai500.ensemble.journal import Ensemble, create_ensemble, require_new
from hpcai500.ensemble.mapping import MemberPlace, Shape, member_places, shape_of
from hpcai500.ensemble.member import require_stageable
from hpcai500.errors import DataError, UsageError
from hpcai500.files import why_not
from hpcai500.hosts import expand_hosts
from hpcai500.launch.synthetic_data import make_data
from hpcai500.layers import SEEDS, Recipe
from hpcai500.recipe import ENSEMBLE, load_edition, load_recipe
from hpcai500.text import next_lines

# The first edition with ensembles; recipes of older editions are planned under it.
_EDITION = "v3.0"
_MOST_ROWS = 16


@dataclass(frozen=True)
class PlanRequest:
    """What the user asked for.

    Attributes:
        recipe: file or name.
        members: base models.
        degree: accelerators of each.
        scale: accelerators of all.
        per_node: accelerators of a node.
        hosts: names of the nodes in Slurm's notation; None: a scheduler chooses.
        data: folder of the data set; None: generated, if the recipe's is synthetic.
        stage: folder on each node for copies of what its members read.
    """

    folder: Path
    recipe: str
    members: int | None = None
    degree: int | None = None
    scale: int | None = None
    per_node: int | None = None
    hosts: str | None = None
    data: Path | None = None
    stage: str | None = None
    overrides: Sequence[str] = ()


@dataclass(frozen=True)
class Planned:
    """A new ensemble, and where its members go."""

    ensemble: Ensemble
    places: Sequence[MemberPlace]

    def document(self) -> dict[str, Any]:
        """For --json."""
        shape = self.ensemble.shape
        return {
            "identity": self.ensemble.identity,
            "folder": str(self.ensemble.path),
            "members": shape.members,
            "degree": shape.degree,
            "scale": shape.scale,
            "nodes": shape.nodes,
            "accelerators_per_node": shape.per_node,
            "data": str(self.ensemble.data),
            "stage": self.ensemble.stage,
            "jobs": [
                {
                    "member": place.member,
                    "nodes": list(place.nodes),
                    "accelerators": list(place.accelerators),
                    "seed": place.seed,
                }
                for place in self.places
            ],
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        shape, folder = self.ensemble.shape, self.ensemble.path
        yield f"ensemble    {folder}, identity {self.ensemble.identity}"
        yield (
            f"shape       {shape.scale} accelerators = {shape.members} members x {shape.degree} "
            f"(V3.0 Eq. 5), on {shape.nodes} node{'s' * (shape.nodes > 1)} of {shape.per_node}"
        )
        yield f"data        {self.ensemble.data}"
        if self.ensemble.stage is not None:
            yield f"staged in   {self.ensemble.stage} of each node"
        yield "member  seed  nodes: accelerators"
        for place in self.places[:_MOST_ROWS]:
            on = f"{_named(place.nodes)}: {_named([str(one) for one in place.accelerators])}"
            yield f"{place.member:6}  {place.seed:4}  {on}"
        if len(self.places) > _MOST_ROWS:
            yield f"        …     {len(self.places) - _MOST_ROWS} more in {folder / 'plan.toml'}"
        steps = ((("ensemble", "run", folder), "on this machine"), (("ensemble", "submit", folder), "to Slurm"))
        yield from next_lines(steps)


def plan_ensemble(request: PlanRequest) -> Planned:
    """Plan the ensemble of `request`.

    Raises:
        UsageError: no such ensemble is possible, or recipe, data or folder cannot be used.
    """
    recipe, shape = _fitted(request)
    if request.stage is not None:
        _check_stage(request.stage, recipe)
    require_new(request.folder)
    # An impossible mapping must fail before data is generated, which may take long.
    places = member_places(shape, recipe.hyperparameters.seed, expand_hosts(request.hosts) if request.hosts else ())
    ensemble = create_ensemble(request.folder, recipe, shape, places, _data(request, recipe), request.stage)
    return Planned(ensemble, places)


def _fitted(request: PlanRequest) -> tuple[Recipe, Shape]:
    """The recipe of a member, and the shape."""
    for text in request.overrides:
        field = text.partition("=")[0].strip()
        if field.startswith("hardware.") or field == "ensemble.members":
            raise UsageError(f"--set {text}: use --members, --degree, --scale and --node-accelerators instead")
    plain = load_recipe(request.recipe)
    edition = plain.edition if ENSEMBLE in load_edition(plain.edition) else _EDITION
    per_node = request.per_node or plain.hardware.accelerators_per_node
    members, degree = request.members, request.degree
    if plain.ensemble is not None:
        if request.scale is None:
            members = members or plain.ensemble.members
        if degree is None and (request.scale is None or members is None):
            degree = plain.world_size
    shape = shape_of(per_node, scale=request.scale, members=members, degree=degree)
    backend = plain.communication.backend
    fixed = [
        f"ensemble.members={shape.members}",
        f"hardware.nodes={shape.nodes_a_member}",
        f"hardware.accelerators_per_node={shape.ranks_a_node}",
        "hardware.ranks=0",
        f"communication.backend={'local' if shape.degree == 1 else 'torch' if backend == 'local' else backend}",
    ]
    # The user's settings come last: a value that does not fit the ranks of a member is refused, not changed.
    recipe = load_recipe(request.recipe, [*fixed, *request.overrides], edition)
    if recipe.hyperparameters.seed + shape.members > SEEDS:
        raise UsageError(
            f"hyperparameters.seed: {shape.members} members need seeds from {recipe.hyperparameters.seed} on, but the "
            f"last one is {SEEDS - 1}: give a lower seed"
        )
    return recipe, shape


def _check_stage(stage: str, recipe: Recipe) -> None:
    """Refuse now what would fail on every node after hours in the queue."""
    require_stageable(recipe)
    if not stage.startswith(("/", "$")):
        raise UsageError(f"--stage {stage}: give an absolute folder on each node, as /tmp or '$TMPDIR'")


def _data(request: PlanRequest, recipe: Recipe) -> Path:
    if request.data is None:
        if not recipe.problem.is_synthetic:
            raise DataError(
                f"{recipe.benchmark}: the recipe trains on {recipe.problem.dataset}: give its folder with --data DIR"
            )
        return make_data(recipe, request.folder)
    if why := why_not("folder", request.data):
        raise DataError(f"{request.data}: {why}; give the folder of {recipe.problem.dataset} with --data DIR")
    return request.data


def _named(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}" if len(names) > 2 else ", ".join(names)
