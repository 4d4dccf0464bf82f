"""Batch scripts for Slurm: readable bash, made from a request, a site and a recipe that are checked against each other.

What would fail after hours in the queue is refused before. `hpcai500.ensemble` makes its scripts of the same parts.
All but the last section is pure: no path is looked for, and nothing is started.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePosixPath

from hpcai500 import __version__
from hpcai500.errors import DataError, UsageError
from hpcai500.launch.crew import World, fitting_overrides
from hpcai500.launch.launchers import Layout, mpirun, srun
from hpcai500.launch.site import NO_CONTAINER, ContainerTable, MpiTable, NodeTable, Site, SlurmTable, load_site
from hpcai500.layers import Recipe
from hpcai500.recipe import default_recipe, find_recipe, is_shipped, load_recipe
from hpcai500.system.container import IMAGE_FILE, find_container

# ----------------------------------------------------------------------------------------------------
# Words of bash: every token is quoted so that the shell reads it as that one token.


_WIDTH = 116


class Expression(str):
    """A word in which the shell expands $NAME; in all other words nothing is expanded."""

    __slots__ = ()


def word(token: str) -> str:
    """`token` as one word of printable characters, because people read scripts and terminals show them."""
    if isinstance(token, Expression):
        return f'"{token}"'
    if token.isprintable():
        return shlex.quote(token)
    plain = set(range(0x20, 0x7F)) - set(rb"\'")
    letters = (chr(byte) if byte in plain else rf"\x{byte:02x}" for byte in os.fsencode(token))
    return f"$'{''.join(letters)}'"


def array(name: str, tokens: Sequence[str], *, append: bool = False, indent: str = "") -> Iterator[str]:
    """Lines that set the array `name`, or append to it; an option stays on one line with its value."""
    phrases, opening = list(_phrases(tokens)), f"{indent}{name}{'+' if append else ''}=("
    if len(whole := f"{opening}{' '.join(phrases)})") <= _WIDTH:
        yield whole
        return
    yield opening
    line = ""
    for phrase in phrases:
        if line and len(f"{indent}    {line} {phrase}") > _WIDTH:
            yield f"{indent}    {line}"
            line = ""
        line = f"{line} {phrase}".strip()
    yield f"{indent}    {line}"
    yield f"{indent})"


def comment(text: str) -> Iterator[str]:
    """`text` as comment lines."""
    for line in text.splitlines() or [""]:
        yield f"# {line}".rstrip()


def _phrases(tokens: Sequence[str]) -> Iterator[str]:
    for at, token in enumerate(tokens):
        if at and _takes_value(tokens[at - 1], token):
            continue
        value = tokens[at + 1 : at + 2]
        words = [token, *value] if value and _takes_value(token, value[0]) else [token]
        yield " ".join(map(word, words))


def _takes_value(option: str, value: str) -> bool:
    return option.startswith("-") and "=" not in option and not value.startswith("-")


# ----------------------------------------------------------------------------------------------------
# The tokens that run a command in the image.


def in_container(
    container: ContainerTable,
    command: Sequence[str],
    *,
    mpi: MpiTable | None = None,
    binds: Sequence[str] = (),
    folder: str | None = None,
) -> list[str]:
    """`command`, run in the image of `container`; unchanged where the site has no container.

    Args:
        binds: what the command needs beside the site's binds: `SOURCE`, `SOURCE:TARGET[:ro]`.
        folder: where the command starts.

    Raises:
        UsageError: there is no image, or a path cannot be bound.
    """
    if container.command == NO_CONTAINER:
        return list(command)
    if not container.image:
        raise UsageError(
            '[container] image: is missing; give its path, image = "/apps/hpcai500.sif", or run without a container: '
            f'command = "{NO_CONTAINER}"'
        )
    # So that a record can name the image's SHA-256.
    seen = [bind_of(container.image, f"/{IMAGE_FILE}", "ro")] if container.image.endswith(".sif") else []
    hosts_mpi = [bind_of(path, path, "ro") for path in _bound_folders(mpi or MpiTable())]
    return [
        *[container.command, "exec", *container.flags],
        *[token for bind in (*container.binds, *seen, *hosts_mpi, *binds) for token in ("--bind", bind)],
        *(["--pwd", folder] if folder else []),
        container.image,
        *command,
    ]


def bind_of(path: str, *rest: str) -> str:
    """The value of --bind that shows `path` inside, under the same name or as `rest` says (target, options).

    Raises:
        UsageError: the path has a comma or colon, which separate the parts of such a value.
    """
    if bad := [character for character in ",:" if character in path]:
        raise UsageError(f"{path}: a path with {bad[0]!r} cannot be bound into a container: rename it, or link to it")
    return ":".join([path, *rest])


def container_environment(container: ContainerTable, mpi: MpiTable) -> Mapping[str, str]:
    """Variables that show the container where the host's MPI lies; its runtime would not take them over by itself."""
    if container.command == NO_CONTAINER or mpi.model != "bind":
        return {}
    prefix = "SINGULARITYENV" if PurePosixPath(container.command).name == "singularity" else "APPTAINERENV"
    paths = ":".join([f"{mpi.folder}/lib", *mpi.library_folders])
    # Without OPAL_PREFIX, the host's Open MPI would look for its plugins where the container's has them.
    return {f"{prefix}_LD_LIBRARY_PATH": paths, f"{prefix}_OPAL_PREFIX": mpi.folder}


