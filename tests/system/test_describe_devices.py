"""Accelerators by NVML; the driver is a mock, for no machine of these tests has one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mock_nvml import MockNvml

from hpcai500.errors import EnvironmentLacksError
from hpcai500.system.devices import describe_devices, open_nvml, pci_address, read_nvml
from hpcai500.system.looking import Answer, Host


def test_nvml_is_closed_also_after_an_error() -> None:
    nvml = MockNvml()
    with open_nvml(nvml), open_nvml(nvml):
        assert nvml.opened == 2
    with pytest.raises(ZeroDivisionError), open_nvml(nvml):
        raise ZeroDivisionError
    assert nvml.opened == 0


def test_without_a_driver_the_reason_is_told_and_nothing_is_closed() -> None:
    nvml = MockNvml(broken=True)
    with pytest.raises(EnvironmentLacksError, match=r"Driver Not Loaded.*nvidia-smi"), open_nvml(nvml):
        pytest.fail("it was not opened")
    assert nvml.opened == 0


def test_a_device_is_described_in_plain_units() -> None:
    with open_nvml(MockNvml()) as nvml:
        found = read_nvml(nvml)
    assert (found["driver"], found["cuda"]) == ("580.65.06", "13.0")
    first = found["devices"][0]
    assert first["pci"] == "0000:19:00.0"
    assert first["compute_capability"] == "9.0"
    assert first["memory_bytes"] == 85520809984
    assert first["max_sm_hz"] == 1.98e9
    assert first["application_sm_hz"] is None
    assert (first["power_limit_watts"], first["default_power_limit_watts"]) == (700, 700)
    assert (first["ecc"], first["mig"], first["compute_mode"]) == (True, False, "exclusive process")
    assert first["pcie"]["bytes_per_second"] == pytest.approx(63e9, rel=1e-2)
    assert found["devices"][5]["pcie"]["bytes_per_second"] == pytest.approx(31.5e9, rel=1e-2)


def test_nvlinks_by_switches_reach_every_device() -> None:
    with open_nvml(MockNvml()) as nvml:
        found = read_nvml(nvml)
    assert found["devices"][0]["nvlink"] == {
        "links": 18, "active": 18, "version": 7, "link_bytes_per_second": 26.562e9, "bytes_per_second": 18 * 26.562e9,
        "to_switches": 18,
    }  # fmt: skip
    assert found["links"][0] == ["X"] + ["NV18"] * 5 + ["NV17", "NV18"]
    assert found["devices"][6]["nvlink"]["active"] == 17


def test_nvlinks_from_device_to_device_are_counted_by_their_far_ends() -> None:
    with open_nvml(MockNvml(4, switched=False)) as nvml:
        found = read_nvml(nvml)
    assert found["links"] == [["X" if one == other else "NV4" for other in range(4)] for one in range(4)]


def test_what_an_old_driver_does_not_know_is_null() -> None:
    with open_nvml(MockNvml(2, old=True)) as nvml:
        found = read_nvml(nvml)
    first = found["devices"][0]
    assert (first["mig"], first["nvlink"], first["cores"]) == (None, None, None)
    assert first["name"] == "NVIDIA H100 80GB HBM3"
    assert found["links"] == [["X", "NODE"], ["NODE", "X"]]


@pytest.mark.parametrize("bus", ["00000000:81:00.0", b"00000000:81:00.0", "0000:81:00.0"])
def test_addresses_are_the_kernels(bus: str | bytes) -> None:
    assert pci_address(bus) == "0000:81:00.0"


def with_driver(root: Path) -> Path:
    (root / "proc/driver/nvidia").mkdir(parents=True)
    (root / "proc/driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun\n")
    return root


def test_a_host_without_devices_asks_nobody_and_misses_nothing(tmp_path: Path) -> None:
    part = describe_devices(Host(tmp_path, ask=lambda *_: pytest.fail("nobody is to be asked")))
    assert part.values["devices"] == []
    assert not part.absent


def test_a_driver_that_does_not_answer_leaves_devices_unknown_and_says_why(tmp_path: Path) -> None:
    host = Host(with_driver(tmp_path), ask=lambda *_: Answer(reason="did not answer within 20 s"))
    part = describe_devices(host)
    assert part.values["devices"] is None
    (absent,) = part.absent
    assert (absent.tool, absent.reason) == ("NVML (of NVIDIA's driver)", "did not answer within 20 s")


def test_devices_know_their_numa_node_and_the_answer_is_kept(tmp_path: Path) -> None:
    with open_nvml(MockNvml(2)) as nvml:
        told = json.dumps(read_nvml(nvml))
    for address, node in (("0000:19:00.0", "3"), ("0000:29:00.0", "-1")):
        folder = with_driver(tmp_path) if not (tmp_path / "proc").exists() else tmp_path
        (folder / "sys/bus/pci/devices" / address).mkdir(parents=True)
        (folder / "sys/bus/pci/devices" / address / "numa_node").write_text(f"{node}\n")
    part = describe_devices(Host(tmp_path, ask=lambda *_: Answer(told)))
    assert [device["numa_node"] for device in part.values["devices"]] == [3, None]
    assert part.values["device_links"] == [["X", "NV18"], ["NV18", "X"]]
    assert json.loads(part.raw["nvml"])["driver"] == "580.65.06"
