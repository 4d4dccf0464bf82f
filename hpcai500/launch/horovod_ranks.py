"""Ranks of one job on this host for the backend `horovod`: it wants a launcher of its own kind."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcai500.errors import EnvironmentLacksError, ExitCode
from hpcai500.launch.child import SignalRelay, start_child
from hpcai500.launch.in_job import module_command, told_code, wait_for
from hpcai500.launch.launchers import Layout, horovodrun, mpirun
from hpcai500.placement import without_placement

# mpirun takes SIGINT and SIGTERM as "kill all", and passes this one on to the ranks: "stop with a checkpoint".
_TO_RANKS: dict[int, signal.Signals] = {signal.SIGINT: signal.SIGUSR1, signal.SIGTERM: signal.SIGUSR1}


def run_horovod_ranks(module: str, arguments: Sequence[str | Path], size: int) -> int:
    """Run `size` ranks of `python -m hpcai500.MODULE` under mpirun, or under horovodrun where there is none.

    Returns the exit code of the job.

    Raises:
        EnvironmentLacksError: there is neither.
    """
    command = module_command("launch.rank_command", module, *arguments)
    # The ranks are for this host, whatever a scheduler says of others.
    environment = {
        name: value for name, value in without_placement(os.environ).items() if not name.startswith("SLURM_")
    }
    layout = Layout(nodes=1, per_node=size)
    if shutil.which("mpirun"):
        tokens = mpirun(layout, command, as_root=os.geteuid() == 0, oversubscribe=True)
        relay, last_will = SignalRelay(_TO_RANKS), signal.SIGUSR1
    elif found := _horovodrun():
        tokens = [found, *horovodrun(layout, command)[1:]]
        relay, last_will = SignalRelay(), signal.SIGTERM
    else:
        raise EnvironmentLacksError(
            "communication.backend is horovod, but there is no mpirun and no horovodrun here: install Open MPI and "
            "Horovod, or use --set communication.backend=torch"
        )
    with relay:
        child = start_child(tokens, environment=environment, last_will=last_will, own_session=True)
        relay.add(child)
        code = wait_for(child)
    # A launcher turns a rank's signal into a code of its own.
    return told_code(code, tokens[0]) if code < 0 or code in list(ExitCode) else ExitCode.RUN_FAILED


def _horovodrun() -> str | None:
    """The script beside our Python comes first: it belongs to the Horovod that the ranks import."""
    beside = Path(sys.executable).with_name("horovodrun")
    return str(beside) if beside.is_file() else shutil.which("horovodrun")
