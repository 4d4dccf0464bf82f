"""The batch scripts of an ensemble: an array of members, a job behind it that collects, and one that submits both.

Everything here is pure: a submission goes in, text comes out.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcai500 import __version__
from hpcai500.ensemble.journal import FAILURES, OUTPUT, Ensemble
from hpcai500.ensemble.local import MOST_FAILURES
from hpcai500.ensemble.mapping import Shape, in_ranges
from hpcai500.errors import FAULTY_DEVICE, ExitCode, RecordError
from hpcai500.launch.site import NO_CONTAINER, Site, SlurmTable
from hpcai500.launch.slurm import (
    PROLOGUE,
    Expression,
    array,
    bind_of,
    checks,
    comment,
    export_lines,
    in_container,
    launcher,
    modules,
    queue_directives,
    return_directives,
    size_directives,
    sources_on_host,
    start_and_wait,
    word,
)

# ----------------------------------------------------------------------------------------------------
# Which element of which array a member is, from the ensemble's journal.


# Slurm numbers the elements of an array from 0 to 1000 unless a site says otherwise (MaxArraySize), so more members
# need several arrays.
ELEMENTS = 1000


def job_names(benchmark: str, identity: str) -> tuple[str, str]:
    """Names of the jobs of an ensemble: those of its members, and those that collect.

    Only number and name together identify a job of ours: another cluster, or the same one set up anew, gives the number
    to other jobs.
    """
    mark = identity[:12]
    return f"hpcai500-{benchmark}-member-{mark}", f"hpcai500-{benchmark}-collect-{mark}"


@dataclass(frozen=True)
class Submitted:
    """What one `submit` put into the queue.

    Attributes:
        arrays: number of each array, by the member whose element number is, or would be, 0.
        at_once: members side by side at most.
        exclude: hosts that must not be used.
        after: the collecting job that submitted it; None: a person did.
    """

    arrays: Mapping[int, str]
    collector: str
    members: tuple[int, ...]
    at_once: int | None
    exclude: tuple[str, ...]
    after: str | None
    is_cancelled: bool

    def element(self, member: int) -> tuple[str, int]:
        """Number of a member's array, and of its element in it."""
        first = first_of(member)
        return self.arrays[first], member - first


def first_of(member: int) -> int:
    """The member that is, or would be, element 0 of the array of `member`."""
    return member // ELEMENTS * ELEMENTS


def first_members(members: Iterable[int]) -> list[int]:
    """`first_of` each array that `members` need, ascending."""
    return sorted({first_of(member) for member in members})


def submissions(ensemble: Ensemble) -> list[Submitted]:
    """All that was ever submitted to Slurm, in order.

    Raises:
        RecordError: an event lacks something.
    """
    cancels = [event["seq"] for event in ensemble.events if event["key"] == "cancel"]
    told = [event for event in ensemble.events if event["key"] == "submit" and event["value"]["scheduler"] == "slurm"]
    try:
        return [_submitted(event["value"], event["seq"] < max(cancels, default=-1)) for event in told]
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{ensemble.path}: an event submit lacks something: {error}") from error


def standing(ensemble: Ensemble) -> Submitted | None:
    """The last submission; None if there was none, or it was cancelled."""
    told = submissions(ensemble)
    return told[-1] if told and not told[-1].is_cancelled else None


def _submitted(value: Mapping[str, Any], is_cancelled: bool) -> Submitted:
    *arrays, collector = map(str, value["jobs"])
    members = tuple(map(int, value["members"]))
    return Submitted(
        arrays=dict(zip(first_members(members), arrays, strict=True)),
        collector=collector,
        members=members,
        at_once=value["at_once"],
        exclude=tuple(map(str, value["exclude"])),
        after=value.get("after"),
        is_cancelled=is_cancelled,
    )


# ----------------------------------------------------------------------------------------------------
# A submission, and what all its scripts share.


FOLDER = "slurm"
MEMBER, COLLECT, SUBMIT, SITE = "member.sh", "collect.sh", "submit.sh", "site.toml"


@dataclass(frozen=True)
class Submission:
    """What shall be submitted.

    Attributes:
        folder: of the ensemble, absolute.
        stage: folder for copies on each node, with variables for the node's shell; None: there are none.
        site: names the image, unless it uses no container.
        members: ascending.
        at_once: members side by side at most; None: as many as the cluster has room for.
        after: the collecting job that has found members to be run again; None: a person asked.
        in_queue: arrays submitted earlier for some of these members; no element of them may be left in the queue.
        submits_inside: whether the submitting host has hpcai500 only in the image.
        rendered_by: the command that asked for it.
    """

    folder: Path
    benchmark: str
    identity: str
    shape: Shape
    data: Path
    stage: str | None
    site: Site
    members: Sequence[int]
    at_once: int | None = None
    exclude: Sequence[str] = ()
    after: str | None = None
    in_queue: Sequence[str] = ()
    submits_inside: bool = False
    rendered_by: Sequence[str] = ()

    @property
    def job_names(self) -> tuple[str, str]:
        """Names of its members' jobs, and of the job that collects."""
        return job_names(self.benchmark, self.identity)

    @property
    def first_members(self) -> list[int]:
        return first_members(self.members)


