"""Batch scripts for Slurm: readable bash, from a request, a site and a recipe that are checked against each other.

What would fail after hours in the queue is refused here. `hpcai500.ensemble` builds its scripts from the same parts.
All but the last section is pure: no path is looked up, and nothing is started.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePosixPath

from hpcai500 import __version__
from hpcai500.errors import DataError, UsageError
from hpcai500.files import why_not
from hpcai500.launch.launcher import World, fitting_overrides
from hpcai500.launch.layout import Layout, mpirun, srun
from hpcai500.launch.slurm.site import NO_CONTAINER, ContainerTable, MpiTable, NodeTable, Site, SlurmTable, load_site
from hpcai500.layers import Recipe
from hpcai500.recipe import default_recipe, find_recipe, is_shipped, load_recipe
from hpcai500.system.container import IMAGE_FILE, find_container, links_of
from hpcai500.text import shell_bytes

# ----------------------------------------------------------------------------------------------------
# Words of bash, where each token is quoted so that the shell reads it as one word; and templates of scripts.


_WIDTH = 116
_HOLE = re.compile(r"^( *)@(\w+)@\n|@(\w+)@", re.MULTILINE)


class Expression(str):
    """A word in which the shell expands $NAME; it expands nothing in other words."""

    __slots__ = ()


def word(token: str) -> str:
    """`token` as one word of printable characters, because people read scripts and terminals show them."""
    if isinstance(token, Expression):
        return f'"{token}"'
    if token.isprintable():
        return shlex.quote(token)
    return shell_bytes(token)


def array(name: str, tokens: Sequence[str], *, append: bool = False, indent: int = 0) -> Iterator[str]:
    """Lines that set the array `name`, or append to it; an option stays on one line with its value.

    They are kept short enough to be indented by `indent`.
    """
    phrases, opening, width = list(_phrases(tokens)), f"{name}{'+' if append else ''}=(", _WIDTH - indent
    if len(whole := f"{opening}{' '.join(phrases)})") <= width:
        yield whole
        return
    yield opening
    line = ""
    for phrase in phrases:
        if line and len(f"    {line} {phrase}") > width:
            yield f"    {line}"
            line = ""
        line = f"{line} {phrase}".strip()
    yield f"    {line}"
    yield ")"


def comment(text: str) -> Iterator[str]:
    """`text` as comment lines."""
    for line in text.splitlines() or [""]:
        yield f"# {line}".rstrip()


def usage_lines(usage: Mapping[str, str]) -> Iterator[str]:
    """Comment lines that say what commands do."""
    width = max(map(len, usage))
    return comment("\n".join(f"    {command:{width}}  {what}" for command, what in usage.items()))


def several(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count > 1)}"


def fill(template: str, **values: str | Iterable[str]) -> str:
    """`template` with each `@NAME@` replaced by its value; a paragraph that becomes empty is removed.

    If `@NAME@` is alone on its line, the value may have several lines, which are indented like it.
    """
    texts = {name: value if isinstance(value, str) else "\n".join(value) for name, value in values.items()}

    def filled(hole: re.Match[str]) -> str:
        indent, block, word_here = hole.groups()
        if word_here:
            return texts[word_here]
        return "".join(f"{indent}{line}\n" for line in texts[block].split("\n")) if texts[block] else ""

    return re.sub(r"\n{3,}", "\n\n", _HOLE.sub(filled, template))


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
        binds: what the command needs besides the site's binds: `SOURCE`, `SOURCE:TARGET[:ro]`.
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
    hosts_mpi = [bind_of(path, path, "ro") for path in (mpi.folder, *mpi.library_folders) if path] if mpi else []
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


def binds_of_data(data: str, benchmark: str) -> list[str]:
    """Binds that show a data set under its name, and what its links lead to, unless it is known to be missing."""
    linked = [str(it) for _, it in links_of(Path(data), benchmark) if it.exists() or is_hidden(it)]
    return [bind_of(path, path, "ro") for path in dict.fromkeys((data, *linked))]


def is_hidden(path: Path) -> bool:
    """Whether a container may hide `path`: nothing is here at its top."""
    return not Path(*path.parts[:2]).exists()


def container_environment(container: ContainerTable, mpi: MpiTable) -> Mapping[str, str]:
    """Variables that tell the container where the host's MPI is; its runtime does not pass them by itself."""
    if container.command == NO_CONTAINER or mpi.model != "bind":
        return {}
    prefix = "SINGULARITYENV" if PurePosixPath(container.command).name == "singularity" else "APPTAINERENV"
    paths = ":".join([f"{mpi.folder}/lib", *mpi.library_folders])
    # Without OPAL_PREFIX, the host's Open MPI would look for its plugins in the container's folder.
    return {f"{prefix}_LD_LIBRARY_PATH": paths, f"{prefix}_OPAL_PREFIX": mpi.folder}


