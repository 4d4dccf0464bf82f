"""The hosts that the other tests of a site stand on: what they share, what they do not, and that nothing is left."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from hosts import Site

# Makes a site with something running on it, says where it is, and never ends by itself.
ABANDONED = """
import sys, time
sys.path[:0] = sys.argv[1:]
from hosts import Site
site = Site("h1", "h2")
site.start("h2", ["sleep", "123454321"])
print(site.folder, site._first, flush=True)
time.sleep(600)
"""


def test_each_host_has_its_own_name_and_network_and_they_reach_each_other(two_hosts: Site) -> None:
    for host, other in (("h1", "h2"), ("h2", "h1")):
        assert two_hosts.run(host, ["hostname"]).strip() == host
        assert two_hosts.run(host, ["ls", "/sys/class/net"]).split() == ["eth0", "lo"]
        assert two_hosts.run(host, ["ssh", "-o", "StrictHostKeyChecking=no", other, "hostname; pwd"]).split() == [
            other,
            str(Path.home()),
        ]


def test_sites_do_not_see_each_other(two_hosts: Site) -> None:
    with Site("h1", "h2") as other:
        listen = "import socket; s = socket.create_server(('', 5000)); print('up', flush=True); s.accept()"
        with two_hosts.start("h2", [sys.executable, "-c", listen], stdout=subprocess.PIPE) as server:
            assert server.stdout
            server.stdout.readline()
            knock = [sys.executable, "-c", "import socket; socket.create_connection(('h2', 5000), 5)"]
            assert other.attempt("h1", knock)[1] != 0
            assert two_hosts.attempt("h1", knock)[1] == 0


def test_a_host_without_power_answers_nothing_and_hangs_up_on_nobody(two_hosts: Site) -> None:
    """Its peer's connection stays open: there is no one who could close it."""
    listen = "import socket; s = socket.create_server(('', 5000)); print('up', flush=True); s.accept()[0].recv(1)"
    connect = (
        "import socket; s = socket.create_connection(('h2', 5000)); print('up', flush=True); s.settimeout(1)\n"
        "try: print('closed', s.recv(1))\n"
        "except TimeoutError: print('silence')"
    )
    with two_hosts.start("h2", [sys.executable, "-c", listen], stdout=subprocess.PIPE) as server:
        assert server.stdout
        server.stdout.readline()
        with two_hosts.start("h1", [sys.executable, "-c", connect], stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout
            client.stdout.readline()
            two_hosts.power_off("h2")
            assert client.stdout.read() == "silence\n"
        assert server.wait(10) == -signal.SIGKILL


def test_nothing_is_left_of_a_site_whose_process_was_killed() -> None:
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    with subprocess.Popen([sys.executable, "-c", ABANDONED, *paths], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        folder, first = process.stdout.readline().split()
        process.kill()
    limit = time.monotonic() + 10
    while Path(f"/proc/{first}").exists() or b"123454321" in _all_commands():
        assert time.monotonic() < limit, "the site lives on"
        time.sleep(0.05)
    shutil.rmtree(folder)


def _all_commands() -> bytes:
    found = b""
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += process.read_bytes()
        except OSError:
            continue
    return found
