"""A node as its tools and its kernel tell it: another machine's output, read as if it were here.

`HPCAI500_WRITE_GOLDEN=1 pytest tests/system/test_node.py` writes what is told of it anew, for a change that is meant:
read what then differs in `snapshots/`.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from pprint import pformat
from typing import Any

import pytest
from builders.snapshots import require_snapshot
from fakes.machines import answers, epyc_node, link, sample, tree
from fakes.nvml import MockNvml

from hpcai500.errors import EnvironmentLacksError
from hpcai500.system.devices import describe_devices, open_nvml, pci_address, read_nvml
from hpcai500.system.looking import Answer, Host, Look, Part
from hpcai500.system.mounts import mount_of, parse_mounts, public, read_mounts, require_reachable, unreachable
from hpcai500.system.network import describe_network, link_rates
from hpcai500.system.node import (
    assembled,
    caches_of,
    describe_memory,
    describe_node,
    describe_processor,
    describe_storage,
    edac_modules,
    kernel_settings,
    parse_dmidecode,
    parse_hwloc,
    parse_lscpu,
    performance_parameters,
    process_limits,
)
from hpcai500.system.tables import caches


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("node")
    return describe_node({"data": None, "out": root, "temporary": Path("/")}, epyc_node(root))


def compare(name: str, found: object) -> None:
    """With the file that says what is told of a machine that is not here."""
    require_snapshot(Path(__file__).with_name("snapshots") / name, pformat(found, width=120, sort_dicts=False) + "\n")


# --- the node as a whole


def test_a_node_is_one_document_in_plain_numbers(node: dict[str, Any]) -> None:
    # Not what describes this process.
    own = ("raw", "host", "kernel", "kernel_build", "python", "software", "command", "container", "environment",
           "preloaded", "limits", "cores_available", "cpu_quota_cores", "memory_bytes", "file_systems",
           "slow_seconds")  # fmt: skip
    compare("node.txt", {name: value for name, value in node.items() if name not in own})
    # Secrets on the kernel's command line stay there.
    root = Path(node["file_systems"]["out"]["path"])
    assert "rd.luks.key=topsecret" in (root / "proc/cmdline").read_text()
    assert performance_parameters(None) is None
    limits = process_limits()
    assert limits["open_files"]["soft"] == os.sysconf("SC_OPEN_MAX")
    assert all(value == "unlimited" or value >= 0 for one in limits.values() for value in one.values())  # type: ignore[operator]


@pytest.mark.parametrize(("no_turbo", "expected"), [("0", True), ("1", False)])
def test_turbo_is_boost_by_another_name(tmp_path: Path, no_turbo: str, expected: bool) -> None:
    tree(tmp_path, {"sys/devices/system/cpu/intel_pstate/no_turbo": f"{no_turbo}\n"})
    assert kernel_settings(tmp_path)["boost"] is expected


def test_tools_own_words_are_kept_without_what_names_this_one_machine(node: dict[str, Any]) -> None:
    assert node["raw"]["lscpu"] == sample("lscpu.json")
    assert node["raw"].keys() == {"lscpu", "lscpu caches", "lstopo", "ibstat", "dmidecode"}
    assert "03B1A2C4" not in node["raw"]["dmidecode"]
    assert "Serial Number: [left out]" in node["raw"]["dmidecode"]
    assert "1070fd03" not in node["raw"]["ibstat"]
    for secret in ("7F00SERIAL", "10:70:fd"):
        assert secret in sample("lstopo.xml")
        assert secret not in node["raw"]["lstopo"]
    assert 'name="DMIProductName" value="G492-ZD2"' in node["raw"]["lstopo"]


def test_only_harmless_variables_are_kept(tmp_path: Path) -> None:
    kept = {"LD_PRELOAD": "/x.so", "NCCL_DEBUG": "INFO", "NVIDIA_TF32_OVERRIDE": "0", "OMP_NUM_THREADS": "8"}
    secret = {"AWS_SECRET_ACCESS_KEY": "x", "HOROVOD_SECRET_KEY": "x", "TORCH_HUB_TOKEN": "x", "UCX_PASSWORD": "x"}
    own = {"PATH": "/bin", "HOROVOD_RANK": "1", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1", "PYTHON": "python3"}
    node = describe_node({}, Host(tmp_path, {**kept, **secret, **own}, answers()))
    assert node["environment"] == kept


def test_a_node_of_which_nothing_can_be_told_says_who_would(tmp_path: Path) -> None:
    node = describe_node(
        {}, Host(tmp_path, {}, answers(without=("lscpu", "lstopo-no-graphics", "ibstat", "dmidecode")))
    )
    assert (node["cpu"], node["processor"], node["caches"], node["numa"], node["topology"]) == (None,) * 5
    assert (node["machine"], node["memory"]["modules"]) == (None, None)
    assert (node["devices"], node["accelerators"], node["network"], node["infiniband"]) == ([], [], [], [])
    assert [one["tool"] for one in node["absent"]] == [
        "lscpu (util-linux)", "lscpu -C (util-linux 2.35 or newer)", "lstopo (hwloc)", "dmidecode -t memory (as root)",
        "dmidecode -t system",
    ]  # fmt: skip
    assert all(one["reason"] for one in node["absent"])


def test_a_look_that_fails_is_told_and_costs_nothing_else(tmp_path: Path) -> None:
    host = epyc_node(tmp_path)
    tree(tmp_path, {"proc/self/mountinfo": "nonsense\n1 2 3 - x\n"})
    broken = Host(host.root, {}, lambda command, *_: Answer("no JSON") if command[0] == "lscpu" else host.ask(command))
    node = describe_node({"out": tmp_path}, broken)
    (told,) = (one for one in node["absent"] if one["what"] == "processors")
    assert told["reason"].startswith("JSONDecodeError")
    assert node["processor"] is None
    assert node["file_systems"]["out"]["type"] is None
    assert node["memory"]["total_bytes"] == 526804512 * 1024


def test_what_took_long_and_what_never_came_is_in_the_document() -> None:
    looks = {
        "network": Look(Part({"network": []}), None, 4.25),
        "storage": Look[Part](None, "did not answer within 25 s", 25.0),
    }
    node = assembled(Part({"host": "n1"}), looks)
    assert node["slow_seconds"] == {"network": 4.25, "storage": 25.0}
    assert node["absent"] == [{"what": "storage", "tool": "this node", "reason": "did not answer within 25 s"}]
    assert (node["network"], node["file_systems"]) == ([], None)


# --- processors and memory


def test_lscpu_of_older_versions_has_no_headings() -> None:
    flat = '{"lscpu": [{"field":"Model name:","data":"POWER9"},{"field":"Socket(s):","data":"2"}]}'
    assert parse_lscpu(flat) == {"Model name": "POWER9", "Socket(s)": "2"}


def test_a_cache_without_a_size_is_unknown_and_loses_nothing_else(tmp_path: Path) -> None:
    # As lscpu 2.38 on ARM nodes whose kernel tells no sizes.
    listing = (
        '{"caches": [{"name": "L1d", "one-size": null, "all-size": null, "ways": null, "type": "Data", "level": 1}]}'
    )
    tools = {"-C": Answer(listing), "-J": Answer('{"lscpu": [{"field": "Model name:", "data": "Neoverse-N1"}]}')}
    part = describe_processor(Host(tmp_path, {}, lambda command, *_: tools[command[1]]))
    assert part.values["processor"]["model"] == "Neoverse-N1"
    assert [(one["name"], one["bytes"], one["instances"]) for one in part.values["caches"]] == [("L1d", None, None)]
    assert caches(part.values) == "unknown"


def test_caches_come_from_the_kernel_where_lscpu_is_too_old(tmp_path: Path) -> None:
    for cpu in range(4):
        for index, level, kind, size, shared in ((0, 1, "Data", "32K", cpu), (3, 3, "Unified", "16384K", "0-3")):
            values = {"level": level, "type": kind, "size": size, "shared_cpu_list": shared}
            folder = f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
            tree(tmp_path, {f"{folder}/{name}": str(value) for name, value in values.items()})
    found = caches_of(tmp_path) or []
    assert [(one["name"], one["bytes"], one["instances"]) for one in found] == [("L1d", 2**15, 4), ("L3", 2**24, 1)]
    assert caches_of(tmp_path / "nowhere") is None
    part = describe_processor(Host(tmp_path, {}, answers(without=("lscpu",))))
    assert part.values["caches"] == found


def test_without_dmidecode_the_kernel_may_know_the_memory_modules_and_empty_slots_are_none(tmp_path: Path) -> None:
    assert parse_dmidecode("# dmidecode 3.3\nScanning /dev/mem\n") == []
    for number, megabytes in enumerate((16384, 16384, 0)):
        folder = f"sys/devices/system/edac/mc/mc0/dimm{number}"
        tree(tmp_path, {f"{folder}/size": str(megabytes), f"{folder}/dimm_mem_type": "Registered-DDR5"})
    (module,) = edac_modules(tmp_path) or []
    assert (module["count"], module["bytes"], module["type"]) == (2, 2**34, "Registered-DDR5")
    part = describe_memory(Host(tmp_path, {}, answers(without=("dmidecode",))))
    assert part.values["memory"]["modules"] == [module]
    assert not part.absent


def test_a_limit_of_all_memory_is_none(tmp_path: Path) -> None:
    tree(tmp_path, {"proc/meminfo": "MemTotal: 1000 kB\n", "proc/self/cgroup": "0::/job\n"})
    for limit, expected in (("9223372036854771712", None), ("512000", 512000)):
        tree(tmp_path, {"sys/fs/cgroup/job/memory.max": limit})
        assert describe_memory(Host(tmp_path, {}, answers())).values["memory"]["limit_bytes"] == expected


# --- where devices hang


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ('<object type="NUMANode" os_index="0"/><object type="NUMANode" os_index="1"/>'
         '<object type="PCIDev" pci_busid="0000:01:00.0"><object type="OSDev" name="eth0" osdev_type="2"/></object>',
         (None, "0000:01:00.0", None)),
        ('<object type="NUMANode" os_index="0"/></object><object type="Bridge"><object type="PCIDev">'
         '<object type="OSDev" name="vda" osdev_type="0"/></object>', (0, None, None)),
    ],
    ids=["below several NUMA nodes: near none", "the only NUMA node: at it"],
)  # fmt: skip
def test_a_device_is_at_the_one_numa_node_that_it_can_be_at(
    inner: str, expected: tuple[int | None, str | None, None]
) -> None:
    text = f'<topology><object type="Machine"><object type="Package">{inner}</object></object></topology>'
    (device,) = parse_hwloc(text)["devices"]
    assert (device["numa_node"], device["pci"], device["link_bytes_per_second"]) == expected


def test_without_ibstat_the_kernel_tells_of_adapters_and_an_interface_has_the_link_of_its_device(
    tmp_path: Path,
) -> None:
    host = epyc_node(tmp_path)
    (tmp_path / "sys/class/net/eno1/device/driver").unlink()
    (tmp_path / "sys/class/net/eno1/device").rmdir()
    link(tmp_path, "sys/class/net/eno1/device", "sys/devices/pci0000:40/0000:41:00.0")
    part = describe_network(Host(host.root, {}, answers(without=("ibstat",))))
    port = part.values["infiniband"][0]
    assert (port["name"], port["state"], port["physical_state"]) == ("mlx5_0/1", "Active", "LinkUp")
    assert part.absent[0].tool == "ibstat (infiniband-diags)"
    (linked,) = (one for one in part.values["network"] if one["name"] == "eno1")
    assert (linked["pci"], linked["numa_node"], linked["pcie"]["width"]) == ("0000:41:00.0", 1, 8)


def test_links_are_as_fast_as_the_kernel_tells_of_those_that_are_up(tmp_path: Path) -> None:
    interfaces = {"eth0": ("10000", "up"), "eth1": ("25000", "down"), "virt0": ("-1", "up"), "bond0": ("20000", "up")}
    ports = {"mlx5_0": "4: ACTIVE", "mlx5_1": "1: DOWN"}
    for name, (speed, state) in interfaces.items():
        tree(tmp_path / f"sys/class/net/{name}", {"speed": f"{speed}\n", "operstate": f"{state}\n"})
    (tmp_path / "sys/class/net/bond0/lower_eth0").mkdir()
    for name, state in ports.items():
        port = tmp_path / f"sys/class/infiniband/{name}/ports/1"
        tree(port, {"rate": "200 Gb/sec (4X HDR)\n", "state": f"{state}\n"})
    assert link_rates(tmp_path) == {"eth0": 1.25e9, "mlx5_0/1": 2.5e10}
    assert link_rates(tmp_path / "none") == {}


# --- accelerators by NVML; the driver is a mock, for no machine of these tests has one


def test_nvml_is_closed_also_after_an_error_and_not_where_it_never_opened() -> None:
    nvml = MockNvml()
    with open_nvml(nvml), open_nvml(nvml):
        assert nvml.opened == 2
    with pytest.raises(ZeroDivisionError), open_nvml(nvml):
        raise ZeroDivisionError
    assert nvml.opened == 0
    nvml = MockNvml(broken=True)
    with pytest.raises(EnvironmentLacksError, match=r"Driver Not Loaded.*nvidia-smi"), open_nvml(nvml):
        pytest.fail("it was not opened")
    assert nvml.opened == 0


def read(mock: MockNvml) -> dict[str, Any]:
    with open_nvml(mock) as nvml:
        return read_nvml(nvml)


def test_devices_are_described_in_plain_units_and_nvlinks_counted_by_switches_or_by_their_far_ends() -> None:
    """Device 3 has a lower limit of power, 5 a narrower bus, 6 a dead link."""
    found = read(MockNvml())
    compare("nvml.txt", {**found, "devices": [found["devices"][number] for number in (0, 3, 5, 6)]})
    direct = read(MockNvml(4, switched=False))
    assert direct["links"] == [["X" if one == other else "NV4" for other in range(4)] for one in range(4)]
    # The kernel's form of an address.
    for bus in ("00000000:81:00.0", b"00000000:81:00.0", "0000:81:00.0"):
        assert pci_address(bus) == "0000:81:00.0"


def test_what_an_old_driver_does_not_know_is_null() -> None:
    found = read(MockNvml(2, old=True))
    first = found["devices"][0]
    assert (first["mig"], first["nvlink"], first["cores"]) == (None, None, None)
    assert first["name"] == "NVIDIA H100 80GB HBM3"
    assert found["links"] == [["X", "NODE"], ["NODE", "X"]]


DRIVER = {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun\n"}


def test_a_host_without_devices_asks_nobody_and_a_silent_driver_leaves_them_unknown(tmp_path: Path) -> None:
    part = describe_devices(Host(tmp_path, ask=lambda *_: pytest.fail("nobody is to be asked")))
    assert (part.values["devices"], part.absent) == ([], ())
    part = describe_devices(Host(tree(tmp_path, DRIVER), ask=lambda *_: Answer(reason="did not answer within 20 s")))
    assert part.values["devices"] is None
    (absent,) = part.absent
    assert (absent.tool, absent.reason) == ("NVML (of NVIDIA's driver)", "did not answer within 20 s")


def test_devices_know_their_numa_node_and_the_answer_is_kept(tmp_path: Path) -> None:
    nodes = {"0000:19:00.0": "3", "0000:29:00.0": "-1"}
    tree(tmp_path, DRIVER | {f"sys/bus/pci/devices/{bus}/numa_node": f"{number}\n" for bus, number in nodes.items()})
    part = describe_devices(Host(tmp_path, ask=lambda *_: Answer(json.dumps(read(MockNvml(2))))))
    assert [device["numa_node"] for device in part.values["devices"]] == [3, None]
    assert part.values["device_links"] == [["X", "NV18"], ["NV18", "X"]]
    assert json.loads(part.raw["nvml"])["driver"] == "580.65.06"


# --- mounts. One that is really dead: tests/site


def test_the_mount_of_a_folder_is_the_deepest_and_the_last(tmp_path: Path) -> None:
    mounts = parse_mounts(sample("mountinfo.txt"))
    expected = {
        "/home/a": "nfs4", "/scratch/x": "lustre", "/scratch/with space/y": "fuse.sshfs", "/tmp": "ext4",
        "/homes": "xfs",
    }  # fmt: skip
    found = {path: mount_of(Path(path), mounts) for path in expected}
    assert {path: mount.type if mount else None for path, mount in found.items()} == expected
    assert mount_of(Path("/x"), read_mounts(tmp_path)) is None


def test_who_mounts_and_by_what_password_is_left_out() -> None:
    mounts = {mount.point: mount for mount in parse_mounts(sample("mountinfo.txt"))}
    assert mounts["/scratch/with space"].source == "files.example:/data"
    told = ",".join(mounts["/share"].options)
    assert "hunter2" not in told
    assert "alice" not in told
    assert "iocharset=utf8" in told
    assert public("secretfile=/etc/ceph/x") == "secretfile=[left out]"


def test_whatever_answers_is_reachable_be_it_there_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "away").symlink_to("nowhere/at/all")
    (tmp_path / os.fsdecode(b"\xff=\n@")).mkdir()
    os.mkfifo(tmp_path / "fifo")
    there = ["file", "empty", "loop", "away", "fifo", "file/below", "missing/..", "a" * 300, os.fsdecode(b"\xff=\n@")]
    paths = [tmp_path, *(tmp_path / name for name in there), "/dev/fd/0", "/dev/stdin", "", "nul\0", "relative"]
    require_reachable(paths, seconds=60)
    # As many as a shell passes on, and from a working directory that was removed.
    assert unreachable((tmp_path / str(number) for number in range(5000)), seconds=60) == []
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    require_reachable([".", "x", tmp_path], seconds=60)


def test_what_does_not_answer_in_time_is_named_with_its_mount_and_the_fix(tmp_path: Path) -> None:
    # In no time nothing answers.
    with pytest.raises(EnvironmentLacksError) as caught:
        require_reachable([tmp_path / "a", tmp_path / "b"], seconds=0)
    mount = mount_of(tmp_path, read_mounts())
    assert mount is not None
    assert str(caught.value).startswith(
        f"{tmp_path / 'a'}: does not respond (waited 0 s): {mount.point} ({mount.type}, from {mount.source}) is dead "
        "(and 1 more); check that its server is running"
    )


def test_a_server_of_files_that_is_gone_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, asked = tmp_path / "gone", os.statvfs
    gone.mkdir()

    def mock(path: Path) -> os.statvfs_result:
        if path == gone:
            raise OSError(errno.ESTALE, "Stale file handle")
        return asked(path)

    monkeypatch.setattr(os, "statvfs", mock)
    part = describe_storage(Host(tmp_path), {"data": gone, "out": tmp_path})
    assert part.values["file_systems"]["data"] is None
    assert part.values["file_systems"]["out"]["total_bytes"] > 0
    assert [(one.what, one.reason) for one in part.absent] == [(f"file system of {gone}", "Stale file handle")]
