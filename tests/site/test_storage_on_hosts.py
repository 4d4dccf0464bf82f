"""`hpcai500 storage` on two hosts at once, on a file system that they share, and on one that each has for itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hosts import Site
from site_ranks import finish, start_ranks

HOSTS = ("h1", "h2")
HPCAI500 = Path(sys.executable).with_name("hpcai500")
# Gives the host h2 another folder of the same name, as a disk of its own would be.
OWN_DISK = 'test "$(hostname)" = h1 || mount --bind "$1" "$2" || exit 1; shift 2; exec "$@"'


def measured(site: Site, command: list[str | Path]) -> dict[str, Any]:
    ranks = start_ranks(site, HOSTS, command)
    output = finish(site, ranks, 240)
    documents = [line for line in output.splitlines() if line.startswith("{")]
    assert len(documents) == 1, output
    assert ranks[0].returncode == 0, output
    return json.loads(documents[0])  # type: ignore[no-any-return]


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own disks"])
def test_both_hosts_measure_at_once_and_leave_nothing(
    two_hosts: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, other = tmp_path / "disk", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    command: list[str | Path] = [HPCAI500, "storage", folder, "ic", "small", "--json", "--seconds", "4"]
    command += ["--space", "100M"]
    if not shared:
        command = ["unshare", "--mount", "bash", "-c", OWN_DISK, "own", other, folder, *command]
    document = measured(two_hosts, command)
    for name in ("storage read ic", "storage create", "storage open"):
        entry = document[name]
        assert (entry["nodes"], entry["ranks"], len(entry["per_rank"])) == (2, 2, 2), name
        assert entry["slowest"]["host"] in HOSTS
        assert entry["file_system"]["shared_by_hosts"] is shared
    # Only a file system that both see lets a host open the other's files.
    assert document["storage open"]["cold"] is shared
    assert list(folder.iterdir()) == list(other.iterdir()) == []
