"""A node as its tools and its kernel tell it: another machine's output, read as if it were here."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from machines_of_tests import answers, epyc_node, link, sample, tree

from hpcai500.files import scratch
from hpcai500.system import software
from hpcai500.system.looking import Answer, Host
from hpcai500.system.network import describe_network
from hpcai500.system.node import (
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


@pytest.fixture
def node(tmp_path: Path) -> dict[str, Any]:
    return describe_node({"data": None, "out": tmp_path, "temporary": Path("/")}, epyc_node(tmp_path))


def test_processors_caches_and_numa_nodes_are_numbers(node: dict[str, Any]) -> None:
    assert node["cpu"]["Model name"] == "AMD EPYC 7763 64-Core Processor"
    found = node["processor"]
    assert (found["sockets"], found["cores"], found["threads"]) == (2, 128, 256)
    assert (found["max_hz"], found["microcode"]) == (pytest.approx(3.529052e9), "0xa001173")
    caches = {one["name"]: (one["bytes"], one["instances"]) for one in node["caches"]}
    assert caches == {"L1d": (32 * 1024, 128), "L1i": (32 * 1024, 128), "L2": (2**19, 128), "L3": (2**25, 16)}
    assert len(node["numa"]) == 8
    assert node["numa"][7] == {
        "node": 7, "cpus": "112-127,240-255", "memory_bytes": 65850564 * 1024,
        "distances": [32, 32, 32, 32, 12, 12, 12, 10],
    }  # fmt: skip


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


def test_caches_come_from_the_kernel_where_lscpu_is_too_old(tmp_path: Path) -> None:
    def cache(cpu: int, index: int, level: int, kind: str, size: str, shared: str) -> dict[str, str]:
        folder = f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
        return {
            f"{folder}/{name}": value
            for name, value in (("level", str(level)), ("type", kind), ("size", size), ("shared_cpu_list", shared))
        }

    for cpu in range(4):
        tree(tmp_path, cache(cpu, 0, 1, "Data", "32K", str(cpu)) | cache(cpu, 3, 3, "Unified", "16384K", "0-3"))
    found = caches_of(tmp_path)
    assert [(one["name"], one["bytes"], one["instances"]) for one in found or []] == [
        ("L1d", 2**15, 4),
        ("L3", 2**24, 1),
    ]
    assert caches_of(tmp_path / "nowhere") is None
    part = describe_processor(Host(tmp_path, {}, answers(without=("lscpu",))))
    assert part.values["caches"] == found


def test_hwloc_tells_where_devices_hang(node: dict[str, Any]) -> None:
    found = node["topology"]
    counts = {name: found[name] for name in ("packages", "numa_nodes", "l3_caches", "cores", "threads")}
    assert counts == {"packages": 2, "numa_nodes": 8, "l3_caches": 16, "cores": 16, "threads": 32}
    devices = {one["name"]: (one["kind"], one["numa_node"], one["pci"]) for one in found["devices"]}
    assert devices == {
        "mlx5_0": ("infiniband", 1, "0000:41:00.0"),
        "ib0": ("network", 1, "0000:41:00.0"),
        "nvme0n1": ("block", 2, "0000:61:00.0"),
        "enp193s0f0": ("network", 5, "0000:c1:00.0"),
    }
    speeds = [one["link_bytes_per_second"] for one in found["devices"]]
    assert speeds == [pytest.approx(31.507692e9)] * 2 + [pytest.approx(3.938462e9), None]


def test_a_device_below_several_numa_nodes_is_near_none_of_them() -> None:
    text = (
        '<topology><object type="Package"><object type="NUMANode" os_index="0"/><object type="NUMANode" os_index="1"/>'
        '<object type="PCIDev" pci_busid="0000:01:00.0"><object type="OSDev" name="eth0" osdev_type="2"/></object>'
        "</object></topology>"
    )
    (device,) = parse_hwloc(text)["devices"]
    assert device["numa_node"] is None


def test_on_a_machine_of_one_numa_node_all_devices_are_at_it() -> None:
    text = (
        '<topology><object type="Machine"><object type="Package"><object type="NUMANode" os_index="0"/></object>'
        '<object type="Bridge"><object type="PCIDev"><object type="OSDev" name="vda" osdev_type="0"/></object></object>'
        "</object></topology>"
    )
    (device,) = parse_hwloc(text)["devices"]
    assert (device["numa_node"], device["pci"], device["link_bytes_per_second"]) == (0, None, None)


def test_memory_modules_are_counted_and_empty_slots_are_not(node: dict[str, Any]) -> None:
    module = {"count": 2, "bytes": 2**35, "type": "DDR4", "speed": "2933 MT/s", "manufacturer": "Samsung"}
    assert node["memory"]["modules"] == [module]
    assert node["memory"]["huge_pages"] == {str(2**21): 512, str(2**30): 0}
    assert parse_dmidecode("# dmidecode 3.3\nScanning /dev/mem\n") == []


def test_without_dmidecode_the_kernel_may_know_the_modules(tmp_path: Path) -> None:
    for number in range(3):
        folder = f"sys/devices/system/edac/mc/mc0/dimm{number}"
        tree(
            tmp_path, {f"{folder}/size": "0" if number == 2 else "16384", f"{folder}/dimm_mem_type": "Registered-DDR5"}
        )
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


def test_adapters_are_what_the_kernel_says(node: dict[str, Any]) -> None:
    good, bad = node["infiniband"]
    assert good["name"] == "mlx5_0/1"
    assert (good["bits_per_second"], good["rate"], good["state"]) == (200 * 10**9, "200 Gb/sec (4X HDR)", "Active")
    assert (good["adapter"], good["firmware"], good["board"]) == ("MT4123", "20.31.1014", "MT_0000000223")
    assert (good["numa_node"], good["pci"]) == (1, "0000:41:00.0")
    assert (good["pcie"]["width"], good["pcie"]["max_width"]) == (8, 16)
    assert good["pcie"]["bytes_per_second"] == pytest.approx(15.75e9, rel=1e-3)
    assert (bad["name"], bad["state"], bad["bits_per_second"]) == ("mlx5_1/1", "Down", 2_500_000_000)


def test_without_ibstat_the_tool_is_named(tmp_path: Path) -> None:
    host = epyc_node(tmp_path)
    part = describe_network(Host(host.root, {}, answers(without=("ibstat",))))
    port = part.values["infiniband"][0]
    assert (port["name"], port["state"], port["physical_state"]) == ("mlx5_0/1", "Active", "LinkUp")
    assert part.absent[0].tool == "ibstat (infiniband-diags)"


def test_interfaces_have_speed_driver_and_what_they_stand_on(node: dict[str, Any]) -> None:
    found = {one["name"]: one for one in node["network"]}
    assert found.keys() == {"bond0", "eno1", "eno2"}
    assert (found["eno1"]["bits_per_second"], found["eno1"]["driver"], found["eno1"]["mtu_bytes"]) == (
        25 * 10**9, "mlx5_core", 9000,
    )  # fmt: skip
    assert (found["eno2"]["bits_per_second"], found["eno2"]["state"]) == (None, "down")
    assert (found["bond0"]["is_physical"], found["bond0"]["over"]) == (False, ["eno1"])
    assert any(one["what"] == "speed of eno2" for one in node["absent"])


def test_settings_are_those_that_change_performance(node: dict[str, Any]) -> None:
    found = node["kernel_settings"]
    assert (found["governor"], found["scaling_max_hz"]) == ({"performance": 4}, {"2450000000": 4})
    assert (found["boost"], found["smt"], found["transparent_huge_pages"], found["swappiness"]) == (
        True,
        "on",
        "always",
        "10",
    )
    assert found["mitigations"]["retbleed"] == "Vulnerable"
    assert found["numa_balancing"] is None


@pytest.mark.parametrize(("no_turbo", "expected"), [("0", True), ("1", False)])
def test_turbo_is_boost_by_another_name(tmp_path: Path, no_turbo: str, expected: bool) -> None:
    tree(tmp_path, {"sys/devices/system/cpu/intel_pstate/no_turbo": f"{no_turbo}\n"})
    assert kernel_settings(tmp_path)["boost"] is expected


def test_secrets_on_the_kernels_command_line_stay_there(node: dict[str, Any]) -> None:
    assert node["kernel_settings"]["command_line"] == ["mitigations=off", "processor.max_cstate=1", "isolcpus=1-3"]
    assert performance_parameters(None) is None


def test_limits_are_numbers_or_unlimited() -> None:
    limits = process_limits()
    assert limits["open_files"]["soft"] == os.sysconf("SC_OPEN_MAX")
    assert all(value == "unlimited" or value >= 0 for one in limits.values() for value in one.values())  # type: ignore[operator]


def test_disks_are_hardware(node: dict[str, Any]) -> None:
    (disk,) = node["disks"]
    assert (disk["name"], disk["bytes"], disk["rotates"], disk["scheduler"]) == (
        "nvme0n1",
        3750748848 * 512,
        False,
        "none",
    )


def test_machine_modules_and_system_are_named(node: dict[str, Any]) -> None:
    assert (node["machine"]["sys_vendor"], node["machine"]["product_name"]) == ("GIGABYTE", "G492-ZD2")
    assert node["driver"] == {"nvidia": None, "modules": {"mlx5_core": "5.8-3.0.7", "lustre": "loaded"}}
    assert node["operating_system"] == "Rocky Linux 9.4 (Blue Onyx)"


def test_only_harmless_variables_are_kept(tmp_path: Path) -> None:
    kept = {"LD_PRELOAD": "/x.so", "NCCL_DEBUG": "INFO", "NVIDIA_TF32_OVERRIDE": "0", "OMP_NUM_THREADS": "8"}
    secret = {"AWS_SECRET_ACCESS_KEY": "x", "HOROVOD_SECRET_KEY": "x", "TORCH_HUB_TOKEN": "x", "UCX_PASSWORD": "x"}
    own = {"PATH": "/bin", "HOROVOD_RANK": "1", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1", "PYTHON": "python3"}
    node = describe_node({}, Host(tmp_path, {**kept, **secret, **own}, answers()))
    assert node["environment"] == kept


def preloaded_by(library: Path | str) -> str:
    """What a Python that was started with `library` preloaded tells of itself."""
    code = "from hpcai500.system.software import preloaded; print(preloaded())"
    software = {**os.environ, "LD_PRELOAD": str(library)}
    return subprocess.check_output([sys.executable, "-c", code], env=software, text=True).strip()


def test_a_library_that_was_loaded_before_pythons_own_is_named() -> None:
    for library, expected in (("", r"\[\]"), ("libresolv.so.2", r"\['/\S*/libresolv.so.2'\]")):
        assert re.fullmatch(expected, preloaded_by(library))


def test_a_preloaded_library_with_the_name_of_one_of_pythons_own_is_told(tmp_path: Path) -> None:
    library, source = tmp_path / "libc.so.6", tmp_path / "hides.c"
    source.write_text(
        '#include <stdlib.h>\n__attribute__((constructor)) static void hide(void) { unsetenv("LD_PRELOAD"); }\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    assert preloaded_by(library) == str([str(library)])


def test_a_preloaded_library_that_takes_the_place_of_one_of_pythons_own_is_told(tmp_path: Path) -> None:
    """By the name within it, its SONAME, the linker takes it for the one that Python asks for."""
    own = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libc.so.6" in line)
    library = tmp_path / "libc.so.6"
    library.write_bytes(Path(own).read_bytes())
    assert preloaded_by(library) == str([str(library)])


def test_a_library_behind_pythons_own_ones_is_preloaded_all_the_same() -> None:
    assert re.fullmatch(r"\['/\S*/libresolv.so.2'\]", preloaded_by("libc.so.6 libresolv.so.2"))


def test_a_static_python_loads_nothing_before_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: object) -> None:
        raise OSError("Dynamic loading not supported")

    monkeypatch.setattr(software.ctypes, "CDLL", refuse)
    assert software.preloaded() == []


def test_of_a_linker_that_does_not_tell_what_it_would_load_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "_asked_for", set)
    assert software.preloaded() is None


@pytest.mark.parametrize(
    ("effect", "names"),
    [
        (
            "loads code",
            "LD_PRELOAD LD_AUDIT CUDA_INJECTION64_PATH NVTX_INJECTION64_PATH NVTX_INJECTION32_PATH OMP_TOOL_LIBRARIES "
            "NCCL_NET_PLUGIN NCCL_TUNER_PLUGIN NCCL_PROFILER_PLUGIN NCCL_ENV_PLUGIN UCX_MODULE_DIR FI_PROVIDER_PATH "
            "OMPI_MCA_mca_base_component_path OMPI_MCA_component_path PMIX_MCA_mca_base_component_path "
            "HDF5_PLUGIN_PATH HDF5_VOL_CONNECTOR HDF5_DRIVER DALI_PRELOAD_PLUGINS TRITON_PTXAS_PATH "
            "TRITON_OVERRIDE_DIR TRITON_KERNEL_OVERRIDE OPENSSL_CONF OPENSSL_MODULES OPENSSL_ENGINES",
        ),
        ("gives Python other code", "PYTHONPATH PYTHONHOME PYTHONSTARTUP"),
        ("changes arithmetic", "NVIDIA_TF32_OVERRIDE TRITON_F32_DEFAULT TORCHINDUCTOR_EMULATE_PRECISION_CASTS"),
        ("changes what the recipe says", "TORCHDYNAMO_DISABLE TORCH_COMPILE_DISABLE"),
        ("changes clocks", "FAKETIME FAKETIME_SHARED DONT_FAKE_MONOTONIC"),
    ],
)
def test_what_changes_a_run_unseen_is_recorded_with_its_effect(effect: str, names: str) -> None:
    given = dict.fromkeys(names.split(), "1")
    assert software.recorded(given) == given
    assert software.effects(given) == dict.fromkeys(given, effect)


def test_what_is_switched_off_has_no_effect() -> None:
    off = dict.fromkeys(("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "TRITON_KERNEL_OVERRIDE"), "0")
    assert software.effects({**off, "NCCL_NET_PLUGIN": "none", "LD_PRELOAD": ""}) == {}


def test_what_makes_runs_slower_or_faster_is_told_apart_from_what_only_describes_them() -> None:
    tuned = {"ATEN_CPU_CAPABILITY": "default", "TORCHINDUCTOR_JOINT_GRAPH_PASSES": "0", "NCCL_ALGO": "Ring"}
    others = {"HPCAI500_NOT_HEEDED": "PYTHONPATH", "HPCAI500_ISA": "avx2", "SLURM_JOB_ID": "1", "SLURM_NNODES": "2"}
    others |= {"PYTHONUNBUFFERED": "1", "LD_LIBRARY_PATH": "/lib"}
    assert software.recorded({**tuned, **others}) == {**tuned, **others}
    assert software.tuning({**tuned, **others, "LD_PRELOAD": "/x.so"}) == set(tuned)


def test_a_cache_of_compiled_code_is_told_unless_the_run_made_it_itself(tmp_path: Path) -> None:
    theirs = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "hpcai500-here-1-abcdefgh" / "torch")}
    with scratch(theirs, tmp_path):
        assert software.recorded(theirs).keys() == {"TORCHINDUCTOR_CACHE_DIR"}
    ours: dict[str, str] = {}
    with scratch(ours, tmp_path):
        ours["TRITON_CACHE_DIR"] = f"{ours['TORCHINDUCTOR_CACHE_DIR']}/triton/0"
        assert software.recorded(ours) == {}


def test_a_device_of_an_interface_has_its_link(tmp_path: Path) -> None:
    host = epyc_node(tmp_path)
    (tmp_path / "sys/class/net/eno1/device/driver").unlink()
    (tmp_path / "sys/class/net/eno1/device").rmdir()
    link(tmp_path, "sys/class/net/eno1/device", "sys/devices/pci0000:40/0000:41:00.0")
    (found,) = (one for one in describe_network(host).values["network"] if one["name"] == "eno1")
    assert (found["pci"], found["numa_node"], found["pcie"]["width"]) == ("0000:41:00.0", 1, 8)
