"""What doctor says of two hosts: a link that carries less than its interface says, and what is alike on both."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hosts import Site, shaping
from site_ranks import finish, layout, start_ranks

HOSTS = ("h1", "h2")
HPCAI500 = Path(sys.executable).with_name("hpcai500")


def doctor(site: Site, *arguments: str) -> tuple[int | None, dict[str, dict[str, Any]]]:
    """Exit code of rank 0, and its checks by name; one rank on each host."""
    command: list[str | Path] = [HPCAI500, "doctor", "ic", "--set", "accelerator.device=cpu", *arguments, "--json"]
    ranks = start_ranks(site, HOSTS, [*command, *(f"--set={text}" for text in layout(HOSTS))])
    output = finish(site, ranks, 180)
    documents = [line for line in output.splitlines() if line.startswith("{")]
    assert len(documents) == 1, output
    return ranks[0].returncode, {check["name"]: check for check in json.loads(documents[0])["checks"]}


def test_a_link_that_carries_a_hundredth_of_what_it_says_is_told(
    two_hosts: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    two_hosts.run("h2", ["tc", *shaping("100mbit")])
    code, checks = doctor(two_hosts)
    assert code == os.EX_UNAVAILABLE
    assert [name for name, check in checks.items() if check["status"] == "fail"] == ["all-reduce"], checks
    told = checks["all-reduce"]
    # A virtual Ethernet pair says that it has 10 Gbit/s.
    assert "over eth0, whose link has 10 Gbit/s" in told["detail"]
    carried = re.search(r"h\d.*: (\S+) Mbit/s over eth0", told["detail"])
    assert carried, told
    # Each host sends as much as it gets: the slower direction is both's.
    assert 30 < float(carried[1]) < 105
    assert "right; " in told["detail"]
    assert "NCCL_SOCKET_IFNAME=NAME GLOO_SOCKET_IFNAME=NAME" in told["fix"]
    assert checks["ranks"]["detail"] == "2 ranks on 2 hosts, by Gloo"
    assert checks["nodes"]["detail"].startswith("h2: no problems"), checks["nodes"]
    assert checks["versions"]["detail"].startswith("the same on 2 hosts: ")
    assert checks["clocks"]["status"] == "pass"
    assert "wall clocks within" in checks["clocks"]["detail"]