def sources_on_host(tokens: Sequence[str]) -> list[str]:
    """Paths that must exist on the host for a container to start: the first part of each bind."""
    return [bind.partition(":")[0] for option, bind in pairwise(tokens) if option == "--bind"]


# ----------------------------------------------------------------------------------------------------
# Parts that all batch scripts have: options of sbatch, starting ranks and passing signals on.


def directives(slurm: SlurmTable, job_name: str, size: Iterable[str], output: str) -> list[str]:
    """The lines for sbatch: the site's options, `size` (with other options), and where the output goes."""
    queue = {"partition": slurm.partition, "account": slurm.account, "qos": slurm.qos}
    options = [
        f"--job-name={job_name}",
        *(f"--{name}={value}" for name, value in queue.items() if value),
        f"--time={slurm.time_limit}",
        *size,
        f"--output={output}",
        # Otherwise a requeued job would overwrite the file.
        "--open-mode=append",
        "--requeue" if slurm.requeue else "--no-requeue",
        # B: only the script gets the signal, so that it knows why the ranks end; it passes it on.
        *([f"--signal=B:USR1@{slurm.warning_seconds}"] if slurm.warning_seconds else ()),
        *slurm.extra,
    ]
    return [f"#SBATCH {option}" for option in options]


def size_of(node: NodeTable, nodes: int, tasks: int) -> Iterator[str]:
    """Options for `tasks` ranks on each of `nodes` nodes, with their share of a node's cores and GPUs."""
    yield f"--nodes={nodes}"
    yield f"--ntasks-per-node={tasks}"
    if node.cores_per_task:
        yield f"--cpus-per-task={node.cores_per_task}"
    if node.gpus and node.gpu_request != "none":
        kind = f"{node.gpu_type}:" if node.gpu_type else ""
        gpus = node.gpus * tasks // node.tasks
        yield f"--{node.gpu_request}={'gpu:' * (node.gpu_request == 'gres')}{kind}{gpus}"


PROLOGUE = """\
set -euo pipefail
say() { echo "hpcai500: ${*//[[:cntrl:]]/ }" >&2; }"""
_JOB = """\
# Of an array, the number of one element is also that of all: Slurm is always given both numbers.
job=$SLURM_JOB_ID
if [[ ${SLURM_ARRAY_TASK_ID:-} ]]; then job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi"""
_NO_CORE = """\
# A signal to a whole step ends the mount of an image: each rank would leave a core file.
ulimit -S -c 0"""
_MODULES = """\
# `module` is a function of login shells, and was not written for set -u.
set +u
type module >/dev/null 2>&1 || . /etc/profile || true
module load @names@
set -u"""


def opening(site: Site) -> str:
    """The first commands: shell options, `say`, `job` for Slurm's commands, the site's modules and variables."""
    modules = fill(_MODULES, names=shlex.join(site.launcher.modules)) if site.launcher.modules else ""
    no_core = "" if site.container.command == NO_CONTAINER else _NO_CORE
    variables = [f"export {name}={word(value)}" for name, value in _exports(site).items()]
    return "\n\n".join(filter(None, [PROLOGUE, _JOB, no_core, modules, "\n".join(variables)]))


