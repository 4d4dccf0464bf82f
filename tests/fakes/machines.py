"""Machines that are not here: their tools' output from samples/, and folders of /proc and /sys made up beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hpcai500.system.looking import Answer, Host

EPYC = Path(__file__).resolve().parents[1] / "system" / "samples" / "epyc"
_TOOLS = {
    ("lscpu", "-J"): "lscpu.json",
    ("lscpu", "-C", "-J"): "caches.json",
    ("lstopo-no-graphics", "--of", "xml"): "lstopo.xml",
    ("ibstat",): "ibstat.txt",
    ("dmidecode", "-t", "memory"): "dmidecode.txt",
}


def sample(name: str) -> str:
    return (EPYC / name).read_text()


def answers(*, without: Sequence[str] = ()) -> Callable[..., Answer]:
    """The EPYC node's tools, but for those in `without`."""

    def ask(command: Sequence[str], patience_seconds: float = 0) -> Answer:
        name = _TOOLS.get(tuple(command))
        if name is None or command[0] in without:
            return Answer(reason="not installed")
        return Answer(sample(name))

    return ask


def tree(root: Path, files: Mapping[str, str]) -> Path:
    """Write `files` (path below root: content)."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def epyc_node(root: Path) -> Host:
    """Two EPYC 7763 with 8 NUMA nodes, two InfiniBand adapters, NFS and Lustre; no accelerator."""
    node = "sys/devices/system/node"
    cpu = "sys/devices/system/cpu"
    port = "sys/devices/pci0000:40/0000:41:00.0/infiniband/mlx5_0"
    files = {
        **{f"{node}/node{n}/cpulist": f"{n * 16}-{n * 16 + 15},{128 + n * 16}-{143 + n * 16}\n" for n in range(8)},
        **{f"{node}/node{n}/meminfo": f"Node {n} MemTotal:       65850564 kB\n" for n in range(8)},
        **{f"{node}/node{n}/distance": " ".join("10" if m == n else "12" if m // 4 == n // 4 else "32"
                                                for m in range(8)) + "\n" for n in range(8)},
        **{f"{cpu}/cpu{n}/cpufreq/scaling_governor": "performance\n" for n in range(4)},
        **{f"{cpu}/cpu{n}/cpufreq/scaling_max_freq": "2450000\n" for n in range(4)},
        f"{cpu}/cpufreq/boost": "1\n",
        f"{cpu}/smt/control": "on\n",
        f"{cpu}/vulnerabilities/spectre_v2": "Mitigation: Retpolines; IBPB: conditional\n",
        f"{cpu}/vulnerabilities/meltdown": "Not affected\n",
        f"{cpu}/vulnerabilities/retbleed": "Vulnerable\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
        "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "512\n",
        "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "0\n",
        "sys/firmware/dmi/tables/DMI": "tables",
        "sys/class/dmi/id/sys_vendor": "GIGABYTE\n",
        "sys/class/dmi/id/product_name": "G492-ZD2\n",
        "sys/class/dmi/id/bios_version": "R21\n",
        "sys/module/mlx5_core/version": "5.8-3.0.7\n",
        "sys/module/lustre/refcnt": "3\n",
        "sys/block/nvme0n1/size": "3750748848\n",
        "sys/block/nvme0n1/device/model": "SAMSUNG MZQL21T9HCJR\n",
        "sys/block/nvme0n1/queue/rotational": "0\n",
        "sys/block/nvme0n1/queue/scheduler": "[none] mq-deadline\n",
        "sys/block/loop0/size": "8\n",
        "proc/meminfo": "MemTotal:       526804512 kB\nSwapTotal:             0 kB\nHugePages_Total:       0\n",
        "proc/cpuinfo": "processor\t: 0\nmicrocode\t: 0xa001173\n",
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1 mitigations=off processor.max_cstate=1 "
                        "rd.luks.key=topsecret isolcpus=1-3 -- --auth=abc mitigations=auto\n",
        "proc/sys/vm/swappiness": "10\n",
        "proc/self/mountinfo": sample("mountinfo.txt"),
        "etc/os-release": 'NAME="Rocky Linux"\nPRETTY_NAME="Rocky Linux 9.4 (Blue Onyx)"\n',
        f"{port}/hca_type": "MT4123\n",
        f"{port}/board_id": "MT_0000000223\n",
        f"{port}/fw_ver": "20.31.1014\n",
        f"{port}/ports/1/rate": "200 Gb/sec (4X HDR)\n",
        f"{port}/ports/1/state": "4: ACTIVE\n",
        f"{port}/ports/1/phys_state": "5: LinkUp\n",
        f"{port}/ports/1/link_layer": "InfiniBand\n",
        "sys/class/infiniband/mlx5_1/ports/1/rate": "2.5 Gb/sec (1X SDR)\n",
        "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
        "sys/devices/pci0000:40/0000:41:00.0/numa_node": "1\n",
        "sys/devices/pci0000:40/0000:41:00.0/current_link_width": "8\n",
        "sys/devices/pci0000:40/0000:41:00.0/max_link_width": "16\n",
        "sys/devices/pci0000:40/0000:41:00.0/current_link_speed": "16.0 GT/s PCIe\n",
        "sys/devices/pci0000:40/0000:41:00.0/max_link_speed": "16.0 GT/s PCIe\n",
        "sys/class/net/lo/type": "772\n",
        "sys/class/net/eno1/type": "1\n",
        "sys/class/net/eno1/speed": "25000\n",
        "sys/class/net/eno1/operstate": "up\n",
        "sys/class/net/eno1/mtu": "9000\n",
        "sys/class/net/eno2/type": "1\n",
        "sys/class/net/eno2/speed": "-1\n",
        "sys/class/net/eno2/operstate": "down\n",
        "sys/class/net/bond0/type": "1\n",
        "sys/class/net/bond0/speed": "25000\n",
        "sys/class/net/bonding_masters": "bond0\n",
    }  # fmt: skip
    tree(root, files)
    link(root, "sys/class/infiniband/mlx5_0", port)
    link(root, f"{port}/device", "sys/devices/pci0000:40/0000:41:00.0")
    link(root, "sys/bus/pci/devices/0000:41:00.0", "sys/devices/pci0000:40/0000:41:00.0")
    for name in ("eno1", "eno2"):
        (root / f"sys/class/net/{name}/device").mkdir()
        (root / f"sys/class/net/{name}/device/driver").symlink_to("../../bus/pci/drivers/mlx5_core")
    (root / "sys/class/net/bond0/lower_eno1").symlink_to("../eno1")
    return Host(root, {}, answers())


# NUMA nodes of the GPUs of a DGX A100, in the order of their addresses: it does not follow that of the nodes.
DGX_NODES = {
    "0000:07:00.0": 3, "0000:0f:00.0": 3, "0000:47:00.0": 1, "0000:4e:00.0": 1,
    "0000:87:00.0": 7, "0000:90:00.0": 7, "0000:b7:00.0": 5, "0000:bd:00.0": 5,
}  # fmt: skip


def gpu_node(root: Path, nodes: Mapping[str, int] = DGX_NODES, *, model: str = "NVIDIA A100-SXM4-40GB") -> Path:
    """Two processors of 64 cores with two threads, in 8 NUMA nodes, and a GPU at each address of `nodes`.

    As on real machines, the numbers of the device files do not follow the addresses.
    """
    numa, cpu = "sys/devices/system/node", "sys/devices/system/cpu"
    files = {
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun\n",
        "proc/sys/kernel/osrelease": "5.15.0-1042-nvidia\n",
        **{f"{numa}/node{n}/cpulist": f"{n * 16}-{n * 16 + 15},{128 + n * 16}-{143 + n * 16}\n" for n in range(8)},
        **{f"{numa}/node{n}/distance": " ".join("10" if m == n else "12" if m // 4 == n // 4 else "32"
                                                for m in range(8)) + "\n" for n in range(8)},
        **{f"{cpu}/cpu{n}/topology/physical_package_id": f"{n % 128 // 64}\n" for n in range(256)},
        **{f"{cpu}/cpu{n}/topology/thread_siblings_list": f"{n % 128},{n % 128 + 128}\n" for n in range(256)},
    }  # fmt: skip
    for number, (address, node) in enumerate(nodes.items()):
        minor = len(nodes) - 1 - number
        files |= {
            f"dev/nvidia{minor}": "",
            f"proc/driver/nvidia/gpus/{address}/information": f"Model: \t\t {model}\nDevice Minor: \t {minor}\n",
        }
        pci_device(root, address, node)
    return tree(root, files)


def pci_device(root: Path, address: str, node: int, *, group: str = "", kind: str = "identity") -> str:
    """A PCI device below the switch of its NUMA node, in the IOMMU group `group`; returns its folder's name."""
    folder = f"sys/devices/pci0000:{node:02x}/0000:{node:02x}:01.1/0000:{node:02x}:02.0/0000:{node:02x}:03.0/{address}"
    tree(root, {f"{folder}/numa_node": f"{node}\n"})
    if not (root / f"sys/bus/pci/devices/{address}").is_symlink():
        link(root, f"sys/bus/pci/devices/{address}", folder)
    if group:
        tree(root, {f"sys/kernel/iommu_groups/{group}/type": f"{kind}\n"})
        link(root, f"{folder}/iommu_group", f"sys/kernel/iommu_groups/{group}")
    return folder


def adapter(root: Path, name: str, address: str, node: int, *, layer: str = "InfiniBand", group: str = "") -> None:
    """An active RDMA adapter."""
    folder = pci_device(root, address, node, group=group)
    port = f"sys/class/infiniband/{name}/ports/1"
    tree(root, {f"{port}/state": "4: ACTIVE\n", f"{port}/link_layer": f"{layer}\n", f"{port}/rate": "200 Gb/sec\n"})
    link(root, f"sys/class/infiniband/{name}/device", folder)


def link(root: Path, name: str, target: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(root / target)
