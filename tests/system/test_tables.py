"""A description for people, and with MLPerf's field names.

`HPCAI500_WRITE_GOLDEN=1 pytest tests/system/test_tables.py` writes both of the made-up node anew, for a change that is
meant: read what then differs in `snapshots/`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders.snapshots import require_snapshot
from fakes.machines import epyc_node
from fakes.nvml import MockNvml

from hpcai500.methodology.nodes import node_differences
from hpcai500.system.devices import open_nvml, read_nvml
from hpcai500.system.node import describe_node
from hpcai500.system.tables import mlperf_description, system_lines

SNAPSHOTS = Path(__file__).with_name("snapshots")
# What describes this process, and not the node that is made up.
OWN = {"kernel": "6.1.0", "software": {"torch": "2.13.0"}, "python": "3.11.9", "command": ["hpcai500", "system"],
       "cores_available": 256, "cpu_quota_cores": "unlimited", "limits": None, "container": None,
       "file_systems": None}  # fmt: skip


def node_of(root: Path, host: str = "n0") -> dict[str, Any]:
    """The EPYC node with the eight devices of the mock."""
    root.mkdir(exist_ok=True)
    node = describe_node({"data": None, "out": root, "temporary": None}, epyc_node(root))
    with open_nvml(MockNvml()) as nvml:
        found = read_nvml(nvml)
    devices = [{**device, "numa_node": device["index"]} for device in found["devices"]]
    return {**node, "host": host, "devices": devices, "device_links": found["links"],
            "device_software": {"driver": found["driver"], "cuda": found["cuda"]}}  # fmt: skip


def test_people_read_six_parts_in_lines_no_wider_than_a_terminal(tmp_path: Path) -> None:
    lines = list(system_lines({"nodes": [{**node_of(tmp_path), **OWN}], "installation": None}, []))
    require_snapshot(SNAPSHOTS / "system.txt", "\n".join(lines) + "\n")
    assert max(map(len, lines)) <= 125


def test_mlperfs_names_are_all_there_in_their_order_and_all_are_text(tmp_path: Path) -> None:
    node = {**node_of(tmp_path), **OWN}
    found = mlperf_description({"nodes": [node], "installation": {"software": {"mpi": "Open MPI 4.1.4"}}})
    require_snapshot(SNAPSHOTS / "mlperf.json", json.dumps(found, indent=2) + "\n")
    assert all(isinstance(value, str) for value in found.values())
    unknown = mlperf_description({"nodes": [{"host": "n0"}]})
    assert unknown == {**dict.fromkeys(found, ""), "number_of_nodes": "1"}


def test_how_nodes_differ_comes_last_and_loud(tmp_path: Path) -> None:
    nodes = [node_of(tmp_path / str(number), f"n{number}") for number in range(3)]
    # The first is the odd one: what is shown is one of those that are alike.
    nodes[0]["kernel_settings"]["governor"] = {"powersave": 4}
    nodes[2]["machine"]["bios_version"] = "R20"
    found = list(system_lines({"nodes": nodes, "installation": None}, node_differences(nodes)))
    assert found[0] == "3 nodes; this is n1"
    where = found.index("NODES DIFFER in 1 field that may change speed or results:")
    assert found[where + 1] == '  !! kernel_settings.governor: {"performance": 4} on n1, n2; {"powersave": 4} on n0'
    assert found[-1] == "  machine.bios_version: R21 on n0, n1; R20 on n2"
    alike = [{**nodes[1], "host": host, "file_systems": None} for host in ("n0", "n1")]
    *_, last = system_lines({"nodes": alike, "installation": None}, node_differences(alike))
    assert last == "All 2 nodes are alike."


@pytest.mark.parametrize("row", ["processors Xeon", "memory 16 GiB", "accelerators 1 x V100", "kernel 5.4",
                                 "caches unknown"])  # fmt: skip
def test_a_record_of_an_older_version_is_shown_with_what_it_has(row: str) -> None:
    old = {"host": "n0", "cpu": {"Model name": "Xeon"}, "memory_bytes": 2**34, "accelerators": [{"name": "V100"}],
           "kernel": "5.4", "software": {"torch": "2.11"}}  # fmt: skip
    assert row in [" ".join(line.split()) for line in system_lines({"nodes": [old]}, [])]
    assert mlperf_description({"nodes": [old]})["accelerator_model_name"] == "V100"
