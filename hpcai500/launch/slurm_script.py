"""Batch scripts for Slurm: readable bash that a site may change. Pure: a job goes in, text comes out."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpcai500 import __version__
from hpcai500.launch.bash_words import Expression, array, comment, word
from hpcai500.launch.container_command import container_environment, in_container, sources_on_host
from hpcai500.launch.launchers import Layout, mpirun, srun
from hpcai500.launch.site import NO_CONTAINER, Site
from hpcai500.launch.slurm_record import done, earlier, record_folder


@dataclass(frozen=True)
class BatchJob:
    """What a script shall do.

    Attributes:
        benchmark: `ic` or `ewa`.
        nodes: how many.
        site: where; its image is named, unless it uses no container.
        arguments: of the command, whether it begins or goes on.
        new_arguments: of the command when it begins.
        binds: what the job needs of the host besides the site's binds.
        record: folder of the record; None makes one for each job under `runs/`.
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
        ["set -euo pipefail", 'say() { echo "hpcai500: $*" >&2; }'],
        list(_modules(job.site)),
        [f"export {name}={word(value)}" for name, value in _exports(job.site).items()],
        record_folder(_record(job)),
        list(_checks(job, container)),
        [*array("launcher", _launcher(job)), *array("hpcai500", container)],
        earlier(),
        done(),
        list(_arguments(job)),
        _ranks(),
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
        "scancel --signal=USR1 JOB": "stops it with a checkpoint",
    }
    lines = [
        f"hpcai500 {job.benchmark} on {job.nodes} node{'s' * (job.nodes > 1)}, {ranks} rank{'s' * (ranks > 1)}.",
        "",
        *[f"    {command:42}{what}" for command, what in usage.items()],
        "",
        f"Change what you like; what shall stay belongs into the site file. Written by hpcai500 {__version__} with:",
        "",
        f"    {shlex.join(job.rendered_by)}",
    ]
    yield from comment("\n".join(lines))


def _directives(job: BatchJob) -> Iterator[str]:
    slurm, node = job.site.slurm, job.site.node
    yield f"#SBATCH --job-name=hpcai500-{job.benchmark}"
    for name, value in (("partition", slurm.partition), ("account", slurm.account), ("qos", slurm.qos)):
        if value:
            yield f"#SBATCH --{name}={value}"
    yield f"#SBATCH --time={slurm.time_limit}"
    yield f"#SBATCH --nodes={job.nodes}"
    yield f"#SBATCH --ntasks-per-node={node.tasks}"
    if node.cores_per_task:
        yield f"#SBATCH --cpus-per-task={node.cores_per_task}"
    if node.gpus and node.gpu_request != "none":
        kind = f"{node.gpu_type}:" if node.gpu_type else ""
        yield f"#SBATCH --{node.gpu_request}={'gpu:' * (node.gpu_request == 'gres')}{kind}{node.gpus}"
    if slurm.exclusive:
        yield "#SBATCH --exclusive"
    yield f"#SBATCH --output=hpcai500-{job.benchmark}-%j.out"
    # A job that comes back from the queue would begin the file anew.
    yield "#SBATCH --open-mode=append"
    yield "#SBATCH --requeue" if slurm.requeue else "#SBATCH --no-requeue"
    if slurm.warning_seconds:
        # B: this script alone gets it, so that it knows why the ranks end; it passes it on.
        yield f"#SBATCH --signal=B:USR1@{slurm.warning_seconds}"
    yield from (f"#SBATCH {option}" for option in slurm.extra)


def _modules(site: Site) -> Iterator[str]:
    if site.launcher.modules:
        yield "# `module` is a function of login shells, and was not written for set -u."
        yield "set +u"
        yield "type module >/dev/null 2>&1 || . /etc/profile || true"
        yield f"module load {shlex.join(site.launcher.modules)}"
        yield "set -u"