def _exports(site: Site) -> Mapping[str, str]:
    """Variables for the ranks, and for the container's runtime on every node."""
    launcher = site.launcher
    # mpirun does not set MASTER_ADDR. Rank 0 is on the first node, like this script.
    leader = {"MASTER_ADDR": Expression("$SLURMD_NODENAME")} if launcher.program == "mpirun" else {}
    by_mpi = ["OMPI_MCA_btl_tcp_if_include"] if launcher.program == "srun" and launcher.pmi != "none" else []
    networks = dict.fromkeys(["GLOO_SOCKET_IFNAME", *by_mpi], launcher.interface)
    # Without `=`, NCCL takes each interface whose name begins so: eth1 would also be eth10.
    networks["NCCL_SOCKET_IFNAME"] = f"={launcher.interface}"
    return {
        **leader,
        **(networks if launcher.interface else {}),
        **container_environment(site.container, site.mpi),
        **site.environment,
    }


def launcher(site: Site, nodes: int, tasks: int) -> list[str]:
    """The tokens that start the ranks, before the command that they run."""
    layout = Layout(
        nodes=nodes,
        per_node=tasks,
        cores_per_rank=site.node.cores_per_task or None,
        interface=site.launcher.interface or None,
        # mpirun passes no other variables to other nodes.
        exported=list(_exports(site)),
    )
    return mpirun(layout, []) if site.launcher.program == "mpirun" else srun(layout, [], pmi=site.launcher.pmi)


_CHECKS = """\
if ! command -v @command@ >/dev/null; then
    say @missing@
    @leave@ 69
fi"""
_CHECKS_OF_PATHS = """
@needed@
for path in "${needed[@]}"; do
    [[ -e $path ]] || { say "$path: not on $HOSTNAME: image, binds, data must be on all nodes"; @leave@ 69; }
done"""


def checks(site: Site, container: Sequence[str], leave: str = "exit") -> str:
    """Commands that check what would otherwise fail with an obscure message of srun or of the container's runtime.

    Args:
        container: tokens that start each rank, with only those binds whose sources must exist on all hosts.
        leave: what ends the script with an exit code.
    """
    missing = f"{container[0]}: no such command on this node: load its module, or give its path in the site file"
    has_image = site.container.command != NO_CONTAINER
    sources = list(dict.fromkeys([site.container.image, *sources_on_host(container)]))
    return fill(
        _CHECKS + _CHECKS_OF_PATHS * has_image,
        command=word(container[0]),
        missing=word(missing),
        leave=leave,
        needed=array("needed", sources),
    )


# Between two requests to stop: a whole array may be warned at once, so Slurm is not called more often.
_AGAIN_SECONDS = 15
# What the script itself needs to requeue its job.
_AT_LEAST_SECONDS = 30
_SIGNALS = """\
# A warning (USR1) and an end (TERM) are passed on to all ranks, which stop with a checkpoint. Slurm sends URG
# to all processes of the job's steps and, with --full, to those below this script, where mpirun is. Processes
# that do not handle URG, such as image mounts and starting ranks, ignore it, so it is repeated until the ranks
# have ended. If Slurm does not answer, and when time is short, the ranks get USR1.
warned='' signalled='' ranks='' notifier=''
send_urg() { timeout 10 scancel --signal=URG "$1" && timeout 10 scancel --full --signal=URG "$1"; }
notify() {
    local last=$((SECONDS + @patience@))
    while kill -0 "$ranks" 2>/dev/null; do
        if ! send_urg "$job" || ((SECONDS >= last)); then kill -USR1 "$ranks" || break; fi
        sleep @again@ >/dev/null 2>&1
    done
}
pass_on() {
    signalled=yes
    if [[ $ranks && ! $notifier ]]; then
        notify </dev/null &
        notifier=$!
    fi
}
trap 'warned=yes; pass_on' USR1
trap @on_end@ TERM"""
_START = """\
@command@ &
ranks=$!
if [[ $signalled ]]; then pass_on; fi
while true; do
    signalled='' code=0
    wait "$ranks" || code=$?
    # A signal ends the wait, not the ranks.
    [[ $signalled ]] || break
done
if [[ $notifier ]]; then kill "$notifier" 2>/dev/null || true; fi"""
_JOB_TIMES = """\
# When this job came into the queue, and when it started: the goodput tells queue from downtime and start-up.
HPCAI500_JOB_TIMES=$(SLURM_TIME_FORMAT=%s timeout 10 squeue --noheader -j "$job" --format '%V %S' 2>/dev/null) || true
export HPCAI500_JOB_TIMES"""


