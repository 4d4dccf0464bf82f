#!/bin/bash
# hpcai500 ic: one element for each member, 8 ranks each on 2 nodes.
#
#     bash slurm/submit.sh                           submits it, and the job that collects
#     hpcai500 ensemble status '/runs/big ensemble'  shows the state of all members
#     hpcai500 ensemble cancel '/runs/big ensemble'  stops all with checkpoints
#     scancel --signal=USR1 --batch JOB_3            stops member 3 with a checkpoint; it goes back to the queue
#
# Edit freely; put lasting changes into the site file. Written by hpcai500 VERSION.

#SBATCH --job-name=hpcai500-ic-member-0123456789ab
#SBATCH --partition=gpu
#SBATCH --account=project123
#SBATCH --qos=normal
#SBATCH --time=04:00:00
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --gres=gpu:a100:4
#SBATCH --exclusive
#SBATCH --array=0-7%4
#SBATCH --output=slurm/member-%A-%a.out
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

ensemble='/runs/big ensemble'
member=$SLURM_ARRAY_TASK_ID
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
    faulty=$(tail -n 200 -- "$folder/output.txt" | awk '/: job .*, restart [0-9]+$/ {line = ""} /so the device may be faulty/ {line = $0} END {print line}' | sed -n 's/.* alone, host \([^,.]*\)[,.].*so the device may be faulty.*/\1/p')
    if [[ $faulty && ,$hosts, == *,$faulty,* ]]; then hosts=$faulty; else faulty=''; fi
    printf '{"time_ms":%s,"host":"%s","exit_code":%s,"restart":%s,"job":"%s"}\n' "$(date +%s%3N)" "$hosts" \
        "$code" "${SLURM_RESTART_COUNT:-0}" "$SLURM_ARRAY_JOB_ID" >>"$folder/failures.jsonl"
    if (( code == 2 )); then
        say "member $member: diverged, which is final"
        exit "$code"
    fi
    count=$(failures | wc -l) most=3 on_a_host=2
    if (( code == 64 || code == 69 )); then
        # Another node may have what this one lacks.
        on_a_host=1 most=2 count=$(failures | grep -cE '"exit_code":(64|69),')
    fi
    if [[ $faulty ]]; then on_a_host=1; fi
    if (( count >= most )); then
        say "member $member: failed $count times, last with exit code $code: given up"
        exit "$code"
    fi
    # Exclude hosts on which it failed too often, if sbatch can still find others for it.
    exclude=''
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
    fi
    exit "$code"
}

if ! command -v apptainer >/dev/null; then
    say 'apptainer: no such command on this node: load its module, or give its path in the site file'
    fail 69
fi
needed=(/apps/hpcai500.sif /scratch /etc/site /opt/openmpi /opt/ucx/lib /data/imagenet '/runs/big ensemble')
for path in "${needed[@]}"; do
    [[ -e $path ]] || { say "$path: not on $HOSTNAME: image, binds, data must be on all nodes"; fail 69; }
done

launcher=(
    srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=16 --cpu-bind=cores --mpi=pmix
    --kill-on-bad-exit=1 --export=ALL
)

hpcai500=(
    apptainer exec --nv --bind /scratch --bind /etc/site:/etc/site:ro --bind /apps/hpcai500.sif:/image.sif:ro
    --bind /opt/openmpi:/opt/openmpi:ro --bind /opt/ucx/lib:/opt/ucx/lib:ro --bind /data/imagenet:/data/imagenet:ro
    --bind '/runs/big ensemble' --pwd '/runs/big ensemble' /apps/hpcai500.sif hpcai500
)

ended=''

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
trap 'ended=yes; pass_on' TERM
# When this job came into the queue, and when it started: the goodput tells queue from downtime and start-up.
HPCAI500_JOB_TIMES=$(SLURM_TIME_FORMAT=%s timeout 10 squeue --noheader -j "$job" --format '%V %S' 2>/dev/null) || true
export HPCAI500_JOB_TIMES
"${launcher[@]}" "${hpcai500[@]}" ensemble member "$ensemble" --member "$member" &
ranks=$!
if [[ $signalled ]]; then pass_on; fi
while true; do
    signalled='' code=0
    wait "$ranks" || code=$?
    # A signal ends the wait, not the ranks.
    [[ $signalled ]] || break
done
if [[ $notifier ]]; then kill "$notifier" 2>/dev/null || true; fi

if (( code == 0 )); then exit 0; fi

# Stopped with a checkpoint. After SIGTERM (scancel, a failing node), Slurm decides what happens next.
if [[ $ended ]]; then exit 1; fi
# Any code except that of a divergence: the signal may have ended an image's file system before the ranks.
if [[ $warned ]] && (( code != 2 )); then
    # The end of this job must not interrupt the calls of scontrol.
    trap '' TERM
    most=20
    if (( ${SLURM_RESTART_COUNT:-0} >= most )); then
        say "member $member: was requeued $most times already: not requeued again"
    elif scontrol requeue "$job"; then
        say "member $member: time is up: job $job goes back to the queue"
    fi
    exit 1
fi

fail "$code"
