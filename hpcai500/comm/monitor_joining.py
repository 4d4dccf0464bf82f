"""How the monitors of a job come together: rank 0 keeps a gate, the others knock and prove that they belong."""

from __future__ import annotations

import secrets
import selectors
import socket
import threading
import time

from hpcai500.comm.monitor_addresses import Offer, candidates, listen, own_addresses
from hpcai500.comm.monitor_protocol import (
    LONGEST_LINE,
    SAID,
    Challenge,
    Hello,
    Peer,
    Said,
    Welcome,
    is_proof,
    proof,
)
from hpcai500.comm.monitor_watch import start_watcher
from hpcai500.errors import RunError
from hpcai500.messages import Connection, MessageError, Reception

# An address of another network swallows packets: all are tried quickly, then all with patience.
_TRY_SECONDS = (1.0, 5.0)
_LOOK_SECONDS = 0.05


class Gate:
    """Rank 0's listening socket. A thread takes in whoever proves to be a rank of this job, until `close`.

    Args:
        host: name of this host.
        size: ranks of the job.
    """

    def __init__(self, host: str, size: int) -> None:
        self._token = secrets.token_hex(32)
        self._size = size
        listener = listen(size)
        self._joined: dict[int, Peer] = {}
        self._closing = threading.Event()
        self._failure: RunError | None = None
        self.offer = Offer(host, own_addresses(), listener.getsockname()[1], self._token)
        self._reception = Reception(listener, SAID, size, greet=self._challenge, take=self._take)
        self._thread = start_watcher("monitor-gate", self._keep, self._ended)

    def close(self) -> dict[int, Peer]:
        """Let nobody in any more; returns the connection of each rank that joined.

        Raises:
            RunError: the thread that takes them in has ended by itself.
        """
        self._closing.set()
        self._thread.join()
        if self._failure:
            raise self._failure
        return self._joined

    def _keep(self) -> None:
        try:
            while not self._closing.is_set():
                self._reception.serve(_LOOK_SECONDS)
        finally:
            self._reception.close()

    def _ended(self, error: RunError) -> None:
        self._failure = error

    def _challenge(self, stranger: Peer) -> str:
        number = secrets.token_hex(16)
        stranger.send(Challenge(number=number))
        return number

    def _take(self, stranger: Peer, number: str, hello: Said) -> bool:
        if not isinstance(hello, Hello) or not 0 < hello.rank < self._size:
            return False
        if not is_proof(hello.proof, self._token, number, hello.rank):
            return False
        if hello.rank in self._joined:
            # It has given up its first try, on an address that answered late.
            self._joined[hello.rank].close()
        self._joined[hello.rank] = stranger
        stranger.longest_line = LONGEST_LINE
        stranger.send(Welcome(proof=proof(self._token, hello.number, "welcome")))
        return True


def join(offer: Offer, rank: int, own_host: str) -> Peer:
    """The connection of `rank` to the gate of rank 0, at whichever of its addresses it answers.

    Raises:
        OSError: at none; the text names them all.
    """
    refused: dict[str, str] = {}
    for seconds in _TRY_SECONDS:
        for address in candidates(offer, own_host):
            try:
                return _knock(socket.create_connection((address, offer.port), timeout=seconds), offer, rank, seconds)
            except (OSError, MessageError) as error:
                refused[address] = getattr(error, "strerror", None) or str(error)
    listed = ", ".join(f"{address} ({reason})" for address, reason in refused.items())
    raise OSError(f"{listed or 'it has no address that means the same here'}; port {offer.port}")


def _knock(stream: socket.socket, offer: Offer, rank: int, seconds: float) -> Peer:
    connection = Connection(stream, SAID)
    try:
        deadline = time.monotonic() + 2 * seconds
        challenge = _next(connection, deadline)
        if not isinstance(challenge, Challenge):
            raise MessageError("something else answers")
        number = secrets.token_hex(16)
        connection.send(Hello(rank=rank, number=number, proof=proof(offer.token, challenge.number, rank)))
        welcome = _next(connection, deadline)
        if not isinstance(welcome, Welcome) or not is_proof(welcome.proof, offer.token, number, "welcome"):
            raise MessageError("another job answers")
    except BaseException:
        connection.close()
        raise
    connection.longest_line = LONGEST_LINE
    return connection


def _next(connection: Peer, deadline: float) -> Said:
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while connection.open and (left := deadline - time.monotonic()) > 0:
            selector.select(left)
            if messages := connection.receive():
                return messages[0]
    raise MessageError("no answer" if connection.open else "hung up")