def handle_signals(slurm: SlurmTable, on_end: str = "pass_on") -> str:
    """Commands that pass signals on to what `start` starts, and give it the times of its job.

    `warned` is set when Slurm has warned that time is up.

    Args:
        slurm: how long before the end it warns.
        on_end: what SIGTERM does.
    """
    # A process that reacts only to USR1, as one that stages data, must have ended before time is up.
    patience = max(slurm.warning_seconds - _AT_LEAST_SECONDS, slurm.warning_seconds // 2, _AGAIN_SECONDS)
    signals = fill(_SIGNALS, patience=str(patience), again=str(_AGAIN_SECONDS), on_end=word(on_end))
    return f"{signals}\n{_JOB_TIMES}"


def start(command: str) -> str:
    """Commands that run `command` (words of bash) to its end, and set `code`."""
    return fill(_START, command=command)


# ----------------------------------------------------------------------------------------------------
# The script of a run or campaign: it starts a record, or resumes one.


_SCRIPT = """\
#!/bin/bash
# hpcai500 @benchmark@ on @nodes@, @ranks@.
#
@usage@
#
# Edit freely; put lasting changes into the site file. Written by hpcai500 @version@ with:
#
@rendered_by@

@directives@

@opening@

# The same folder when the job is requeued.
record=@record@
record=${HPCAI500_RECORD:-"$record"}
[[ $record == /* ]] || record=$PWD/$record
parent=$(dirname -- "$record")
if [[ $parent == / ]]; then
    say "$record: is in /, which cannot be bound into a container: give /DIR/RECORD"
    exit 64
fi
# Without a trailing slash.
record=$parent/$(basename -- "$record")
mkdir -p -- "$parent"

@checks@
@check_of_names@

@launcher@
@hpcai500@

# A run that died before it began to train cannot be resumed: it is moved aside, and a new one starts.
# A campaign does this by itself, with another attempt.
if [[ -e $record/events.jsonl && ! -e $record/DONE ]]; then
    code=0
    grep -q '"key":"run_start",.*}$' -- "$record/events.jsonl" || code=$?
    # A code above 1: it cannot be read.
    if (( code == 1 )); then
        aside=$record.failed-$job-${SLURM_RESTART_COUNT:-0}
        say "$record: ended before it began to train: moved to $aside; a new run starts"
        mv -T -- "$record" "$aside"
    fi
fi
exists=''
for file in DONE events.jsonl campaign.jsonl; do
    if [[ -e $record/$file ]]; then exists=yes; fi
done
# A requeued job still has the arguments that its record was started with.
if [[ $exists ]] && (( $# > 0 && ${SLURM_RESTART_COUNT:-0} == 0 )); then
    say "$record exists and continues with its own settings: leave out what follows FILE ($*),"
    say "or start another one: HPCAI500_RECORD=runs/NEW sbatch FILE $*"
    exit 64
fi

if [[ -e $record/DONE ]]; then
    say "$record is already done; its score:"
    exec "${hpcai500[@]}" score "$record"
fi

@arguments@
if [[ $exists ]]; then
    arguments+=(--resume)
else
    @new_arguments@
fi

@signals@

@run@

# Stopped because time is up, not because of a failure: continue later. Any code except that of a missed target:
# the signal may have ended an image's file system before the ranks.
if [[ $warned ]] && (( code != 2 )); then
    @requeue@
fi

exit "$code"
"""
_CHECK_OF_NAMES = """\
if [[ $PWD$record == *[,:]* ]]; then
    say "$PWD, $record: a path with , or : cannot be bound into a container: submit from another folder"
    exit 64
fi"""
_RESTART = """\
# The ranks start again by themselves after one is lost. If a whole task was killed, its step has ended, with
# 128 + the signal: another step starts in this allocation.
restarts=0
while true; do
    ranks='' notifier=''
    @start@
    if [[ $warned$notifier ]] || (( code <= 128 || restarts >= @most@ )); then break; fi
    grep -q '"key":"run_start",.*}$' -- "$record/events.jsonl" || break
    restarts=$((restarts + 1))
    say "a task was killed (exit code $code): restart $restarts of @most@ in this allocation"
    @arguments@
    arguments+=(--resume)
done"""
_RESUME = 'say "continue with: HPCAI500_RECORD=$record sbatch FILE"'
_REQUEUE = """\
most=@most@
if (( ${SLURM_RESTART_COUNT:-0} >= most )); then
    say "the job was requeued $most times already: not requeued again"
    @resume@
elif scontrol requeue "$job"; then
    say "time is up: job $job goes back to the queue, and continues $record then"
else
    @resume@
fi"""


@dataclass(frozen=True)
class BatchJob:
    """What a script does.

    Attributes:
        site: names the image, unless it uses no container.
        arguments: of the command, for a new and for a resumed record.
        new_arguments: of the command, for a new record only.
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
    site, slurm, tasks = job.site, job.site.slurm, job.site.node.tasks

    def container(*binds: str) -> list[str]:
        return in_container(site.container, ["hpcai500"], mpi=site.mpi, binds=[*job.binds, *binds], folder=here)

    here, parent = Expression("$PWD"), Expression("$parent")
    usage = {
        "sbatch FILE": "submits it",
        "sbatch FILE --set hyperparameters.seed=2": "the same with another seed: what follows FILE goes to hpcai500",
        f"HPCAI500_RECORD=runs/{job.benchmark}-17 sbatch FILE": "continues the run of job 17",
        "scancel --signal=TERM --batch JOB": "stops it with a checkpoint",
    }
    restarts = ["--restarts", str(slurm.restarts)] if slurm.restarts else []
    arguments = list(array("arguments", [job.benchmark, *job.arguments, *restarts, "--out", Expression("$record")]))
    run = start('"${launcher[@]}" "${hpcai500[@]}" "${arguments[@]}"')
    if slurm.restarts:
        run = fill(_RESTART, start=run, most=str(slurm.restarts), arguments=arguments)
    size = [*size_of(site.node, job.nodes, tasks), *(["--exclusive"] if slurm.exclusive else [])]
    return fill(
        _SCRIPT,
        benchmark=job.benchmark,
        nodes=several(job.nodes, "node"),
        ranks=several(job.nodes * tasks, "rank"),
        usage=usage_lines(usage),
        version=__version__,
        rendered_by=comment(f"    {' '.join(map(word, job.rendered_by))}"),
        directives=directives(slurm, f"hpcai500-{job.benchmark}", size, f"hpcai500-{job.benchmark}-%j.out"),
        opening=opening(site),
        record=word(Expression(f"runs/{job.benchmark}-$job") if job.record is None else job.record),
        checks=checks(site, container()),
        check_of_names="" if site.container.command == NO_CONTAINER else _CHECK_OF_NAMES,
        launcher=array("launcher", launcher(site, job.nodes, tasks)),
        hpcai500=array("hpcai500", container(here, parent)),
        arguments=arguments,
        new_arguments=array("arguments", [*job.new_arguments, Expression("$@")], append=True, indent=4),
        signals=handle_signals(slurm),
        run=run,
        requeue=fill(_REQUEUE, most=str(slurm.most_requeues), resume=_RESUME) if slurm.requeue else _RESUME,
    )


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
    if request.out and request.out.is_absolute() and request.out.parent == Path("/"):
        raise UsageError(f"--out {request.out}: is in /, which cannot be bound into a container: give /DIR/RECORD")
    site = with_image(load_site(request.site) if request.site else Site(), request.site, request.environment)
    name = request.recipe or default_recipe(request.benchmark, has_data=request.data is not None)
    recipe = _fitting_recipe(request, name, site)
    check_site(site, recipe)
    if recipe.communication.backend == "horovod" and request.trials > 1:
        raise UsageError(
            "--trials: Horovod starts only once under one launcher: leave it out, and submit the script once for each "
            "run: sbatch FILE --set hyperparameters.seed=N"
        )
    data, file = _data(request, recipe), find_recipe(name)
    # The job runs in another folder.
    own = None if is_shipped(file) else os.path.abspath(file)  # noqa: PTH100 - resolve() would follow links
    needed = [path for path in (data, own) if path]
    settings = [token for text in request.overrides for token in ("--set", text)]
    trials = ["--trials", str(request.trials)] if request.trials > 1 else []
    job = BatchJob(
        request.benchmark,
        request.nodes,
        site,
        arguments=["--data", data] if data else [],
        new_arguments=["--recipe", own or name, *settings, *trials],
        binds=[] if site.container.command == NO_CONTAINER else _binds(data, recipe.benchmark, own),
        record=str(request.out) if request.out else None,
        rendered_by=request.rendered_by,
    )
    return Planned(job, list(_warnings(request, site, needed)))


def _binds(data: str | None, benchmark: str, recipe: str | None) -> list[str]:
    return [*(binds_of_data(data, benchmark) if data else ()), *([bind_of(recipe, recipe, "ro")] if recipe else ())]


def _fitting_recipe(request: RenderRequest, name: str, site: Site) -> Recipe:
    """The recipe `name`, with the number of ranks that nodes and site give."""
    tasks = site.node.tasks
    source = f"--nodes {request.nodes} with {tasks} task{'s' * (tasks > 1)} each ([node] tasks of the site)"
    fix = "change --nodes or tasks, or the recipe: --set hardware.nodes=N --set hardware.accelerators_per_node=N"
    world = World(request.nodes * tasks, [tasks] * request.nodes, "torch", source, fix)
    fitting = fitting_overrides(name, request.overrides, world)
    recipe = load_recipe(name, [*request.overrides, *fitting])
    if recipe.hardware.nodes != request.nodes:
        raise UsageError(f"{source}, but hardware.nodes of the recipe is {recipe.hardware.nodes}: {fix}")
    if recipe.benchmark != request.benchmark:
        raise UsageError(f"{name}: a recipe of {recipe.benchmark}; run `hpcai500 slurm render {recipe.benchmark} …`")
    return recipe


def _data(request: RenderRequest, recipe: Recipe) -> str | None:
    dataset = recipe.problem.dataset
    if request.data is None:
        if not recipe.problem.is_synthetic:
            raise DataError(f"{recipe.benchmark}: the recipe trains on {dataset}: give its folder with --data DIR")
        return None
    if request.data.exists() and not request.data.is_dir():
        raise DataError(
            f"{request.data}: {why_not('folder', request.data)}; give the folder of {dataset} with --data DIR"
        )
    return os.path.abspath(request.data)  # noqa: PTH100 - as above


def _warnings(request: RenderRequest, site: Site, needed: Sequence[str]) -> Iterator[str]:
    """Paths that are missing here but may exist on the nodes, and GPUs that the container does not show."""
    container = site.container
    inside = find_container(request.environment) is not None
    image = [container.image] if container.command != NO_CONTAINER and not inside else []
    for path in map(Path, (*image, *needed)):
        if inside and is_hidden(path):
            yield f"{path}: not visible here, so links in it are not bound; to bind them, render with --bind {path}"
        elif not path.exists():
            yield f"{path}: not found here; it must exist on every node of the job"
    if container.command != NO_CONTAINER and site.node.gpus and not _GPU_FLAGS & set(container.flags):
        yield 'the site has GPUs, but the container does not show them: set flags = ["--nv"] under [container]'


def with_image(site: Site, named: str | None, environment: Mapping[str, str]) -> Site:
    """`site`; if it names no image, with the one in which this command runs.

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
