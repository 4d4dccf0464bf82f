"""Ranks of one job on this host for the backend `horovod`: it wants a launcher of its own kind."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from hpcai500.errors import EnvironmentLacksError, ExitCode
from hpcai500.interpreter import module_command, python_command
from hpcai500.launch.child import Patience, SignalRelay, start_child
from hpcai500.launch.in_job import told_code, wait_for
from hpcai500.launch.launchers import Layout, horovodrun, mpirun
from hpcai500.placement import without_placement
from hpcai500.scratch import with_temporary_folder
from hpcai500.stopping import STOPPING

# mpirun takes SIGINT and SIGTERM as "kill all", keeps SIGURG, and passes this one on to the ranks: "stop with a
# checkpoint".
_TO_RANKS: dict[int, signal.Signals] = dict.fromkeys((*STOPPING, signal.SIGURG), signal.SIGUSR1)
# Of ranks that measure nothing is kept.
_KILL_ALL: dict[int, signal.Signals] = dict.fromkeys((*STOPPING, signal.SIGUSR1, signal.SIGURG), signal.SIGTERM)
# Its launchers ask ranks to end, wait a second or two, then kill them.
_LAUNCHER_SECONDS = 3.0


def run_horovod_ranks(
    module: str,
    arguments: Sequence[str | Path],
    size: int,
    *,
    launcher: Literal["mpirun", "horovodrun"] | None = None,
    environment: Mapping[str, str] = os.environ,
    patience: Patience | None = None,
) -> int:
    """Run `size` ranks of `python -m hpcai500.MODULE` under mpirun, or under horovodrun where there is none.

    Returns the exit code of the job.

    Args:
        launcher: this one and no other.
        environment: what the ranks get; where they stand is their launcher's word.
        patience: as `SignalRelay`'s.

    Raises:
        EnvironmentLacksError: there is neither.
        KeyboardInterrupt: a signal stopped ranks that measured.
        OutOfTimeError: `patience` was over.
    """
    command = module_command("launch.rank_command", module, *arguments)
    # The ranks are for this host, whatever a scheduler says of others.
    environment = with_temporary_folder(
        {name: value for name, value in without_placement(environment).items() if not name.startswith("SLURM_")},
        Path.cwd(),
    )
    layout = Layout(nodes=1, per_node=size)
    if launcher != "horovodrun" and shutil.which("mpirun"):
        name, tokens = "mpirun", mpirun(layout, command, as_root=os.geteuid() == 0, oversubscribe=True)
        relay, last_will = SignalRelay(_TO_RANKS), signal.SIGUSR1
    elif launcher != "mpirun" and (found := _horovodrun()):
        # It would remember in ~/.horovod which hosts it reached, and there is not always a home.
        name, tokens = "horovodrun", [*found, "--disable-cache", *horovodrun(layout, command)[1:]]
        relay, last_will = SignalRelay(), signal.SIGTERM
    else:
        raise EnvironmentLacksError(
            "communication.backend is horovod, but there is no mpirun and no horovodrun here: install Open MPI and "
            "Horovod, or use --set communication.backend=torch"
        )
    if patience:
        patience = replace(patience, grace_seconds=_LAUNCHER_SECONDS)
        relay, last_will = SignalRelay(_KILL_ALL, patience), signal.SIGTERM
    with relay:
        child = start_child(tokens, environment=environment, last_will=last_will, own_session=True)
        relay.add(child)
        code = wait_for(child)
    relay.conclude()
    # A launcher turns a rank's signal into a code of its own.
    return told_code(code, name) if code < 0 or code in list(ExitCode) else ExitCode.RUN_FAILED


def _horovodrun() -> list[str] | None:
    """The script beside our Python comes first: it belongs to the Horovod that the ranks import."""
    beside = Path(sys.executable).with_name("horovodrun")
    if beside.is_file():
        return [*python_command(), str(beside)]
    found = shutil.which("horovodrun")
    return [found] if found else None
