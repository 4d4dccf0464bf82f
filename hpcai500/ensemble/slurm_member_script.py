"""The batch script of a member: an element of a job array, which runs one member and deals with its end. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from hpcai500 import __version__
from hpcai500.ensemble.numbers import in_ranges
from hpcai500.ensemble.reading import OUTPUT
from hpcai500.ensemble.retrying import MOST_FAILURES
from hpcai500.ensemble.slurm_failures import failure, own_failures, stopped
from hpcai500.ensemble.slurm_jobs import first_of
from hpcai500.ensemble.slurm_order import (
    FOLDER,
    SUBMIT,
    Submission,
    binds_of,
    checks_of,
    container_tokens,
    read_by_shell,
    script_text,
)
from hpcai500.launch.bash_words import array, comment, word
from hpcai500.launch.script_parts import (
    PROLOGUE,
    export_lines,
    launcher,
    modules,
    queue_directives,
    return_directives,
    size_directives,
    start_and_wait,
)
from hpcai500.launch.site import NO_CONTAINER


def member_script(submission: Submission, first_member: int = 0) -> str:
    """The script of an array: each element runs one member, counted from `first_member`."""
    site, shape = submission.site, submission.shape
    container = container_tokens(submission, binds_of(submission))
    return script_text(
        ["#!/bin/bash", *comment("\n".join(_header(submission)))],
        list(_directives(submission, first_member)),
        PROLOGUE,
        list(modules(site)),
        export_lines(site),
        list(_names(submission, first_member)),
        own_failures(),
        failure(site.slurm, MOST_FAILURES, submission.exclude),
        list(checks_of(submission, container, "fail")),
        array("launcher", launcher(site, shape.nodes_a_member, shape.ranks_a_node)),
        _stage_folder(submission),
        array("hpcai500", container),
        ["ended=''"],
        start_and_wait(
            site.slurm,
            '"${launcher[@]}" "${hpcai500[@]}" ensemble member "$ensemble" --member "$member"',
            '"$element"',
            "ended=yes; pass_on",
        ),
        ["if (( code == 0 )); then exit 0; fi"],
        stopped(site.slurm),
        ['fail "$code"'],
    )


def _header(submission: Submission) -> Iterator[str]:
    shape, folder = submission.shape, shlex.quote(str(submission.folder))
    yield (
        f"hpcai500 {submission.benchmark}: one element a member, {shape.degree} rank{'s' * (shape.degree > 1)} each on "
        f"{shape.nodes_a_member} node{'s' * (shape.nodes_a_member > 1)}."
    )
    usage = {
        f"bash {FOLDER}/{SUBMIT}": "submits it, and the job that collects",
        f"hpcai500 ensemble status {folder}": "how all members stand",
        f"hpcai500 ensemble cancel {folder}": "ends all, with checkpoints",
        "scancel --signal=USR1 --batch JOB_3": "stops member 3 with a checkpoint; it comes back through the queue",
    }
    yield ""
    width = max(map(len, usage))
    yield from (f"    {command:{width}}  {what}" for command, what in usage.items())
    yield ""
    yield f"Change what you like; what shall stay belongs into the site file. Written by hpcai500 {__version__}."


def _directives(submission: Submission, first_member: int) -> Iterator[str]:
    site, shape = submission.site, submission.shape
    elements = [member - first_member for member in submission.members if first_of(member) == first_member]
    yield f"#SBATCH --job-name={submission.job_names[0]}"
    yield from queue_directives(site.slurm)
    yield from size_directives(site.node, shape.nodes_a_member, shape.ranks_a_node)
    # Members that are less than a node lie side by side.
    if site.slurm.exclusive and shape.members_a_node == 1:
        yield "#SBATCH --exclusive"
    yield f"#SBATCH --array={in_ranges(elements)}{f'%{submission.at_once}' if submission.at_once else ''}"
    if submission.exclude:
        yield f"#SBATCH --exclude={','.join(submission.exclude)}"
    yield from return_directives(site.slurm, f"{FOLDER}/member-%A-%a.out")


def _names(submission: Submission, first_member: int) -> Iterator[str]:
    counted = f"$(({first_member} + SLURM_ARRAY_TASK_ID))" if first_member else "$SLURM_ARRAY_TASK_ID"
    yield f"ensemble={word(str(submission.folder))}"
    yield f"member={counted}"
    yield 'folder=$ensemble/members/$(printf %05d "$member")'
    yield "# Always both numbers: the number of one element alone is that of the whole array, too."
    yield "element=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
    yield 'mkdir -p -- "$folder"'
    yield f'exec >>"$folder/{OUTPUT}" 2>&1'
    yield 'say "member $member: job $element on $SLURM_JOB_NODELIST, restart ${SLURM_RESTART_COUNT:-0}"'


def _stage_folder(submission: Submission) -> list[str]:
    """A container can only be shown a folder that is there."""
    if submission.stage is None or submission.site.container.command == NO_CONTAINER:
        return []
    return [f'"${{launcher[@]}}" mkdir -p -- {word(read_by_shell(submission.stage))} || fail 69']
