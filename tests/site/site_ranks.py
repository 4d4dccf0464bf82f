"""Ranks on the hosts of a site: functions, as `builders.ranks` runs them on one machine, and commands."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from builders import ranks
from hosts import Site

_PORT = "29500"


def run_ranks(
    site: Site,
    hosts: Sequence[str],
    function: Callable[..., Any],
    *arguments: Any,
    backend: str = "torch",
    launcher: str = "environment",
    overrides: Sequence[str] = (),
    timeout: float = 120,
) -> list[Any]:
    """What `function(communicator, *arguments)` returned on each rank.

    Args:
        site: where.
        hosts: host of each rank; those of a host are neighbours.
        function: at the top level of a file; arguments and result are pickled.
        backend: communication.backend of the recipe.
        launcher: `environment` (torch's variables, set by hand), `mpirun` or `horovodrun`.
        overrides: more of the recipe, as given to --set.
        timeout: seconds after which all are killed.

    Raises:
        AssertionError: a rank failed or did not end, with the output of all of them.
    """
    task = Task(site, function, arguments, [f"communication.backend={backend}", *layout(hosts), *overrides])
    output = finish(site, start_ranks(site, hosts, task.command, launcher), timeout)
    outcomes = task.outcomes(len(hosts))
    assert not any(outcome.error for outcome in outcomes), output
    return [outcome.value for outcome in outcomes]


class Task:
    """One call of a function on each rank, for any launcher.

    Attributes:
        command: what each rank has to run.
    """

    def __init__(
        self, site: Site, function: Callable[..., Any], arguments: Sequence[Any], settings: Sequence[str]
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="task-", dir=site.folder))
        task = inspect.getsourcefile(function), function.__qualname__, list(settings), tuple(arguments)
        (self._folder / "task").write_bytes(pickle.dumps(task))
        self.command = [sys.executable, ranks.__file__, str(self._folder)]

    def outcomes(self, size: int) -> list[ranks.Outcome]:
        """What became of each rank."""
        files = [self._folder / f"rank-{rank}" for rank in range(size)]
        dead = ranks.Outcome(error="Dead", message="ended without an outcome")
        return [pickle.loads(file.read_bytes()) if file.exists() else dead for file in files]


def layout(hosts: Sequence[str]) -> list[str]:
    """The recipe's words for ranks on these hosts."""
    nodes = len(set(hosts))
    return [f"hardware.nodes={nodes}", f"hardware.accelerators_per_node={len(hosts) // nodes}"]


def start_ranks(
    site: Site,
    hosts: Sequence[str],
    command: Sequence[str | Path],
    launcher: str = "environment",
    environment: Mapping[str, str] | None = None,
) -> list[subprocess.Popen[str]]:
    """Processes that run `command` on each rank, or the one process of a launcher."""
    common = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", **(environment or {})}
    how = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    counts = {host: hosts.count(host) for host in hosts}
    slots = ",".join(f"{host}:{count}" for host, count in counts.items())
    match launcher:
        case "environment":
            return [
                site.start(host, command, {**common, **place(site, hosts, rank)}, **how)
                for rank, host in enumerate(hosts)
            ]
        case "mpirun":
            # What the hosts of a site have in common with a cluster: several networks, of which one leads anywhere.
            network = ["--mca", "btl", "tcp,vader,self", "--mca", "btl_tcp_if_include", "eth0"]
            network += ["--mca", "oob_tcp_if_include", "eth0", "--mca", "btl_vader_single_copy_mechanism", "none"]
            words = ["mpirun", "--allow-run-as-root", "--bind-to", "none", *network, "--host", slots]
            words += ["-np", str(len(hosts)), *map(str, command)]
            return [site.start(hosts[0], words, {**common, "OMPI_MCA_plm_rsh_agent": "ssh"}, **how)]
        case "horovodrun":
            words = [str(Path(sys.executable).with_name("horovodrun")), "--gloo", "--network-interface", "eth0"]
            words += ["-np", str(len(hosts)), "-H", slots, *map(str, command)]
            return [site.start(hosts[0], words, common, **how)]
    raise ValueError(f"launcher: {launcher} is none of environment, mpirun, horovodrun")


def place(site: Site, hosts: Sequence[str], rank: int) -> dict[str, str]:
    """The variables that tell torch which rank a process is."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(hosts)),
        "LOCAL_RANK": str(hosts[:rank].count(hosts[rank])),
        "LOCAL_WORLD_SIZE": str(hosts.count(hosts[rank])),
        "MASTER_ADDR": site.address(hosts[0]),
        "MASTER_PORT": _PORT,
    }


def finish(site: Site, processes: Sequence[subprocess.Popen[str]], timeout: float) -> str:
    """Wait until all have ended; returns what they printed, one after the other.

    Raises:
        AssertionError: not all have, after `timeout` seconds; all on these hosts are then killed.
    """
    limit = time.monotonic() + timeout
    late = False
    for process in processes:
        try:
            process.wait(max(0.0, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            late = True
            for name in site.names:
                site.kill(name)
    # The pipes hold 64 KiB each: what these processes say is less.
    output = "\n".join(process.communicate()[0] for process in processes)
    assert not late, f"not at an end after {timeout} s:\n{output}"
    return output
