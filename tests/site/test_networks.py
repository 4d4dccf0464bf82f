"""Networks that a site may have: hosts with IPv6 alone, and a loopback interface that is down."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from builders.runs import train_arguments
from hosts import Site
from site_ranks import finish, layout, place

from hpcai500.record import read_record

HOSTS = ("h1", "h2")
HPCAI500 = Path(sys.executable).with_name("hpcai500")


def test_hosts_with_ipv6_alone_run_a_job(two_hosts: Site, images: Path, tmp_path: Path) -> None:
    """Their names lead to addresses of IPv4 that they do not have, as names lead to 127.0.1.1 on Debian."""
    for number, host in enumerate(HOSTS, 1):
        two_hosts.run(host, ["ip", "address", "flush", "dev", "eth0", "scope", "global"])
        two_hosts.run(host, ["ip", "address", "add", f"fd00:78::{number}/64", "dev", "eth0", "nodad"])
    settings = (*layout(HOSTS), "communication.backend=torch", "problem.epochs=1", "hyperparameters.warmup_epochs=0")
    command = [HPCAI500, "ic", *train_arguments(images, tmp_path / "record", *settings)]
    ranks = [
        two_hosts.start(
            host,
            command,
            {**place(two_hosts, HOSTS, rank), "MASTER_ADDR": "fd00:78::1", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, host in enumerate(HOSTS)
    ]
    output = finish(two_hosts, ranks, 300)
    assert [rank.returncode for rank in ranks] == [0, 0], output
    assert read_record(tmp_path / "record").status == "done"


def test_ranks_are_refused_where_the_loopback_interface_is_down(two_hosts: Site, images: Path, tmp_path: Path) -> None:
    """Libraries would retry for minutes, and print hundreds of lines."""
    two_hosts.run("h1", ["ip", "link", "set", "lo", "down"])
    arguments = train_arguments(images, tmp_path / "record")
    output, code = two_hosts.attempt("h1", [HPCAI500, "ic", *arguments, "--procs", "2", "--oversubscribe"])
    errors = [line for line in output.splitlines() if "error:" in line]
    assert (code, len(errors)) == (69, 1), output
    assert errors[0].startswith("hpcai500: error: 127.0.0.1, where ranks of one host meet, does not answer (")
    output, code = two_hosts.attempt("h1", [HPCAI500, "doctor", "--procs", "2", "--oversubscribe"])
    assert code == 69, output
    assert "fail  ranks          127.0.0.1, where ranks of one host meet, does not answer (" in output
