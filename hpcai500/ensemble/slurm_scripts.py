"""The batch scripts of an ensemble: an array of members, a job behind it that collects, and what submits both. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hpcai500 import __version__
from hpcai500.ensemble.numbers import in_ranges
from hpcai500.ensemble.slurm_member_script import member_script
from hpcai500.ensemble.slurm_order import (
    COLLECT,
    FOLDER,
    SUBMIT,
    Submission,
    binds_of,
    checks_of,
    container_tokens,
    script_name,
    script_text,
)
from hpcai500.launch.bash_words import Expression, array, comment, word
from hpcai500.launch.script_parts import PROLOGUE, export_lines, modules, queue_directives, return_directives


def scripts(submission: Submission) -> dict[str, str]:
    """Name and text of each file.

    Raises:
        UsageError: a path cannot be bound into a container, or there is no image.
    """
    return {
        **{script_name(first): member_script(submission, first) for first in submission.first_members},
        COLLECT: collect_script(submission),
        SUBMIT: submit_script(submission),
    }


def collect_script(submission: Submission) -> str:
    """The script of the job that runs when all elements have ended, however they did."""
    site, slurm = submission.site, submission.site.slurm
    container = container_tokens(submission, binds_of(submission))
    header = (
        "When all members have ended: those that may be run again are, once; then what the ensemble amounts to.\n"
        f"Written by hpcai500 {__version__}; submit it by {SUBMIT}, or by hand: sbatch {FOLDER}/{COLLECT}"
    )
    directives = [
        f"#SBATCH --job-name={submission.job_names[1]}",
        *queue_directives(slurm),
        *("#SBATCH --nodes=1", "#SBATCH --ntasks=1"),
        *([f"#SBATCH --cpus-per-task={site.node.cores_per_task}"] if site.node.cores_per_task else []),
        *return_directives(slurm.model_copy(update={"warning_seconds": 0}), f"{FOLDER}/collect-%j.out"),
    ]
    again = ["ensemble", "submit", Expression("$ensemble"), "--after", Expression("$SLURM_JOB_ID"), "--dry-run"]
    return script_text(
        ["#!/bin/bash", *comment(header)],
        directives,
        PROLOGUE,
        list(modules(site)),
        export_lines(site),
        [f"ensemble={word(str(submission.folder))}"],
        list(checks_of(submission, container, "exit")),
        array("hpcai500", container),
        [
            "# Writes the scripts of another array, if any member may be run again.",
            f'rm -f -- "$ensemble/{FOLDER}/{SUBMIT}"',
            *array("again", again),
            '"${hpcai500[@]}" "${again[@]}" || say "which members may be run again is not known: see above"',
            f"if [[ -e $ensemble/{FOLDER}/{SUBMIT} ]]; then",
            f'    if bash "$ensemble/{FOLDER}/{SUBMIT}"; then exit 0; fi',
            "    say 'the members that are missing could not be submitted again'",
            "fi",
        ],
        ['exec "${hpcai500[@]}" ensemble collect "$ensemble"'],
    )


def submit_script(submission: Submission) -> str:
    """What is typed on the host: checks, submits the array and the job behind it, and has the journal name both."""
    folder, firsts = submission.folder, submission.first_members
    here = container_tokens(submission, binds_of(submission)) if submission.submits_inside else ["hpcai500"]
    told = [
        *("ensemble", "submit", Expression("$ensemble"), "--queued", Expression("$jobs")),
        *("--member", in_ranges(submission.members)),
        *(("--at-once", str(submission.at_once)) if submission.at_once else ()),
        *(("--exclude", ",".join(submission.exclude)) if submission.exclude else ()),
        *(("--after", submission.after) if submission.after else ()),
    ]
    header = (
        "Submits the members and the job that collects, on a host where Slurm's commands are.\n"
        f"Written by hpcai500 {__version__} with:\n\n    {' '.join(map(word, submission.rendered_by))}"
    )
    return script_text(
        ["#!/bin/bash", *comment(header)],
        PROLOGUE,
        _without_job(),
        [f"ensemble={word(str(folder))}", 'cd -- "$ensemble"'],
        [
            *array("hpcai500", here),
            f"if ! command -v {word(here[0])} >/dev/null; then",
            f"    say {word(f'{here[0]}: no such command here: put it on PATH')}",
            "    exit 69",
            "fi",
        ],
        _nobody_left(submission),
        [
            "# Refuses now what would wait for ever, and queues nothing.",
            'check() { local said; said=$(sbatch --test-only "$1" 2>&1) || { say "$ensemble/$1: $said"; exit 64; }; }',
            *[f"check {FOLDER}/{script_name(first)}" for first in firsts],
            f"check {FOLDER}/{COLLECT}",
        ],
        list(_queueing(submission)),
        [
            *array("told", told),
            'if ! "${hpcai500[@]}" "${told[@]}"; then',
            '    say "the journal of $ensemble cannot tell of jobs $jobs: they are cancelled"',
            "    exit 1",
            "fi",
            "queued=()",
        ],
    )


def _without_job() -> list[str]:
    return [
        "# A job that submits others must not hand on what it was given itself.",
        'for name in "${!SLURM_@}"; do [[ $name == SLURM_CONF ]] || unset "$name"; done',
    ]


def _nobody_left(submission: Submission) -> list[str]:
    if not submission.in_queue:
        return []
    ours = f"--jobs={','.join(submission.in_queue)} --name={submission.job_names[0]}"
    return [
        "# Two jobs at one member would be in each other's way.",
        f"left=$(squeue --noheader --format=%i {ours} 2>/dev/null || true)",
        "if [[ $left ]]; then",
        "    say \"still in the queue: ${left//$'\\n'/ }: wait for them, or: hpcai500 ensemble cancel $ensemble\"",
        "    exit 64",
        "fi",
    ]


def _queueing(submission: Submission) -> Iterator[str]:
    yield "# What was queued, and the journal does not know, does not stay: also at Ctrl-C."
    yield "queued=()"
    yield "trap 'if (( ${#queued[@]} )); then scancel \"${queued[@]}\"; fi' EXIT"
    for number, first in enumerate(submission.first_members):
        # One array after the other, so that no more than --at-once run.
        behind = '--dependency=afterany:"${queued[-1]}" ' if number and submission.at_once else ""
        yield from _queued(f"{behind}{FOLDER}/{script_name(first)}")
    yield 'arrays=$(IFS=:; echo "${queued[*]}")'
    yield from _queued(f'--dependency=afterany:"$arrays" {FOLDER}/{COLLECT}')
    yield 'jobs=$(IFS=,; echo "${queued[*]}")'


def _queued(words: str) -> Iterator[str]:
    yield f"job=$(sbatch --parsable {words})"
    # Where there are several clusters, its cluster's name stands behind it.
    yield 'queued+=("${job%%;*}")'
