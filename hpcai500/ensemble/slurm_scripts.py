"""The batch scripts of an ensemble: an array of members, a job after it that collects, and one that submits both.

Everything here is pure: a submission goes in, text comes out.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcai500 import __version__
from hpcai500.ensemble.journal import Ensemble
from hpcai500.ensemble.local import MOST_FAILURES
from hpcai500.ensemble.mapping import in_ranges
from hpcai500.errors import FAULTY_DEVICE, ExitCode
from hpcai500.launch.slurm.script import (
    PROLOGUE,
    Expression,
    array,
    bind_of,
    binds_of_data,
    checks,
    comment,
    directives,
    fill,
    handle_signals,
    in_container,
    launcher,
    opening,
    several,
    size_of,
    start,
    usage_lines,
    word,
)
from hpcai500.launch.slurm.site import NO_CONTAINER, Site

# ----------------------------------------------------------------------------------------------------
# A submission, and what all its scripts share.


FOLDER = "slurm"
MEMBER, COLLECT, SUBMIT, SITE = "member.sh", "collect.sh", "submit.sh", "site.toml"
# Slurm numbers the elements of an array from 0 to 1000 unless a site says otherwise (MaxArraySize), so more members
# need several arrays.
ELEMENTS = 1000


def first_of(member: int) -> int:
    """The member that is, or would be, element 0 of the array of `member`."""
    return member // ELEMENTS * ELEMENTS


def first_members(members: Iterable[int]) -> list[int]:
    """`first_of` each array that `members` need, ascending."""
    return sorted({first_of(member) for member in members})


def job_names(ensemble: Ensemble) -> tuple[str, str]:
    """Names of the jobs of an ensemble: those of its members, and those that collect.

    Only number and name together identify a job of ours: another cluster, or the same one after a new installation,
    uses the number for other jobs.
    """
    benchmark, mark = ensemble.start["benchmark"], ensemble.identity[:12]
    return f"hpcai500-{benchmark}-member-{mark}", f"hpcai500-{benchmark}-collect-{mark}"


@dataclass(frozen=True)
class Submission:
    """What to submit.

    Attributes:
        site: names the image, unless it uses no container.
        members: ascending.
        at_once: most members that run at the same time; None: as many as the cluster has room for.
        after: the collecting job that found members to be run again; None: the user asked.
        in_queue: arrays submitted earlier for some of these members; no element of them may be left in the queue.
        submits_inside: whether the submitting host has hpcai500 only in the image.
        rendered_by: the command that asked for it.
    """

    ensemble: Ensemble
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
        return job_names(self.ensemble)

    @property
    def folder(self) -> Path:
        return self.ensemble.path.absolute()

    def container(self, *, with_stage: bool = True) -> list[str]:
        """The tokens that start hpcai500 in the image; without `with_stage`, only binds that exist on all hosts.

        Raises:
            UsageError: a path cannot be bound into a container, or there is no image.
        """
        data, folder, stage = str(self.ensemble.data), str(self.folder), self.ensemble.stage
        # Data first: if the ensemble is in the data folder, its own bind comes on top of that and is writable.
        binds: list[str] = []
        if self.site.container.command != NO_CONTAINER:
            binds = [*binds_of_data(data, self.ensemble.tables["benchmark"]), bind_of(folder)]
        if binds and with_stage and stage is not None:
            binds.append(_read_by_shell(bind_of(stage)))
        return in_container(self.site.container, ["hpcai500"], mpi=self.site.mpi, binds=binds, folder=folder)


def scripts(submission: Submission) -> dict[str, str]:
    """The text of each file, by name.

    Raises:
        UsageError: a path cannot be bound into a container, or there is no image.
    """
    firsts = first_members(submission.members)
    return {
        **{script_name(first): member_script(submission, first) for first in firsts},
        COLLECT: collect_script(submission),
        SUBMIT: submit_script(submission),
    }


def script_name(first_member: int) -> str:
    """File name of the array's script whose element 0 is this member."""
    return MEMBER if first_member == 0 else MEMBER.replace(".", f"-{first_member}.")


def _filled(template: str, submission: Submission, **values: str | Iterable[str]) -> str:
    return fill(
        template,
        version=__version__,
        prologue=PROLOGUE,
        opening=opening(submission.site),
        ensemble=word(str(submission.folder)),
        hpcai500=array("hpcai500", submission.container()),
        **values,
    )


