"""Messages between the processes of one job: lines of JSON over TCP, safe against unknown peers.

Used by the copies of one command (`launch.rendezvous`) and the monitors of one job (`comm.liveness`). An unknown peer
can neither crash a process nor block it: time, bytes and connections are limited, and every message is checked for
types, lengths and ranges.
"""

from __future__ import annotations

import contextlib
import errno
import math
import resource
import selectors
import socket
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from hpcai500.errors import EnvironmentLacksError

# Time and bytes that a new connection has for its first message, which identifies the sender.
_HELLO_SECONDS = 10.0
_LONGEST_HELLO = 1024
_AT_ONCE = 65536
_ACCEPTED_AT_ONCE = 64
# Connections beyond the expected ones that may be open at a time, and files that the rest of the process may have open.
_MOST_UNKNOWN = 256
_OTHER_FILES = 512
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class MessageError(Exception):
    """A connection received something other than an expected message."""


class Message(BaseModel):
    """A message. Types are strict (1.0 is not an integer); fields of later versions are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False, defer_build=True)


M = TypeVar("M", bound=Message)


def parse(line: bytes, messages: TypeAdapter[M]) -> M:
    """The message in `line`, one of `messages`, with types, lengths and ranges as declared there.

    Raises:
        MessageError: it is anything else; `line` may hold any bytes.
    """
    try:
        return messages.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise MessageError(f"{place}: {first['type']}" if place else first["type"]) from error


def line_of(message: Message) -> bytes:
    """`message` as a line, with its line end."""
    return message.model_dump_json().encode() + b"\n"


class Connection(Generic[M]):
    """A TCP connection that carries messages and never blocks. Used by one thread.

    `open` is false once the other side has closed the connection. Received lines may have up to `longest_line` bytes.
    """

    def __init__(self, stream: socket.socket, messages: TypeAdapter[M], longest_line: int = _LONGEST_HELLO) -> None:
        stream.setblocking(False)
        with contextlib.suppress(OSError):  # not a TCP socket, or closed already: small messages only arrive later
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream, self.open, self.longest_line = stream, True, longest_line
        self._messages = messages
        self._incoming = b""
        self._outgoing = b""

    def fileno(self) -> int:
        return self.stream.fileno()

    def send(self, message: Message) -> None:
        """Send `message`; what the network does not accept now is sent by the next call of `flush`."""
        self._outgoing += line_of(message)
        self.flush()

    def flush(self) -> bool:
        """Send what is waiting; returns whether nothing is left."""
        while self._outgoing and self.open:
            try:
                self._outgoing = self._outgoing[self.stream.send(self._outgoing) :]
            except BlockingIOError:
                return False
            except OSError:
                # The other side is gone. What it sent before can still be read; `receive` finds the end.
                self._outgoing = b""
        return True

    def receive(self) -> list[M]:
        """The messages that have arrived; afterwards `open` says whether more may follow.

        Raises:
            MessageError: a line is not a message, or is too long.
        """
        while self.open:
            try:
                piece = self.stream.recv(_AT_ONCE)
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            self.open = bool(piece)
            self._incoming += piece
            if len(self._incoming) > _AT_ONCE:
                break
        *lines, self._incoming = self._incoming.split(b"\n")
        if any(len(line) > self.longest_line for line in (*lines, self._incoming)):
            raise MessageError("a line is too long")
        return [parse(line, self._messages) for line in lines]

    def finish(self) -> None:
        """Signal that nothing more will be sent; what the other side still sends can be read."""
        with contextlib.suppress(OSError):
            self.stream.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.open = False
        self.stream.close()


class Reception(Generic[M]):
    """Accepts the expected processes at a listening socket, and closes all other connections.

    Connections are served concurrently. A process that connects must identify itself within ten seconds, in one message
    of at most 1 KiB. If there are too many connections, the oldest ones are closed.

    Args:
        listener: is closed by `close`.
        size: how many processes may connect at the same time.
        greet: called with each new connection; its result is passed to `take`.
        take: called with a connection, the result of `greet`, and the received message; returns whether it takes the
            connection over.
    """

    def __init__(
        self,
        listener: socket.socket,
        messages: TypeAdapter[M],
        size: int,
        *,
        greet: Callable[[Connection[M]], str],
        take: Callable[[Connection[M], str, M], bool],
    ) -> None:
        allow_connections(size + _MOST_UNKNOWN)
        listener.setblocking(False)
        self._listener, self._messages, self._most = listener, messages, size + _MOST_UNKNOWN
        self._greet, self._take = greet, take
        # In the order of arrival: the result of `greet`, and the deadline for the first message.
        self._pending: dict[Connection[M], tuple[str, float]] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def serve(self, seconds: float) -> None:
        """Wait, for `seconds` at most, until a process connects or sends something, and handle it.

        Raises:
            EnvironmentLacksError: this process cannot open any more files.
        """
        first = min((until for _, until in self._pending.values()), default=math.inf)
        for key, _ in self._selector.select(max(0.0, min(seconds, first - time.monotonic()))):
            if key.fileobj is self._listener:
                self._accept()
            elif key.data in self._pending:  # not closed meanwhile to make room for a newer one
                self._receive(key.data)
        now = time.monotonic()
        for connection in [each for each, (_, until) in self._pending.items() if until <= now]:
            self._remove(connection).close()

    def close(self) -> None:
        """Close all connections that were not taken, and stop listening."""
        for connection in list(self._pending):
            self._remove(connection).close()
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                stream, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    continue  # an error of this one connection, which is closed already
                if not self._pending:
                    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
                    raise EnvironmentLacksError(
                        f"cannot accept a connection of another rank: {error.strerror}; this process may open {limit} "
                        "files: allow more (ulimit -n, LimitNOFILE= of slurmd)"
                    ) from error
                self._remove(next(iter(self._pending))).close()
                continue
            if len(self._pending) >= self._most:
                self._remove(next(iter(self._pending))).close()
            connection = Connection(stream, self._messages)
            self._pending[connection] = self._greet(connection), time.monotonic() + _HELLO_SECONDS
            self._selector.register(connection, selectors.EVENT_READ, connection)
            self._receive(connection)

    def _receive(self, connection: Connection[M]) -> None:
        try:
            messages = connection.receive()
        except MessageError:
            self._remove(connection).close()
            return
        greeting, _ = self._pending[connection]
        if messages:
            self._remove(connection)
            if len(messages) > 1 or not self._take(connection, greeting, messages[0]):
                connection.close()
        elif not connection.open:
            self._remove(connection).close()

    def _remove(self, connection: Connection[M]) -> Connection[M]:
        self._selector.unregister(connection)
        del self._pending[connection]
        return connection


def allow_connections(count: int) -> None:
    """Let this process have `count` connections: raise the soft limit of open files (1024 by default) if needed.

    The hard limit may allow fewer.
    """
    count += _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
