"""The rank of this process, from the variables that its launcher set; and lists of hosts and ranks.

docs/launching.md ("How a rank finds its place") explains the order of the variables. The command line and the job both
use this module, so it does not import torch.
"""

from __future__ import annotations

import re
import subprocess
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hpcai500.errors import UsageError

# ----------------------------------------------------------------------------------------------------
# Lists of hosts and ranks.


_NUMBERS = re.compile(r"\[([\d,-]+)\]")
# So that a damaged list cannot fill the memory.
_MOST_HOSTS = 1_000_000
# So that messages stay short: every other rank of a thousand would fill a screen.
_MOST_RUNS = 8


def expand_hosts(text: str) -> list[str]:
    """The hosts in a Slurm host list, in order: `n[1-2,07],a` is n1, n2, n07, a.

    Other forms are passed to `scontrol show hostnames`.

    Raises:
        UsageError: neither can read it.
    """
    try:
        return [host for part in _split(text) for host in _expand_one(part)]
    except ValueError:
        return _ask_slurm(text)


# What a container gets as its name unless it is told one: it says nothing of the machine.
_CONTAINER = re.compile(r"[0-9a-f]{12}")


def host_stem(host: str) -> str:
    """What the hosts of one machine have in common: `node-12.site` is `node-#`; empty for a container's own name."""
    name = host.partition(".")[0]
    return "" if _CONTAINER.fullmatch(name) else re.sub(r"\d+", "#", name)


def _split(text: str) -> list[str]:
    """The parts between commas that are not inside brackets."""
    parts = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if ",".join(parts) != text or not parts:
        raise ValueError(text)
    return parts


def _expand_one(part: str) -> list[str]:
    found = _NUMBERS.search(part)
    if found is None:
        if re.search(r"[\[\]\s]", part):
            raise ValueError(part)
        return [part]
    before, after = part[: found.start()], part[found.end() :]
    numbers = [number for piece in found.group(1).split(",") for number in _count(piece)]
    tails = _expand_one(after) if after else [""]
    return [f"{before}{number}{tail}" for number in numbers for tail in tails]


def _count(piece: str) -> list[str]:
    """`08-10` as 08, 09, 10: as wide as its first number."""
    first, dash, last = piece.partition("-")
    numbers = range(int(first), int(last if dash else first) + 1)
    if not 0 < len(numbers) <= _MOST_HOSTS:
        raise ValueError(piece)
    return [f"{number:0{len(first)}d}" for number in numbers]


def _ask_slurm(text: str) -> list[str]:
    command = ["scontrol", "show", "hostnames", text]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(
            f"{text!r}: cannot read this list of hosts, nor can `scontrol show hostnames`: write it as n[1-8],m3; "
            "inside a job, set MASTER_ADDR to the host of rank 0"
        ) from error
    return ended.stdout.split()


def name_ranks(ranks: Iterable[int]) -> str:
    """`rank 7`, `ranks 1, 2`, `ranks 0-72, 74-98`; after eight ranges the rest is only counted."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    shown = (f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs[:_MOST_RUNS])
    rest = sum(map(len, runs[_MOST_RUNS:]))
    plural = "s" if sum(map(len, runs)) != 1 else ""
    return f"rank{plural} {', '.join(shown)}{f' and {rest} more' if rest else ''}"


def is_first_of_host(rank: int, hosts: Sequence[str]) -> bool:
    """Whether `rank` is the first one on its host; `hosts` are those of all ranks, in order."""
    return hosts.index(hosts[rank]) == rank


# ----------------------------------------------------------------------------------------------------
# The place of this process.


LauncherName = Literal["none", "hpcai500", "torchrun", "horovodrun", "mpirun", "srun"]

# Our own launcher sets both for the ranks that it starts.
LAUNCHER = "HPCAI500_LAUNCHER"
LISTEN_FD = "HPCAI500_LISTEN_FD"
# Set by --oversubscribe, or by the user: more ranks than cores may run on a host.
OVERSUBSCRIBE = "HPCAI500_OVERSUBSCRIBE"
# Set for jobs that run one after the other under one launcher, as each needs another rendezvous port.
RENDEZVOUS = "HPCAI500_RENDEZVOUS"
# All ranks of a job compute the same rendezvous port in this range: below Linux's ephemeral ports (from 32768), and
# above most registered ports in common use.
_FIRST_PORT, _PORTS = 20_000, 10_000

Environment = Mapping[str, str]


@dataclass(frozen=True)
class Placement:
    """The place of one process in its job.

    Attributes:
        size: number of processes of the job, from the launcher. If a communicator has another size, launcher and MPI
            do not work together: these are `size` copies of one job.
        local_rank: position among the processes of this host, from 0.
        local_size: number of processes on this host; None if the launcher does not say.
        layout: numbers of processes of all hosts, if the launcher says.
        launcher: `torchrun` also if RANK and WORLD_SIZE were set by hand.
        rendezvous: `host:port` where rank 0 listens; None if unknown (set MASTER_ADDR).
        listen_fd: on rank 0, the socket that already listens there; None if rank 0 has to bind it.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int | None
    launcher: LauncherName
    rendezvous: str | None
    listen_fd: int | None
    layout: tuple[int, ...] = ()

    @property
    def is_alone(self) -> bool:
        return self.size == 1

    @property
    def is_uneven(self) -> bool:
        """Whether hosts are known to have different numbers of processes."""
        return len(set(self.layout)) > 1 or bool(self.local_size and self.size % self.local_size)


