"""Check whether this process can train on its recipe's device: driver, library, torch and container must match."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcai500.system.checks import Check, Status
from hpcai500.system.container import Container
from hpcai500.system.looking import run

# ----------------------------------------------------------------------------------------------------
# The NVIDIA driver as a program sees it: device files, the kernel module, and libcuda.


LIBRARY = "libcuda.so.1"
_PROBE = Path(__file__).with_name("probe.py")
# Without the persistence daemon, a node of eight devices needs much of this.
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Traces:
    """Signs of an NVIDIA device on this host, whether or not a program can use it."""

    devices: tuple[str, ...] = ()
    kernel_module: str | None = None

    @property
    def any(self) -> bool:
        return bool(self.devices) or self.kernel_module is not None

    @property
    def words(self) -> str:
        """`/dev/nvidia0 and 7 more, kernel module 580.65`."""
        more = f" and {len(self.devices) - 1} more" if self.devices[1:] else ""
        module = [f"kernel module {self.kernel_module}"] if self.kernel_module else []
        return ", ".join([*(f"{device}{more}" for device in self.devices[:1]), *module])


@dataclass(frozen=True)
class Driver:
    """The answers of the driver's library.

    Attributes:
        loaded: whether the library exists and can be loaded.
        version: the newest CUDA that it supports, as 1000 * major + 10 * minor.
        code: what cuInit returned (CUresult); 0 is success.
        devices: how many this process may use.
        silent: whether it timed out; it may only be slow.
    """

    loaded: bool
    version: int | None = None
    code: int | None = None
    devices: int | None = None
    reason: str | None = None
    silent: bool = False

    @property
    def cuda(self) -> str:
        """`13.0`, or `unknown`."""
        return "unknown" if self.version is None else f"{self.version // 1000}.{self.version % 1000 // 10}"


def find_traces(root: Path = Path("/")) -> Traces:
    """Signs of a device on the host whose files are below `root`."""
    devices = [path.name for path in (root / "dev").glob("nvidia[0-9]*")]
    path = root / "proc" / "driver" / "nvidia" / "version"
    module: str | None = None
    if path.is_file():
        found = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", path.read_text())
        module = found.group() if found else "of an unknown version"
    return Traces(tuple(f"/dev/{name}" for name in sorted(devices)), module)


def ask_driver(
    environment: Mapping[str, str], library: str = LIBRARY, patience_seconds: float = _PATIENCE_SECONDS
) -> Driver:
    """Query the driver's `library` in a separate process (see probe.py)."""
    try:
        ended = run([sys.executable, "-I", "-S", str(_PROBE), "driver", library], patience_seconds, environment)
    except TimeoutError as error:
        return Driver(loaded=True, reason=f"it {error}", silent=True)
    if ended.code < 0:
        return Driver(loaded=True, reason=f"{signal.Signals(-ended.code).name} ended the process that queried it")
    if ended.code > 0:
        return Driver(loaded=True, reason=(ended.errors.strip().splitlines() or ["it does not answer"])[-1])
    return Driver(**json.loads(ended.output))


# ----------------------------------------------------------------------------------------------------
# The check.


NAME = "accelerator"
_ON_CPU = "--set accelerator.device=cpu"
_GPU_IMAGE = "hpcai500-cuda.sif"
_CPU_IMAGE = "hpcai500-cpu"
_OLDER_GPU_IMAGE = "hpcai500-cuda12.sif"

# The oldest capability that the image for CUDA 12 serves, which the other one does not.
_OLDEST_IN_OLDER_IMAGE = (7, 0)
# The oldest branch of the driver for each major version of CUDA (CUDA Compatibility, minor version compatibility).
_OLDEST_BRANCH = {11: 450, 12: 525, 13: 580}
# Codes that cuInit returns (CUresult in cuda.h), with the problem and the fix.
_CODES = {
    46: (
        "CUDA_ERROR_DEVICE_UNAVAILABLE: another process has exclusive use of the device",
        "`nvidia-smi` shows which one; compute mode EXCLUSIVE_PROCESS allows one process per device",
    ),
    100: (
        "CUDA_ERROR_NO_DEVICE: this process may use no device",
        "request one from the scheduler (`sbatch --gpus-per-node=N`), and check CUDA_VISIBLE_DEVICES",
    ),
    802: (
        "CUDA_ERROR_SYSTEM_NOT_READY: the devices are not ready",
        "ask the administrator to start nvidia-fabricmanager on this node",
    ),
    803: (
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: library and kernel module are from different driver versions",
        "ask the administrator to reboot this node after the driver update; `nvidia-smi` reports the same",
    ),
    804: (
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE: this device does not support forward compatibility",
        "remove the compat folder from LD_LIBRARY_PATH",
    ),
    999: ("CUDA_ERROR_UNKNOWN", "see `nvidia-smi` and `dmesg` on this node; loading nvidia-uvm often fixes it"),
}