def sources_on_host(tokens: Sequence[str]) -> list[str]:
    """Paths that must exist on the host for a container to start: the first part of each bind."""
    return [bind.partition(":")[0] for option, bind in pairwise(tokens) if option == "--bind"]


def _bound_folders(mpi: MpiTable) -> list[str]:
    return [path for path in (mpi.folder, *mpi.library_folders) if path]


# ----------------------------------------------------------------------------------------------------
# Parts that all batch scripts have: what they ask of Slurm, how they start ranks and pass signals on.


# Between two requests to stop: a whole array may be warned at once, so Slurm is not asked more often.
_AGAIN_SECONDS = 15
# What the script itself needs to requeue its job.
_AT_LEAST_SECONDS = 30
PROLOGUE = ("set -euo pipefail", 'say() { echo "hpcai500: ${*//[[:cntrl:]]/ }" >&2; }')


def queue_directives(slurm: SlurmTable) -> Iterator[str]:
    """Where a job queues, and for how long."""
    for name, value in (("partition", slurm.partition), ("account", slurm.account), ("qos", slurm.qos)):
        if value:
            yield f"#SBATCH --{name}={value}"
    yield f"#SBATCH --time={slurm.time_limit}"


def size_directives(node: NodeTable, nodes: int, tasks: int) -> Iterator[str]:
    """`tasks` ranks on each of `nodes` nodes, with their share of a node's cores and GPUs."""
    yield f"#SBATCH --nodes={nodes}"
    yield f"#SBATCH --ntasks-per-node={tasks}"
    if node.cores_per_task:
        yield f"#SBATCH --cpus-per-task={node.cores_per_task}"
    if node.gpus and node.gpu_request != "none":
        kind = f"{node.gpu_type}:" if node.gpu_type else ""
        gpus = node.gpus * tasks // node.tasks
        yield f"#SBATCH --{node.gpu_request}={'gpu:' * (node.gpu_request == 'gres')}{kind}{gpus}"


def return_directives(slurm: SlurmTable, output: str) -> Iterator[str]:
    """Where the output goes, and what happens when time is up."""
    yield f"#SBATCH --output={output}"
    # Otherwise a job that comes back from the queue would overwrite the file.
    yield "#SBATCH --open-mode=append"
    yield "#SBATCH --requeue" if slurm.requeue else "#SBATCH --no-requeue"
    if slurm.warning_seconds:
        # B: only the script gets the signal, so that it knows why the ranks end; it passes it on.
        yield f"#SBATCH --signal=B:USR1@{slurm.warning_seconds}"
    yield from (f"#SBATCH {option}" for option in slurm.extra)


def modules(site: Site) -> Iterator[str]:
    """Lines that load the site's modules."""
    if site.launcher.modules:
        yield "# `module` is a function of login shells, and was not written for set -u."
        yield "set +u"
        yield "type module >/dev/null 2>&1 || . /etc/profile || true"
        yield f"module load {shlex.join(site.launcher.modules)}"
        yield "set -u"


def exports(site: Site) -> Mapping[str, str]:
    """Variables for the ranks, and for the container's runtime on every node."""
    launcher = site.launcher
    # mpirun does not tell the ranks where rank 0 is: on the first node, as is this script.
    leader = {"MASTER_ADDR": Expression("$SLURMD_NODENAME")} if launcher.program == "mpirun" else {}
    by_mpi = ["OMPI_MCA_btl_tcp_if_include"] if launcher.program == "srun" and launcher.pmi != "none" else []
    networks = ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", *by_mpi] if launcher.interface else []
    return {
        **leader,
        **dict.fromkeys(networks, launcher.interface),
        **container_environment(site.container, site.mpi),
        **site.environment,
    }


