"""scripts/ on machines that lack something, played by a PATH that holds only what each machine has."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
TOOLS = ["bash", "cat", "env", "mktemp", "rm", "make"]
COMPILER = ["c++", "as", "ld"]
ROOT_USER = "#!/bin/sh\necho 0\n"
OLD_PYTHON = "#!/bin/sh\necho 3.9\n"


class Machine:
    """A PATH of its own: real tools by link, invented ones by script."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.link(*TOOLS)
        self.script("id", "#!/bin/sh\necho 1000\n")
        (folder / "python3").symlink_to(sys.executable)

    def link(self, *tools: str) -> None:
        for tool in tools:
            found = shutil.which(tool)
            assert found, f"this test needs {tool}"
            (self.path / tool).symlink_to(found)

    def script(self, name: str, text: str = "#!/bin/sh\n") -> None:
        (self.path / name).unlink(missing_ok=True)
        (self.path / name).write_text(text, encoding="utf-8")
        (self.path / name).chmod(0o755)

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """scripts/bootstrap on this machine."""
        kept = {key: value for key, value in os.environ.items() if key not in {"PYTHON", "CXX"}}
        environment = {**kept, "PATH": str(self.path), **variables}
        return subprocess.run(
            [SCRIPTS / "bootstrap", *words], env=environment, text=True, capture_output=True, check=False
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_this_machine_has_all() -> None:
    result = subprocess.run([SCRIPTS / "bootstrap", "--check"], text=True, capture_output=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "are here" in result.stdout


def for_images(manager: str, tools: str) -> str:
    """What an image is built with. On Debian, Apptainer is fetched and fitted into a folder; elsewhere a package."""
    on_debian = platform.freedesktop_os_release()["ID"] == "debian"
    keys = "debian-archive-keyring" if manager == "apt-get" else "debian-keyring"
    has_keys = Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists()
    return tools + ("" if has_keys else f" {keys}") + (" patchelf" if on_debian else " apptainer")


SITE = ("mpi", "signing", "site")


@pytest.mark.parametrize(
    ("extras", "manager", "packages"),
    [
        ((), "apt-get", "g++ libjpeg-dev libdeflate-dev"),
        ((), "dnf", "gcc-c++ libjpeg-turbo-devel libdeflate-devel"),
        ((), "zypper", "gcc13-c++ libjpeg8-devel libdeflate-devel"),
        (
            SITE,
            "apt-get",
            "openmpi-bin libopenmpi-dev openssh-client iproute2 slurmctld slurmd slurm-client munge slurmdbd "
            "mariadb-server chromium jube",
        ),
        (
            SITE,
            "dnf",
            "openmpi openmpi-devel openssh iproute-tc slurm-slurmctld slurm-slurmd slurm munge slurm-slurmdbd "
            "mariadb-server chromium",
        ),
        (
            SITE,
            "zypper",
            "openmpi4 openmpi4-devel openssh-clients iproute2 slurm slurm-node slurm munge slurm-slurmdbd mariadb "
            "chromium",
        ),
        (("image",), "apt-get", for_images("apt-get", "mmdebstrap squashfs-tools squashfuse uidmap openssl")),
        (("image",), "dnf", for_images("dnf", "mmdebstrap squashfs-tools squashfuse shadow-utils openssl")),
        (("image",), "zypper", for_images("zypper", "mmdebstrap squashfs-tools squashfuse shadow openssl")),
    ],
)
def test_a_user_gets_the_line_to_run(machine: Machine, extras: tuple[str, ...], manager: str, packages: str) -> None:
    machine.script(manager, "#!/bin/sh\nexit 99\n")
    if extras:
        machine.link(*COMPILER)
        silent = machine.run()
        assert (silent.returncode, silent.stdout, silent.stderr) == (0, "", ""), "what only some targets need"
    result = machine.run(*(word for extra in extras for word in ("--with", extra)))
    assert result.returncode == 69
    assert result.stderr.splitlines()[-1] == f"bootstrap: run: sudo {manager} install -y {packages}"
    assert extras or sum("missing:" in text for text in result.stderr.splitlines()) == 3


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
    machine.script("python3", OLD_PYTHON)
    alone = machine.run(PYTHON="python3")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    (machine.path / f"python{version}").symlink_to(sys.executable)
    beside = machine.run()
    assert (alone.returncode, beside.returncode) == (69, 69)
    (line,) = alone.stderr.splitlines()
    assert "install one of them" in line
    (line,) = beside.stderr.splitlines()
    assert line.startswith(
        "bootstrap: python3 is Python 3.9; 3.11 to 3.13 are supported: run this again with PYTHON=python3."
    )


def test_missing_python_is_installable(machine: Machine) -> None:
    (machine.path / "python3").unlink()
    machine.script("apt-get")
    machine.link(*COMPILER)
    result = machine.run()
    assert result.returncode == 69
    assert result.stderr.splitlines()[-1] == "bootstrap: run: sudo apt-get install -y python3 python3-venv python3-dev"


def test_compiler_without_cpp20_is_refused(machine: Machine) -> None:
    machine.script("old-c++", "#!/bin/sh\nexit 1\n")
    machine.script("apt-get")
    result = machine.run(CXX="old-c++")
    assert result.returncode == 69
    assert "old-c++ is older than g++ 11" in result.stderr


def test_what_is_here_is_not_asked_for(machine: Machine) -> None:
    machine.link(*COMPILER)
    of_a_site = "mpirun mpicxx ip tc slurmctld slurmd srun sinfo munged chromium ssh-keygen"
    for tool in (*of_a_site.split(), "slurmdbd", "mariadbd", "mariadb-install-db"):
        machine.script(tool)
    result = machine.run("--check", "--with", "mpi", "--with", "signing", "--with", "site")
    assert result.returncode == 0, result.stderr
    assert "libdeflate and mpi and signing and site are here" in result.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--with", "mpii"], "--with takes cross, image, metrics, mpi, signing or site"),
        (["--with"], "--with takes cross, image, metrics, mpi, signing or site"),
        (["--chek"], "--check"),
    ],
)
def test_an_unknown_word_is_told_with_those_that_are_known(machine: Machine, words: list[str], said: str) -> None:
    result = machine.run(*words)
    assert result.returncode == 64
    assert said in result.stderr