def _read_by_shell(stage: str) -> Expression:
    """A path in which the node's shell expands only variables."""
    text = stage
    for special in ("\\", '"', "`"):
        text = text.replace(special, f"\\{special}")
    return Expression(text.replace("$(", "\\$("))


# ----------------------------------------------------------------------------------------------------
# A member's script: an element of a job array, which runs one member. A member that is not done goes back to the queue,
# or is given up: its failures are counted, and hosts on which it fails are excluded.


# Failures of a member on one host before the host is excluded.
MOST_ON_A_HOST = 2
# Exit codes for which the node may be to blame (it lacks something, or does not see the data): another node is tried at
# once.
OF_THE_NODE = (ExitCode.USAGE, ExitCode.ENVIRONMENT)
# After this many nodes, such a code is attributed to the member.
MOST_NODES = 2

_MEMBER = r"""#!/bin/bash
# hpcai500 @benchmark@: one element for each member, @ranks@ each on @nodes@.
#
@usage@
#
# Edit freely; put lasting changes into the site file. Written by hpcai500 @version@.

@directives@

@opening@

ensemble=@ensemble@
member=@member@
folder=$ensemble/members/$(printf %05d "$member")
mkdir -p -- "$folder"
exec >>"$folder/output.txt" 2>&1
say "member $member: job $job on $SLURM_JOB_NODELIST, restart ${SLURM_RESTART_COUNT:-0}"

# The failures of this member in this array, and the number of such lines for each host.
failures() { grep -F "\"job\":\"$SLURM_ARRAY_JOB_ID\"" -- "$folder/failures.jsonl"; }
count_hosts() { sed 's/.*"host":"\([^"]*\)".*/\1/' | tr , '\n' | sort | uniq -c; }

# Record a failure of the member, then give it up or put it back into the queue.
fail() {
    local code=$1 hosts faulty count most on_a_host bad exclude
    hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd,)
    # If the device of one rank alone gave NaN, only its host is to blame.
    faulty=$(@faulty_host@)
    if [[ $faulty && ,$hosts, == *,$faulty,* ]]; then hosts=$faulty; else faulty=''; fi
    printf '{"time_ms":%s,"host":"%s","exit_code":%s,"restart":%s,"job":"%s"}\n' "$(date +%s%3N)" "$hosts" \
        "$code" "${SLURM_RESTART_COUNT:-0}" "$SLURM_ARRAY_JOB_ID" >>"$folder/failures.jsonl"
    if (( code == 2 )); then
        say "member $member: diverged, which is final"
        exit "$code"
    fi
    count=$(failures | wc -l) most=@most_failures@ on_a_host=@most_on_a_host@
    if (( code == 64 || code == 69 )); then
        # Another node may have what this one lacks.
        on_a_host=1 most=@most_nodes@ count=$(failures | grep -cE '"exit_code":(64|69),')
    fi
    if [[ $faulty ]]; then on_a_host=1; fi
    if (( count >= most )); then
        say "member $member: failed $count times, last with exit code $code: given up"
        exit "$code"
    fi
    @try_again@
    exit "$code"
}

@checks@

@launcher@

@stage_folder@

@hpcai500@

ended=''

@signals@
@start@

if (( code == 0 )); then exit 0; fi

# Stopped with a checkpoint. After SIGTERM (scancel, a failing node), Slurm decides what happens next.
if [[ $ended ]]; then exit 1; fi
# Any code except that of a divergence: the signal may have ended an image's file system before the ranks.
@time_is_up@

fail "$code"
"""
_FAULTY_HOST = (
    # Only of this start: older output is from earlier ones.
    'tail -n 200 -- "$folder/output.txt" | '
    f"""awk '/: job .*, restart [0-9]+$/ {{line = ""}} /{FAULTY_DEVICE}/ {{line = $0}} END {{print line}}' | """
    rf"sed -n 's/.* alone, host \([^,.]*\)[,.].*{FAULTY_DEVICE}.*/\1/p'"
)
_TRY_AGAIN = """\
# Exclude hosts on which it failed too often, if sbatch can still find others for it.
exclude=@exclude@
bad=$(failures | count_hosts | awk -v most="$on_a_host" '$1 >= most {print $2}' | paste -sd,)
if [[ $bad ]]; then
    if sbatch --test-only --exclude="$bad${exclude:+,$exclude}" "$0" 2>/dev/null; then
        exclude=$bad${exclude:+,$exclude}
    elif (( code == 64 || code == 69 )); then
        say "member $member: cannot run on $bad (exit code $code), and there is no other node: given up"
        exit "$code"
    else
        bad=''
    fi
fi
# The end of this job must not interrupt the calls of scontrol.
trap '' TERM
if scontrol requeue "$job"; then
    say "member $member: failed (exit code $code, failure $count): job $job goes back to the queue"
    if [[ $bad ]] && scontrol update JobId="$job" ExcNodeList="$exclude"; then
        say "member $member: excludes $bad"
    fi
fi"""
_TIME_IS_UP = """\
if [[ $warned ]] && (( code != 2 )); then
    # The end of this job must not interrupt the calls of scontrol.
    trap '' TERM
    most=@most@
    if (( ${SLURM_RESTART_COUNT:-0} >= most )); then
        say "member $member: was requeued $most times already: not requeued again"
    elif scontrol requeue "$job"; then
        say "member $member: time is up: job $job goes back to the queue"
    fi
    exit 1
fi"""
_TIME_IS_UP_FOR_GOOD = """\
# Time is up: the job that collects submits it again.
if [[ $warned ]] && (( code != 2 )); then exit 1; fi"""


