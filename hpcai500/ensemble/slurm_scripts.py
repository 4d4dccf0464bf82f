"""The batch scripts of an ensemble: an array of members, a job behind it that collects, and what submits both. Pure."""

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
# Which element of which array a member is, as the ensemble's journal tells. Pure.


# Slurm numbers the elements of an array from 0 to 1000 unless a site says otherwise (MaxArraySize): more members than
# that are several arrays.
ELEMENTS = 1000


def job_names(benchmark: str, identity: str) -> tuple[str, str]:
    """Names of the jobs of an ensemble: its members', and of those that collect.

    Another cluster, or the same set up anew, gives others the numbers of our jobs: number and name together are ours.
    """
    mark = identity[:12]
    return f"hpcai500-{benchmark}-member-{mark}", f"hpcai500-{benchmark}-collect-{mark}"


@dataclass(frozen=True)
class Submitted:
    """What one `submit` put into the queue.

    Attributes:
        arrays: number of each array, by the member that its element 0 is, or would be.
        collector: number of the job that collects.
        members: numbers of those that were submitted.
        at_once: members side by side at most.
        exclude: hosts that must not be used.
        after: the collecting job that submitted it; None: a person did.
        is_cancelled: whether it was, later.
    """

    arrays: Mapping[int, str]
    collector: str
    members: tuple[int, ...]
    at_once: int | None
    exclude: tuple[str, ...]
    after: str | None
    is_cancelled: bool

    def element(self, member: int) -> tuple[str, int]:
        """Array and number of a member's element."""
        first = first_of(member)
        return self.arrays[first], member - first


def first_of(member: int) -> int:
    """The member that element 0 of a member's array is, or would be."""
    return member // ELEMENTS * ELEMENTS


def first_members(members: Iterable[int]) -> list[int]:
    """Of each array that `members` take, the member that its element 0 is, or would be."""
    return sorted({first_of(member) for member in members})


def submissions(ensemble: Ensemble) -> list[Submitted]:
    """All that was ever submitted to Slurm, in order.

    Raises:
        RecordError: the journal tells it in another way.
    """
    cancels = [event["seq"] for event in ensemble.events if event["key"] == "cancel"]
    told = [event for event in ensemble.events if event["key"] == "submit" and event["value"]["scheduler"] == "slurm"]
    try:
        return [_submitted(event["value"], event["seq"] < max(cancels, default=-1)) for event in told]
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{ensemble.path}: an event submit lacks something: {error}") from error


def standing(ensemble: Ensemble) -> Submitted | None:
    """The last submission; None without one, or where it was cancelled."""
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
# What shall be submitted, and what all scripts of one submission share. Pure.


FOLDER = "slurm"
MEMBER, COLLECT, SUBMIT, SITE = "member.sh", "collect.sh", "submit.sh", "site.toml"


@dataclass(frozen=True)
class Submission:
    """What shall be submitted.

    Attributes:
        folder: of the ensemble, absolute.
        benchmark: its name.
        identity: of the ensemble.
        shape: of the ensemble.
        data: folder of the data set.
        stage: folder of each node for copies, as its shell reads it; None: there are none.
        site: where; its image is named, unless it uses no container.
        members: numbers of those that shall run, ascending.
        at_once: members side by side at most; None: as many as the cluster has room for.
        exclude: hosts that must not be used.
        after: the collecting job that has found members to be run again; None: a person asked.
        in_queue: arrays that were submitted for some of these members: none of their elements may be left.
        submits_inside: whether the host where this is submitted reaches hpcai500 only in the image.
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
        """Of its members' jobs, and of the one that collects."""
        return job_names(self.benchmark, self.identity)

    @property
    def first_members(self) -> list[int]:
        """Of each array, the member that its element 0 is, or would be."""
        return first_members(self.members)


def script_name(first_member: int) -> str:
    """File of the array whose element 0 is this member."""
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
    # Data first: where the ensemble lies in the folder of the data, its own bind is on top, and can be written to.
    paths = [bind_of(data, data, "ro"), bind_of(str(submission.folder))]
    return [*paths, *([read_by_shell(bind_of(submission.stage))] if submission.stage is not None else [])]


def read_by_shell(stage: str) -> Expression:
    """A path in which the node's shell reads variables, and nothing else of what a shell could read."""
    text = stage
    for special in ("\\", '"', "`"):
        text = text.replace(special, f"\\{special}")
    return Expression(text.replace("$(", "\\$("))


def container_tokens(submission: Submission, binds: Sequence[str]) -> list[str]:
    site = submission.site
    return in_container(site.container, ["hpcai500"], mpi=site.mpi, binds=binds, folder=str(submission.folder))


# ----------------------------------------------------------------------------------------------------
# What a member's batch script does when the member has not come to its end: counts, and has it run elsewhere. Pure.


# So often a member may fail on a host before it is run on others.
MOST_ON_A_HOST = 2
# Codes that a node may be to blame for: it lacks something, or does not see the data. Another one is tried at once.
OF_THE_NODE = (ExitCode.USAGE, ExitCode.ENVIRONMENT)
# On so many nodes such a code is believed.
MOST_NODES = 2
_CODES = [code.value for code in OF_THE_NODE]
_IS_OF_THE_NODE = f"(( {' || '.join(f'code == {code}' for code in _CODES)} ))"
_PATTERN = f'"exit_code":({"|".join(map(str, _CODES))}),'
# Of this start alone: what was printed before is of an earlier one.
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
    """Lines that define `fail CODE`: what becomes of a member that has failed by itself, or could not begin here."""
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
# The batch script of a member: an element of a job array, which runs one member and deals with its end. Pure.


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


# ----------------------------------------------------------------------------------------------------
# The batch scripts of an ensemble: an array of members, a job behind it that collects, and what submits both. Pure.


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
