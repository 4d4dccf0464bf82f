"""Messages between the processes of one job, as lines of JSON over TCP, and how strangers are kept away from them.

Used by the copies of one command (`launch.rendezvous`) and the monitors of one job (`comm.liveness`). A stranger that
connects can neither crash a process nor hold it up: time, bytes and connections are bounded, and every message is
checked for types, lengths and ranges.
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

# A process that connects has so long, and so many bytes, for the one message that says who it is.
_HELLO_SECONDS = 10.0
_LONGEST_HELLO = 1024
_AT_ONCE = 65536
_ACCEPTED_AT_ONCE = 64
# Connections beyond the expected ones that may be open at a time, and files that the rest of the process may have open.
_MOST_STRANGERS = 256
_OTHER_FILES = 512
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class MessageError(Exception):
    """What came over a connection is not one of the messages that are expected there."""


class Message(BaseModel):
    """A message. Types are strict (1.0 is no whole number); fields of later versions are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


M = TypeVar("M", bound=Message)


def parse(line: bytes, messages: TypeAdapter[M]) -> M:
    """The message in `line`, one of `messages`, with types, lengths and ranges as declared there.

    Raises:
        MessageError: it is anything else; no bytes raise another error.
    """
    try:
        return messages.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise MessageError(f"{place}: {first['type']}" if place else first["type"]) from error


def line_of(message: Message) -> bytes:
    """The line of `message`, with its line end."""
    return message.model_dump_json().encode() + b"\n"


class Connection(Generic[M]):
    """A TCP connection that carries messages and never blocks. Used by one thread.

    `open` says whether the other side is still there, as far as TCP knows; messages that come may have `longest_line`
    bytes.
    """

    def __init__(self, stream: socket.socket, messages: TypeAdapter[M], longest_line: int = _LONGEST_HELLO) -> None:
        stream.setblocking(False)
        with contextlib.suppress(OSError):  # not a TCP socket, or ended already: small messages only come later
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream, self.open, self.longest_line = stream, True, longest_line
        self._messages = messages
        self._incoming = b""
        self._outgoing = b""

    def fileno(self) -> int:
        return self.stream.fileno()

    def send(self, message: Message) -> None:
        """Send `message`; what the network does not take now is sent by the next call of `flush`."""
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
                # The other side is gone. What it sent before is still to be read; `receive` finds the end.
                self._outgoing = b""
        return True

    def receive(self) -> list[M]:
        """The messages that have come; afterwards `open` tells whether more may come.

        Raises:
            MessageError: a line is no message, or too long.
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
        """Tell the other side that nothing more will be sent; what it still sends can be read."""
        with contextlib.suppress(OSError):
            self.stream.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.open = False
        self.stream.close()


class Reception(Generic[M]):
    """Takes in the processes that are expected at a listening socket, and hangs up on whatever else connects.

    All are served at the same time, so that none waits for another. A process that connects has ten seconds, 1 KiB and
    one message to be taken. Where too many have connected, those that have been silent for longest are closed.

    Args:
        listener: is closed by `close`.
        size: how many processes may come at the same time.
        greet: called with each connection when it is made; what it returns is handed to `take`.
        take: called with a connection, what `greet` returned, and the message that came; returns whether it takes the
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
        _allow_files(size + _MOST_STRANGERS + _OTHER_FILES)
        listener.setblocking(False)
        self._listener, self._messages, self._most = listener, messages, size + _MOST_STRANGERS
        self._greet, self._take = greet, take
        # In the order of arrival: what `greet` returned, and until when they may be silent.
        self._strangers: dict[Connection[M], tuple[str, float]] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def serve(self, seconds: float) -> None:
        """Wait, for `seconds` at most, until a process connects or sends something, and handle it.

        Raises:
            EnvironmentLacksError: this process may open no more files.
        """
        first = min((until for _, until in self._strangers.values()), default=math.inf)
        for key, _ in self._selector.select(max(0.0, min(seconds, first - time.monotonic()))):
            if key.fileobj is self._listener:
                self._accept()
            elif key.data in self._strangers:  # not closed meanwhile, to make room for one that came since
                self._hear(key.data)
        now = time.monotonic()
        for stranger in [each for each, (_, until) in self._strangers.items() if until <= now]:
            self._forget(stranger).close()

    def close(self) -> None:
        """Close all connections that were not taken, and stop listening."""
        for stranger in list(self._strangers):
            self._forget(stranger).close()
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
                    continue  # an error of this one connection, which has ended already
                if not self._strangers:
                    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
                    raise EnvironmentLacksError(
                        f"no connection of another rank can be taken: {error.strerror}; this process may open {limit} "
                        "files: allow more (ulimit -n, LimitNOFILE= of slurmd)"
                    ) from error
                self._forget(next(iter(self._strangers))).close()
                continue
            if len(self._strangers) >= self._most:
                self._forget(next(iter(self._strangers))).close()
            stranger = Connection(stream, self._messages)
            self._strangers[stranger] = self._greet(stranger), time.monotonic() + _HELLO_SECONDS
            self._selector.register(stranger, selectors.EVENT_READ, stranger)
            self._hear(stranger)

    def _hear(self, stranger: Connection[M]) -> None:
        try:
            messages = stranger.receive()
        except MessageError:
            self._forget(stranger).close()
            return
        greeting, _ = self._strangers[stranger]
        if messages:
            self._forget(stranger)
            if len(messages) > 1 or not self._take(stranger, greeting, messages[0]):
                stranger.close()
        elif not stranger.open:
            self._forget(stranger).close()

    def _forget(self, stranger: Connection[M]) -> Connection[M]:
        self._selector.unregister(stranger)
        del self._strangers[stranger]
        return stranger


def _allow_files(count: int) -> None:
    """Raise the soft limit of open files (1024 by default) to `count`, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
