"""scripts/bootstrap on machines that lack something, played by a PATH that holds only what each machine has."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BOOTSTRAP = Path(__file__).resolve().parents[2] / "scripts" / "bootstrap"
TOOLS = ["bash", "cat", "env", "mktemp", "rm", "make"]
NOT_ROOT = "#!/bin/sh\necho 1000\n"
ROOT_USER = "#!/bin/sh\necho 0\n"
OLD_PYTHON = "#!/bin/sh\necho 3.9\n"


class Machine:
    """A PATH of its own: real tools by link, invented ones by script."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        for tool in TOOLS:
            self.link(tool)
        self.script("id", NOT_ROOT)
        (folder / "python3").symlink_to(sys.executable)

    def link(self, tool: str) -> None:
        found = shutil.which(tool)
        assert found, f"this test needs {tool}"
        (self.path / tool).symlink_to(found)

    def script(self, name: str, text: str) -> None:
        (self.path / name).unlink(missing_ok=True)
        (self.path / name).write_text(text, encoding="utf-8")
        (self.path / name).chmod(0o755)

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in os.environ.items() if key not in {"PYTHON", "CXX"}}
        environment = {**kept, "PATH": str(self.path), **variables}
        return subprocess.run([BOOTSTRAP, *words], env=environment, text=True, capture_output=True, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def with_compiler(machine: Machine) -> None:
    for name in ("c++", "as", "ld"):
        machine.link(name)


def test_this_machine_has_all() -> None:
    result = subprocess.run([BOOTSTRAP, "--check"], text=True, capture_output=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "are here" in result.stdout


def test_says_nothing_when_nothing_is_to_do(machine: Machine) -> None:
    with_compiler(machine)
    result = machine.run()
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("manager", "line"),
    [
        ("apt-get", "run: sudo apt-get install -y g++ libjpeg-dev libdeflate-dev"),
        ("dnf", "run: sudo dnf install -y gcc-c++ libjpeg-turbo-devel libdeflate-devel"),
        ("zypper", "run: sudo zypper install -y gcc13-c++ libjpeg8-devel libdeflate-devel"),
    ],
)
def test_user_gets_the_line_to_run(machine: Machine, manager: str, line: str) -> None:
    machine.script(manager, "#!/bin/sh\nexit 99\n")
    result = machine.run()
    assert result.returncode == 69
    assert result.stderr.splitlines()[-1] == f"bootstrap: {line}"
    assert sum("missing:" in text for text in result.stderr.splitlines()) == 3


def test_without_a_package_manager_it_names_the_things(machine: Machine) -> None:
    result = machine.run()
    assert result.returncode == 69
    assert "install compiler jpeg libdeflate with this system's package manager" in result.stderr


def test_check_never_installs(machine: Machine) -> None:
    machine.script("id", ROOT_USER)
    machine.script("apt-get", "#!/bin/sh\necho installed >&2\n")
    result = machine.run("--check")
    assert result.returncode == 69
    assert "installed" not in result.stderr


def test_root_on_debian_says_what_and_why_then_installs(machine: Machine) -> None:
    machine.script("id", ROOT_USER)
    links = " ".join(f"{shutil.which(name)}" for name in ("c++", "as", "ld"))
    # As on a machine whose package lists were never fetched: the first install fails, update heals it.
    machine.script(
        "apt-get",
        f'#!/bin/sh\necho "apt-get $*" >&2\ncase $1 in\n'
        f"update) touch {machine.path}/lists ;;\n"
        f"install) [ -e {machine.path}/lists ] && {shutil.which('ln')} -s {links} {machine.path}/ ;;\nesac\n",
    )
    machine.link("touch")
    result = machine.run()
    assert result.returncode == 0, result.stderr
    lines = result.stderr.splitlines()
    assert lines[0].startswith("bootstrap: missing: g++ - a C++20 compiler")
    assert lines[1].startswith("bootstrap: missing: libjpeg-dev - libjpeg-turbo")
    assert lines[2].startswith("bootstrap: missing: libdeflate-dev - libdeflate")
    assert lines[3] == "bootstrap: installing with apt-get: g++ libjpeg-dev libdeflate-dev"
    assert (machine.path / "lists").exists(), "a machine without package lists must have been helped to some"
    assert machine.run().stderr == ""


def test_failed_apt_is_one_clear_line(machine: Machine) -> None:
    machine.script("id", ROOT_USER)
    machine.script("apt-get", "#!/bin/sh\necho no network\nexit 100\n")
    result = machine.run()
    assert result.returncode == 69
    assert result.stderr.splitlines()[-2] == "no network"
    assert "apt-get could not install g++ libjpeg-dev libdeflate-dev" in result.stderr.splitlines()[-1]


def test_old_python_is_one_line_with_the_one_that_is_here(machine: Machine) -> None:
    (machine.path / "python3").unlink()
    machine.script("python3", OLD_PYTHON)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    (machine.path / f"python{version}").symlink_to(sys.executable)
    result = machine.run()
    assert result.returncode == 69
    [line] = result.stderr.splitlines()
    assert line.startswith("bootstrap: python3 is Python 3.9, and 3.11 to 3.13 work; run the same with PYTHON=python3.")


def test_old_python_alone_is_one_line_too(machine: Machine) -> None:
    machine.script("python3", OLD_PYTHON)
    result = machine.run(PYTHON="python3")
    assert result.returncode == 69
    assert "install one of them" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_missing_python_is_installable(machine: Machine) -> None:
    (machine.path / "python3").unlink()
    machine.script("apt-get", "#!/bin/sh\n")
    with_compiler(machine)
    result = machine.run()
    assert result.returncode == 69
    assert result.stderr.splitlines()[-1] == "bootstrap: run: sudo apt-get install -y python3 python3-venv python3-dev"


def test_compiler_without_cpp20_is_refused(machine: Machine) -> None:
    machine.script("old-c++", "#!/bin/sh\nexit 1\n")
    machine.script("apt-get", "#!/bin/sh\n")
    result = machine.run(CXX="old-c++")
    assert result.returncode == 69
    assert "old-c++ is older than g++ 11" in result.stderr


@pytest.mark.parametrize(
    ("manager", "line"),
    [
        (
            "apt-get",
            "run: sudo apt-get install -y openmpi-bin libopenmpi-dev openssh-client iproute2 slurmctld "
            "slurmd slurm-client munge slurmdbd mariadb-server chromium jube",
        ),
        (
            "dnf",
            "run: sudo dnf install -y openmpi openmpi-devel openssh iproute-tc slurm-slurmctld slurm-slurmd "
            "slurm munge slurm-slurmdbd mariadb-server chromium",
        ),
        (
            "zypper",
            "run: sudo zypper install -y openmpi4 openmpi4-devel openssh-clients iproute2 slurm slurm-node slurm munge "
            "slurm-slurmdbd mariadb chromium",
        ),
    ],
)
def test_what_only_some_targets_need_is_asked_for_by_name(machine: Machine, manager: str, line: str) -> None:
    with_compiler(machine)
    machine.script(manager, "#!/bin/sh\nexit 99\n")
    assert machine.run().returncode == 0, "without --with nobody needs MPI"
    result = machine.run("--with", "mpi", "--with", "signing", "--with", "site")
    assert result.returncode == 69
    assert result.stderr.splitlines()[-1] == f"bootstrap: {line}"


def test_what_is_here_is_not_asked_for(machine: Machine) -> None:
    with_compiler(machine)
    for tool in (
        "mpirun",
        "mpicxx",
        "ip",
        "tc",
        "slurmctld",
        "slurmd",
        "srun",
        "sinfo",
        "munged",
        "chromium",
        "ssh-keygen",
    ):
        machine.script(tool, "#!/bin/sh\n")
    for tool in ("slurmdbd", "mariadbd", "mariadb-install-db"):
        machine.script(tool, "#!/bin/sh\n")
    result = machine.run("--check", "--with", "mpi", "--with", "signing", "--with", "site")
    assert result.returncode == 0, result.stderr
    assert "libdeflate and mpi and signing and site are here" in result.stdout


def test_unknown_extra_is_usage(machine: Machine) -> None:
    for words in (["--with", "mpii"], ["--with"]):
        result = machine.run(*words)
        assert result.returncode == 64
        assert "--with takes image, mpi, signing or site" in result.stderr


def test_unknown_argument_is_usage(machine: Machine) -> None:
    result = machine.run("--chek")
    assert result.returncode == 64
    assert "--check" in result.stderr


@pytest.mark.parametrize(
    ("manager", "line"),
    [
        ("apt-get", "mmdebstrap squashfs-tools squashfuse uidmap openssl"),
        ("dnf", "mmdebstrap squashfs-tools squashfuse shadow-utils openssl"),
        ("zypper", "mmdebstrap squashfs-tools squashfuse shadow openssl"),
    ],
)
def test_what_an_image_is_built_with_is_asked_for_by_name(machine: Machine, manager: str, line: str) -> None:
    with_compiler(machine)
    # On Debian, Apptainer is fetched and fitted into a folder; elsewhere it is a package.
    on_debian = platform.freedesktop_os_release()["ID"] == "debian"
    keys = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    package = "debian-archive-keyring" if manager == "apt-get" else "debian-keyring"
    line += ("" if keys.exists() else f" {package}") + (" patchelf" if on_debian else " apptainer")
    machine.script(manager, "#!/bin/sh\nexit 99\n")
    result = machine.run("--with", "image")
    assert result.returncode == 69
    assert result.stderr.splitlines()[-1] == f"bootstrap: run: sudo {manager} install -y {line}"
