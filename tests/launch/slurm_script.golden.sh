#!/bin/bash
# hpcai500 ic on 2 nodes, 8 ranks.
#
#     sbatch FILE                               submits it
#     sbatch FILE --set hyperparameters.seed=2  the same with another seed: what follows FILE goes to hpcai500
#     HPCAI500_RECORD=runs/ic-17 sbatch FILE    continues the run of job 17
#     scancel --signal=TERM --batch JOB         stops it with a checkpoint
#
# Edit freely; put lasting changes into the site file. Written by hpcai500 VERSION with:
#
#     hpcai500 slurm render ic --nodes 2 --data '/data/image net'

#SBATCH --job-name=hpcai500-ic
#SBATCH --partition=gpu
#SBATCH --account=project123
#SBATCH --qos=normal
#SBATCH --time=04:00:00
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --gres=gpu:a100:4
#SBATCH --exclusive
#SBATCH --output=hpcai500-ic-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
#SBATCH --constraint=a100
#SBATCH --hint=nomultithread

set -euo pipefail
say() { echo "hpcai500: ${*//[[:cntrl:]]/ }" >&2; }

# Of an array, the number of one element is also that of all: Slurm is always given both numbers.
job=$SLURM_JOB_ID
if [[ ${SLURM_ARRAY_TASK_ID:-} ]]; then job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi

# A signal to a whole step ends the mount of an image: each rank would leave a core file.
ulimit -S -c 0

# `module` is a function of login shells, and was not written for set -u.
set +u
type module >/dev/null 2>&1 || . /etc/profile || true
module load openmpi/4.1 apptainer
set -u

export GLOO_SOCKET_IFNAME=ib0
export OMPI_MCA_btl_tcp_if_include=ib0
export NCCL_SOCKET_IFNAME==ib0
export APPTAINERENV_LD_LIBRARY_PATH=/opt/openmpi/lib:/opt/ucx/lib
export APPTAINERENV_OPAL_PREFIX=/opt/openmpi
export NCCL_DEBUG=WARN

# The same folder when the job is requeued.
record="runs/ic-$job"
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

if ! command -v apptainer >/dev/null; then
    say 'apptainer: no such command on this node: load its module, or give its path in the site file'
    exit 69
fi
needed=(/apps/hpcai500.sif /scratch /etc/site /opt/openmpi /opt/ucx/lib '/data/image net')
for path in "${needed[@]}"; do
    [[ -e $path ]] || { say "$path: not on $HOSTNAME: image, binds, data must be on all nodes"; exit 69; }
done
if [[ $PWD$record == *[,:]* ]]; then
    say "$PWD, $record: a path with , or : cannot be bound into a container: submit from another folder"
    exit 64
fi

launcher=(
    srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=16 --cpu-bind=cores --mpi=pmix
    --kill-on-bad-exit=1 --export=ALL
)
hpcai500=(
    apptainer exec --nv --bind /scratch --bind /etc/site:/etc/site:ro --bind /apps/hpcai500.sif:/image.sif:ro
    --bind /opt/openmpi:/opt/openmpi:ro --bind /opt/ucx/lib:/opt/ucx/lib:ro --bind '/data/image net' --bind "$PWD"
    --bind "$parent" --pwd "$PWD" /apps/hpcai500.sif hpcai500
)

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

arguments=(ic --data '/data/image net' --restarts 3 --out "$record")
if [[ $exists ]]; then
    arguments+=(--resume)
else
    arguments+=(--recipe ic/reference --set communication.backend=horovod "$@")
fi

# A warning (USR1) and an end (TERM) are passed on to all ranks, which stop with a checkpoint. Slurm sends URG
# to all processes of the job's steps and, with --full, to those below this script, where mpirun is. Processes
# that do not handle URG, such as image mounts and starting ranks, ignore it, so it is repeated until the ranks
# have ended. If Slurm does not answer, and when time is short, the ranks get USR1.
warned='' signalled='' ranks='' notifier=''
send_urg() { timeout 10 scancel --signal=URG "$1" && timeout 10 scancel --full --signal=URG "$1"; }
notify() {
    local last=$((SECONDS + 270))
    while kill -0 "$ranks" 2>/dev/null; do
        if ! send_urg "$job" || ((SECONDS >= last)); then kill -USR1 "$ranks" || break; fi
        sleep 15 >/dev/null 2>&1
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
trap pass_on TERM
# When this job came into the queue, and when it started: the goodput tells queue from downtime and start-up.
HPCAI500_JOB_TIMES=$(SLURM_TIME_FORMAT=%s timeout 10 squeue --noheader -j "$job" --format '%V %S' 2>/dev/null) || true
export HPCAI500_JOB_TIMES

# The ranks start again by themselves after one is lost. If a whole task was killed, its step has ended, with
# 128 + the signal: another step starts in this allocation.
restarts=0
while true; do
    ranks='' notifier=''
    "${launcher[@]}" "${hpcai500[@]}" "${arguments[@]}" &
    ranks=$!
    if [[ $signalled ]]; then pass_on; fi
    while true; do
        signalled='' code=0
        wait "$ranks" || code=$?
        # A signal ends the wait, not the ranks.
        [[ $signalled ]] || break
    done
    if [[ $notifier ]]; then kill "$notifier" 2>/dev/null || true; fi
    if [[ $warned$notifier ]] || (( code <= 128 || restarts >= 3 )); then break; fi
    grep -q '"key":"run_start",.*}$' -- "$record/events.jsonl" || break
    restarts=$((restarts + 1))
    say "a task was killed (exit code $code): restart $restarts of 3 in this allocation"
    arguments=(ic --data '/data/image net' --restarts 3 --out "$record")
    arguments+=(--resume)
done

# Stopped because time is up, not because of a failure: continue later. Any code except that of a missed target:
# the signal may have ended an image's file system before the ranks.
if [[ $warned ]] && (( code != 2 )); then
    most=20
    if (( ${SLURM_RESTART_COUNT:-0} >= most )); then
        say "the job was requeued $most times already: not requeued again"
        say "continue with: HPCAI500_RECORD=$record sbatch FILE"
    elif scontrol requeue "$job"; then
        say "time is up: job $job goes back to the queue, and continues $record then"
    else
        say "continue with: HPCAI500_RECORD=$record sbatch FILE"
    fi
fi

exit "$code"
