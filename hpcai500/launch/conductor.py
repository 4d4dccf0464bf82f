"""One command under a launcher is N copies of it: rank 0 decides, and tells the others which job to become.

So only rank 0 reads the recipe, makes data, chooses the record and counts trials; the others cannot disagree with it,
and each job meets at a port of its own. The others say `Hello` when they have come, and hear `Job` for each job, then
`End` with the exit code of the whole (`launch.meeting`).
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from hpcai500 import __version__
from hpcai500.errors import RunError, UsageError
from hpcai500.hostlist import name_ranks
from hpcai500.launch.child import Patience
from hpcai500.launch.follower import PATIENCE_SECONDS, run_rank
from hpcai500.launch.meeting import HELLO, End, Hello, Job, address, listen_at, meeting_point, send
from hpcai500.messages import Connection, Reception
from hpcai500.placement import Placement

# Messages are short: a rank that lives has taken one in milliseconds.
_SEND_SECONDS = 10.0
# A rank that lives hangs up in milliseconds; one whose host is gone never does.
_HANG_UP_SECONDS = 1.0


class Conductor:
    """Rank 0's side: `open` early, `run` each job, `end` when all is printed.

    Args:
        patience_seconds: how long the other copies may take to come: a launcher starts thousands from one file system
            within minutes.
        farewell_seconds: the same where the command ends before its first job: who has not come is their launcher's.
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

    def open(self) -> None:
        """Let the other copies come and wait: data may be made meanwhile.

        Raises:
            UsageError: the port is taken, or nobody knows where to meet.
        """
        host, port = meeting_point(self._placement)
        try:
            listener = listen_at(host, port)
        except OSError as error:
            raise UsageError(
                f"{host}:{port}: the ranks cannot meet here: {error.strerror}; set MASTER_PORT to a free port, for all "
                "ranks alike"
            ) from error
        self._reception = Reception(listener, HELLO, self._placement.size, greet=lambda _: "", take=self._take)

    def run(self, module: str, arguments: Sequence[str | Path], patience: Patience | None = None) -> int:
        """Run one job, `python -m hpcai500.MODULE` on all ranks, and return the exit code of rank 0's process.

        Raises:
            RunError: a rank is missing or gone, or of another version.
        """
        if missing := self._gather(self._patience_seconds):
            raise RunError(
                f"{name_ranks(missing)} of {self._placement.size} did not come within "
                f"{self._patience_seconds:g} s to {self._placement.rendezvous}: see what {self._placement.launcher} "
                "says of it, and whether MASTER_ADDR is the host of rank 0"
            )
        for rank, version in sorted(self._versions.items()):
            if version != __version__:
                raise RunError(
                    f"rank {rank} runs hpcai500 {version}, rank 0 runs {__version__}: install one version on all hosts"
                )
        host, _ = meeting_point(self._placement)
        with listen_at(host) as listener:
            order = Job.of(module, arguments, address(host, listener))
            for rank, connection in self._others.items():
                try:
                    send(connection, order)
                except OSError as error:
                    raise RunError(f"rank {rank} was gone before the job began ({error.strerror})") from error
            return run_rank(self._placement, order.command, order.rendezvous, listener.fileno(), patience)

    def end(self, code: int) -> None:
        """Send the other copies home with `code`."""
        if self._reception is None:
            return
        self._gather(self._farewell_seconds)
        self._reception.close()
        for connection in self._others.values():
            # One that is gone already needs to be told nothing.
            with contextlib.suppress(OSError):
                send(connection, End(code=int(code)))
        limit = time.monotonic() + _HANG_UP_SECONDS
        for connection in self._others.values():
            # Whoever has heard it hangs up. A launcher that kills all once we have failed must not come before: its
            # exit code would be that of the killed.
            with connection, contextlib.suppress(OSError):
                connection.settimeout(max(0.01, limit - time.monotonic()))
                connection.recv(1)

    def _gather(self, patience_seconds: float) -> list[int]:
        """Wait until every other rank has said who it is; returns those that did not come."""
        assert self._reception is not None
        limit = time.monotonic() + patience_seconds
        while missing := [rank for rank in range(1, self._placement.size) if rank not in self._others]:
            left = limit - time.monotonic()
            if left < 0:
                return missing
            self._reception.serve(left)
        return []

    def _take(self, connection: Connection[Hello], _: str, hello: Hello) -> bool:
        """Take the one that has connected for a rank of this job, or send it away: ports get strange visitors."""
        expected = 0 < hello.rank < self._placement.size and hello.rank not in self._others
        if not expected or hello.size != self._placement.size:
            return False
        connection.stream.settimeout(_SEND_SECONDS)
        connection.stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._others[hello.rank] = connection.stream
        self._versions[hello.rank] = hello.hpcai500
        return True
