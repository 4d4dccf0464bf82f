"""Settings of the kernel and limits of the process that change how fast a node trains."""

from __future__ import annotations

import resource
from collections import Counter
from pathlib import Path
from typing import Any

from hpcai500.system.describe.files import chosen, read
from hpcai500.system.describe.part import Host, Part

_CPUS = Path("sys/devices/system/cpu")
# One value for the whole node: name in the record, and the file that has it.
_FILES = {
    "intel_pstate": _CPUS / "intel_pstate/status",
    "amd_pstate": _CPUS / "amd_pstate/status",
    "smt": _CPUS / "smt/control",
    "isolated_cpus": _CPUS / "isolated",
    "tickless_cpus": _CPUS / "nohz_full",
    "idle_driver": _CPUS / "cpuidle/current_driver",
    "idle_governor": _CPUS / "cpuidle/current_governor_ro",
    "clock_source": Path("sys/devices/system/clocksource/clocksource0/current_clocksource"),
    "numa_balancing": Path("proc/sys/kernel/numa_balancing"),
    "autogroup": Path("proc/sys/kernel/sched_autogroup_enabled"),
    "nmi_watchdog": Path("proc/sys/kernel/nmi_watchdog"),
    "perf_event_paranoid": Path("proc/sys/kernel/perf_event_paranoid"),
    "swappiness": Path("proc/sys/vm/swappiness"),
    "zone_reclaim_mode": Path("proc/sys/vm/zone_reclaim_mode"),
    "overcommit_memory": Path("proc/sys/vm/overcommit_memory"),
    "dirty_ratio": Path("proc/sys/vm/dirty_ratio"),
    "dirty_background_ratio": Path("proc/sys/vm/dirty_background_ratio"),
    "congestion_control": Path("proc/sys/net/ipv4/tcp_congestion_control"),
    "tcp_receive_bytes": Path("proc/sys/net/ipv4/tcp_rmem"),
    "tcp_send_bytes": Path("proc/sys/net/ipv4/tcp_wmem"),
    "largest_receive_bytes": Path("proc/sys/net/core/rmem_max"),
    "largest_send_bytes": Path("proc/sys/net/core/wmem_max"),
    "tuned_profile": Path("etc/tuned/active_profile"),
}
# Files that list all choices and mark the one that counts: `always [madvise] never`.
_CHOICES = {
    "transparent_huge_pages": Path("sys/kernel/mm/transparent_hugepage/enabled"),
    "transparent_huge_pages_defrag": Path("sys/kernel/mm/transparent_hugepage/defrag"),
}
# One value for each processor: how often each occurs is kept.
_PER_CPU = {
    "governor": "scaling_governor",
    "frequency_driver": "scaling_driver",
    "energy_preference": "energy_performance_preference",
    "scaling_max_hz": "scaling_max_freq",
    "scaling_min_hz": "scaling_min_freq",
}
# Of the kernel's command line, only what changes performance: the rest may hold addresses, identities, even passwords.
_PARAMETERS = (
    "amd_iommu", "amd_pstate", "audit", "cgroup_disable", "clocksource", "cpuidle.", "cpufreq.", "default_hugepagesz",
    "hugepages", "hugepagesz", "idle", "intel_idle.", "intel_iommu", "intel_pstate", "iommu", "iommu.", "irqaffinity",
    "isolcpus", "kpti", "l1tf", "maxcpus", "mce", "mds", "mitigations", "nmi_watchdog", "noibrs", "nohz", "nohz_full",
    "nokaslr", "nopti", "nosmt", "nosoftlockup", "nospectre_v1", "nospectre_v2", "nowatchdog", "numa", "numa_balancing",
    "nvidia.", "nvidia-drm.", "pci", "pcie_aspm", "pcie_aspm.", "preempt", "processor.", "psi", "pti", "rcu_nocbs",
    "retbleed", "skew_tick", "spec_rstack_overflow", "spec_store_bypass_disable", "spectre_v2", "swiotlb",
    "systemd.unified_cgroup_hierarchy", "threadirqs", "transparent_hugepage", "tsc", "tsx", "tsx_async_abort",
)  # fmt: skip
_LIMITS = {
    "locked_memory_bytes": resource.RLIMIT_MEMLOCK,
    "open_files": resource.RLIMIT_NOFILE,
    "stack_bytes": resource.RLIMIT_STACK,
    "processes": resource.RLIMIT_NPROC,
    "address_space_bytes": resource.RLIMIT_AS,
    "core_file_bytes": resource.RLIMIT_CORE,
}
_KILO = 1000


def describe_kernel(host: Host) -> Part:
    """`kernel_settings` and `limits`."""
    return Part({"kernel_settings": kernel_settings(host.root), "limits": process_limits()})


def kernel_settings(root: Path) -> dict[str, Any]:
    """Settings by name; None where this kernel has no such setting or does not say."""
    cpus = root / _CPUS
    return {
        **{name: read(root / path) or None for name, path in _FILES.items()},
        **{name: chosen(read(root / path)) for name, path in _CHOICES.items()},
        **{name: _each_cpu(cpus, name, file) for name, file in _PER_CPU.items()},
        "boost": boost(read(cpus / "cpufreq/boost"), read(cpus / "intel_pstate/no_turbo")),
        "mitigations": {path.name: read(path) for path in sorted((cpus / "vulnerabilities").glob("*"))} or None,
        "command_line": performance_parameters(read(root / "proc/cmdline")),
        "iommu": any((root / "sys/class/iommu").glob("*")),
    }


def boost(boost_file: str | None, no_turbo: str | None) -> bool | None:
    """Whether processors may run above their nominal frequency."""
    if no_turbo is not None:
        return no_turbo == "0"
    return boost_file == "1" if boost_file is not None else None


def performance_parameters(command_line: str | None) -> list[str] | None:
    """Words of the kernel's command line that change performance; what follows `--` is for the first process."""
    if command_line is None:
        return None
    words = command_line.partition(" -- ")[0].split()
    whole, beginnings = set(_PARAMETERS), tuple(name for name in _PARAMETERS if name.endswith("."))
    return [word for word in words if word.partition("=")[0] in whole or word.startswith(beginnings)]


def process_limits() -> dict[str, dict[str, int | str]]:
    """`ulimit` of this process: soft and hard, `unlimited` where there is none."""
    return {
        name: {kind: _limit(value) for kind, value in zip(("soft", "hard"), resource.getrlimit(number), strict=True)}
        for name, number in _LIMITS.items()
    }


def _limit(value: int) -> int | str:
    return "unlimited" if value == resource.RLIM_INFINITY else value


def _each_cpu(cpus: Path, name: str, file: str) -> dict[str, int] | None:
    """How many processors have which value; frequencies, which the kernel tells in kHz, in Hz."""
    texts = (read(path) for path in cpus.glob(f"cpu[0-9]*/cpufreq/{file}"))
    is_frequency = name.endswith("_hz")
    counts = Counter(str(int(text) * _KILO) if is_frequency else text for text in texts if text)
    return dict(sorted(counts.items())) or None