@dataclass(frozen=True)
class Torch:
    """The installed torch: its version, and the CUDA or ROCm that it was built with (None: without)."""

    version: str
    cuda: str | None
    hip: str | None = None


@dataclass(frozen=True)
class Machine:
    """The input of the check.

    Attributes:
        torch: None if not installed.
        ask: queries the driver; called only if the answer matters.
        arguments: what the user typed after `hpcai500`, for the suggested command.
    """

    torch: Torch | None
    traces: Traces
    ask: Callable[[], Driver]
    container: Container | None = None
    arguments: Sequence[str] = ()

    def line(self, *options: str) -> str:
        """The command that starts this again in its container, with more `options`."""
        return (
            self.container.line(options, self.arguments) if self.container else "apptainer run … (not in a container)"
        )


def accelerator_check(device: str | None, machine: Machine) -> Check:
    """Whether `device`, the recipe's accelerator.device, is usable; None: no recipe is given."""
    if device == "cpu":
        return _for_cpu(machine)
    if device is None and not machine.traces.any:
        return Check(NAME, "pass", "no NVIDIA device on this host: recipes with accelerator.device=cpu run")
    # Without a recipe this is only a warning: the device may not be needed.
    status: Status = "fail" if device else "warn"
    context = "accelerator.device is cuda, but " if device else ""
    problem = _torch_problem(machine) or _missing(machine)
    if problem is None:
        driver = machine.ask()
        if driver.silent:
            # Many devices without the persistence daemon may just be slow: do not refuse the run.
            return Check(
                NAME,
                "warn",
                f"the NVIDIA driver {(driver.reason or '').removeprefix('it ')}: each rank will try again",
                "see `nvidia-smi` on this host; nvidia-persistenced keeps the driver ready",
            )
        problem = _driver_problem(driver, machine)
        if problem is None:
            assert machine.torch is not None
            devices = f"{driver.devices} device{'s' if driver.devices != 1 else ''}"
            return Check(
                NAME, "pass", f"{devices}, driver for CUDA {driver.cuda}, torch built for CUDA {machine.torch.cuda}"
            )
    detail, fix = problem
    return Check(NAME, status, f"{context}{detail}", f"{fix}, or run on the CPU: {_ON_CPU}" if device else fix)


Problem = tuple[str, str]


def why_not_served(name: str, capability: tuple[int, int], by_torch: Sequence[str], by_us: Sequence[str]) -> str | None:
    """Why the GPU `name` of a compute capability cannot run our code, and the fix; None if it can.

    Args:
        by_torch: architectures that torch has code for, such as `sm_80` and `compute_120`.
        by_us: those of the core's kernels, such as `80-real` and `120`; empty if it is built without CUDA.
    """
    lacking = [what for what, has in (("torch", by_torch), ("hpcai500", by_us)) if has and not _serves(has, capability)]
    if not lacking:
        return None
    mine = f"{capability[0]}.{capability[1]}"
    listed = by_torch if lacking[0] == "torch" else by_us
    fix = f"build {' and '.join(lacking)} for compute capability {mine}"
    if _OLDEST_IN_OLDER_IMAGE <= capability < (7, 5):
        fix = f"use the image {_OLDER_GPU_IMAGE}, or {fix}"
    return (
        f"accelerator.device is cuda, but there is no code of {' and '.join(lacking)} for this GPU ({name}, compute "
        f"capability {mine}; only for {', '.join(listed)}); {fix}, or run on the CPU: {_ON_CPU}"
    )


