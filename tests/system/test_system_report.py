"""A description for people, and with MLPerf's field names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from machines_of_tests import epyc_node
from mock_nvml import MockNvml

from hpcai500.methodology.nodes import node_differences
from hpcai500.system.devices import open_nvml, read_nvml
from hpcai500.system.node import describe_node
from hpcai500.system.tables import mlperf_description, system_lines

PARTS = [
    "1. CPUs and AI accelerators of a node",
    "2. connections within a node",
    "3. operating system of a node",
    "4. run-time software of a node",
    "5. connections between nodes",
    "6. run-time software of the system",
]
MLPERF = [
    "submitter", "division", "status", "system_name", "number_of_nodes", "host_processors_per_node",
    "host_processor_model_name", "host_processor_core_count", "host_processor_vcpu_count",
    "host_processor_frequency", "host_processor_caches", "host_processor_interconnect", "host_memory_capacity",
    "host_storage_type", "host_storage_capacity", "host_networking", "host_networking_topology",
    "host_memory_configuration", "accelerators_per_node", "accelerator_model_name", "accelerator_host_interconnect",
    "accelerator_frequency", "accelerator_on-chip_memories", "accelerator_memory_configuration",
    "accelerator_memory_capacity", "accelerator_interconnect", "accelerator_interconnect_topology", "cooling",
    "hw_notes", "framework", "other_software_stack", "operating_system", "sw_notes",
]  # fmt: skip


def node_of(root: Path, host: str = "n0", **changes: Any) -> dict[str, Any]:
    """The EPYC node with the eight devices of the mock."""
    root.mkdir(exist_ok=True)
    node = describe_node({"data": None, "out": root, "temporary": None}, epyc_node(root))
    with open_nvml(MockNvml()) as nvml:
        found = read_nvml(nvml)
    devices = [{**device, "numa_node": device["index"]} for device in found["devices"]]
    return {**node, "host": host, "devices": devices, "device_links": found["links"],
            "device_software": {"driver": found["driver"], "cuda": found["cuda"]}, **changes}  # fmt: skip


@pytest.fixture
def lines(tmp_path: Path) -> list[str]:
    return list(system_lines({"nodes": [node_of(tmp_path)], "installation": None}, []))


def test_the_six_parts_are_there_in_their_order(lines: list[str]) -> None:
    assert [line for line in lines if line in PARTS] == PARTS


@pytest.mark.parametrize(
    "row",
    [
        "processors 2 x AMD EPYC 7763 64-Core Processor, 64 cores each, 2 threads a core, up to 3.53 GHz",
        "caches L1d 32 KiB x 128, L1i 32 KiB x 128, L2 512 KiB x 128, L3 32 MiB x 16",
        "NUMA nodes 8 (8 x 62.8 GiB)",
        "memory 502 GiB, 2 x 32 GiB DDR4 2933 MT/s, 512 huge pages of 2 MiB",
        "accelerators 8 x NVIDIA H100 80GB HBM3",
        "PCI Express 7 x PCIe 5 x16, 63 GB/s each way",
        "1 x PCIe 5 x8 OF x16, 31.5 GB/s each way",
        "NVLink 7 x 18 of 18 links, 26.6 GB/s each, 478 GB/s together each way, by switches",
        "1 x 17 of 18 links, 26.6 GB/s each, 452 GB/s together each way, by switches",
        "mlx5_0/1 PCIe x8 OF x16, 16 GT/s, 15.8 GB/s, at NUMA node 1",
        "mlx5_0/1 InfiniBand, 200 Gb/s, Active, MT4123, firmware 20.31.1014",
        "command line mitigations=off processor.max_cstate=1 isolcpus=1-3",
        "mitigations 1 active (spectre_v2); vulnerable: retbleed",
        "driver NVIDIA 580.65.06, for CUDA 13.0",
        "eno1 ethernet, 25 Gb/s, up, MTU 9000, mlx5_core",
        "machine GIGABYTE, G492-ZD2, BIOS R21",
    ],
)
def test_a_row_says_it_as_people_do(lines: list[str], row: str) -> None:
    assert row in [" ".join(line.split()) for line in lines]


def test_lowered_power_limits_and_settings_are_seen(lines: list[str]) -> None:
    text = " ".join(" ".join(lines).split())
    assert "7 x 79.6 GiB, SM up to 1.98 GHz, memory up to 2.62 GHz, power limit 700 W, ECC on, MIG off" in text
    assert "power limit 500 W (of 700 W)" in text
    assert "governor performance, boost on, SMT on, transparent huge pages always" in text
    assert "speed of eno2 ethtool DEVICE (as root), or the switch:" in text


def test_no_line_is_wider_than_a_terminal(lines: list[str]) -> None:
    assert max(map(len, lines)) <= 125


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


def test_equal_nodes_are_said_to_be_alike(tmp_path: Path) -> None:
    nodes = [node_of(tmp_path / str(number), f"n{number}") for number in range(2)]
    for node in nodes:
        node["file_systems"] = None
    assert (
        list(system_lines({"nodes": nodes, "installation": None}, node_differences(nodes)))[-1]
        == "All 2 nodes are alike."
    )


def test_a_record_of_an_older_version_is_shown_with_what_it_has() -> None:
    old = {"host": "n0", "cpu": {"Model name": "Xeon"}, "memory_bytes": 2**34, "accelerators": [{"name": "V100"}],
           "kernel": "5.4", "software": {"torch": "2.11"}}  # fmt: skip
    text = "\n".join(" ".join(line.split()) for line in system_lines({"nodes": [old]}, []))
    for row in ("processors Xeon", "memory 16 GiB", "accelerators 1 x V100", "kernel 5.4", "caches unknown"):
        assert f"\n{row}\n" in text
    assert mlperf_description({"nodes": [old]})["accelerator_model_name"] == "V100"


def test_mlperfs_names_are_all_there_in_their_order_and_all_are_text(tmp_path: Path) -> None:
    found = mlperf_description({"nodes": [node_of(tmp_path)], "installation": {"software": {"mpi": "Open MPI 4.1.4"}}})
    assert list(found) == MLPERF
    assert all(isinstance(value, str) for value in found.values())
    assert found["number_of_nodes"] == "1"
    counts = [found[f"host_processor{name}"] for name in ("s_per_node", "_core_count", "_vcpu_count")]
    assert counts == ["2", "64", "256"]
    assert found["host_networking"] == "1 x InfiniBand 200 Gb/s; 1 x ethernet 25 Gb/s"
    assert (found["accelerators_per_node"], found["accelerator_model_name"]) == ("8", "NVIDIA H100 80GB HBM3")
    assert found["accelerator_memory_configuration"] == "5120 bit"
    assert found["accelerator_interconnect_topology"] == "NV17, NV18"
    assert "MPI Open MPI 4.1.4" in found["other_software_stack"]
    assert (found["submitter"], found["cooling"], found["host_processor_interconnect"]) == ("", "", "")


def test_mlperfs_unknown_is_an_empty_text() -> None:
    found = mlperf_description({"nodes": [{"host": "n0"}]})
    assert {name: value for name, value in found.items() if value} == {"number_of_nodes": "1"}
    assert "unknown" not in json.dumps(found)