def member_script(submission: Submission, first_member: int = 0) -> str:
    """The script of an array: element N runs member `first_member` + N."""
    site, slurm, shape = submission.site, submission.site.slurm, submission.ensemble.shape
    folder, stage = shlex.quote(str(submission.folder)), submission.ensemble.stage
    usage = {
        "bash slurm/submit.sh": "submits it, and the job that collects",
        f"hpcai500 ensemble status {folder}": "shows the state of all members",
        f"hpcai500 ensemble cancel {folder}": "stops all with checkpoints",
        "scancel --signal=USR1 --batch JOB_3": "stops member 3 with a checkpoint; it goes back to the queue",
    }
    elements = [member - first_member for member in submission.members if first_of(member) == first_member]
    size = [
        *size_of(site.node, shape.nodes_a_member, shape.ranks_a_node),
        # Members smaller than a node share it.
        *(["--exclusive"] if slurm.exclusive and shape.members_a_node == 1 else []),
        f"--array={in_ranges(elements)}{f'%{submission.at_once}' if submission.at_once else ''}",
        *([f"--exclude={','.join(submission.exclude)}"] if submission.exclude else []),
    ]
    # A container can only bind a folder that exists, so it is created on every node.
    needs_stage = stage is not None and site.container.command != NO_CONTAINER
    make_stage = f'"${{launcher[@]}}" mkdir -p -- {word(_read_by_shell(stage or ""))} || fail 69'
    return _filled(
        _MEMBER,
        submission,
        benchmark=submission.ensemble.start["benchmark"],
        ranks=several(shape.degree, "rank"),
        nodes=several(shape.nodes_a_member, "node"),
        usage=usage_lines(usage),
        directives=directives(slurm, submission.job_names[0], size, "slurm/member-%A-%a.out"),
        member=f"$(({first_member} + SLURM_ARRAY_TASK_ID))" if first_member else "$SLURM_ARRAY_TASK_ID",
        faulty_host=_FAULTY_HOST,
        most_failures=str(MOST_FAILURES),
        most_on_a_host=str(MOST_ON_A_HOST),
        most_nodes=str(MOST_NODES),
        try_again=fill(_TRY_AGAIN, exclude=word(",".join(submission.exclude))) if slurm.requeue else "",
        checks=checks(site, submission.container(with_stage=False), "fail"),
        launcher=array("launcher", launcher(site, shape.nodes_a_member, shape.ranks_a_node)),
        stage_folder=make_stage if needs_stage else "",
        signals=handle_signals(slurm, "ended=yes; pass_on"),
        start=start('"${launcher[@]}" "${hpcai500[@]}" ensemble member "$ensemble" --member "$member"'),
        time_is_up=fill(_TIME_IS_UP, most=str(slurm.most_requeues)) if slurm.requeue else _TIME_IS_UP_FOR_GOOD,
    )


# ----------------------------------------------------------------------------------------------------
# The scripts that collect and submit.


_COLLECT = """\
#!/bin/bash
# Runs when all members have ended: submits missing ones again, once, or collects the ensemble.
# Written by hpcai500 @version@; submit it with submit.sh, or by hand: sbatch slurm/collect.sh

@directives@

@opening@

ensemble=@ensemble@

@checks@

@hpcai500@

# Writes scripts for another array, if any member may be run again.
rm -f -- "$ensemble/slurm/submit.sh"
again=(ensemble submit "$ensemble" --after "$SLURM_JOB_ID" --dry-run)
"${hpcai500[@]}" "${again[@]}" || say "could not find out which members may be run again: see above"
if [[ -e $ensemble/slurm/submit.sh ]]; then
    if bash "$ensemble/slurm/submit.sh"; then exit 0; fi
    say 'the missing members could not be submitted again'
fi

exec "${hpcai500[@]}" ensemble collect "$ensemble"
"""