def export_lines(site: Site) -> list[str]:
    return [f"export {name}={word(value)}" for name, value in exports(site).items()]


def checks(site: Site, command: str, sources: Sequence[str], leave: str = "exit") -> Iterator[str]:
    """Lines that check what would otherwise fail with an obscure message of srun or of the container's runtime.

    Args:
        command: that starts each rank.
        sources: paths that must exist on the host, besides the image.
        leave: what ends the script with an exit code.
    """
    missing = f"{command}: no such command on this node: load its module, or give its path in the site file"
    yield f"if ! command -v {word(command)} >/dev/null; then"
    yield f"    say {word(missing)}"
    yield f"    {leave} 69"
    yield "fi"
    if site.container.command == NO_CONTAINER:
        return
    yield from array("needed", list(dict.fromkeys([site.container.image, *sources])))
    yield 'for path in "${needed[@]}"; do'
    missing = "$path: not on $HOSTNAME: image, binds, data must be on all nodes"
    yield f'    [[ -e $path ]] || {{ say "{missing}"; {leave} 69; }}'
    yield "done"


def launcher(site: Site, nodes: int, tasks: int) -> list[str]:
    """The tokens that start the ranks, before the command that they run."""
    layout = Layout(
        nodes=nodes,
        per_node=tasks,
        cores_per_rank=site.node.cores_per_task or None,
        interface=site.launcher.interface or None,
        # mpirun passes no other variables to other nodes.
        exported=list(exports(site)),
    )
    return mpirun(layout, []) if site.launcher.program == "mpirun" else srun(layout, [], pmi=site.launcher.pmi)


