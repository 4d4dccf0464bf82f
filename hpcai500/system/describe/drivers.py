"""Kernel modules that devices and fast paths between them need, with their versions."""

from __future__ import annotations

from pathlib import Path

from hpcai500.system.describe.files import read
from hpcai500.system.describe.part import Host, Part
from hpcai500.system.driver import find_traces

# NVIDIA's driver, memory of devices seen by adapters (GPUDirect RDMA), copies by the processor, adapters, file systems.
_MODULES = (
    "nvidia", "nvidia_uvm", "nvidia_peermem", "nv_peer_mem", "gdrdrv", "nvidia_fs", "mlx5_core", "mlx5_ib", "ib_core",
    "hfi1", "efa", "irdma", "bnxt_en", "ice", "i40e", "ixgbe", "ena", "cxi_ss1", "knem", "xpmem", "lustre", "nfs",
    "ceph", "mmfs26", "beegfs", "wekafsio",
)  # fmt: skip


def describe_drivers(host: Host) -> Part:
    """`driver`: the version of NVIDIA's, and modules that are loaded."""
    return Part({"driver": {"nvidia": find_traces(host.root).kernel_module, "modules": modules(host.root)}})


def modules(root: Path) -> dict[str, str]:
    """Versions by name of the modules that are loaded; `loaded` where one has no version of its own."""
    folder = root / "sys/module"
    return {name: read(folder / name / "version") or "loaded" for name in _MODULES if (folder / name).is_dir()}
