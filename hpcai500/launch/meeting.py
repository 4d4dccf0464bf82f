"""Where the copies of one command meet, and how they talk: lines of JSON over TCP."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from hpcai500.errors import RunError, UsageError
from hpcai500.messages import Message, MessageError, line_of, parse
from hpcai500.placement import Placement

_MOST_BYTES = 1 << 20
_BACKLOG = 4096


class Hello(Message):
    """A copy to rank 0: which one it is. Nothing proves it: a launcher gives its ranks no secret."""

    hpcai500: Annotated[str, Field(max_length=100, pattern=r"^[0-9A-Za-z.+-]+$")]
    rank: Annotated[int, Field(ge=0, lt=2**31)]
    size: Annotated[int, Field(ge=1, lt=2**31)]


class Job(Message):
    """Rank 0 to the copies: the module of ours to run, its arguments, and where its ranks meet.

    An argument is the text of bytes in Latin-1, since a file's name may be any bytes: see `of` and `command`.
    """

    kind: Literal["job"] = "job"
    module: Annotated[str, Field(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)*$")]
    arguments: list[Annotated[str, Field(pattern=r"^[\x01-\xff]*$")]]
    rendezvous: Annotated[str, Field(pattern=r"^[^\s\x00]+:[0-9]{1,5}$")]

    @classmethod
    def of(cls, module: str, arguments: Sequence[str | Path], rendezvous: str) -> Job:
        """The job `python -m hpcai500.MODULE ARGUMENTS`."""
        return cls(
            module=module,
            arguments=[os.fsencode(argument).decode("latin-1") for argument in arguments],
            rendezvous=rendezvous,
        )

    @property
    def command(self) -> list[str]:
        """The module and its arguments."""
        return [self.module, *(os.fsdecode(argument.encode("latin-1")) for argument in self.arguments)]


class End(Message):
    """Rank 0 to the copies: all is done, and this is the exit code."""

    kind: Literal["end"] = "end"
    code: Annotated[int, Field(ge=0, le=255)]


HELLO: TypeAdapter[Hello] = TypeAdapter(Hello)
_ORDER: TypeAdapter[Job | End] = TypeAdapter(Annotated[Job | End, Field(discriminator="kind")])


def meeting_point(placement: Placement) -> tuple[str, int]:
    """Host and port where the copies of one command meet.

    Raises:
        UsageError: only MASTER_ADDR could tell, and is not set.
    """
    if placement.rendezvous is None:
        how = "-x MASTER_ADDR=HOST" if placement.launcher == "mpirun" else "MASTER_ADDR=HOST in the environment"
        raise UsageError(
            f"{placement.launcher} has started {placement.size} ranks on several hosts, and does not say which one has "
            f"rank 0: give {how} (the first host)"
        )
    host, _, port = placement.rendezvous.rpartition(":")
    return host.strip("[]"), int(port)


def listen_at(host: str, port: int = 0) -> socket.socket:
    """A socket that ranks reach as `host`:`port`; port 0: one that the kernel chooses.

    For a host other than the loopback it listens on all interfaces, because a host's own name may mean the loopback on
    that host.

    Raises:
        OSError: the port is taken.
    """
    if host in ("127.0.0.1", "::1"):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=_BACKLOG)


def address(host: str, listener: socket.socket) -> str:
    """`host:port` of `listener`."""
    port = listener.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def send(connection: socket.socket, message: Message) -> None:
    """Send one message.

    Raises:
        OSError: nobody is there any more.
    """
    connection.sendall(line_of(message))


def receive(stream: BufferedReader) -> Job | End | None:
    """What rank 0 says next; None if it is gone.

    Raises:
        RunError: something else answers where rank 0 should be.
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
            f"what answers in the place of rank 0 is not hpcai500 of this version ({error}): see whether MASTER_ADDR "
            "and MASTER_PORT are those of this job, on all ranks"
        ) from error