def _exports(site: Site) -> Mapping[str, str]:
    """Variables that the ranks get, and the container's runtime on every node."""
    launcher = site.launcher
    # mpirun does not tell the ranks where rank 0 is: on the first node, as this script.
    leader = {"MASTER_ADDR": Expression("$SLURMD_NODENAME")} if launcher.program == "mpirun" else {}
    by_mpi = ["OMPI_MCA_btl_tcp_if_include"] if launcher.program == "srun" and launcher.pmi != "none" else []
    networks = ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", *by_mpi] if launcher.interface else []
    return {
        **leader,
        **dict.fromkeys(networks, launcher.interface),
        **container_environment(site.container, site.mpi),
        **site.environment,
    }


def _record(job: BatchJob) -> str:
    return Expression(f"runs/{job.benchmark}-$SLURM_JOB_ID") if job.record is None else job.record


def _checks(job: BatchJob, container: Sequence[str]) -> Iterator[str]:
    """What can be said here in one line, and would be a riddle in the words of srun or of the container's runtime."""
    command = container[0]
    missing = f"{command}: no such command on this node: load its module, or give its path in the site file"
    yield f"if ! command -v {word(command)} >/dev/null; then"
    yield f"    say {word(missing)}"
    yield "    exit 69"
    yield "fi"
    if job.site.container.command == NO_CONTAINER:
        return
    paths = [job.site.container.image, *sources_on_host(_in_container(job, job.binds))]
    yield from array("needed", list(dict.fromkeys(paths)))
    yield 'for path in "${needed[@]}"; do'
    yield '    [[ -e $path ]] || { say "$path: not on $HOSTNAME: image, binds, data must be on all nodes"; exit 69; }'
    yield "done"
    yield "if [[ $PWD$record == *[,:]* ]]; then"
    yield '    say "$PWD, $record: a path with , or : cannot be bound into a container: submit from another folder"'
    yield "    exit 64"
    yield "fi"


def _in_container(job: BatchJob, binds: Sequence[str]) -> list[str]:
    site = job.site
    return in_container(site.container, ["hpcai500"], mpi=site.mpi, binds=binds, folder=Expression("$PWD"))


def _launcher(job: BatchJob) -> list[str]:
    site = job.site
    layout = Layout(
        nodes=job.nodes,
        per_node=site.node.tasks,
        cores_per_rank=site.node.cores_per_task or None,
        interface=site.launcher.interface or None,
        # mpirun takes no others to other nodes.
        exported=list(_exports(site)),
    )
    return mpirun(layout, []) if site.launcher.program == "mpirun" else srun(layout, [], pmi=site.launcher.pmi)


def _arguments(job: BatchJob) -> Iterator[str]:
    yield from array("arguments", [job.benchmark, *job.arguments, "--out", Expression("$record")])
    yield "if [[ $goes_on ]]; then"
    yield "    arguments+=(--resume)"
    yield "else"
    yield from array("arguments", [*job.new_arguments, Expression("$@")], append=True, indent="    ")
    yield "fi"


def _ranks() -> list[str]:
    return [
        "# A warning (USR1) and an end (TERM) go on to all ranks, which stop with a checkpoint. Both as USR1: at TERM,",
        "# launchers kill their ranks.",
        "warned='' heard='' ranks=''",
        'pass_on() { heard=yes; if [[ $ranks ]]; then kill -USR1 "$ranks" 2>/dev/null || true; fi; }',
        "trap 'warned=yes; pass_on' USR1",
        "trap pass_on TERM",
        '"${launcher[@]}" "${hpcai500[@]}" "${arguments[@]}" &',
        "ranks=$!",
        "if [[ $heard ]]; then pass_on; fi",
        "while true; do",
        "    heard='' code=0",
        '    wait "$ranks" || code=$?',
        "    # A signal ends the wait, not the ranks.",
        "    [[ $heard ]] || break",
        "done",
    ]


def _requeue(site: Site) -> Iterator[str]:
    again = 'say "go on with: HPCAI500_RECORD=$record sbatch FILE"'
    yield "# Stopped because time is up (1, or by a signal) and not because something is wrong: there is more to do."
    yield "if [[ $warned ]] && (( code == 1 || code > 128 )); then"
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