@dataclass(frozen=True)
class _Claim:
    """The placement by one set of variables. `job` identifies the job and is equal on all its ranks."""

    launcher: LauncherName
    rank_variable: str
    rank: int
    size_variable: str
    size: int
    local_rank: int | None
    local_size: int | None
    job: tuple[str, ...]
    layout: tuple[int, ...] = ()


def find_placement(environment: Environment) -> Placement:
    """The place that `environment` gives to this process, which is alone if nothing is set.

    The first of these that is set counts: RANK and WORLD_SIZE (torchrun, or our own launcher), HOROVOD_RANK
    (horovodrun --gloo), OMPI_COMM_WORLD_RANK (Open MPI's mpirun), PMIX_RANK (srun --mpi=pmix; the size is the Slurm
    step's), PMI_RANK (MPICH's and Intel's mpirun, srun --mpi=pmi2), SLURM_PROCID of a step (any other srun). A batch
    script is not a step: it counts as one process, regardless of the number of tasks of its job.

    Raises:
        UsageError: a variable is not a number or out of range, or two sources contradict each other.
    """
    claims = [claim for source in _SOURCES if (claim := source(environment)) is not None]
    _check_half_pair(environment, claims)
    if not claims:
        return Placement(0, 1, 0, 1, "none", None, None)
    taken = claims[0]
    for claim in claims:
        _check_range(claim)
    for other in claims[1:]:
        _check_agreement(taken, other, by_hand=taken.launcher == "torchrun" and not _is_elastic(environment))
    local_ranks = [claim.local_rank for claim in claims if claim.local_rank is not None]
    if not local_ranks and taken.size > 1:
        raise UsageError(
            f"{taken.rank_variable} is set, but no variable has the rank on this host: set LOCAL_RANK (from 0)"
        )
    return Placement(
        rank=taken.rank,
        size=taken.size,
        local_rank=local_ranks[0] if local_ranks else 0,
        local_size=1 if taken.size == 1 else taken.local_size,
        launcher=taken.launcher,
        rendezvous=_rendezvous(environment, taken) if taken.size > 1 else None,
        listen_fd=_whole(environment, LISTEN_FD) if taken.rank == 0 else None,
        layout=taken.layout if sum(taken.layout) == taken.size else (),
    )


def without_placement(environment: Environment) -> dict[str, str]:
    """`environment` without the variables that give a process its place, for starting another job from here.

    The variables of a Slurm step stay: mpirun finds its hosts by them, and a step of one task never contradicts the
    ranks that are started in it.
    """
    ours = re.compile(
        r"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|ROLE_.*|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_.*|"
        r"HOROVOD_(RANK|SIZE|LOCAL_.*|CROSS_.*|GLOO_RENDEZVOUS_.*|CONTROLLER|CPU_OPERATIONS|HOSTNAME)|"
        r"OMPI_.*|PMIX_(?!MCA_).*|PMI_.*|MPI_LOCAL.*|HPCAI500_(LAUNCHER|LISTEN_FD|RENDEZVOUS))"
    )
    return {name: value for name, value in environment.items() if not ours.fullmatch(name)}


