"""A launcher starts N copies of a command: rank 0 decides, and sends the others the jobs to run.

Only rank 0 reads the recipe, makes data, chooses the record and counts trials, so the others cannot disagree with it.
Each job has its own rendezvous port. A copy sends `Hello` when it connects, and receives a `Job` for each job, then
`End` with the exit code of the command.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from hpcai500 import __version__
from hpcai500.errors import ExitCode, RunError, UsageError
from hpcai500.hosts import RENDEZVOUS, Placement, address, name_ranks
from hpcai500.interpreter import module_command
from hpcai500.launch.layout import cores_of_launched
from hpcai500.launch.processes import Patience, RankProcess, SignalRelay, checked_code
from hpcai500.messages import Connection, Message, MessageError, Reception, line_of, parse
from hpcai500.progress import Waiting
from hpcai500.restarts import Loss, RankEnd, Restarts, find_loss

# ----------------------------------------------------------------------------------------------------
# Where the copies meet, and their messages: lines of JSON over TCP.


# The values of a recipe's accelerator.device.
Device = Literal["cpu", "cuda"]
_MOST_BYTES = 1 << 20
_BACKLOG = 4096


class Hello(Message):
    """From a copy to rank 0: its rank. It is not authenticated, because a launcher gives its ranks no secret."""

    hpcai500: Annotated[str, Field(max_length=100, pattern=r"^[0-9A-Za-z.+-]+$")]
    rank: Annotated[int, Field(ge=0, lt=2**31)]
    size: Annotated[int, Field(ge=1, lt=2**31)]


class Job(Message):
    """From rank 0 to the copies: the module of ours to run, its arguments, where its ranks meet, and their device.

    Arguments are bytes decoded as Latin-1, since a file's name may be any bytes: see `of` and `command`. If it
    `may_restart`, each copy answers with `Ended`; else those do whose rank has failed.
    """

    kind: Literal["job"] = "job"
    module: Annotated[str, Field(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)*$")]
    arguments: list[Annotated[str, Field(pattern=r"^[\x01-\xff]*$")]]
    rendezvous: Annotated[str, Field(pattern=r"^[^\s\x00]+:[0-9]{1,5}$")]
    device: Device = "cpu"
    may_restart: bool = False

    @classmethod
    def of(
        cls,
        module: str,
        arguments: Sequence[str | Path],
        rendezvous: str,
        device: Device = "cpu",
        *,
        may_restart: bool = False,
    ) -> Job:
        return cls(
            module=module,
            arguments=[os.fsencode(argument).decode("latin-1") for argument in arguments],
            rendezvous=rendezvous,
            device=device,
            may_restart=may_restart,
        )

    @property
    def command(self) -> list[str]:
        return [self.module, *(os.fsdecode(argument.encode("latin-1")) for argument in self.arguments)]


class Ended(Message):
    """From a copy to rank 0, after a job: how its rank ended (`restarts.RankEnd`)."""

    host: Annotated[str, Field(max_length=300)]
    code: Annotated[int, Field(ge=-64, le=255)] | None
    lost_rank: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    lost_reason: Annotated[str, Field(max_length=4000)] | None = None

    @classmethod
    def of(cls, end: RankEnd) -> Ended:
        loss = end.loss or Loss(None, "")
        return cls(host=end.host, code=end.code, lost_rank=loss.rank, lost_reason=loss.reason or None)

    @property
    def end(self) -> RankEnd:
        loss = Loss(self.lost_rank, self.lost_reason) if self.lost_reason else None
        return RankEnd(self.host, self.code, loss)


class End(Message):
    """From rank 0 to the copies: all jobs are done, with this exit code."""

    kind: Literal["end"] = "end"
    code: Annotated[int, Field(ge=0, le=255)]


HELLO: TypeAdapter[Hello] = TypeAdapter(Hello)
_ENDED: TypeAdapter[Ended] = TypeAdapter(Ended)
_ORDER: TypeAdapter[Job | End] = TypeAdapter(Annotated[Job | End, Field(discriminator="kind")])


def meeting_point(placement: Placement) -> tuple[str, int]:
    """Host and port where the copies of one command meet.

    Raises:
        UsageError: this needs MASTER_ADDR, which is not set.
    """
    if placement.rendezvous is None:
        # Only rank 0 comes here, so its host is this one.
        how = f"MASTER_ADDR={socket.gethostname()}"
        how = f"-x {how}" if placement.launcher == "mpirun" else f"{how} in the environment"
        raise UsageError(
            f"{placement.launcher} has started {placement.size} ranks on several hosts, but does not say which one has "
            f"rank 0: give {how} (its host)"
        )
    host, _, port = placement.rendezvous.rpartition(":")
    return host.strip("[]"), int(port)


def listen_at(host: str, port: int = 0) -> socket.socket:
    """A socket that ranks reach as `host`:`port`; port 0: the kernel chooses one.

    It listens on all interfaces unless `host` is the loopback, because a host's own name may mean the loopback on that
    host.

    Raises:
        OSError: the port is taken.
    """
    if host in ("127.0.0.1", "::1"):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=_BACKLOG)


def send(connection: socket.socket, message: Message) -> None:
    """Send one message.

    Raises:
        OSError: the other end is gone.
    """
    connection.sendall(line_of(message))


def _line(connection: socket.socket) -> bytes:
    """The next line from a rank; the end of it, if it is no whole line."""
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < _MOST_BYTES and (byte := connection.recv(1)):
        line += byte
    return bytes(line)


def receive(stream: BufferedReader) -> Job | End | None:
    """The next message of rank 0; None if it is gone.

    Raises:
        RunError: another program answers at rank 0's address.
    """
    try:
        line = stream.readline(_MOST_BYTES)
    except OSError:
        return None
    if not line.endswith(b"\n"):
        return None
    try:
        return parse(line, _ORDER)
    except MessageError as error:
        raise RunError(
            f"rank 0's address does not answer as hpcai500 of this version ({error}): check that MASTER_ADDR and "
            "MASTER_PORT are those of this job, on all ranks"
        ) from error


# ----------------------------------------------------------------------------------------------------
# The copies other than rank 0: they wait for it, run their rank of its jobs, and print no result.


PATIENCE_SECONDS = 300.0
_RETRY_SECONDS = 0.1
# A host that drops the request does not answer at all.
_ANSWER_SECONDS = 10.0
_FIRST_WORD_SECONDS = 5.0
# After a rank of the job has failed, rank 0's process ends within seconds (`comm.liveness`), and its command says so.
_LAST_WORD_SECONDS = 15.0
# The same if the job may restart: rank 0 first hears how all ranks have ended.
_RESTART_SECONDS = 120.0
# While we wait for rank 0 to make data or to score, a dead host is noticed after idle + count * interval.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}


def follow(placement: Placement) -> int:
    """Run our rank of rank 0's jobs until it ends; returns its exit code.

    Raises:
        RunError: rank 0 cannot be reached, or another program answers at its address.
    """
    if placement.rendezvous is None:
        # Rank 0 says why; a launcher that ends all ranks because this one failed must not come before it.
        time.sleep(_FIRST_WORD_SECONDS)
        return ExitCode.USAGE
    with _connect(placement) as connection, connection.makefile("rb") as stream:
        send(connection, Hello(hpcai500=__version__, rank=placement.rank, size=placement.size))
        process = RankProcess()
        try:
            while isinstance(order := receive(stream), Job):
                end = run_rank(placement, order, process, is_over=partial(_has_failed, connection, stream))
                # Rank 0 has seen that the job failed, and sends the end, or what follows; unless its host is gone.
                patience = _RESTART_SECONDS if order.may_restart else _LAST_WORD_SECONDS
                connection.settimeout(None if end.code == ExitCode.PASS else patience)
                if order.may_restart or end.code != ExitCode.PASS:
                    with contextlib.suppress(OSError):  # rank 0 is gone, which `receive` shows
                        send(connection, Ended.of(end))
        finally:
            process.kill()
        # The exit code is known now: a launcher that ends all ranks because one failed must not change it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return order.code if order else ExitCode.RUN_FAILED


def _has_failed(connection: socket.socket, stream: BufferedReader) -> bool:
    """Whether rank 0 has sent the end of a job that failed, which may be while our rank is stopped or hangs."""
    connection.setblocking(False)
    try:
        line, _, _ = stream.peek().partition(b"\n")
        order = parse(line, _ORDER) if line else None
    except (OSError, MessageError):
        return False  # for `receive` to report
    finally:
        connection.setblocking(True)
    return isinstance(order, End) and order.code != ExitCode.PASS


def run_rank(
    placement: Placement,
    order: Job,
    process: RankProcess,
    listener: socket.socket | None = None,
    patience: Patience | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> RankEnd:
    """Be one rank of a job: run it here, in `process`, and return how it ended.

    Args:
        listener: on rank 0, the socket where the ranks of this job meet.
        patience: of a measurement, on rank 0; the other ranks end with it.
        is_over: as `RankProcess.wait`'s.

    Raises:
        KeyboardInterrupt: a signal stopped it before it could handle it, or while it measured.
        OutOfTimeError: `patience` was over.
    """
    with SignalRelay(patience=patience) as relay:
        process.start(
            module_command(*order.command),
            relay=relay,
            environment={**os.environ, RENDEZVOUS: order.rendezvous},
            cores=cores_of_launched(placement, order.device),
            listener=listener,
            hold=True,
            next_job=order.command[1:],
            may_restart=order.may_restart,
        )
        code = process.wait(is_over)
    relay.conclude([code])
    # A rank that is killed from here was lost before, which others print.
    if not order.may_restart and not process.is_ended_by_us:
        checked_code(code, "the job")
    return process.end


def _connect(placement: Placement) -> socket.socket:
    """A connection to rank 0, which may start later than this rank."""
    waiting = Waiting(lambda: f"rank 0 at {placement.rendezvous}", PATIENCE_SECONDS, placement.local_rank == 0)
    while True:
        try:
            connection = socket.create_connection(meeting_point(placement), timeout=_ANSWER_SECONDS)
            break
        except OSError as error:
            if waiting.seconds_left() < 0:
                raise RunError(
                    f"rank {placement.rank}: rank 0 was not at {placement.rendezvous} within {PATIENCE_SECONDS:g} s "
                    f"({error.strerror or error}): see the output of {placement.launcher}, and whether MASTER_ADDR is "
                    "its host"
                ) from error
            time.sleep(_RETRY_SECONDS)
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    return connection


# ----------------------------------------------------------------------------------------------------
# Rank 0's side.


# Messages are short: a live rank takes one in milliseconds.
_SEND_SECONDS = 10.0
# A live rank hangs up in milliseconds; one on a dead host never does.
_HANG_UP_SECONDS = 1.0
# After a loss, the other ranks end within the monitor's grace period, and close what they have open.
_ENDED_SECONDS = 30.0
# Of a rank whose copy is gone.
_GONE = RankEnd("", ExitCode.RUN_FAILED)


class RendezvousServer:
    """Rank 0's side: `open` early, `run` each job, `end` when everything is printed.

    Args:
        patience_seconds: how long to wait for the other copies: a launcher starts thousands from one file system within
            minutes.
        farewell_seconds: the same if the command ends before its first job; copies that have not connected by then are
            left to their launcher.
    """

    def __init__(
        self, placement: Placement, patience_seconds: float = PATIENCE_SECONDS, farewell_seconds: float = 10.0
    ) -> None:
        self._placement = placement
        self._patience_seconds = patience_seconds
        self._farewell_seconds = farewell_seconds
        self._versions: dict[int, str] = {}
        self._reception: Reception[Hello] | None = None
        self._others: dict[int, socket.socket] = {}
        # What the other copies have sent about the present job.
        self._heard: dict[int, RankEnd] = {}

    def open(self) -> None:
        """Let the other copies connect and wait; data may be made meanwhile.

        Raises:
            UsageError: the port is taken, or no meeting point is known.
        """
        host, port = meeting_point(self._placement)
        try:
            listener = listen_at(host, port)
        except OSError as error:
            raise UsageError(
                f"{host}:{port}: the ranks cannot meet here: {error.strerror}; set MASTER_PORT to a free port, "
                "the same for all ranks"
            ) from error
        self._reception = Reception(listener, HELLO, self._placement.size, greet=lambda _: "", take=self._take)

    def run(
        self,
        module: str,
        arguments: Sequence[str | Path],
        patience: Patience | None = None,
        device: Device = "cpu",
        restarts: Restarts | None = None,
    ) -> int:
        """Run one job, `python -m hpcai500.MODULE` on all ranks; returns the exit code of rank 0's process.

        `device` is the recipe's accelerator.device. After the loss of a rank whose copy of the command is still there,
        `restarts` gives another job.

        Raises:
            RunError: a rank is missing or gone, or of another version.
        """
        if missing := self._gather(self._patience_seconds):
            raise RunError(
                f"{name_ranks(missing)} of {self._placement.size} did not connect within {self._patience_seconds:g} s "
                f"to {self._placement.rendezvous}: see the output of {self._placement.launcher}, and whether "
                "MASTER_ADDR is the host of rank 0"
            )
        for rank, version in sorted(self._versions.items()):
            if version != __version__:
                raise RunError(
                    f"rank {rank} runs hpcai500 {version}, rank 0 runs {__version__}: install one version on all hosts"
                )
        process, next_job = RankProcess(), arguments
        try:
            while True:
                may_restart = restarts is not None
                end = self._run_once(module, next_job, process, patience, device, may_restart=may_restart)
                loss = find_loss({0: end, **self._ends()}) if may_restart else None
                again = restarts.after(loss) if restarts and loss and SignalRelay.last_signal is None else None
                if again is None:
                    break
                next_job = again
        finally:
            process.kill()
        return ExitCode.RUN_FAILED if end.code is None or end.code < 0 else end.code

    def _run_once(
        self,
        module: str,
        arguments: Sequence[str | Path],
        process: RankProcess,
        patience: Patience | None,
        device: Device,
        *,
        may_restart: bool,
    ) -> RankEnd:
        host, _ = meeting_point(self._placement)
        with listen_at(host) as listener:
            place = address(host, listener.getsockname()[1])
            order = Job.of(module, arguments, place, device, may_restart=may_restart)
            self._heard.clear()
            for rank, connection in self._others.items():
                try:
                    send(connection, order)
                except OSError as error:
                    raise RunError(f"rank {rank} was gone before the job began ({error.strerror})") from error
            with selectors.DefaultSelector() as selector:
                for rank, connection in self._others.items():
                    selector.register(connection, selectors.EVENT_READ, rank)
                return run_rank(
                    self._placement, order, process, listener, patience, partial(self._is_given_up, selector)
                )

    def _is_given_up(self, selector: selectors.BaseSelector) -> bool:
        """Whether another rank has failed: our process may be stopped, or wait for it before there are monitors."""
        for key, _ in selector.select(0):
            # One message a job, or the copy is gone.
            selector.unregister(key.fileobj)
            self._hear(key.data)
        # After a copy is killed, its rank stops, and all others with it, after a checkpoint that may take long.
        return any(end.code != ExitCode.PASS for end in self._heard.values() if end != _GONE)

    def _hear(self, rank: int) -> None:
        """Take what a copy says about the job; one that is gone counts as failed."""
        try:
            self._heard[rank] = parse(_line(self._others[rank]), _ENDED).end
        except (OSError, MessageError):
            self._heard[rank] = _GONE

    def _ends(self) -> dict[int, RankEnd]:
        """How the other ranks' parts in a job ended.

        One whose copy is gone, or does not answer in time, counts as failed: it cannot be started again from here.
        """
        limit = time.monotonic() + _ENDED_SECONDS
        for rank, connection in self._others.items():
            if rank not in self._heard:
                connection.settimeout(max(0.01, limit - time.monotonic()))
                self._hear(rank)
                connection.settimeout(_SEND_SECONDS)
        return dict(self._heard)

    def end(self, code: int) -> None:
        """Let the other copies end with `code`."""
        if self._reception is None:
            return
        self._gather(self._farewell_seconds)
        self._reception.close()
        for connection in self._others.values():
            # A copy that is gone needs no message.
            with contextlib.suppress(OSError):
                send(connection, End(code=int(code)))
        limit = time.monotonic() + _HANG_UP_SECONDS
        for connection in self._others.values():
            # A copy disconnects when it has its code. If we ended before, a launcher that kills all ranks after a
            # failure would report the exit code of the killed ones.
            with connection, contextlib.suppress(OSError):
                connection.settimeout(max(0.01, limit - time.monotonic()))
                connection.recv(1)

    def _gather(self, patience_seconds: float) -> list[int]:
        """Wait until every other rank has sent `Hello`; return those that did not."""
        assert self._reception is not None
        size = self._placement.size
        missing = list(range(1, size))
        what = f"of {size} at {self._placement.rendezvous}"
        waiting = Waiting(lambda: f"{name_ranks(missing)} {what}", patience_seconds)
        while missing := [rank for rank in range(1, size) if rank not in self._others]:
            left = waiting.seconds_left()
            if left < 0:
                return missing
            self._reception.serve(min(left, 1.0))
        return []

    def _take(self, connection: Connection[Hello], _: str, hello: Hello) -> bool:
        """Accept a connection as a rank of this job, or refuse it: anything may connect to a port."""
        expected = 0 < hello.rank < self._placement.size and hello.rank not in self._others
        if not expected or hello.size != self._placement.size:
            return False
        connection.stream.settimeout(_SEND_SECONDS)
        connection.stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._others[hello.rank] = connection.stream
        self._versions[hello.rank] = hello.hpcai500
        return True
