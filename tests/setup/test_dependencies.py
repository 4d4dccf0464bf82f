"""Each dependency has a reason and a pin, and no committed file names a package registry's host."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
DOCUMENT = tomllib.loads(PYPROJECT)
GROUPS = {"runtime": DOCUMENT["project"]["dependencies"], **DOCUMENT["project"]["optional-dependencies"]}
REQUIREMENTS = [line for group in GROUPS.values() for line in group]
BUILD = DOCUMENT["build-system"]["requires"]


def pins() -> dict[str, str]:
    """Version by canonical name, from constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.mark.parametrize("line", [*REQUIREMENTS, *BUILD])
def test_pin_is_within_the_range(line: str) -> None:
    requirement = Requirement(line)
    version = pins().get(canonicalize_name(requirement.name))
    assert version is not None, f"constraints.txt has no pin for {requirement.name}: run `make lock`"
    assert requirement.specifier.contains(version), f"{requirement} excludes its pin {version}: run `make lock`"


@pytest.mark.parametrize("line", REQUIREMENTS)
def test_dependency_has_its_reason(line: str) -> None:
    assert re.search(rf'"{re.escape(line)}",[ \t]*# \S', PYPROJECT), f"pyproject.toml: say beside {line} what it is for"


def test_torch_is_pinned_without_a_build() -> None:
    assert "+" not in pins()["torch"]


def test_scripts_requirements_prints_the_groups() -> None:
    command = [sys.executable, ROOT / "scripts" / "requirements"]
    both = subprocess.run([*command, "build", "test"], check=True, text=True, capture_output=True).stdout.splitlines()
    assert both == [*BUILD, "cmake", "ninja", *GROUPS["test"]]
    refused = subprocess.run([*command, "tset"], check=False, text=True, capture_output=True)
    assert refused.returncode != 0
    assert "no group 'tset'" in refused.stderr


def registry_hosts() -> set[str]:
    """Hosts of the registries that this machine uses, asked of the tools, so that this file names none itself."""
    from pip._internal.models.index import PyPI

    texts = [f"{PyPI.url} https://{PyPI.file_storage_domain}"]
    pip = [sys.executable, "-m", "pip", "config", "list"]
    texts.append(subprocess.run(pip, check=True, text=True, capture_output=True).stdout)
    apt = Path("/etc/apt")
    lists = [apt / "sources.list", *(apt / "sources.list.d").glob("*")]
    texts.extend(path.read_text(encoding="utf-8") for path in lists if path.is_file())
    urls = re.findall(r"https?://[^\s'\"]+", "\n".join(texts))
    return {host for url in urls if (host := urlsplit(url).hostname)}


def test_no_committed_file_names_a_registry() -> None:
    hosts = registry_hosts()
    assert hosts
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    paths = [ROOT / name for name in listed.decode().split("\0") if name]
    found = {
        f"{path.relative_to(ROOT)}: {host}"
        for path in paths
        if path.is_file()
        for host in hosts
        if host.encode() in path.read_bytes()
    }
    assert not found, "leave the registry to each tool's own settings: " + ", ".join(sorted(found))


def test_importing_without_the_built_core_says_how_to_build_it() -> None:
    # -S: without site-packages there is the source tree alone, as in a fresh clone.
    code = "import sys; sys.path.insert(0, sys.argv[1]); import hpcai500"
    ended = subprocess.run([sys.executable, "-S", "-c", code, str(ROOT)], capture_output=True, text=True, check=False)
    last = ended.stderr.splitlines()[-1]
    assert ended.returncode == 1
    assert last.startswith("ImportError: hpcai500's C++ core is not built or cannot be loaded")
    assert "run `make build` in the source tree, or `pip install .`" in last


def test_the_wheel_carries_core_recipes_and_editions(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-build-isolation", "--no-deps", "-w", str(tmp_path)]
    subprocess.run([*command, str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("hpcai500-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert any(re.fullmatch(r"hpcai500/_core\..*\.so", name) for name in names)
    assert {"hpcai500/recipes/ic/reference.toml", "hpcai500/editions/v2.0.toml", "hpcai500/docs/methodology.md"} <= set(
        names
    )
