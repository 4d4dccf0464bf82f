"""scripts/horovod: a kept wheel is taken, one that no longer loads is built anew, a failed build says why."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "horovod"
# Plays the environment's Python: torch's version, pip, and whether `import horovod.torch` works after an installation.
PYTHON = """\
#!/bin/sh
case "$*" in
*torch.__version__*) echo "$TORCH" ;;
*sys.version_info*) echo cp311-x86_64 ;;
*"import horovod.torch"*) [ "$(cat "$STATE/installed" 2>/dev/null)" = good ] || { echo "undefined symbol"; exit 1; } ;;
*"pip install"*) for last; do :; done; echo install >>"$STATE/calls"; cat "$last" >"$STATE/installed" ;;
*"pip download"*) echo download >>"$STATE/calls"; echo "CMake Error at a.txt:7: no compiler"; echo advice; exit 1 ;;
esac
"""


@dataclass
class Machine:
    """An environment whose Python is a script, with a cache of its own."""

    folder: Path

    def run(self, torch: str = "2.13.0", **variables: str) -> subprocess.CompletedProcess[str]:
        inherited = {
            key: value for key, value in os.environ.items() if not key.startswith(("HOROVOD_", "CXX", "CFLAGS"))
        }
        own = {"XDG_CACHE_HOME": str(self.folder / "cache"), "STATE": str(self.folder), "TORCH": torch}
        environment = {**inherited, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", **own, **variables}
        command = [SCRIPT, self.folder / "an environment"]
        return subprocess.run(command, env=environment, text=True, capture_output=True, check=False)

    def keep(self, content: str, torch: str = "2.13.0", mpi: str = "mpicxx-Open-MPI-4.1.4") -> Path:
        """A wheel of an earlier build; `content` is `good` if it loads."""
        release = platform.freedesktop_os_release()
        tag = f"cp311-x86_64-{release['ID']}{release.get('VERSION_ID', '')}"
        key = self.folder / "cache" / "hpcai500" / "wheels" / "horovod-0.28.1" / f"torch-{torch}" / tag / mpi
        key.mkdir(parents=True, exist_ok=True)
        (key / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl").write_text(content, encoding="utf-8")
        return key

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    for name, text in {
        "an environment/bin/python": PYTHON,
        "bin/mpicxx": "#!/bin/sh\necho 'mpicxx: Open MPI 4.1.4'\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    return Machine(tmp_path)


def test_a_kept_wheel_is_installed_without_a_word(machine: Machine) -> None:
    machine.keep("good")
    result = machine.run()
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert machine.calls == ["install"]


def test_a_wheel_for_another_torch_or_another_mpi_is_not_taken(machine: Machine) -> None:
    machine.keep("good", torch="2.12.0")
    machine.keep("good", mpi="no-mpi")
    assert machine.run().returncode == 69
    assert machine.calls == ["download"]


def test_a_build_with_other_options_has_a_wheel_of_its_own(machine: Machine) -> None:
    machine.keep("good")
    assert machine.run(HOROVOD_GPU_OPERATIONS="NCCL").returncode == 69
    assert machine.calls == ["download"]


def test_a_kept_wheel_that_no_longer_loads_is_built_anew(machine: Machine) -> None:
    machine.keep("for libraries that were replaced")
    machine.run()
    assert machine.calls == ["install", "download"]


def test_a_failed_build_shows_the_first_error_and_where_the_rest_is(machine: Machine) -> None:
    result = machine.run()
    assert result.returncode == 69
    said, error, advice, last = result.stderr.splitlines()
    log = machine.keep("") / "build.log"
    assert said.startswith("hpcai500: building Horovod 0.28.1 for torch 2.13.0, with mpicxx: Open MPI 4.1.4: once, ")
    assert said.endswith(f"log: {log}")
    assert (error, advice) == ("CMake Error at a.txt:7: no compiler", "advice")
    assert last.startswith("hpcai500: Horovod could not be built: the first error is above")
    assert str(log) in last
    assert "--set communication.backend=torch" in last
    assert "CMake Error" in log.read_text(encoding="utf-8")
