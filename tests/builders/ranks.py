"""Real ranks for tests: starts a function, or a command, N times under a real launcher, and never leaves one behind.

def sums(communicator, length):                     # in the test's own file, at its top level
    tensor = torch.ones(length)
    communicator.all_reduce(tensor)
    return tensor.tolist()

def test_sums():
    assert run_ranks(sums, 2, 3, backend="horovod", launcher="mpirun") == [[2, 2, 2]] * 2
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
LAUNCHERS = ("processes", "mpirun", "horovodrun", "torchrun")
# Of a job that this test itself may run in; its ranks are not ours.
FOREIGN = ("OMPI_", "PMIX_", "PMI_", "SLURM_", "HOROVOD_", "TORCHELASTIC_", "GLOO_", "NCCL_", "HPCAI500_")
RANK_VARIABLES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK"}
MARK = "MANY_RANKS_OF_TEST"


@dataclass(frozen=True)
class Ended:
    """How a start ended.

    Attributes:
        exit_codes: of each process, or of the one launcher; negative for a signal, as subprocess gives it.
        output: what they and the launcher wrote, stdout and stderr together.
    """

    exit_codes: list[int]
    output: str


@dataclass(frozen=True)
class Outcome:
    """What became of one rank: a value, or the class name and text of what its function raised, or nothing at all."""

    value: Any = None
    error: str | None = None
    message: str = ""
    seconds: float = 0.0


def run_ranks(function: Callable[..., Any], size: int, *arguments: Any, **how: Any) -> list[Any]:
    """What `function(communicator, *arguments)` returned on each of `size` ranks, by rank; see `try_ranks`.

    Raises:
        AssertionError: a rank failed, with the output of all of them.
    """
    outcomes, ended = try_ranks(function, size, *arguments, **how)
    wrong = [f"rank {rank}: {it.error}: {it.message}" for rank, it in enumerate(outcomes) if it.error]
    story = "\n".join([*wrong, f"exit codes {ended.exit_codes}", ended.output])
    assert not wrong, story
    assert not any(ended.exit_codes), story
    return [outcome.value for outcome in outcomes]


def try_ranks(
    function: Callable[..., Any],
    size: int,
    *arguments: Any,
    backend: str = "torch",
    launcher: str | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> tuple[list[Outcome], Ended]:
    """Run `function(communicator, *arguments)` on `size` ranks, and what became of each.

    Args:
        function: at the top level of a file; arguments and result are pickled.
        backend: communication.backend of the recipe.
        launcher: one of LAUNCHERS; by default the backend's usual one.
        overrides: more of the recipe, as given to --set.
        environment: added to this process's own.
        timeout: seconds after which all are killed and the test fails.
    """
    settings = [
        f"communication.backend={backend if size > 1 else 'local'}",
        f"hardware.accelerators_per_node={size}",
        *overrides,
    ]
    source = inspect.getsourcefile(function)
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        task = Path(folder) / "task"
        task.write_bytes(pickle.dumps((source, function.__qualname__, settings, arguments)))
        usual = "mpirun" if backend == "horovod" else "processes"
        command = [sys.executable, __file__, folder]
        ended = start(command, size, launcher or usual, environment=environment, timeout=timeout)
        files = [Path(folder) / f"rank-{rank}" for rank in range(size)]
        dead = Outcome(error="Dead", message="ended without an outcome")
        return [pickle.loads(file.read_bytes()) if file.exists() else dead for file in files], ended


def start(
    command: Sequence[str | Path],
    size: int,
    launcher: str,
    *,
    environment: Mapping[str, str] | None = None,
    timeout: float = 120,
    cwd: Path | None = None,
) -> Ended:
    """Run `size` copies of `command` by `launcher` (one of LAUNCHERS) to their end.

    Raises:
        AssertionError: they had not ended after `timeout` seconds, and were killed; with their output.
    """
    with started(command, size, launcher, environment=environment, cwd=cwd) as (processes, log):
        limit = time.monotonic() + timeout
        for process in processes:
            try:
                process.wait(max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{launcher}: not at an end after {timeout} s:\n{log.read_text()}") from None
        return Ended([process.returncode for process in processes], log.read_text(errors="replace"))


@contextmanager
def started(
    command: Sequence[str | Path],
    size: int,
    launcher: str,
    *,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[tuple[list[subprocess.Popen[bytes]], Path]]:
    """`size` copies of `command` that run: the processes (one a rank, or one launcher) and the file of their output.

    On leaving, whatever of them still runs is killed, however deep the launcher had put it.
    """
    mark = uuid.uuid4().hex
    base = {**clean_environment(), "OMP_NUM_THREADS": "1", MARK: mark, **(environment or {})}
    with tempfile.TemporaryDirectory(prefix="ranks-log-") as folder:
        log = Path(folder) / "log"
        processes = []
        with log.open("ab") as sink:
            for words, variables in _commands([str(word) for word in command], size, launcher):
                child = {**base, **variables}
                processes.append(
                    subprocess.Popen(
                        words, env=child, cwd=cwd, stdout=sink, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
                    )
                )
        try:
            yield processes, log
        finally:
            _kill_all(mark)
            for process in processes:
                process.wait()


def clean_environment() -> dict[str, str]:
    """This process's environment, without what a launcher above it may have put there."""
    return {
        key: value for key, value in os.environ.items() if not key.startswith(FOREIGN) and key not in RANK_VARIABLES
    }