def _from_torch(environment: Environment) -> _Claim | None:
    rank, size = _whole(environment, "RANK"), _whole(environment, "WORLD_SIZE")
    if rank is None or size is None:
        return None
    ours = environment.get(LAUNCHER) == "hpcai500"
    local = _whole(environment, "LOCAL_RANK"), _whole(environment, "LOCAL_WORLD_SIZE")
    job = _values(environment, "TORCHELASTIC_RUN_ID", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID")
    return _Claim("hpcai500" if ours else "torchrun", "RANK", rank, "WORLD_SIZE", size, *local, job)


def _from_horovod(environment: Environment) -> _Claim | None:
    job = _values(environment, "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")
    return _family(environment, "horovodrun", "HOROVOD_{}", job)


def _from_open_mpi(environment: Environment) -> _Claim | None:
    job = _values(environment, "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
    return _family(environment, "mpirun", "OMPI_COMM_WORLD_{}", job)


def _from_pmix(environment: Environment) -> _Claim | None:
    rank = _whole(environment, "PMIX_RANK")
    # Open MPI's mpirun sets it too, but its OMPI_* variables say more.
    if rank is None or "OMPI_COMM_WORLD_RANK" in environment:
        return None
    step = _from_slurm_step(environment)
    if step is None:
        raise UsageError(
            f"PMIX_RANK={rank} is set, but no variable has the number of ranks: set RANK, WORLD_SIZE and LOCAL_RANK "
            "for each process, or start them with mpirun, srun or torchrun"
        )
    return replace(step, rank_variable="PMIX_RANK", rank=rank)


def _from_pmi(environment: Environment) -> _Claim | None:
    rank, size = _whole(environment, "PMI_RANK"), _whole(environment, "PMI_SIZE")
    if rank is None or size is None:
        return None
    step = _from_slurm_step(environment)
    # Hydra (MPICH, Intel MPI) starts one proxy per node, under Slurm with srun: the tasks of that step are the proxies.
    hydra = _whole(environment, "MPI_LOCALRANKID")
    if hydra is None and step is not None:
        return replace(step, rank_variable="PMI_RANK", rank=rank, size_variable="PMI_SIZE", size=size)
    job = _values(environment, "PMI_JOBID", "PMI_PORT", "SLURM_JOB_ID", "PWD")
    local_size = _whole(environment, "MPI_LOCALNRANKS")
    return _Claim("mpirun", "PMI_RANK", rank, "PMI_SIZE", size, hydra, local_size, job)


def _from_slurm_step(environment: Environment) -> _Claim | None:
    rank, size = _whole(environment, "SLURM_PROCID"), _whole(environment, "SLURM_STEP_NUM_TASKS")
    # A batch script has SLURM_PROCID and SLURM_NTASKS, but is not a step.
    if rank is None or size is None or "SLURM_STEP_ID" not in environment:
        return None
    job = _values(environment, "SLURM_JOB_ID", "SLURM_STEP_ID")
    layout, node = _tasks_of_nodes(environment), _whole(environment, "SLURM_NODEID")
    local = _whole(environment, "SLURM_LOCALID"), layout[node] if node is not None and node < len(layout) else None
    return _Claim("srun", "SLURM_PROCID", rank, "SLURM_STEP_NUM_TASKS", size, *local, job, layout)


_SOURCES: tuple[Callable[[Environment], _Claim | None], ...] = (
    _from_torch,
    _from_horovod,
    _from_open_mpi,
    _from_pmix,
    _from_pmi,
    _from_slurm_step,
)


def _family(environment: Environment, launcher: LauncherName, pattern: str, job: tuple[str, ...]) -> _Claim | None:
    """The claim of a launcher whose variables for rank, size, local rank and local size follow one `pattern`."""
    names = [pattern.format(what) for what in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
    rank, size, local_rank, local_size = (_whole(environment, name) for name in names)
    if rank is None or size is None:
        return None
    return _Claim(launcher, names[0], rank, names[1], size, local_rank, local_size, job)


def _tasks_of_nodes(environment: Environment) -> tuple[int, ...]:
    """Tasks of the step on each node: SLURM_STEP_TASKS_PER_NODE is `2(x3),1` for four nodes; () if it is not."""
    counts: list[int] = []
    for part in filter(None, environment.get("SLURM_STEP_TASKS_PER_NODE", "").split(",")):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            return ()
        counts += [int(found.group(1))] * int(found.group(2) or 1)
    return tuple(counts)


def _rendezvous(environment: Environment, taken: _Claim) -> str | None:
    """Where rank 0 listens: MASTER_ADDR, else this host if all ranks are here, else rank 0's host in the Slurm step."""
    if rendezvous := environment.get(RENDEZVOUS):
        return rendezvous
    port = _whole(environment, "MASTER_PORT")
    # With torchrun, its own process listens at MASTER_PORT.
    if port is None or _is_elastic(environment):
        port = _FIRST_PORT + zlib.crc32("\n".join(taken.job).encode()) % _PORTS
    if host := environment.get("MASTER_ADDR"):
        pass
    elif taken.local_size == taken.size:
        host = "127.0.0.1"
    elif taken.launcher == "srun":
        host = _host_of_rank_0(environment, taken.rank)
    return address(host, port) if host else None


def _host_of_rank_0(environment: Environment, rank: int) -> str | None:
    """The first host of the Slurm step, unless `srun -m arbitrary` has put rank 0 on another; None if unknown."""
    hosts = environment.get("SLURM_STEP_NODELIST")
    if environment.get("SLURM_DISTRIBUTION") == "arbitrary":
        return _ask_slurm_for_rank_0(f"{environment.get('SLURM_JOB_ID')}.{environment.get('SLURM_STEP_ID')}")
    is_elsewhere = rank == 0 and _whole(environment, "SLURM_NODEID")
    return expand_hosts(hosts)[0] if hosts and not is_elsewhere else None


def _ask_slurm_for_rank_0(step: str) -> str | None:
    """The host of rank 0 by the layout of `step`; None where Slurm does not say (in a container, for example).

    Slurm sorts the step's list of hosts, and no variable has the layout.
    """
    command = ["sattach", "--layout", step]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"^\s*Node \d+ \(([^)]+)\), \d+ task\(s\): 0\b", ended.stdout, re.MULTILINE)
    return found.group(1) if found else None


def address(host: str, port: int) -> str:
    """`host:port`, `[::1]:port`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_range(claim: _Claim) -> None:
    if claim.size < 1:
        raise UsageError(f"{claim.size_variable}={claim.size}: expected at least 1")
    if claim.rank >= claim.size:
        raise UsageError(
            f"{claim.rank_variable}={claim.rank}: expected less than {claim.size_variable}={claim.size}; a variable of "
            "an earlier job may be left in your shell: unset it"
        )


def _check_agreement(taken: _Claim, other: _Claim, *, by_hand: bool) -> None:
    """Refuse two sources that contradict each other; nested launchers (one torchrun per task) may count differently."""
    if taken.size == 1 < other.size:
        raise UsageError(
            f"{taken.size_variable}=1, but {other.size_variable}={other.size}: this would start {other.size} runs of "
            f"one rank each; use one launcher only, and unset {taken.rank_variable} and {taken.size_variable} if they "
            "are left from an earlier job"
        )
    # RANK set by hand often has the same value in all processes.
    if by_hand and (taken.size < other.size or (taken.size == other.size and taken.rank != other.rank)):
        raise UsageError(
            f"{taken.rank_variable}={taken.rank} and {taken.size_variable}={taken.size}, but "
            f"{other.rank_variable}={other.rank} and {other.size_variable}={other.size}: unset "
            f"{taken.rank_variable} and {taken.size_variable}, or set them to the same values"
        )


def _check_half_pair(environment: Environment, claims: list[_Claim]) -> None:
    """Refuse RANK or WORLD_SIZE without the other, unless it agrees with the source that counts."""
    rank, size = _whole(environment, "RANK"), _whole(environment, "WORLD_SIZE")
    if (rank is None) == (size is None):
        return
    found, expected = (claims[0].rank, claims[0].size) if claims else (0, 1)
    name, other, value, true = (
        ("RANK", "WORLD_SIZE", rank, found) if size is None else ("WORLD_SIZE", "RANK", size, expected)
    )
    if value != true:
        raise UsageError(f"{name}={value} is set, but {other} is not: set both, or unset {name}")


def _is_elastic(environment: Environment) -> bool:
    return "TORCHELASTIC_RUN_ID" in environment


def _whole(environment: Environment, name: str) -> int | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise UsageError(
            f"{name}={text}: expected a whole number, 0 or more; set by your launcher or left in your shell"
        )
    return int(text)


def _values(environment: Environment, *names: str) -> tuple[str, ...]:
    """The values of these variables and of USER, which together distinguish jobs."""
    return tuple(environment.get(name, "") for name in ("USER", *names))
