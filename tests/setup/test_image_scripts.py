"""What the scripts say that build an image: that a long step lives, and which licences Debian's packages have."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

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


def test_a_short_step_is_silent_and_its_exit_code_stays(tmp_path: Path) -> None:
    ended = alive('alive "$1" image bash -c "echo broken; exit 7"', tmp_path / "log", HPCAI500_ALIVE_SECONDS="60")
    assert (ended.returncode, ended.stderr) == (7, "")
    assert (tmp_path / "log").read_text() == "broken\n"


def test_a_step_sees_the_variables_of_its_script(tmp_path: Path) -> None:
    names = ("log", "what", "beat", "status", "options")
    step = f"step() {{ echo {' '.join(f'${name}' for name in names)}; }}"
    alive(f'{"; ".join(f"{name}=my-{name}" for name in names)}; {step}; alive "$1" image step', tmp_path / "log")
    assert (tmp_path / "log").read_text().split() == [f"my-{name}" for name in names]