# ----------------------------------------------------------------------------------------------------
# scripts/horovod: a kept wheel is taken, one that no longer loads is built anew, a failed build says why.


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
class Environment:
    """An environment whose Python is a script, with a cache of its own."""

    folder: Path

    def run(self, torch: str = "2.13.0", **variables: str) -> subprocess.CompletedProcess[str]:
        inherited = {
            key: value for key, value in os.environ.items() if not key.startswith(("HOROVOD_", "CXX", "CFLAGS"))
        }
        own = {"XDG_CACHE_HOME": str(self.folder / "cache"), "STATE": str(self.folder), "TORCH": torch}
        variables = {**inherited, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", **own, **variables}
        command = [SCRIPTS / "horovod", self.folder / "an environment"]
        return subprocess.run(command, env=variables, text=True, capture_output=True, check=False)

    def keep(self, content: str, torch: str = "2.13.0", mpi: str = "mpicxx-Open-MPI-4.1.4") -> Path:
        """A wheel of an earlier build; `content` is `good` if it loads."""
        release = platform.freedesktop_os_release()
        tag = f"cp311-x86_64-{release['ID']}{release.get('VERSION_ID', '')}"
        key = self.folder / "cache" / "hpcai500" / "wheels" / "horovod-0.28.1-stripped" / f"torch-{torch}" / tag / mpi
        key.mkdir(parents=True, exist_ok=True)
        (key / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl").write_text(content, encoding="utf-8")
        return key

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    for name, text in {
        "an environment/bin/python": PYTHON,
        "bin/mpicxx": "#!/bin/sh\necho 'mpicxx: Open MPI 4.1.4'\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    return Environment(tmp_path)


def test_a_kept_wheel_is_installed_without_a_word(environment: Environment) -> None:
    environment.keep("good")
    result = environment.run()
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert environment.calls == ["install"]


def test_a_kept_wheel_that_no_longer_loads_is_built_anew(environment: Environment) -> None:
    environment.keep("for libraries that were replaced")
    environment.run()
    assert environment.calls == ["install", "download"]


def test_a_failed_build_shows_the_first_error_and_where_the_rest_is(environment: Environment) -> None:
    result = environment.run()
    assert result.returncode == 69
    said, error, advice, last = result.stderr.splitlines()
    log = environment.keep("") / "build.log"
    assert said.startswith("hpcai500: building Horovod 0.28.1 for torch 2.13.0, with mpicxx: Open MPI 4.1.4: once, ")
    assert said.endswith(f"log: {log}")
    assert (error, advice) == ("CMake Error at a.txt:7: no compiler", "advice")
    assert last.startswith("hpcai500: cannot build Horovod: the first error is above")
    assert str(log) in last
    assert "--set communication.backend=torch" in last
    assert "CMake Error" in log.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("kept", "variables"),
    [({"torch": "2.12.0"}, {}), ({"mpi": "no-mpi"}, {}), ({}, {"HOROVOD_GPU_OPERATIONS": "NCCL"})],
    ids=["another torch", "another MPI", "other options"],
)
def test_a_wheel_for_something_else_is_not_taken(
    environment: Environment, kept: dict[str, str], variables: dict[str, str]
) -> None:
    environment.keep("good", **kept)
    assert environment.run(**variables).returncode == 69
    assert environment.calls == ["download"]


# ----------------------------------------------------------------------------------------------------
# What builds an image: a long step is seen to live, and Debian's packages have the licences of their files.


ROOT = Path(__file__).resolve().parents[2]
COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: x

Files: *
Copyright: 1995 A
License: GPL-2+ or Artistic

Files: b.c
 c.c
Copyright: 1996 B
License: Expat
 Permission is hereby granted

Files: debian/*
Copyright: 1997 C
License: GPL-3+

Files: d.c
Copyright: 1998 D
License: GPL-2 with A-special exception

License: Artistic
 On Debian systems …
"""


@pytest.fixture(scope="module")
def packages() -> ModuleType:
    loader = SourceFileLoader("debian_packages", str(ROOT / "containers" / "debian-packages"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_licences_are_those_of_the_files_in_spdx_names(packages: ModuleType) -> None:
    assert packages.licences(COPYRIGHT) == [
        "GPL-2 with A-special exception",
        "GPL-2.0-or-later OR Artistic",
        "MIT",
    ]


@pytest.mark.parametrize("text", ["", "This is free software.\nLicense: GPL-2\n", "Files: *\nLicense: GPL-2\n"])
def test_of_free_text_no_licence_is_guessed(packages: ModuleType, text: str) -> None:
    assert packages.licences(text) == []


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("LGPL-2.1", "LGPL-2.1-only"),
        ("GFDL-1.3+", "GFDL-1.3-or-later"),
        ("BSD-3-clause", "BSD-3-Clause"),
        ("Zlib and Expat", "Zlib AND MIT"),
        ("permissive", "permissive"),
    ],
)
def test_names_of_debian_become_those_of_spdx(packages: ModuleType, stated: str, expected: str) -> None:
    assert packages.expression(stated) == expected


def alive(command: str, log: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    script = f'set -euo pipefail; . scripts/alive; {command}; echo "ended with $?" >&2'
    words = ["bash", "-c", script, "test", str(log)]
    environment = {"PATH": "/usr/bin:/bin", "HPCAI500_ALIVE_SECONDS": "0.1", **variables}
    return subprocess.run(words, cwd=ROOT, env=environment, text=True, capture_output=True, check=False)


def test_a_long_step_says_how_long_it_runs_and_what_it_does(tmp_path: Path) -> None:
    log = tmp_path / "log"
    (tmp_path / "said").touch()
    # The step ends when it has seen that somebody was told of it.
    ended = alive(
        "step() { echo unpacking; echo linking; for ((i = 0; i < 600; i++)); do "
        "! grep -q linking said || return 0; sleep 0.05; done; }; "
        f'cd {tmp_path}; alive "$1" image step 2> >(tee said >&2)',
        log,
    )
    assert log.read_text() == "unpacking\nlinking\n"
    assert re.search(r"^hpcai500: image: \d+ s; linking$", ended.stderr, re.MULTILINE)
    assert ended.returncode == 0


def test_a_line_that_stays_the_same_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "said").touch()
    ended = alive(
        "until_said() { for ((i = 0; i < 600; i++)); do ! grep -q $1 said || return 0; sleep 0.05; done; }; "
        "step() { echo resolving; until_said resolving; sleep 1; echo linking; until_said linking; }; "
        f'cd {tmp_path}; alive "$1" image step 2> >(tee said >&2)',
        tmp_path / "log",
    )
    assert [line.rpartition("; ")[2] for line in ended.stderr.splitlines() if "resolving" in line] == ["resolving"]
    assert ended.returncode == 0


def test_a_short_step_is_silent_and_its_exit_code_stays(tmp_path: Path) -> None:
    ended = alive('alive "$1" image bash -c "echo broken; exit 7"', tmp_path / "log", HPCAI500_ALIVE_SECONDS="60")
    assert (ended.returncode, ended.stderr) == (7, "")
    assert (tmp_path / "log").read_text() == "broken\n"


def test_a_step_sees_the_variables_of_its_script(tmp_path: Path) -> None:
    names = ("log", "what", "beat", "status", "options")
    step = f"step() {{ echo {' '.join(f'${name}' for name in names)}; }}"
    alive(f'{"; ".join(f"{name}=my-{name}" for name in names)}; {step}; alive "$1" image step', tmp_path / "log")
    assert (tmp_path / "log").read_text().split() == [f"my-{name}" for name in names]


# Plays the environment's Python: prints a requirement, or installs it until $SAID reports it, with the exit code $CODE.
INSTALLER = """#!/bin/bash
case "$*" in
"scripts/requirements runtime") echo "torch>=2" ;;
*"pip install"*)
    cat "${@: -1}"
    echo "Downloading torch"
    for ((i = 0; i < 600; i++)); do ! grep -q Downl "$SAID" || exit "$CODE"; sleep 0.05; done ;;
esac
"""


@pytest.mark.parametrize("code", [0, 3])
def test_a_long_installation_says_how_long_it_runs_and_why_it_failed(tmp_path: Path, code: int) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text(INSTALLER, encoding="utf-8")
    (tmp_path / "bin" / "python").chmod(0o755)
    said = tmp_path / "said"
    environment = {"PATH": "/usr/bin:/bin", "HPCAI500_ALIVE_SECONDS": "0.1", "SAID": str(said), "CODE": str(code)}
    command = [SCRIPTS / "install", tmp_path, "runtime"]
    with said.open("w") as stderr:
        ended = subprocess.run(command, cwd=ROOT, env=environment, stderr=stderr, check=False)
    text = said.read_text()
    assert ended.returncode == code
    assert text.startswith(f"hpcai500: installing into {tmp_path}: runtime\n")
    assert re.search(r"^hpcai500: installing runtime: \d+ s; Downloading torch$", text, re.MULTILINE)
    failure = "torch>=2\nDownloading torch\nhpcai500: installing runtime failed: pip's message is above\n"
    assert text.endswith(failure) == (code != 0)


@pytest.mark.parametrize(
    ("index", "shown", "reason"),
    [
        ("http://user:secret@127.0.0.1:9/simple", "http://127.0.0.1:9/simple", "Connection refused"),
        ("https://no-such-host.invalid/simple", "https://no-such-host.invalid/simple", "Name or service not known"),
    ],
)
def test_an_index_that_cannot_be_reached_is_named_with_the_reason(
    tmp_path: Path, index: str, shown: str, reason: str
) -> None:
    environment = {"PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "1", "PIP_INDEX_URL": index}
    script = '. scripts/pip; pip_install "$1" "installing pip" "$2" --force-reinstall pip'
    command = ["bash", "-c", script, "bash", tmp_path / "log", sys.executable]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(f"hpcai500: installing pip: no connection to {shown}: {reason}; ")
    assert "secret" not in last
