"""How the monitors of a job come together: rank 0 keeps a gate, the others knock and prove that they belong."""

from __future__ import annotations

import contextlib
import resource
import secrets
import selectors
import socket
import threading
import time
from typing import Any

from hpcai500.comm.monitor_addresses import Offer, candidates, listen, own_addresses
from hpcai500.comm.monitor_protocol import Connection, Message, NotAMonitorError, is_proof, proof

# An address of another network swallows packets: all are tried quickly, then all with patience.
_TRY_SECONDS = (1.0, 5.0)
_LOOK_SECONDS = 0.05
# Files that the rest of the process may have open besides the monitor's connections.
_OTHER_FILES = 512


class Gate:
    """Rank 0's listening socket. A thread takes in whoever proves to be a rank of this job, until `close`.

    Whatever else connects (a port scanner, another job) is dropped at the first wrong word, or when the gate closes.

    Args:
        host: name of this host.
        size: ranks of the job.
    """

    def __init__(self, host: str, size: int) -> None:
        _allow_files(size + _OTHER_FILES)
        self._token = secrets.token_hex(32)
        self._size = size
        self._server = listen(size)
        self._server.setblocking(False)
        self._strangers: dict[Connection, str] = {}
        self._joined: dict[int, Connection] = {}
        self._closing = threading.Event()
        self.offer = Offer(host, own_addresses(), self._server.getsockname()[1], self._token)
        self._thread = threading.Thread(target=self._keep, name="monitor-gate", daemon=True)
        self._thread.start()

    def close(self) -> dict[int, Connection]:
        """Let nobody in any more; returns the connection of each rank that joined."""
        self._closing.set()
        self._thread.join()
        return self._joined

    def _keep(self) -> None:
        with selectors.DefaultSelector() as selector, self._server:
            selector.register(self._server, selectors.EVENT_READ)
            while not self._closing.is_set():
                for key, _ in selector.select(_LOOK_SECONDS):
                    if key.fileobj is self._server:
                        self._greet(selector)
                    else:
                        self._hear(selector, key.data)
        for stranger in self._strangers:
            stranger.close()

    def _greet(self, selector: selectors.BaseSelector) -> None:
        with contextlib.suppress(OSError):  # whoever knocked has gone again
            stranger = Connection(self._server.accept()[0])
            self._strangers[stranger] = secrets.token_hex(16)
            if len(self._strangers) > self._size + _OTHER_FILES // 2:
                self._drop(selector, next(iter(self._strangers)))
            selector.register(stranger, selectors.EVENT_READ, stranger)
            stranger.send("challenge", number=self._strangers[stranger])

    def _hear(self, selector: selectors.BaseSelector, stranger: Connection) -> None:
        try:
            messages = stranger.receive()
            rank = self._rank_of(stranger, messages[0]) if messages else None
        except NotAMonitorError:
            rank, stranger.open = None, False
        if rank is None and stranger.open:
            return
        if rank is None:
            self._drop(selector, stranger)
            return
        selector.unregister(stranger)
        del self._strangers[stranger]
        if rank in self._joined:
            # It has given up its first try, on an address that answered late.
            self._joined[rank].close()
        self._joined[rank] = stranger
        stranger.send("welcome", proof=proof(self._token, str(messages[0].get("number")), "welcome"))

    def _drop(self, selector: selectors.BaseSelector, stranger: Connection) -> None:
        selector.unregister(stranger)
        del self._strangers[stranger]
        stranger.close()

    def _rank_of(self, stranger: Connection, hello: Message) -> int:
        rank = hello.get("rank")
        if type(rank) is not int or not 0 < rank < self._size:
            raise NotAMonitorError("not a rank of this job")
        if not is_proof(hello.get("proof"), self._token, self._strangers[stranger], rank):
            raise NotAMonitorError("does not know this job's secret")
        return rank


def join(offer: Offer, rank: int, own_host: str) -> Connection:
    """The connection of `rank` to the gate of rank 0, at whichever of its addresses it answers.

    Raises:
        OSError: at none; the text names them all.
    """
    refused: dict[str, str] = {}
    for seconds in _TRY_SECONDS:
        for address in candidates(offer, own_host):
            try:
                return _knock(socket.create_connection((address, offer.port), timeout=seconds), offer, rank, seconds)
            except (OSError, NotAMonitorError) as error:
                refused[address] = getattr(error, "strerror", None) or str(error)
    listed = ", ".join(f"{address} ({reason})" for address, reason in refused.items())
    raise OSError(f"{listed or 'it has no address that means the same here'}; port {offer.port}")


def _knock(stream: socket.socket, offer: Offer, rank: int, seconds: float) -> Connection:
    connection = Connection(stream)
    try:
        challenge = _expect(connection, "challenge", seconds)
        number = secrets.token_hex(16)
        connection.send("hello", rank=rank, number=number, proof=proof(offer.token, str(challenge.get("number")), rank))
        welcome = _expect(connection, "welcome", seconds)
        if not is_proof(welcome.get("proof"), offer.token, number, "welcome"):
            raise NotAMonitorError("another job answers")
    except BaseException:
        connection.close()
        raise
    return connection


def _expect(connection: Connection, kind: str, seconds: float) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while connection.open and (left := deadline - time.monotonic()) > 0:
            selector.select(left)
            messages = connection.receive()
            if messages and messages[0]["kind"] == kind:
                return messages[0]
            if messages:
                raise NotAMonitorError("something else answers")
    raise NotAMonitorError("no answer" if connection.open else "hung up")


def _allow_files(count: int) -> None:
    """Raise the soft limit of open files, which is 1024 by default, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
