"""Nodes that should be alike: what is told of them, what is not, and the slowest of all runs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.methodology.nodes import NodeDifference, node_differences, slowest_node

NODE: dict[str, Any] = {
    "schema": "hpcai500-node-1",
    "host": "n0",
    "cpu": {"Model name": "EPYC", "CPU MHz": "2450.1", "BogoMIPS": "4900.01", "Flags": "avx avx2"},
    "processor": {"model": "EPYC", "sockets": 2, "microcode": "0x1"},
    "memory_bytes": 1_000_000_000,
    "memory": {"total_bytes": 1_000_000_000, "modules": [{"count": 16, "bytes": 2**35}]},
    "devices": [
        {"name": "H100", "uuid": f"GPU-{index}", "pci": f"0000:{index}9:00.0", "power_limit_watts": 700.0, "ecc": True,
         "pcie": {"generation": 5, "width": 16}}
        for index in range(4)
    ],
    "network": [{"name": "eth0", "is_physical": True, "over": [], "bits_per_second": 10**10, "state": "up"}],
    "infiniband": [{"name": "mlx5_0/1", "bits_per_second": 2 * 10**11}],
    "file_systems": {"data": {"type": "lustre", "free_bytes": 7, "source": "a", "options": ["rw", "addr=10.0.0.1"]}},
    "kernel_settings": {"governor": {"performance": 128}, "swappiness": "10", "boost": None},
    "software": {"torch": "2.13.0"},
    "environment": {"NCCL_DEBUG": "INFO"},
    "command": ["python"],
    "machine": {"bios_version": "R21"},
    "raw": {"lscpu": "x"},
    "absent": [],
}  # fmt: skip


def nodes(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    """Nodes n0, n1, …, each with its changes: `{"software.torch": "1"}`."""
    found = []
    for number, change in enumerate(changes):
        node = copy.deepcopy(NODE)
        node["host"] = f"n{number}"
        for path, value in change.items():
            *parents, last = path.split(".")
            target: Any = node
            for parent in parents:
                target = target[int(parent) if parent.isdecimal() else parent]
            target[last] = value
        found.append(node)
    return found


def differences(*changes: dict[str, Any]) -> list[NodeDifference]:
    return node_differences(nodes(*changes))


def test_one_node_and_equal_nodes_have_none() -> None:
    assert not node_differences([])
    assert not differences({})
    assert not differences({}, {}, {})


def test_the_majority_is_told_first_and_the_outlier_by_name() -> None:
    (found,) = differences({"software.torch": "2.12.0"}, {}, {})
    assert (found.field, found.matters, found.outliers) == ("software.torch", True, ("n0",))
    assert [(variant.value, variant.nodes) for variant in found.variants] == [
        ("2.13.0", ("n1", "n2")),
        ("2.12.0", ("n0",)),
    ]
    assert found.sentence() == "software.torch: 2.13.0 on n1, n2; 2.12.0 on n0"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("cpu.CPU MHz", "3000"),
        ("cpu.BogoMIPS", "4900.02"),
        ("devices.1.uuid", "GPU-other"),
        ("devices.1.pci", "0000:ff:00.0"),
        ("devices.1.pcie.generation", 1),
        ("file_systems.data.free_bytes", 1),
        ("file_systems.data.source", "b"),
        ("file_systems.data.options", ["addr=10.0.0.2", "rw"]),
        ("raw", {"lscpu": "y"}),
        ("command", ["python3"]),
        ("absent", [{"what": "x"}]),
        ("environment.CUDA_VISIBLE_DEVICES", "1"),
        # What one node does not tell is unknown, not different.
        ("kernel_settings.swappiness", None),
        ("infiniband", None),
        # Firmware keeps a little memory for itself, here more, there less.
        ("memory_bytes", 1_004_000_000),
        ("memory.total_bytes", 990_000_000),
        ("network", [*NODE["network"], {"name": "veth12ab", "is_physical": False, "over": []}]),
    ],
)
def test_what_must_differ_or_is_unknown_is_no_difference(path: str, value: Any) -> None:
    assert not differences({}, {path: value}, {})
    assert not differences({}, {path: value})


@pytest.mark.parametrize(
    ("path", "value", "field", "matters"),
    [
        ("cpu.Flags", "avx", "cpu.Flags", True),
        ("memory_bytes", 900_000_000, "memory_bytes", True),
        ("devices.2.ecc", False, "devices[2].ecc", True),
        ("devices.2.pcie.width", 8, "devices[2].pcie.width", True),
        ("devices.2.name", "A100", "devices[2].name", True),
        ("network.0.bits_per_second", 10**9, "network.eth0.bits_per_second", True),
        ("infiniband.0.bits_per_second", 10**11, "infiniband.mlx5_0/1.bits_per_second", True),
        ("infiniband", [], "infiniband", True),
        ("kernel_settings.governor", {"performance": 127, "powersave": 1}, "kernel_settings.governor", True),
        ("file_systems.data.options", ["ro", "addr=10.0.0.1"], "file_systems.data.options", True),
        ("environment", {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "1"}, "environment", True),
        ("machine.bios_version", "R20", "machine.bios_version", False),
        ("processor.microcode", "0x2", "processor.microcode", False),
    ],
)
def test_what_should_be_alike_and_is_not_is_told(path: str, value: Any, field: str, matters: bool) -> None:
    (found,) = differences({}, {}, {path: value})
    assert (found.field, found.matters, found.outliers) == (field, matters, ("n2",))


NUMA = [{"node": 0, "cpus": "0-1", "memory_bytes": 9_355_603_968}]


@pytest.mark.parametrize(("hypervisor", "fields"), [("KVM", []), (None, ["numa[0].memory_bytes"])])
def test_memory_that_a_hypervisor_has_not_given_to_a_numa_node_yet_is_no_difference(
    hypervisor: str | None, fields: list[str]
) -> None:
    grown = [{**NUMA[0], "memory_bytes": 11_637_305_344}]
    nodes = [{"processor.hypervisor": hypervisor, "numa": numa} for numa in (NUMA, NUMA, grown)]
    assert [one.field for one in differences(*nodes)] == fields


def test_the_size_of_a_file_system_is_told_and_does_not_matter() -> None:
    (found,) = differences(*({"file_systems.data.total_bytes": size} for size in (2**40, 2**39, 2**39)))
    assert (found.field, found.matters) == ("file_systems.data.total_bytes", False)


def test_a_missing_device_is_counted_and_the_others_are_compared() -> None:
    (found,) = differences({}, {}, {"devices": NODE["devices"][:3]})
    assert (found.field, [variant.value for variant in found.variants]) == ("devices", [4, 3])


def test_of_accelerators_that_are_described_as_devices_only_the_number_counts_again() -> None:
    named = [{"name": "H100", "uuid": str(index)} for index in range(4)]
    found = differences({"accelerators": named, "devices.0.name": "A100"}, {"accelerators": named[:2]})
    assert [one.field for one in found] == ["devices[0].name", "accelerators"]
    (found,) = differences({"accelerators": named, "devices": None}, {"accelerators": named[:2], "devices": None})
    assert [variant.value for variant in found.variants] == [4, 2]


def test_devices_that_differ_alike_are_told_together() -> None:
    lowered = {f"devices.{index}.power_limit_watts": 500.0 for index in (0, 1, 3)}
    (found,) = differences({}, {}, lowered)
    assert found.sentence() == "devices[0-1,3].power_limit_watts: 700.0 on n0, n1; 500.0 on n2"


def test_what_matters_comes_first() -> None:
    found = differences({}, {"machine.bios_version": "R20", "software.torch": "1"})
    assert [one.matters for one in found] == [True, False]


def test_of_long_lists_of_words_only_those_that_differ_are_shown() -> None:
    flags = " ".join(f"flag{number}" for number in range(50))
    (found,) = differences({"cpu.Flags": f"{flags} avx512f"}, {"cpu.Flags": flags})
    assert found.sentence() == "cpu.Flags: avx512f on n0; none of these on n1"


def test_many_nodes_of_their_own_value_are_bounded() -> None:
    (found,) = differences(*({"kernel_settings.swappiness": str(number)} for number in range(100)))
    assert len(found.variants) == 16
    (found,) = differences({}, *({"software.torch": "1"} for _ in range(9)))
    assert found.sentence() == "software.torch: 1 on n1, n2, n3, n4 and 5 more; 2.13.0 on n0"


def test_records_of_older_versions_are_compared_by_what_they_have() -> None:
    old = [{"host": host, "cpu": {"Model name": "A"}, "accelerators": [], "software": {"torch": torch}}
           for host, torch in (("a", "1"), ("b", "2"))]  # fmt: skip
    assert [one.field for one in node_differences(old)] == ["software.torch"]


# --- The slowest node is that of all runs, not of an unlucky one.


runs = st.lists(
    st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.floats(0.01, 100), min_size=2), min_size=1, max_size=6
)


def test_the_node_that_is_slow_in_most_runs_is_named_with_how_often() -> None:
    usual = {"n1": 1.0, "n2": 1.01, "n3": 1.25, "n4": 0.99}
    found = slowest_node([usual, usual, {**usual, "n1": 9.0, "n3": 1.2}])
    assert found is not None
    assert found.name == "n3"
    assert found.slowdown == pytest.approx(0.25)
    assert (found.slowest_in, found.runs, found.nodes) == (2, 3, 4)
    assert found.straggler_in == 3


def test_alike_nodes_have_no_straggler_among_them() -> None:
    found = slowest_node([{"a": 1.0, "b": 1.001}])
    assert found is not None
    assert found.straggler_in == 0
    assert found.slowdown == pytest.approx(0.001)


def test_one_node_alone_is_not_compared() -> None:
    assert slowest_node([]) is None
    assert slowest_node([{"a": 1.0}, {"a": 2.0}]) is None
    assert slowest_node([{"a": 0.0, "b": 1.0}]) is None, "no time at all is no measurement"


@given(runs, st.integers(-20, 20))
def test_the_unit_of_time_changes_nothing(told: list[dict[str, float]], power: int) -> None:
    scaled = [{name: seconds * 2.0**power for name, seconds in run.items()} for run in told]
    assert slowest_node(scaled) == slowest_node(told)


@given(runs)
def test_it_is_one_of_those_that_ran_and_is_counted_in_its_own_runs_only(told: list[dict[str, float]]) -> None:
    found = slowest_node(told)
    assert found is not None
    assert found.runs == sum(found.name in run for run in told)
    assert 0 <= found.slowest_in <= found.runs
    assert 0 <= found.straggler_in <= found.runs
    assert found.nodes == len({name for run in told for name in run})
