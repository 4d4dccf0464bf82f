"""Four hosts, of which two have a slow link between them: `hpcai500 micro pairs` names it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest
from hosts import Site, why_not
from site_ranks import finish, start_ranks

pytestmark = pytest.mark.alone

HOSTS = ("n1", "n2", "n3", "n4")
# Mbit/s of each host's link, and of what n2 sends to n4.
RATE, SLOW_RATE = 400, 160
# As mpirun's -x; and ranks that wait leave the core to others, as each host believes to have all cores.
FOR_MPI = {
    "OMPI_MCA_mca_base_env_list": "MASTER_ADDR=10.78.0.1;MASTER_PORT=29500",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


def shape(site: Site) -> None:
    """Limit what each host sends, and what n2 sends to n4 further."""
    site.shape(f"{RATE}mbit")
    to_n4 = ["match", "ip", "dst", f"{site.address('n4')}/32", "flowid", "1:2"]
    for words in (
        ["qdisc", "replace", "dev", "eth0", "root", "handle", "1:", "htb", "default", "1"],
        ["class", "add", "dev", "eth0", "parent", "1:", "classid", "1:1", "htb", "rate", f"{RATE}mbit"],
        ["class", "add", "dev", "eth0", "parent", "1:", "classid", "1:2", "htb", "rate", f"{SLOW_RATE}mbit"],
        ["filter", "add", "dev", "eth0", "parent", "1:", "protocol", "ip", "prio", "1", "u32", *to_n4],
    ):
        site.run("n2", ["tc", *words])


@pytest.mark.parametrize("backend", ["torch", "horovod"])
def test_the_slow_link_is_named(backend: str, measured: Callable[[str, float, str], None]) -> None:
    if reason := why_not():
        pytest.skip(reason)
    if backend == "horovod":
        pytest.importorskip("horovod")
    launcher = "environment" if backend == "torch" else "mpirun"
    with Site(*HOSTS) as site:
        shape(site)
        out = site.folder / "micro.json"
        command = [sys.executable, "-m", "hpcai500.cli", "micro", "pairs", "--recipe", "ic/smoke", "--seconds", "2"]
        command += ["--set", f"communication.backend={backend}", "-o", str(out)]
        printed = finish(site, start_ranks(site, HOSTS, command, launcher, FOR_MPI), 240)
        document = json.loads(out.read_text())
    found = document["pairs slowest"]
    assert found["slowest_pair"] == ["n2", "n4"]
    share = document["pairs share"]["value"]
    measured(f"n2-n4 by {found['call']}, share of the median", share, f"(shaped to {SLOW_RATE / RATE:.2f})")
    sentence = f"n2-n4: {share:.0%}".replace("%", " %") + " of the median of 6 links"
    assert found["slow"][0] == sentence
    assert f"slow: pairs slowest: {sentence}" in printed
    if backend == "horovod":
        # Of a core that four ranks share, each with a thread that polls, its own speed is not the link's.
        assert "pairs bisection" not in document
        return
    assert share == pytest.approx(SLOW_RATE / RATE, rel=0.15)
    # Of a frame of 1514 bytes, 1448 are data: 0.956 is the most that TCP over Ethernet can carry.
    assert 0.8 <= found["median"] * 8 / (RATE * 1e6) <= 1.0
    assert [pair["ends"] for pair in found["pairs"] if pair["round"] == 1] == [["n1", "n4"], ["n2", "n3"]]
