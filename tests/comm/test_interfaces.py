"""Gloo is told the interface by which the hosts of a job have met, and nobody's own choice is overruled."""

from __future__ import annotations

import os

import pytest

from hpcai500.system import network as network_module
from hpcai500.system.network import interface_addresses, prefer_route

HOSTS = ("n0", "n0", "n1")
# Rank 1 reached rank 0 on its own host by a loopback address, as Debian's /etc/hosts has it.
SEEN = ("", "127.0.1.1", "10.0.0.1")


@pytest.fixture(autouse=True)
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    addresses = {"lo": "127.0.0.1", "eth0": "192.168.0.7", "ib0": "10.0.0.1", "ib1": "10.0.0.2"}
    monkeypatch.setattr(network_module, "interface_addresses", lambda: addresses)


@pytest.mark.parametrize(("rank", "own", "chosen"), [(0, "", "ib0"), (1, "127.0.0.1", "ib0"), (2, "10.0.0.2", "ib1")])
def test_every_host_takes_the_interface_that_leads_to_the_others(
    monkeypatch: pytest.MonkeyPatch, rank: int, own: str, chosen: str
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    prefer_route(own, SEEN, rank, HOSTS)
    assert os.environ["GLOO_SOCKET_IFNAME"] == chosen


def test_a_users_choice_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    prefer_route("10.0.0.2", SEEN, 2, HOSTS)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth0"


@pytest.mark.parametrize(
    ("own", "hosts"), [("127.0.0.1", ("n0", "n0", "n0")), ("10.9.9.9", HOSTS), ("127.0.0.1", HOSTS)]
)
def test_one_host_and_unknown_addresses_are_left_to_gloo(own: str, hosts: tuple[str, ...]) -> None:
    prefer_route(own, SEEN, 2, hosts)
    assert "GLOO_SOCKET_IFNAME" not in os.environ


def test_this_machine_has_a_loopback_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert interface_addresses()["lo"] == "127.0.0.1"