def script_name(first_member: int) -> str:
    """File name of the array's script whose element 0 is this member."""
    return MEMBER if first_member == 0 else MEMBER.replace(".", f"-{first_member}.")


def script_text(*blocks: Sequence[str] | Iterator[str]) -> str:
    texts = ["\n".join(block) for block in blocks]
    return "\n\n".join(text for text in texts if text) + "\n"


def checks_of(submission: Submission, container: Sequence[str], leave: str) -> Iterator[str]:
    binds = [bind for bind in binds_of(submission) if not isinstance(bind, Expression)]
    yield from checks(submission.site, container[0], sources_on_host(container_tokens(submission, binds)), leave)


def binds_of(submission: Submission) -> list[str]:
    if submission.site.container.command == NO_CONTAINER:
        return []
    data = str(submission.data)
    # Data first: if the ensemble lies in the data folder, its own bind comes on top of that, and is writable.
    paths = [bind_of(data, data, "ro"), bind_of(str(submission.folder))]
    return [*paths, *([read_by_shell(bind_of(submission.stage))] if submission.stage is not None else [])]


def read_by_shell(stage: str) -> Expression:
    """A path in which the node's shell expands variables, and nothing else."""
    text = stage
    for special in ("\\", '"', "`"):
        text = text.replace(special, f"\\{special}")
    return Expression(text.replace("$(", "\\$("))


def container_tokens(submission: Submission, binds: Sequence[str]) -> list[str]:
    site = submission.site
    return in_container(site.container, ["hpcai500"], mpi=site.mpi, binds=binds, folder=str(submission.folder))


# ----------------------------------------------------------------------------------------------------
# The part of a member's script that deals with a member that has not reached its end: it counts failures, and has the
# member run elsewhere.


# Failures of a member on one host before other hosts are used.
MOST_ON_A_HOST = 2
# Exit codes for which the node may be to blame (it lacks something, or does not see the data): another node is tried at
# once.
OF_THE_NODE = (ExitCode.USAGE, ExitCode.ENVIRONMENT)
# After this many nodes, such a code is taken for the member's own.
MOST_NODES = 2
_CODES = [code.value for code in OF_THE_NODE]
_IS_OF_THE_NODE = f"(( {' || '.join(f'code == {code}' for code in _CODES)} ))"
_PATTERN = f'"exit_code":({"|".join(map(str, _CODES))}),'
# Only of this start: older output is from earlier ones.
_SAID_NOW = f'/: job .*, restart [0-9]+$/ {{said = ""}} /{FAULTY_DEVICE}/ {{said = $0}} END {{print said}}'
_FAULTY_HOST = rf"s/.* alone, host \([^,.]*\)[,.].*{FAULTY_DEVICE}.*/\1/p"
# Slurm's own SIGTERM, which follows at once, would end scontrol.
_DEAF = ("# What ends this job must not end what is said to Slurm about it.", "trap '' TERM")


def stopped(slurm: SlurmTable) -> list[str]:
    """Lines for a member that was stopped: time was up, or somebody ended the job; neither is a failure."""
    lines = [
        "# Stopped, with a checkpoint. At an end (scancel, a node that fails), Slurm itself decides what comes then.",
        "if [[ $ended ]]; then exit 1; fi",
        "# Any code but that of a divergence: the signal may have ended an image's file system before the ranks.",
    ]
    when_warned = "if [[ $warned ]] && (( code != 2 )); then"
    if not slurm.requeue:
        return [*lines, "# Time is up: the job that collects has it run again.", f"{when_warned} exit 1; fi"]
    return [
        *lines,
        when_warned,
        f"    {_DEAF[0]}",
        f"    {_DEAF[1]}",
        f"    most={slurm.most_requeues}",
        "    if (( ${SLURM_RESTART_COUNT:-0} >= most )); then",
        '        say "member $member: has come back $most times already: no more"',
        '    elif scontrol requeue "$element"; then',
        '        say "member $member: time is up: job $element goes back to the queue"',
        "    fi",
        "    exit 1",
        "fi",
    ]


def failure(slurm: SlurmTable, most_failures: int, exclude: Sequence[str]) -> list[str]:
    """Lines that define `fail CODE`: what happens to a member that has failed by itself, or could not begin here."""
    return [
        "# A failure of the member's own: it is written down, and ends here, or goes back to the queue.",
        "fail() {",
        *(f"    {line}" for line in [*_written_down(most_failures), *(_tried_again(exclude) if slurm.requeue else ())]),
        '    exit "$code"',
        "}",
    ]