def start_and_wait(slurm: SlurmTable, command: str, job: str, on_end: str = "pass_on") -> list[str]:
    """Lines that run `command` (words of bash) to its end, and set `code`.

    `warned` is set when Slurm said that time is up.

    Args:
        slurm: how long before the end it warns.
        job: words of bash that give the job's number.
        on_end: what SIGTERM does.
    """
    # A process that reacts only to USR1 (one that stages data, say) must have ended before time is up.
    patience = max(slurm.warning_seconds - _AT_LEAST_SECONDS, slurm.warning_seconds // 2, _AGAIN_SECONDS)
    return [
        "# A warning (USR1) and an end (TERM) go on to all ranks, which stop with a checkpoint. Both as URG: Slurm",
        "# gives it to all processes of the job's steps, and with --full to those below this script, where mpirun is;",
        "# who does not listen lives on: what mounts an image, ranks that start. So it is said until they have ended,",
        "# and as USR1 where Slurm does not answer, and in the end.",
        "warned='' heard='' ranks='' told=''",
        'said() { timeout 10 scancel --signal=URG "$1" && timeout 10 scancel --full --signal=URG "$1"; }',
        "tell() {",
        f"    local last=$((SECONDS + {patience}))",
        '    while kill -0 "$ranks" 2>/dev/null; do',
        f'        if ! said {job} || ((SECONDS >= last)); then kill -USR1 "$ranks" || break; fi',
        f"        sleep {_AGAIN_SECONDS} >/dev/null 2>&1",
        "    done",
        "}",
        "pass_on() {",
        "    heard=yes",
        "    if [[ $ranks && ! $told ]]; then",
        "        tell </dev/null &",
        "        told=$!",
        "    fi",
        "}",
        "trap 'warned=yes; pass_on' USR1",
        f"trap {word(on_end)} TERM",
        f"{command} &",
        "ranks=$!",
        "if [[ $heard ]]; then pass_on; fi",
        "while true; do",
        "    heard='' code=0",
        '    wait "$ranks" || code=$?',
        "    # A signal ends the wait, not the ranks.",
        "    [[ $heard ]] || break",
        "done",
        'if [[ $told ]]; then kill "$told" 2>/dev/null || true; fi',
    ]


# ----------------------------------------------------------------------------------------------------
# What a batch script does with its record: names it, and finds out what an earlier start has left.


def record_folder(named: str) -> list[str]:
    """Lines that set `record` and its `parent`: `named`, unless HPCAI500_RECORD names another record."""
    return [
        "# The same folder when the job comes back from the queue.",
        f"record={word(named)}",
        'record=${HPCAI500_RECORD:-"$record"}',
        "[[ $record == /* ]] || record=$PWD/$record",
        'parent=$(dirname -- "$record")',
        "if [[ $parent == / ]]; then",
        '    say "$record: lies in /, which cannot be bound into a container: give /DIR/RECORD"',
        "    exit 64",
        "fi",
        "# Without a slash at its end.",
        'record=$parent/$(basename -- "$record")',
        'mkdir -p -- "$parent"',
    ]


def earlier() -> list[str]:
    """Lines that set `goes_on` if the record can be resumed; a run that never began to train is put aside."""
    return [
        "# A run that died before it began to train has nothing to go on with: it is kept, and another one begins.",
        "# A campaign keeps what never began by itself, and makes another attempt.",
        "if [[ -e $record/events.jsonl && ! -e $record/DONE ]]; then",
        "    code=0",
        '    grep -q \'"key":"run_start",.*}$\' -- "$record/events.jsonl" || code=$?',
        "    # More than 1: it cannot be read.",
        "    if (( code == 1 )); then",
        "        aside=$record.failed-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}",
        '        say "$record: ended before it began to train: it is kept as $aside, and begins anew"',
        '        mv -T -- "$record" "$aside"',
        "    fi",
        "fi",
        "goes_on=''",
        "for file in DONE events.jsonl campaign.jsonl; do",
        "    if [[ -e $record/$file ]]; then goes_on=yes; fi",
        "done",
        "# A job that comes back from the queue still has the words with which its record began.",
        "if [[ $goes_on ]] && (( $# > 0 && ${SLURM_RESTART_COUNT:-0} == 0 )); then",
        '    say "$record is there already, and goes on as it began: leave out what follows FILE ($*),"',
        '    say "or begin another one: HPCAI500_RECORD=runs/NEW sbatch FILE $*"',
        "    exit 64",
        "fi",
    ]


def done() -> list[str]:
    """Lines that print the score of a record that is complete."""
    return [
        "if [[ -e $record/DONE ]]; then",
        '    say "$record is done already; its score:"',
        '    exec "${hpcai500[@]}" score "$record"',
        "fi",
    ]


# ----------------------------------------------------------------------------------------------------
# The script as a whole.


@dataclass(frozen=True)
class BatchJob:
    """What a script shall do.

    Attributes:
        site: names the image, unless it uses no container.
        arguments: of the command, whether it begins or resumes.
        new_arguments: of the command when it begins.
        binds: what the job needs of the host besides the site's binds.
        record: folder of the record; None: one for each job under `runs/`.
        rendered_by: the command that asked for the script.
    """

    benchmark: str
    nodes: int
    site: Site
    arguments: Sequence[str] = ()
    new_arguments: Sequence[str] = ()
    binds: Sequence[str] = ()
    record: str | None = None
    rendered_by: Sequence[str] = ()


def render(job: BatchJob) -> str:
    """The script.

    Raises:
        UsageError: a path cannot be bound into a container, or there is no image.
    """
    container = _in_container(job, [*job.binds, Expression("$PWD"), Expression("$parent")])
    blocks = [
        ["#!/bin/bash", *_header(job)],
        list(_directives(job)),
        PROLOGUE,
        list(modules(job.site)),
        export_lines(job.site),
        record_folder(_record(job)),
        list(_checks(job, container)),
        [*array("launcher", launcher(job.site, job.nodes, job.site.node.tasks)), *array("hpcai500", container)],
        earlier(),
        done(),
        list(_arguments(job)),
        start_and_wait(job.site.slurm, '"${launcher[@]}" "${hpcai500[@]}" "${arguments[@]}"', '"$SLURM_JOB_ID"'),
        list(_requeue(job.site)),
        ['exit "$code"'],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _header(job: BatchJob) -> Iterator[str]:
    ranks = job.nodes * job.site.node.tasks
    usage = {
        "sbatch FILE": "submits it",
        "sbatch FILE --set hyperparameters.seed=2": "the same with another seed: what follows FILE goes to hpcai500",
        f"HPCAI500_RECORD=runs/{job.benchmark}-17 sbatch FILE": "goes on with the run of job 17",
        "scancel --signal=TERM --batch JOB": "stops it with a checkpoint",
    }
    # Benchmarks of plug-ins may have long names.
    width = max(42, 2 + max(map(len, usage)))
    lines = [
        f"hpcai500 {job.benchmark} on {job.nodes} node{'s' * (job.nodes > 1)}, {ranks} rank{'s' * (ranks > 1)}.",
        "",
        *[f"    {command:{width}}{what}" for command, what in usage.items()],
        "",
        f"Change what you like; what shall stay belongs into the site file. Written by hpcai500 {__version__} with:",
        "",
        f"    {' '.join(map(word, job.rendered_by))}",
    ]
    yield from comment("\n".join(lines))


def _directives(job: BatchJob) -> Iterator[str]:
    slurm, node = job.site.slurm, job.site.node
    yield f"#SBATCH --job-name=hpcai500-{job.benchmark}"
    yield from queue_directives(slurm)
    yield from size_directives(node, job.nodes, node.tasks)
    if slurm.exclusive:
        yield "#SBATCH --exclusive"
    yield from return_directives(slurm, f"hpcai500-{job.benchmark}-%j.out")


def _record(job: BatchJob) -> str:
    return Expression(f"runs/{job.benchmark}-$SLURM_JOB_ID") if job.record is None else job.record


def _checks(job: BatchJob, container: Sequence[str]) -> Iterator[str]:
    yield from checks(job.site, container[0], sources_on_host(_in_container(job, job.binds)))
    if job.site.container.command == NO_CONTAINER:
        return
    yield "if [[ $PWD$record == *[,:]* ]]; then"
    yield '    say "$PWD, $record: a path with , or : cannot be bound into a container: submit from another folder"'
    yield "    exit 64"
    yield "fi"


def _in_container(job: BatchJob, binds: Sequence[str]) -> list[str]:
    site = job.site
    return in_container(site.container, ["hpcai500"], mpi=site.mpi, binds=binds, folder=Expression("$PWD"))


def _arguments(job: BatchJob) -> Iterator[str]:
    yield from array("arguments", [job.benchmark, *job.arguments, "--out", Expression("$record")])
    yield "if [[ $goes_on ]]; then"
    yield "    arguments+=(--resume)"
    yield "else"
    yield from array("arguments", [*job.new_arguments, Expression("$@")], append=True, indent="    ")
    yield "fi"


def _requeue(site: Site) -> Iterator[str]:
    again = 'say "go on with: HPCAI500_RECORD=$record sbatch FILE"'
    yield "# Stopped because time is up and not because something is wrong: there is more to do. Any code but that of a"
    yield "# missed target: the signal may have ended an image's file system before the ranks."
    yield "if [[ $warned ]] && (( code != 2 )); then"
    if site.slurm.requeue:
        yield f"    most={site.slurm.most_requeues}"
        yield "    if (( ${SLURM_RESTART_COUNT:-0} >= most )); then"
        yield '        say "the job has come back $most times already: no more"'
        yield f"        {again}"
        yield '    elif scontrol requeue "$SLURM_JOB_ID"; then'
        yield '        say "time is up: job $SLURM_JOB_ID goes back to the queue, and goes on with $record"'
        yield "    else"
        yield f"        {again}"
        yield "    fi"
    else:
        yield f"    {again}"
    yield "fi"


# ----------------------------------------------------------------------------------------------------
# From a request to the job: site and recipe are read and checked against each other.


_GPU_FLAGS = {"--nv", "--nvccli"}


@dataclass(frozen=True)
class RenderRequest:
    """What the user asked for on the command line of `slurm render`.

    Attributes:
        site: name or file; None: the defaults.
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
    """A job that can be rendered, and what the user should check first."""

    job: BatchJob
    warnings: Sequence[str]


def plan_job(request: RenderRequest) -> Planned:
    """The job of `request`.

    Raises:
        UsageError: site, recipe, data, record or number of nodes cannot be used, or do not fit together.
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
    """`site`, completed by the image in which this command runs if it names none.

    Without a site file (`named` is None), the container's runtime is taken over, too.

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
        UsageError: the site lacks what the recipe asks for.
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
        if not recipe.problem.is_synthetic:
            raise DataError(f"{recipe.benchmark}: the recipe trains on {dataset}: give its folder with --data DIR")
        return None
    if request.data.exists() and not request.data.is_dir():
        raise DataError(f"{request.data}: not a folder; give the folder of {dataset} with --data DIR")
    return os.path.abspath(request.data)  # noqa: PTH100 - resolve() would follow links that only lead here


def _file_of(name: str) -> str | None:
    """The absolute path of a recipe that is not shipped, for a job that runs in another folder; None for others."""
    path = find_recipe(name)
    return None if is_shipped(path) else os.path.abspath(path)  # noqa: PTH100 - as above


def _warnings(request: RenderRequest, site: Site, needed: Sequence[str]) -> Iterator[str]:
    """Paths that do not exist on this machine but may on the nodes, and GPUs that the container does not show."""
    container = site.container
    inside = find_container(request.environment) is not None
    image = [container.image] if container.command != NO_CONTAINER and not inside else []
    for path in (*image, *needed):
        if not Path(path).exists():
            yield f"{path}: not seen from here; it must be there on every node of the job"
    if container.command != NO_CONTAINER and site.node.gpus and not _GPU_FLAGS & set(container.flags):
        yield 'the site has GPUs, but the container does not show them: flags = ["--nv"] under [container]'
