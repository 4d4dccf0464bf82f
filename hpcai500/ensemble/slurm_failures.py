"""What a member's batch script does when the member has not come to its end: counts, and has it run elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpcai500.ensemble.reading import FAILURES, OUTPUT
from hpcai500.errors import FAULTY_DEVICE, ExitCode
from hpcai500.launch.bash_words import word
from hpcai500.launch.site import SlurmTable

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