def free_port() -> int:
    """A TCP port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _commands(command: list[str], size: int, launcher: str) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The token lists to start, each with its own variables."""
    scripts = Path(sys.executable).parent
    match launcher:
        case "processes":
            shared = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            for rank in range(size):
                yield command, {**shared, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        case "mpirun":
            # Debian's Open MPI: root, more ranks than cores, no warning where a container forbids cross-memory attach.
            quiet = ["--mca", "btl_vader_single_copy_mechanism", "none", "--bind-to", "none"]
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            yield ["mpirun", "--allow-run-as-root", "--oversubscribe", *quiet, "-np", str(size), *command], place
        case "horovodrun":
            words = [str(scripts / "horovodrun"), "--gloo", "-np", str(size), "-H", f"localhost:{size}", *command]
            yield words, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        case "torchrun":
            run = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
            yield [*run, "--no-python", *command], {}
        case _:
            raise ValueError(f"launcher: expected one of {', '.join(LAUNCHERS)}, got {launcher}")


def _kill_all(mark: str) -> None:
    """Kill every process that was started with `mark` in its environment, until none is left."""
    wanted = f"{MARK}={mark}".encode()
    for _ in range(50):
        found = [process for process in Path("/proc").glob("[0-9]*") if wanted in _environment_of(process)]
        if not found:
            return
        for process in found:
            try:
                os.kill(int(process.name), signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
    raise AssertionError(f"processes that do not die: {[process.name for process in found]}")


def _environment_of(process: Path) -> list[bytes]:
    """Empty for a process that is gone, a zombie, or not ours to read."""
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _run_task(folder: Path) -> int:
    """What one rank does: connect, call the function, leave the outcome for the test."""
    from hpcai500.engine.measurement import load_torch

    load_torch()
    from hpcai500.comm.connect import connect
    from hpcai500.hosts import find_placement
    from hpcai500.recipe import load_recipe

    source, name, settings, arguments = pickle.loads((folder / "task").read_bytes())
    # The function's file may import its neighbours and the helpers, as under pytest.
    sys.path[:0] = [str(Path(source).parent), str(TESTS)]
    spec = importlib.util.spec_from_file_location(Path(source).stem, source)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    placement = find_placement(os.environ)
    begin = time.monotonic()
    try:
        communicator = connect(load_recipe("ic/smoke", settings), placement)
        outcome = Outcome(value=getattr(module, name)(communicator, *arguments), seconds=time.monotonic() - begin)
        communicator.close()
    except Exception as error:  # noqa: BLE001  (the test judges it)
        traceback.print_exc()
        outcome = Outcome(error=type(error).__name__, message=str(error), seconds=time.monotonic() - begin)
    partial = folder / f"partial-{uuid.uuid4().hex}"
    partial.write_bytes(pickle.dumps(outcome))
    partial.rename(folder / f"rank-{placement.rank}")
    return 1 if outcome.error else 0


if __name__ == "__main__":
    # The outcome must unpickle as builders.ranks.Outcome, not as __main__.Outcome; and modules of the package are no
    # modules of their own.
    sys.path[0] = str(TESTS)
    sys.exit(importlib.import_module("builders.ranks")._run_task(Path(sys.argv[1])))