def _serves(architectures: Sequence[str], capability: tuple[int, int]) -> bool:
    """Whether compiled code for one of them runs: of the same major version, and not newer; or it can be translated."""
    for text in architectures:
        found = re.fullmatch(r"(sm_|compute_)?(\d+)(\d)([af]?)(-real|-virtual)?", text)
        if found is None:
            return True  # a name that we do not know
        major, minor, suffix = int(found[2]), int(found[3]), found[4]
        compiled = found[1] != "compute_" and found[5] != "-virtual"
        # CMake's plain `90` is both compiled and portable code, as is `compute_90`.
        portable = not suffix and (found[1] == "compute_" or found[5] == "-virtual" or not (found[1] or found[5]))
        if (
            compiled
            and major == capability[0]
            and (minor == capability[1] or (minor < capability[1] and suffix != "a"))
        ):
            return True
        if portable and (major, minor) <= capability:
            return True
    return False


def _for_cpu(machine: Machine) -> Check:
    if not machine.traces.any:
        return Check(NAME, "pass", "no NVIDIA device on this host, and the recipe needs none")
    fix = "--set accelerator.device=cuda"
    if machine.torch is not None and machine.torch.cuda is None:
        fix = f"{fix}, with {_cuda_build(machine)}"
    device = machine.traces.words.partition(",")[0]
    detail = f"accelerator.device is cpu, although this host has {device}: this run measures the CPU"
    return Check(NAME, "warn", detail, fix)


def _torch_problem(machine: Machine) -> Problem | None:
    if machine.torch is None:
        return "torch is not installed", "run `make build` in the source tree"
    if machine.torch.hip is not None:
        return (
            f"torch {machine.torch.version} is built for AMD devices (ROCm {machine.torch.hip}), which this version "
            "does not support",
            f"use {_cuda_build(machine)} on a host with an NVIDIA device",
        )
    if machine.torch.cuda is None:
        return f"torch {machine.torch.version} is built without CUDA", f"use {_cuda_build(machine)}"
    return None


def _cuda_build(machine: Machine) -> str:
    if machine.container and machine.container.description:
        return f"the image {_GPU_IMAGE} with --nv instead of {machine.container.description.get('name', _CPU_IMAGE)}"
    return "a CUDA build of torch"


def _missing(machine: Machine) -> Problem | None:
    """The problem if this host has no device, found without querying the driver if possible."""
    # On WSL the driver's library may exist without any other sign of a device.
    if machine.traces.any or machine.ask().loaded:
        return None
    inside = " (or none that is visible in this container)" if machine.container else ""
    return f"this host has no NVIDIA device{inside}", "run it on a node that has one"


def _driver_problem(driver: Driver, machine: Machine) -> Problem | None:
    if not driver.loaded:
        if machine.container:
            return (
                f"the container was started without the driver: it has {machine.traces.words}, but no libcuda.so.1",
                machine.line("--nv"),
            )
        return (
            f"the driver's library cannot be loaded ({driver.reason}), although this host has {machine.traces.words}",
            "install the driver's user-space libraries on this host, or add their folder to LD_LIBRARY_PATH",
        )
    if driver.reason is not None:
        return f"the NVIDIA driver does not work: {driver.reason}", "see `nvidia-smi` and `dmesg` on this host"
    if old := _too_old(driver, machine):
        return old
    if driver.code or not driver.devices:
        what, fix = _CODES.get(
            driver.code or 100, (f"error {driver.code} of cuInit (CUresult in cuda.h)", "see `dmesg`")
        )
        return f"the NVIDIA driver offers no device: {what}", fix
    return None


def _too_old(driver: Driver, machine: Machine) -> Problem | None:
    """The problem if the driver is too old: it runs code for its own major version of CUDA, and for older ones."""
    # `_torch_problem` has checked both.
    assert machine.torch is not None
    assert machine.torch.cuda is not None
    if driver.version is None:
        return None
    built = machine.torch.cuda
    major = int(built.partition(".")[0])
    if driver.version // 1000 >= major:
        return None
    module = f" {machine.traces.kernel_module}" if machine.traces.kernel_module else ""
    branch = _OLDEST_BRANCH.get(major)
    described = machine.container and machine.container.description
    other = (
        f"the image {_OLDER_GPU_IMAGE}"
        if described and driver.version // 1000 == 12
        else f"a build of torch for CUDA {driver.version // 1000}"
    )
    return (
        f"the NVIDIA driver{module} is for CUDA {driver.cuda}, too old for torch {machine.torch.version}, built "
        f"for CUDA {built}",
        (f"install driver {branch} or later" if branch else f"install a driver for CUDA {major}") + f", or use {other}",
    )
