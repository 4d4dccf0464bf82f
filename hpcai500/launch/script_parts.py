"""Parts that all batch scripts of ours have: what they ask of Slurm, how they start ranks and pass signals on. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from hpcai500.launch.bash_words import Expression, array, word
from hpcai500.launch.container_command import container_environment
from hpcai500.launch.launchers import Layout, mpirun, srun
from hpcai500.launch.site import NO_CONTAINER, NodeTable, Site, SlurmTable

# Between one request to stop and the next: a whole array may be warned at once.
_AGAIN_SECONDS = 15
# A script needs so long to have its job come back.
_AT_LEAST_SECONDS = 30
PROLOGUE = ("set -euo pipefail", 'say() { echo "hpcai500: ${*//[[:cntrl:]]/ }" >&2; }')


def queue_directives(slurm: SlurmTable) -> Iterator[str]:
    """Where a job queues, and for how long it asks."""
    for name, value in (("partition", slurm.partition), ("account", slurm.account), ("qos", slurm.qos)):
        if value:
            yield f"#SBATCH --{name}={value}"
    yield f"#SBATCH --time={slurm.time_limit}"


def size_directives(node: NodeTable, nodes: int, tasks: int) -> Iterator[str]:
    """`tasks` ranks on each of `nodes` nodes, with their share of a node's cores and GPUs."""
    yield f"#SBATCH --nodes={nodes}"
    yield f"#SBATCH --ntasks-per-node={tasks}"
    if node.cores_per_task:
        yield f"#SBATCH --cpus-per-task={node.cores_per_task}"
    if node.gpus and node.gpu_request != "none":
        kind = f"{node.gpu_type}:" if node.gpu_type else ""
        gpus = node.gpus * tasks // node.tasks
        yield f"#SBATCH --{node.gpu_request}={'gpu:' * (node.gpu_request == 'gres')}{kind}{gpus}"


def return_directives(slurm: SlurmTable, output: str) -> Iterator[str]:
    """Where the output goes, and what happens when time is up."""
    yield f"#SBATCH --output={output}"
    # A job that comes back from the queue would begin the file anew.
    yield "#SBATCH --open-mode=append"
    yield "#SBATCH --requeue" if slurm.requeue else "#SBATCH --no-requeue"
    if slurm.warning_seconds:
        # B: this script alone gets it, so that it knows why the ranks end; it passes it on.
        yield f"#SBATCH --signal=B:USR1@{slurm.warning_seconds}"
    yield from (f"#SBATCH {option}" for option in slurm.extra)


def modules(site: Site) -> Iterator[str]:
    """Lines that load the site's modules."""
    if site.launcher.modules:
        yield "# `module` is a function of login shells, and was not written for set -u."
        yield "set +u"
        yield "type module >/dev/null 2>&1 || . /etc/profile || true"
        yield f"module load {shlex.join(site.launcher.modules)}"
        yield "set -u"


def exports(site: Site) -> Mapping[str, str]:
    """Variables that the ranks get, and the container's runtime on every node."""
    launcher = site.launcher
    # mpirun does not tell the ranks where rank 0 is: on the first node, as this script.
    leader = {"MASTER_ADDR": Expression("$SLURMD_NODENAME")} if launcher.program == "mpirun" else {}
    by_mpi = ["OMPI_MCA_btl_tcp_if_include"] if launcher.program == "srun" and launcher.pmi != "none" else []
    networks = ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", *by_mpi] if launcher.interface else []
    return {
        **leader,
        **dict.fromkeys(networks, launcher.interface),
        **container_environment(site.container, site.mpi),
        **site.environment,
    }


def export_lines(site: Site) -> list[str]:
    """Lines that set what `exports` has."""
    return [f"export {name}={word(value)}" for name, value in exports(site).items()]


def checks(site: Site, command: str, sources: Sequence[str], leave: str = "exit") -> Iterator[str]:
    """What can be said here in one line, and would be a riddle in the words of srun or of the container's runtime.

    Args:
        command: that starts each rank.
        sources: paths of the host that must be there, besides the image.
        leave: what ends the script with an exit code.
    """
    missing = f"{command}: no such command on this node: load its module, or give its path in the site file"
    yield f"if ! command -v {word(command)} >/dev/null; then"
    yield f"    say {word(missing)}"
    yield f"    {leave} 69"
    yield "fi"
    if site.container.command == NO_CONTAINER:
        return
    yield from array("needed", list(dict.fromkeys([site.container.image, *sources])))
    yield 'for path in "${needed[@]}"; do'
    missing = "$path: not on $HOSTNAME: image, binds, data must be on all nodes"
    yield f'    [[ -e $path ]] || {{ say "{missing}"; {leave} 69; }}'
    yield "done"


def launcher(site: Site, nodes: int, tasks: int) -> list[str]:
    """The tokens that start the ranks, in front of what they run."""
    layout = Layout(
        nodes=nodes,
        per_node=tasks,
        cores_per_rank=site.node.cores_per_task or None,
        interface=site.launcher.interface or None,
        # mpirun takes no others to other nodes.
        exported=list(exports(site)),
    )
    return mpirun(layout, []) if site.launcher.program == "mpirun" else srun(layout, [], pmi=site.launcher.pmi)


def start_and_wait(slurm: SlurmTable, command: str, job: str, on_end: str = "pass_on") -> list[str]:
    """Lines that run `command`, words of bash, to its `code`; `warned` is set when Slurm said that time is up.

    Args:
        slurm: how long before the end it warns.
        command: starts the ranks.
        job: words of bash: the job's number.
        on_end: what SIGTERM does.
    """
    # What hears only USR1 (it stages data, say) must still have ended when time is up.
    patience = max(slurm.warning_seconds - _AT_LEAST_SECONDS, slurm.warning_seconds // 2, _AGAIN_SECONDS)
    return [
        "# A warning (USR1) and an end (TERM) go on to all ranks, which stop with a checkpoint. Both as URG: Slurm",
        "# gives it to all processes of the job's steps, and with --full to those below this script, where mpirun is;",
        "# who does not listen lives on: what mounts an image, ranks that start. So it is said until they have ended,",
        "# and as USR1 where Slurm does not answer, and in the end.",
        "warned='' heard='' ranks='' told=''",
        'said() { timeout 10 scancel --signal=URG "$1" && timeout 10 scancel --full --signal=URG "$1"; }',
        "tell() {",
        f"    local last=$((SECONDS + {patience}))",
        '    while kill -0 "$ranks" 2>/dev/null; do',
        f'        if ! said {job} || ((SECONDS >= last)); then kill -USR1 "$ranks" || break; fi',
        f"        sleep {_AGAIN_SECONDS} >/dev/null 2>&1",
        "    done",
        "}",
        "pass_on() {",
        "    heard=yes",
        "    if [[ $ranks && ! $told ]]; then",
        "        tell </dev/null &",
        "        told=$!",
        "    fi",
        "}",
        "trap 'warned=yes; pass_on' USR1",
        f"trap {word(on_end)} TERM",
        f"{command} &",
        "ranks=$!",
        "if [[ $heard ]]; then pass_on; fi",
        "while true; do",
        "    heard='' code=0",
        '    wait "$ranks" || code=$?',
        "    # A signal ends the wait, not the ranks.",
        "    [[ $heard ]] || break",
        "done",
        'if [[ $told ]]; then kill "$told" 2>/dev/null || true; fi',
    ]
