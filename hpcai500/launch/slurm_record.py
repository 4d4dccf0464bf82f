"""What a batch script does with its record: names it, and finds out what an earlier start of it has left."""

from __future__ import annotations

from hpcai500.launch.bash_words import word


def record_folder(named: str) -> list[str]:
    """Lines that set `record` and its `parent`: `named`, unless HPCAI500_RECORD names another one."""
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
    """Lines that set `goes_on` if the record holds something to go on with; what never began is put aside."""
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
    """Lines that tell the score of a record that is complete."""
    return [
        "if [[ -e $record/DONE ]]; then",
        '    say "$record is done already; its score:"',
        '    exec "${hpcai500[@]}" score "$record"',
        "fi",
    ]
