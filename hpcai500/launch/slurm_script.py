"""Batch scripts for Slurm: readable bash that a site may change. Pure: a job goes in, text comes out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpcai500 import __version__
from hpcai500.launch.bash_words import Expression, array, comment, word
from hpcai500.launch.container_command import in_container, sources_on_host
from hpcai500.launch.script_parts import (
    PROLOGUE,
    checks,
    export_lines,
    launcher,
    modules,
    queue_directives,
    return_directives,
    size_directives,
    start_and_wait,
)
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
    # Names of plug-ins' benchmarks may be long.
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
