"""What monitors say to each other: JSON lines of limited length over TCP, opened by proofs that a secret is shared."""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
from typing import Any

# A line holds a reason at most; whoever sends more is not a monitor.
_LONGEST_LINE = 16384
_LONGEST_REASON = 4000
_AT_ONCE = 65536

Message = dict[str, Any]


def proof(token: str, challenge: str, *words: object) -> str:
    """Shows knowledge of `token` without saying it: HMAC-SHA-256 over a number that the other side chose."""
    text = "\0".join((challenge, *map(str, words)))
    return hmac.new(token.encode(), text.encode(), "sha256").hexdigest()


def is_proof(given: object, token: str, challenge: str, *words: object) -> bool:
    """Whether `given` is the right `proof`."""
    return isinstance(given, str) and hmac.compare_digest(given.encode(), proof(token, challenge, *words).encode())


def shortened(reason: str) -> str:
    """A reason on one line that fits into a message."""
    text = " ".join(reason.split())
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} ..."


class NotAMonitorError(Exception):
    """What came over a connection is no message of a monitor."""


class Connection:
    """A TCP connection that carries messages and never blocks. Used by one thread.

    Attributes:
        open: whether the other side is still there, as far as TCP knows.
    """

    def __init__(self, stream: socket.socket) -> None:
        stream.setblocking(False)
        with contextlib.suppress(OSError):  # not a TCP socket, or ended already: small messages only come later
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.open = True
        self._stream = stream
        self._incoming = b""
        self._outgoing = b""

    def fileno(self) -> int:
        """For selectors."""
        return self._stream.fileno()

    def send(self, kind: str, **fields: Any) -> None:
        """Say something; what the network does not take now goes out with the next call of `flush`."""
        self._outgoing += json.dumps({"kind": kind, **fields}).encode() + b"\n"
        self.flush()

    def flush(self) -> bool:
        """Send what is left to send; returns whether nothing is left."""
        while self._outgoing and self.open:
            try:
                self._outgoing = self._outgoing[self._stream.send(self._outgoing) :]
            except BlockingIOError:
                return False
            except OSError:
                # What it said before it went is still to be read: reading finds the end, and decides what it means.
                self._outgoing = b""
        return True

    def receive(self) -> list[Message]:
        """What has come; afterwards `open` tells whether more may.

        Raises:
            NotAMonitorError: it is no JSON object on a line, or the line is too long.
        """
        while self.open:
            try:
                piece = self._stream.recv(_AT_ONCE)
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            self.open = bool(piece)
            self._incoming += piece
            if len(self._incoming) > _AT_ONCE:
                break
        *lines, self._incoming = self._incoming.split(b"\n")
        if any(len(line) > _LONGEST_LINE for line in (*lines, self._incoming)):
            raise NotAMonitorError("a line is too long")
        return [_message(line) for line in lines]

    def finish(self) -> None:
        """Say that nothing more will be sent. What the other side still sends can be read."""
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Leave."""
        self.open = False
        self._stream.close()


def _message(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NotAMonitorError("a line is not JSON") from error
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise NotAMonitorError("a line is no message")
    return message
