"""From a request to a batch script: site and recipe are read and held against each other before anything queues."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcai500.errors import DataError, UsageError
from hpcai500.launch.container_command import bind_of
from hpcai500.launch.fitting import World, fitting_overrides
from hpcai500.launch.site import NO_CONTAINER, Site, load_site
from hpcai500.launch.slurm_script import BatchJob
from hpcai500.layers import Recipe
from hpcai500.recipe import default_recipe, find_recipe, is_shipped, load_recipe
from hpcai500.system.container import find_container

_GPU_FLAGS = {"--nv", "--nvccli"}


@dataclass(frozen=True)
class RenderRequest:
    """What the user asked for on the command line of `slurm render`.

    Attributes:
        benchmark: its name.
        nodes: how many.
        site: name or file; None has the values that work on most.
        rendered_by: the command line, for the script's first lines.
        environment: of this process; in a container, it names the image.
    """

    benchmark: str
    nodes: int
    site: str | None = None
    recipe: str | None = None
    data: Path | None = None
    out: Path | None = None
    overrides: Sequence[str] = ()
    trials: int = 1
    rendered_by: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


@dataclass(frozen=True)
class Planned:
    """A job that can be rendered, and what the user may want to look at first."""

    job: BatchJob
    warnings: Sequence[str]


def plan_job(request: RenderRequest) -> Planned:
    """The job of `request`.

    Raises:
        UsageError: site, recipe, data, record or number of nodes cannot be used, or not together.
    """
    _check_record(request)
    site = with_image(load_site(request.site) if request.site else Site(), request.site, request.environment)
    name = request.recipe or default_recipe(request.benchmark, has_data=request.data is not None)
    recipe = load_recipe(name, [*request.overrides, *_fit(name, request, site)])
    _check_benchmark(request, name, recipe)
    check_site(site, recipe)
    _check_trials(request, recipe)
    data = _data(request, recipe)
    own = _file_of(name)
    settings = [token for text in request.overrides for token in ("--set", text)]
    trials = ["--trials", str(request.trials)] if request.trials > 1 else []
    needed = [path for path in (data, own) if path]
    job = BatchJob(
        request.benchmark,
        request.nodes,
        site,
        arguments=["--data", data] if data else [],
        new_arguments=["--recipe", own or name, *settings, *trials],
        binds=[bind_of(path, path, "ro") for path in needed] if site.container.command != NO_CONTAINER else [],
        record=str(request.out) if request.out else None,
        rendered_by=request.rendered_by,
    )
    return Planned(job, list(_warnings(request, site, needed)))


def with_image(site: Site, named: str | None, environment: Mapping[str, str]) -> Site:
    """`site`, with the image in which this command runs where it names none; without a site file, with its runtime.

    Args:
        named: its file, if there is one.
        environment: of this process.

    Raises:
        UsageError: no image is known.
    """
    if site.container.command == NO_CONTAINER or site.container.image:
        return site
    here = find_container(environment)
    if here is None or here.path is None:
        where = f"--site {named}" if named else "no --site"
        raise UsageError(
            f'{where}: which image? Give [container] image = "/path/hpcai500.sif" in a site file, render inside the '
            "image (`apptainer run hpcai500.sif slurm render …`), or use none (--site local)"
        )
    known = {"image": here.path} if named else {"image": here.path, "command": here.program}
    return site.model_copy(update={"container": site.container.model_copy(update=known)})


def _check_record(request: RenderRequest) -> None:
    if request.out and request.out.is_absolute() and request.out.parent == Path("/"):
        raise UsageError(f"--out {request.out}: lies in /, which cannot be bound into a container: give /DIR/RECORD")


def _fit(name: str, request: RenderRequest, site: Site) -> list[str]:
    tasks = site.node.tasks
    source = f"--nodes {request.nodes} with {tasks} task{'s' * (tasks > 1)} each ([node] tasks of the site)"
    fix = "change --nodes or tasks, or the recipe: --set hardware.nodes=N --set hardware.accelerators_per_node=N"
    world = World(request.nodes * tasks, request.nodes, "torch", source, fix)
    overrides = fitting_overrides(name, request.overrides, world)
    recipe = load_recipe(name, [*request.overrides, *overrides])
    if recipe.hardware.nodes != request.nodes:
        raise UsageError(f"{source}, but hardware.nodes of the recipe is {recipe.hardware.nodes}: {fix}")
    return overrides


def _check_benchmark(request: RenderRequest, name: str, recipe: Recipe) -> None:
    if recipe.benchmark != request.benchmark:
        raise UsageError(f"{name}: a recipe of {recipe.benchmark}; run `hpcai500 slurm render {recipe.benchmark} …`")


def check_site(site: Site, recipe: Recipe) -> None:
    """Refuse what would fail on all nodes after hours in the queue.

    Raises:
        UsageError: the site has not what the recipe asks for.
    """
    node, launcher = site.node, site.launcher
    if recipe.accelerator.device == "cuda" and node.gpus < node.tasks:
        raise UsageError(
            f"accelerator.device is cuda, but a node of the site has {node.gpus} GPUs for {node.tasks} tasks: set gpus "
            "(and tasks, one a GPU) under [node] of the site file, or --set accelerator.device=cpu"
        )
    if recipe.communication.backend == "horovod" and launcher.program == "srun" and launcher.pmi == "none":
        raise UsageError(
            'communication.backend is horovod, whose MPI needs pmi = "pmix" (or pmi2) under [launcher] of the site '
            'file; see `srun --mpi=list`, or take program = "mpirun", or --set communication.backend=torch'
        )


def _check_trials(request: RenderRequest, recipe: Recipe) -> None:
    if recipe.communication.backend == "horovod" and request.trials > 1:
        raise UsageError(
            "--trials: Horovod starts only once under one launcher: leave it out, and submit the script once for each "
            "run: sbatch FILE --set hyperparameters.seed=N"
        )


def _data(request: RenderRequest, recipe: Recipe) -> str | None:
    dataset = recipe.problem.dataset
    if request.data is None:
        if not dataset.startswith("synthetic-"):
            raise DataError(f"{recipe.benchmark}: the recipe trains on {dataset}: give its folder with --data DIR")
        return None
    if request.data.exists() and not request.data.is_dir():
        raise DataError(f"{request.data}: not a folder; give the folder of {dataset} with --data DIR")
    return os.path.abspath(request.data)  # noqa: PTH100 - resolve() would follow links that only lead here


def _file_of(name: str) -> str | None:
    """The path of a recipe that comes with neither hpcai500 nor a plug-in, for whoever runs in another folder."""
    path = find_recipe(name)
    return None if is_shipped(path) else os.path.abspath(path)  # noqa: PTH100 - as above


def _warnings(request: RenderRequest, site: Site, needed: Sequence[str]) -> Iterator[str]:
    """What may be meant, or true only of this machine."""
    container = site.container
    inside = find_container(request.environment) is not None
    image = [container.image] if container.command != NO_CONTAINER and not inside else []
    for path in (*image, *needed):
        if not Path(path).exists():
            yield f"{path}: not seen from here; it must be there on every node of the job"
    if container.command != NO_CONTAINER and site.node.gpus and not _GPU_FLAGS & set(container.flags):
        yield 'the site has GPUs, but the container does not show them: flags = ["--nv"] under [container]'
