"""Where the copies of one command meet, and how they talk: lines of JSON over TCP."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from io import BufferedReader
from typing import Any

from hpcai500.errors import UsageError
from hpcai500.placement import Placement

_MOST_BYTES = 1 << 20
_BACKLOG = 4096


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


def send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Send one message.

    Raises:
        OSError: nobody is there any more.
    """
    connection.sendall(json.dumps(message).encode() + b"\n")


def receive(stream: BufferedReader) -> dict[str, Any]:
    """The next message; empty if the other end is gone or talks nonsense."""
    try:
        message = json.loads(stream.readline(_MOST_BYTES))
    except (OSError, ValueError):
        return {}
    return message if isinstance(message, dict) else {}
