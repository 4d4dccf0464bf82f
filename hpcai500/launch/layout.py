"""The command lines of launchers; and which cores and devices the ranks of this host get."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hpcai500.errors import UsageError
from hpcai500.hosts import Placement
from hpcai500.system.devices import DEVICES_VARIABLE, visible_gpus
from hpcai500.system.looking import numbers_of

# ----------------------------------------------------------------------------------------------------
# Cores of the ranks of one host: equal shares, so that N ranks do not start N times the threads.


CORES_VARIABLE = "HPCAI500_AFFINITY"
_CPUS = Path("sys/devices/system/cpu")
_ROOT = Path("/")


def cores_for(local_rank: int, local_size: int, device: str = "cpu", root: Path = _ROOT) -> list[int] | None:
    """The cores for one of `local_size` ranks here; None if all share all cores (HPCAI500_AFFINITY=none).

    Where `device`, the recipe's accelerator.device, is cuda, they are near the rank's GPU, if the kernel says where it
    is. `root` is `/`.

    Raises:
        UsageError: the variable has another value.
    """
    wish = os.environ.get(CORES_VARIABLE, "")
    if wish not in ("", "none"):
        raise UsageError(
            f"{CORES_VARIABLE}={wish}: expected none (all ranks share all cores), or no value (each has its own)"
        )
    return None if wish or local_size == 1 else shares(local_size, device, root=root)[local_rank]


def cores_of_launched(placement: Placement, device: str = "cpu") -> list[int] | None:
    """The cores for a rank that a launcher has started; None leaves it as it is. `device` as in `cores_for`.

    mpirun and srun bind ranks to cores, each in its own way; torchrun and horovodrun never do.
    """
    if placement.launcher not in ("torchrun", "horovodrun") or placement.local_size is None:
        return None
    return cores_for(placement.local_rank, placement.local_size, device)


def shares(count: int, device: str = "cpu", gpus: int = 1, root: Path = _ROOT) -> list[list[int]]:
    """The cores of this process in `count` equal shares.

    Where `device` is cuda, each is near its GPU, if the kernel says where it is; with several `gpus` a share, near the
    first of them. Shares have the GPUs in CUDA's order.
    """
    cores = neighbours_together(os.sched_getaffinity(0), root / _CPUS)
    nodes = [gpu.numa_node for gpu in visible_gpus(os.environ, root)] if device == "cuda" else []
    known = [node for node in nodes[: count * gpus : gpus] if node is not None]
    if len(nodes) < count * gpus or len(known) < count or count > len(cores):
        return [share(cores, number, count) for number in range(count)]
    from hpcai500.system.node import numa_nodes  # only here: most commands start without it

    return shares_near(cores, known, numa_nodes(root) or [])


def share(cores: Sequence[int], local_rank: int, local_size: int) -> list[int]:
    """Cores of one rank: len(cores) // local_size, so that all ranks are equally fast; at least one, then shared."""
    each = max(1, len(cores) // local_size)
    first = local_rank * each % len(cores)
    return list(cores[first : first + each])


def shares_near(cores: Sequence[int], nodes: Sequence[int], numa: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Equal shares of `cores`, one for each of `nodes`: first of that NUMA node, then of the nearest ones.

    So all cores are used where some NUMA nodes have no GPU, and a node's own shares come before those of other nodes.

    Args:
        cores: at least as many as shares, in the order in which they are given out.
        nodes: the NUMA node of each share's GPU.
        numa: the nodes of this host, as `system.node.numa_nodes` describes them.
    """
    each = len(cores) // len(nodes)
    of_node = {one["node"]: numbers_of(one["cpus"] or "") for one in numa}
    distances = {one["node"]: dict(zip(of_node, one["distances"] or (), strict=False)) for one in numa}
    free = list(cores)
    shares: list[list[int]] = []
    for node in nodes:
        own = [core for core in cores if core in of_node.get(node, ())]
        size = min(each, len(own) // nodes.count(node))
        shares.append([core for core in own if core in free][:size])
        free = [core for core in free if core not in shares[-1]]
    for node, taken in zip(nodes, shares, strict=True):
        far = {core: distance for other, distance in distances.get(node, {}).items() for core in of_node[other]}
        # The sort is stable, so that neighbours stay together.
        taken.extend(sorted(free, key=lambda core: far.get(core, 1000))[: each - len(taken)])
        free = [core for core in free if core not in taken]
    return shares


def neighbours_together(cores: Iterable[int], cpus: Path = _ROOT / _CPUS) -> list[int]:
    """`cores` ordered so that those of a package, and hardware threads of a core, are adjacent: a share splits few.

    Linux often numbers the second threads after all first ones; plain ranges would then give two ranks the same cores.
    """
    return sorted(cores, key=lambda core: (*_place(cpus / f"cpu{core}" / "topology"), core))


def _place(topology: Path) -> tuple[int, int]:
    """Package, and lowest thread of the core; the same for all if the machine does not say (some containers)."""
    return _first_number(topology / "physical_package_id"), _first_number(topology / "thread_siblings_list")


def _first_number(path: Path) -> int:
    found = re.match(r"\d+", path.read_text()) if path.is_file() else None
    return int(found.group()) if found else 0


# ----------------------------------------------------------------------------------------------------
# Accelerators that processes here may use, by CUDA's names, found without a driver.


def visible_devices(environment: Mapping[str, str], folder: Path = Path("/dev")) -> list[str]:
    """The devices that the variable lists, or the numbers of all that the host has."""
    named = environment.get(DEVICES_VARIABLE)
    if named is not None:
        return [name for word in named.split(",") if (name := word.strip()) and name != "-1"]
    numbers = (device.name.removeprefix("nvidia") for device in folder.glob("nvidia*"))
    return sorted(filter(str.isdecimal, numbers), key=int)


# ----------------------------------------------------------------------------------------------------
# The command line of each launcher for a layout. Pure: returns token lists, starts nothing.


# When a rank fails, and on Ctrl-C, mpirun waits, asks the ranks to end (SIGTERM), waits again, and kills them. Its
# default of one second is too short for rank 0 to close the record.
_CLOSE_SECONDS = 5


@dataclass(frozen=True)
class Layout:
    """Where the ranks of a job go.

    Attributes:
        hosts: empty leaves the choice to the launcher or the scheduler.
        cores_per_rank: cores that each rank is bound to; None leaves the ranks unbound (ours share a node's cores
            among themselves, see docs/launching.md).
        exported: names of variables that every rank gets with the value in the launcher's process.
        interface: network interface for the messages of launcher and MPI, where there are several.
        total: number of ranks, where some nodes have fewer than `per_node`.
    """

    nodes: int
    per_node: int
    hosts: Sequence[str] = ()
    cores_per_rank: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    interface: str | None = None
    exported: Sequence[str] = ()
    total: int | None = None

    def __post_init__(self) -> None:
        if self.hosts and len(self.hosts) != self.nodes:
            raise UsageError(f"expected {self.nodes} hosts, one a node, got {len(self.hosts)}: {', '.join(self.hosts)}")

    @property
    def ranks(self) -> int:
        return self.total or self.nodes * self.per_node


def mpirun(layout: Layout, command: Sequence[str], *, as_root: bool = False, oversubscribe: bool = False) -> list[str]:
    """Open MPI's mpirun (4 and 5).

    `as_root` lifts its refusal to run as root; `oversubscribe` allows more ranks than the cores that it counts.
    """
    cores = layout.cores_per_rank
    binding = ["--bind-to", "core"] if cores else ["--bind-to", "none"]
    mapping = f"ppr:{layout.per_node}:node" + (f":PE={cores}" if cores else "")
    # By default it uses every network that two hosts have in common.
    networks = [("btl_tcp_if_include", layout.interface), ("oob_tcp_if_include", layout.interface)]
    parameters = [("odls_base_sigkill_timeout", str(_CLOSE_SECONDS)), *(networks if layout.interface else [])]
    return [
        "mpirun",
        *(["--allow-run-as-root"] if as_root else []),
        *(["--oversubscribe"] if oversubscribe else []),
        *["-np", str(layout.ranks), "--map-by", mapping, *binding],
        *(["-H", _slots(layout)] if layout.hosts else []),
        *[token for name, value in parameters for token in ("--mca", name, str(value))],
        *[token for name, value in layout.environment.items() for token in ("-x", f"{name}={value}")],
        *[token for name in layout.exported for token in ("-x", name)],
        *command,
    ]


def srun(layout: Layout, command: Sequence[str], *, pmi: Literal["pmix", "pmi2", "none"] = "none") -> list[str]:
    """Slurm's srun, inside an allocation or not.

    `pmi` is how an MPI library in the ranks finds the other ranks; it must have been built with it (`srun --mpi=list`
    shows what the scheduler has). Ranks that meet over TCP need none.
    """
    # Since Slurm 22.05, srun does not take --cpus-per-task from its sbatch, so it is always given.
    cores = layout.cores_per_rank
    binding = [f"--cpus-per-task={cores}", "--cpu-bind=cores"] if cores else ["--cpu-bind=none"]
    variables = ",".join(["ALL", *(f"{name}={value}" for name, value in layout.environment.items())])
    if bad := [name for name, value in layout.environment.items() if "," in value]:
        raise UsageError(f"{bad[0]}: srun cannot pass a value with a comma: export it before srun instead")
    return [
        "srun",
        *[f"--nodes={layout.nodes}", f"--ntasks={layout.ranks}", f"--ntasks-per-node={layout.per_node}"],
        *binding,
        f"--mpi={pmi}",
        # Otherwise the remaining ranks wait for the one that failed.
        "--kill-on-bad-exit=1",
        *([f"--nodelist={','.join(layout.hosts)}"] if layout.hosts else []),
        f"--export={variables}",
        *command,
    ]


def horovodrun(layout: Layout, command: Sequence[str]) -> list[str]:
    """Horovod's own launcher, over Gloo; it reaches other hosts by ssh, and they get this process's environment."""
    slots = _slots(layout) if layout.hosts else f"localhost:{layout.per_node}"
    if layout.nodes > 1 and not layout.hosts:
        raise UsageError("horovodrun takes no hosts from a scheduler: name them")
    if layout.cores_per_rank:
        raise UsageError("horovodrun binds no ranks to cores: leave cores_per_rank out")
    return [
        *["horovodrun", "--gloo", "-np", str(layout.ranks), "-H", slots],
        *(["--network-interface", layout.interface] if layout.interface else []),
        *_with_variables(layout, command),
    ]


def torchrun(layout: Layout, command: Sequence[str], *, job: str = "hpcai500", port: int = 29400) -> list[str]:
    """torch's launcher; with several nodes, run the same tokens on each of `layout.hosts`: the first one leads.

    `job` names the job alike on all nodes; `port` is where the launchers of several nodes meet.
    """
    if layout.nodes > 1 and not layout.hosts:
        raise UsageError("torchrun takes no hosts from a scheduler: name at least the first one")
    if layout.cores_per_rank:
        raise UsageError("torchrun binds no ranks to cores: leave cores_per_rank out")
    if layout.total:
        raise UsageError("torchrun starts as many ranks on each node: use srun, mpirun or horovodrun")
    meeting = (
        [
            f"--nnodes={layout.nodes}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={layout.hosts[0]}:{port}",
            f"--rdzv-id={job}",
        ]
        if layout.nodes > 1
        else ["--standalone"]
    )
    return [
        *["torchrun", *meeting, f"--nproc-per-node={layout.per_node}", "--no-python"],
        *_with_variables(layout, command),
    ]


def _slots(layout: Layout) -> str:
    return ",".join(f"{host}:{layout.per_node}" for host in layout.hosts)


def _with_variables(layout: Layout, command: Sequence[str]) -> list[str]:
    """For launchers without an option for variables."""
    variables = [f"{name}={value}" for name, value in layout.environment.items()]
    return ["env", *variables, *command] if variables else list(command)
