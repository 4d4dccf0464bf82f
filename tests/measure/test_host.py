"""Nodes of a job, described where they are; counters of their network, and what they moved by."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

from builders.ranks import run_ranks

from hpcai500.measure.host import Bytes, NetworkCounters, read_counters
from hpcai500.system.node import describe_node

# --- Counters of network interfaces: which ones lead to other hosts.


HEAD = "Inter-|   Receive  |  Transmit\n face |bytes packets errs |bytes packets errs\n"


class Machine:
    """A fake of what the kernel shows of its interfaces."""

    def __init__(self, folder: Path) -> None:
        self.devices, self.classes = folder / "dev", folder / "class"
        self.rows: list[str] = []

    def interface(self, name: str, sent: int, received: int, kind: int = 1, lower: str = "") -> Machine:
        self.rows.append(f"{name:>6}: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n")
        folder = self.classes / "net" / name
        folder.mkdir(parents=True)
        (folder / "type").write_text(f"{kind}\n")
        if lower:
            (folder / f"lower_{lower}").symlink_to(f"../{lower}")
        return self

    def adapter(self, name: str, port: int, words_sent: str, words_received: str) -> Machine:
        folder = self.classes / "infiniband" / name / "ports" / str(port) / "counters"
        folder.mkdir(parents=True)
        (folder / "port_xmit_data").write_text(words_sent)
        (folder / "port_rcv_data").write_text(words_received)
        return self

    def read(self) -> NetworkCounters:
        self.devices.write_text(HEAD + "".join(self.rows))
        return read_counters(self.devices, self.classes)


def test_loopback_stands_apart_from_what_leads_to_other_hosts(tmp_path: Path) -> None:
    counters = Machine(tmp_path).interface("lo", 70, 70, kind=772).interface("eth0", 123_456_789_012, 5).read()
    assert counters == NetworkCounters(Bytes(70, 70), {"eth0": Bytes(123_456_789_012, 5)})


def test_bytes_are_counted_once_where_interfaces_stand_on_each_other(tmp_path: Path) -> None:
    machine = Machine(tmp_path).interface("eth0", 1, 2).interface("eth1", 3, 4)
    machine.interface("bond0", 4, 6, lower="eth0").interface("eth0.10", 1, 1, lower="eth0")
    machine.interface("wg0", 1, 1, kind=65534).interface("ifb0", 2, 2)
    assert machine.read().interfaces.keys() == {"eth0", "eth1"}


def test_infiniband_ports_count_words_of_four_bytes_and_ip_over_them_is_left_out(tmp_path: Path) -> None:
    machine = Machine(tmp_path).interface("eth0", 1, 2).interface("ib0", 900, 900, kind=32)
    assert "ib0" in machine.read().interfaces
    machine.adapter("mlx5_0", 1, "1000\n", "2000\n").adapter("mlx5_1", 2, "not for you\n", "0\n")
    assert machine.read().interfaces == {"eth0": Bytes(1, 2), "mlx5_0/1": Bytes(4000, 8000)}


def test_a_difference_is_over_interfaces_that_were_there_all_the_time() -> None:
    before = NetworkCounters(Bytes(10, 10), {"eth0": Bytes(100, 200), "eth1": Bytes(5, 5), "gone": Bytes(1, 1)})
    after = NetworkCounters(Bytes(25, 25), {"eth0": Bytes(150, 270), "eth1": Bytes(3, 9), "new": Bytes(7, 7)})
    assert after.since(before) == {
        "loopback_sent_bytes": 15,
        "sent_bytes": {"eth0": 50},
        "received_bytes": {"eth0": 70},
        "restarted": ["eth1"],
    }


def test_without_loopback_its_bytes_are_unknown() -> None:
    nothing = NetworkCounters(None, {})
    assert nothing.since(nothing)["loopback_sent_bytes"] is None


def test_the_real_loopback_carries_what_is_sent_over_it() -> None:
    sent_bytes = 20_000_000
    before = read_counters()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        other, _ = server.accept()
        with other:
            sender = threading.Thread(target=client.sendall, args=(bytes(sent_bytes),))
            sender.start()
            left = sent_bytes
            while left:
                left -= len(other.recv(1 << 20))
            sender.join()
    moved = read_counters().since(before)
    assert (moved["loopback_sent_bytes"] or 0) >= sent_bytes
    assert moved["restarted"] == []


# --- Nodes are brought together on rank 0.


def captured(communicator: Any, odd: int, most_raw: int) -> list[tuple[str, str | None, str | None]]:
    """Each rank plays a node of its own; that of rank `odd` has another swappiness."""
    from hpcai500.measure import host

    def described(places: Any) -> dict[str, Any]:
        node = describe_node(places)
        node["host"], node["raw"] = f"n{communicator.rank}", {"lscpu": f"of n{communicator.rank}"}
        node["kernel_settings"]["swappiness"] = "1" if communicator.rank == odd else "60"
        return node

    host.describe_node, host.MOST_RAW = described, most_raw  # type: ignore[misc]
    # The second rank is the second of its host: it has nothing to say.
    nodes = host.capture_nodes(communicator, {}, first_of_host=communicator.rank != 1)
    return [(node["host"], node["raw"] and node["raw"]["lscpu"], node["software"]["torch_build"]) for node in nodes]


def test_rank_0_has_all_nodes_and_the_raw_captures_of_the_first_and_of_those_that_differ() -> None:
    import torch

    build = torch.__config__.show()
    first, *others = run_ranks(captured, 4, 3, 2)
    assert first == [("n0", "of n0", build), ("n2", None, build), ("n3", "of n3", build)]
    assert others == [[], [], []]


# --- Waits for a processor.