def collect_script(submission: Submission) -> str:
    """The script of the job that runs when all elements have ended, however they ended."""
    site, cores = submission.site, submission.site.node.cores_per_task
    size = ["--nodes=1", "--ntasks=1", *([f"--cpus-per-task={cores}"] if cores else [])]
    unwarned = site.slurm.model_copy(update={"warning_seconds": 0})
    return _filled(
        _COLLECT,
        submission,
        directives=directives(unwarned, submission.job_names[1], size, "slurm/collect-%j.out"),
        checks=checks(site, submission.container(with_stage=False)),
    )


_SUBMIT = """\
#!/bin/bash
# Submits the members and the job that collects, on a host that has Slurm's commands.
# Written by hpcai500 @version@ with:
#
@rendered_by@

@prologue@

# A job that submits others must not pass on its own variables.
for name in "${!SLURM_@}"; do [[ $name == SLURM_CONF ]] || unset "$name"; done

ensemble=@ensemble@
cd -- "$ensemble"

@program_here@
if ! command -v @program@ >/dev/null; then
    say @missing@
    exit 69
fi

@none_left@

# Refuses now what would wait for ever; this queues nothing.
check() { local reply; reply=$(sbatch --test-only "$1" 2>&1) || { say "$ensemble/$1: $reply"; exit 64; }; }
@checks@

# Cancels queued jobs that are not in the journal, also after Ctrl-C.
queued=()
trap 'if (( ${#queued[@]} )); then scancel "${queued[@]}"; fi' EXIT
@arrays@
arrays=$(IFS=:; echo "${queued[*]}")
@collector@
jobs=$(IFS=,; echo "${queued[*]}")

@record@
if ! "${hpcai500[@]}" "${record[@]}"; then
    say "jobs $jobs could not be written into the journal of $ensemble: they are cancelled"
    exit 1
fi
queued=()
say "submitted jobs $jobs, of which the last collects"
"""
_NONE_LEFT = r"""# Two jobs must not run the same member.
left=$(squeue --noheader --format=%i --jobs=@jobs@ --name=@name@ 2>/dev/null || true)
if [[ $left ]]; then
    say "still in the queue: ${left//$'\n'/ }: wait for them, or: hpcai500 ensemble cancel $ensemble"
    exit 64
fi"""


def submit_script(submission: Submission) -> str:
    """What is called on the host: checks, submits arrays and the job after them, and writes both into the journal."""
    files = [f"{FOLDER}/{script_name(first)}" for first in first_members(submission.members)]
    collect = f"{FOLDER}/{COLLECT}"
    here = submission.container() if submission.submits_inside else ["hpcai500"]
    # With --at-once, arrays run one after the other, because Slurm limits each array separately.
    dependency = '--dependency=afterany:"${queued[-1]}" ' if submission.at_once else ""
    in_queue, name = ",".join(submission.in_queue), submission.job_names[0]
    words = [
        *("ensemble", "submit", Expression("$ensemble"), "--queued", Expression("$jobs")),
        *("--member", in_ranges(submission.members)),
        *(("--at-once", str(submission.at_once)) if submission.at_once else ()),
        *(("--exclude", ",".join(submission.exclude)) if submission.exclude else ()),
        *(("--after", submission.after) if submission.after else ()),
    ]
    return _filled(
        _SUBMIT,
        submission,
        rendered_by=comment(f"    {' '.join(map(word, submission.rendered_by))}"),
        program_here=array("hpcai500", here),
        program=word(here[0]),
        missing=word(f"{here[0]}: no such command here: put it on PATH"),
        none_left=fill(_NONE_LEFT, jobs=in_queue, name=name) if in_queue else "",
        checks=[f"check {file}" for file in (*files, collect)],
        arrays=[_queued(f"{dependency if number else ''}{file}") for number, file in enumerate(files)],
        collector=_queued(f'--dependency=afterany:"$arrays" {collect}'),
        record=array("record", words),
    )


def _queued(words: str) -> str:
    # On a site with several clusters, the cluster's name follows.
    return f'job=$(sbatch --parsable {words})\nqueued+=("${{job%%;*}}")'