def _written_down(most_failures: int) -> list[str]:
    return [
        "local code=$1 hosts faulty count most on_a_host bad exclude",
        'hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd,)',
        "# A device that gave what is no number, while those of all other ranks did not: its host alone is to blame.",
        f"faulty=$(tail -n 200 -- \"$folder/{OUTPUT}\" | awk '{_SAID_NOW}' | sed -n '{_FAULTY_HOST}')",
        "if [[ $faulty && ,$hosts, == *,$faulty,* ]]; then hosts=$faulty; else faulty=''; fi",
        'printf \'{"time_ms":%s,"host":"%s","exit_code":%s,"restart":%s,"job":"%s"}\\n\' "$(date +%s%3N)" "$hosts" \\',
        f'    "$code" "${{SLURM_RESTART_COUNT:-0}}" "$SLURM_ARRAY_JOB_ID" >>"$folder/{FAILURES}"',
        f"if (( code == {ExitCode.WRONG_ANSWER.value} )); then",
        '    say "member $member: it diverged, which no other try takes back"',
        '    exit "$code"',
        "fi",
        f"count=$(mine | wc -l) most={most_failures} on_a_host={MOST_ON_A_HOST}",
        f"if {_IS_OF_THE_NODE}; then",
        "    # Another node may have what this one lacks.",
        f"    on_a_host=1 most={MOST_NODES} count=$(mine | grep -cE '{_PATTERN}')",
        "fi",
        "if [[ $faulty ]]; then on_a_host=1; fi",
        "if (( count >= most )); then",
        '    say "member $member: has failed $count times (the last time with exit code $code): given up"',
        '    exit "$code"',
        "fi",
    ]


def _tried_again(exclude: Sequence[str]) -> list[str]:
    return [
        "# Hosts on which it has failed too often are left out, unless no others could run it, as sbatch judges.",
        f"exclude={word(','.join(exclude))}",
        "bad=$(mine | hosts_of | awk -v most=\"$on_a_host\" '$1 >= most {print $2}' | paste -sd,)",
        "if [[ $bad ]]; then",
        '    if sbatch --test-only --exclude="$bad${exclude:+,$exclude}" "$0" 2>/dev/null; then',
        "        exclude=$bad${exclude:+,$exclude}",
        f"    elif {_IS_OF_THE_NODE}; then",
        '        say "member $member: cannot be run on $bad (exit code $code), and there is no other node: given up"',
        '        exit "$code"',
        "    else",
        "        bad=''",
        "    fi",
        "fi",
        *_DEAF,
        'if scontrol requeue "$element"; then',
        '    say "member $member: failed (exit code $code, failure $count): job $element goes back to the queue"',
        '    if [[ $bad ]] && scontrol update JobId="$element" ExcNodeList="$exclude"; then',
        '        say "member $member: no more on $bad"',
        "    fi",
        "fi",
    ]


def own_failures() -> list[str]:
    """Lines that define how the failures of this member in this array are looked up."""
    return [
        "# Failures of this member in this array; and of such lines, how many there are of each host.",
        f'mine() {{ grep -F "\\"job\\":\\"$SLURM_ARRAY_JOB_ID\\"" -- "$folder/{FAILURES}"; }}',
        'hosts_of() { sed \'s/.*"host":"\\([^"]*\\)".*/\\1/\' | tr , \'\\n\' | sort | uniq -c; }',
    ]


# ----------------------------------------------------------------------------------------------------
# A member's script: an element of a job array, which runs one member and deals with its end.


def member_script(submission: Submission, first_member: int = 0) -> str:
    """The script of an array: element N runs member `first_member` + N."""
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
    # Members smaller than a node share it.
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
    """A container can only bind a folder that exists, so it is made on every node."""
    if submission.stage is None or submission.site.container.command == NO_CONTAINER:
        return []
    return [f'"${{launcher[@]}}" mkdir -p -- {word(read_by_shell(submission.stage))} || fail 69']


# ----------------------------------------------------------------------------------------------------
# The scripts that collect and submit.


def scripts(submission: Submission) -> dict[str, str]:
    """The text of each file, by name.

    Raises:
        UsageError: a path cannot be bound into a container, or there is no image.
    """
    return {
        **{script_name(first): member_script(submission, first) for first in submission.first_members},
        COLLECT: collect_script(submission),
        SUBMIT: submit_script(submission),
    }


def collect_script(submission: Submission) -> str:
    """The script of the job that runs when all elements have ended, in whichever way."""
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
    """What is called on the host: checks, submits arrays and the job behind them, and has the journal name them."""
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
        # With --at-once, arrays run one after the other: each would count its members alone.
        behind = '--dependency=afterany:"${queued[-1]}" ' if number and submission.at_once else ""
        yield from _queued(f"{behind}{FOLDER}/{script_name(first)}")
    yield 'arrays=$(IFS=:; echo "${queued[*]}")'
    yield from _queued(f'--dependency=afterany:"$arrays" {FOLDER}/{COLLECT}')
    yield 'jobs=$(IFS=,; echo "${queued[*]}")'


def _queued(words: str) -> Iterator[str]:
    yield f"job=$(sbatch --parsable {words})"
    # On a site with several clusters, the cluster's name follows.
    yield 'queued+=("${job%%;*}")'
