"""What is installed and shipped: pinned dependencies with reasons, the wheel, builds and Apptainer's definitions."""

from __future__ import annotations

import hashlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hpcai500 import _core

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
def test_a_dependency_has_a_pin_within_its_range_and_a_reason(line: str) -> None:
    requirement = Requirement(line)
    version = pins().get(canonicalize_name(requirement.name))
    assert version is not None, f"constraints.txt has no pin for {requirement.name}: run `make lock`"
    assert requirement.specifier.contains(version), f"{requirement} excludes its pin {version}: run `make lock`"
    reason = re.search(rf'"{re.escape(line)}",[ \t]*# \S', PYPROJECT)
    assert reason or line not in REQUIREMENTS, f"pyproject.toml: say beside {line} what it is for"


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


@pytest.mark.parametrize(
    ("tag", "section", "passes"),
    [("v1.2.0", "1.2.0 - 2026-12-24", True), ("v1.2.0", "Unreleased", False), ("v1.3.0", "1.3.0 - 2026-12-24", False)],
    ids=["as it should be", "without its section", "not the version"],
)
def test_a_tag_is_released_only_as_the_version_with_its_section(
    tmp_path: Path, tag: str, section: str, passes: bool
) -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    (step,) = re.findall(r"- name: The tag is the version.*\n.*\n +run: \|\n((?: {10}.*\n)+)", workflow)
    (tmp_path / "pyproject.toml").write_text('version = "1.2.0"\n', encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text(f"## {section}\n\n## 1.1.0 - 2026-11-24\n", encoding="utf-8")
    environment = {**os.environ, "GITHUB_REF_NAME": tag}
    ended = subprocess.run(["sh", "-e"], input=step, cwd=tmp_path, env=environment, text=True, check=False)
    assert (ended.returncode == 0) == passes


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
    # As in the build of this checkout, so that nothing is compiled again.
    architectures = ";".join(_core.cuda_architectures()) or "75"
    subprocess.run([*command, str(ROOT)], check=True, env={**os.environ, "CUDAARCHS": architectures})
    (wheel,) = tmp_path.glob("hpcai500-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert any(re.fullmatch(r"hpcai500/_core\..*\.so", name) for name in names)
    assert {"hpcai500/recipes/ic/reference.toml", "hpcai500/editions/v2.0.toml", "hpcai500/docs/methodology.md"} <= set(
        names
    )


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("choice", ["ON", "AUTO", "OFF"])
def test_a_build_that_must_have_dali_says_where_it_looked_and_another_does_not_look(
    tmp_path: Path, choice: str
) -> None:
    python, scripts = tmp_path / "bare" / "bin" / "python", Path(sys.executable).parent
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    # CMake's first step, of the core alone, with a Python that has no packages but the standard library's.
    command = [scripts / "cmake", "-S", ROOT, "-B", tmp_path / "build", "-G", "Ninja"]
    command += [f"-DCMAKE_MAKE_PROGRAM={scripts / 'ninja'}", f"-DPython_EXECUTABLE={python}"]
    command += ["-DHPCAI500_PYTHON=OFF", "-DHPCAI500_CUDA=OFF", f"-DHPCAI500_DALI={choice}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode != 0) == (choice == "ON"), ended.stderr
    said = " ".join((ended.stdout + ended.stderr).split())
    expected = f"HPCAI500_DALI=ON, but DALI: none in {python}" if choice == "ON" else "DALI not looked for"
    assert expected in said


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no CUDA compiler")
@pytest.mark.parametrize("choice", ["ON", "AUTO"])
def test_a_cuda_compiler_that_is_too_old_is_not_used_and_named(tmp_path: Path, choice: str) -> None:
    old, scripts = tmp_path / "nvcc", Path(sys.executable).parent
    says = "echo 'Cuda compilation tools, release 11.8, V11.8.89'"
    old.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then {says}; else exec {shutil.which("nvcc")} "$@"; fi\n')
    old.chmod(0o755)
    command = [scripts / "cmake", "-S", ROOT, "-B", tmp_path / "build", "-G", "Ninja"]
    command += [f"-DCMAKE_MAKE_PROGRAM={scripts / 'ninja'}", f"-DCMAKE_CUDA_COMPILER={old}", "-DHPCAI500_PYTHON=OFF"]
    ended = subprocess.run([*command, f"-DHPCAI500_CUDA={choice}"], capture_output=True, text=True, check=False)
    assert (ended.returncode != 0) == (choice == "ON"), ended.stderr
    assert f"{old} is of CUDA 11.8, and 12.0 is the least" in " ".join((ended.stdout + ended.stderr).split())


ROOT = Path(__file__).resolve().parents[2]
CPU, CUDA = (ROOT / "containers" / f"hpcai500-{flavour}.def" for flavour in ("cpu", "cuda"))
SHELL = {"post", "environment", "runscript", "test", "apprun"}
# Of Apptainer's own list, what is allowed here.
SECTIONS = SHELL | {"files", "labels", "help"}


@dataclass
class Stage:
    """One stage of a definition: its header, and its sections by name and argument."""

    header: dict[str, str] = field(default_factory=dict)
    sections: dict[tuple[str, str], str] = field(default_factory=dict)


def parse(path: Path) -> list[Stage]:
    """The stages of a definition; a line `Bootstrap:` begins one, a line `%name argument` a section."""
    stages: list[Stage] = []
    section: tuple[str, str] | None = None
    for line in path.read_text().splitlines():
        if line.startswith("Bootstrap:"):
            stages.append(Stage())
            section = None
        if line.startswith("%"):
            name, _, argument = line[1:].partition(" ")
            section = name, argument
            assert section not in stages[-1].sections, f"{path.name}: {line} twice in one stage"
            stages[-1].sections[section] = ""
        elif section:
            stages[-1].sections[section] += line + "\n"
        elif line.strip() and not line.startswith("#"):
            key, separator, value = line.partition(": ")
            assert separator, f"{path.name}: {line}"
            stages[-1].header[key] = value
    return stages


@pytest.fixture(params=[CPU, CUDA], ids=["cpu", "cuda"])
def definition(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_every_stage_begins_from_a_local_file_and_only_earlier_stages_are_copied_from(definition: Path) -> None:
    seen: list[str] = []
    for stage in parse(definition):
        assert stage.header["Bootstrap"] == "localimage"
        assert stage.header["From"] in ("{{ base }}", "{{ build_base }}")
        sources = [argument.removeprefix("from ") for name, argument in stage.sections if name == "files" and argument]
        assert set(sources) <= set(seen)
        seen.append(stage.header["Stage"])
    assert seen[-1] == "final"


def test_no_folder_is_copied_to_where_a_copy_from_a_stage_has_made_it(definition: Path) -> None:
    """Apptainer copies from stages first, and then would put the folder into the one that is there."""
    for stage in parse(definition):
        made, copied = [], []
        for (name, argument), text in stage.sections.items():
            if name == "files":
                (made if argument else copied).extend(line.split()[-1] for line in text.splitlines() if line.strip())
        assert not [place for place in made for folder in copied if place.startswith(f"{folder}/")]


def test_only_known_sections_with_shell_that_parses(definition: Path) -> None:
    for stage in parse(definition):
        for (name, _), text in stage.sections.items():
            assert name in SECTIONS
            if name in SHELL:
                checked = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
                assert checked.returncode == 0, checked.stderr


def test_only_a_build_leaves_out_the_gpu(definition: Path, tmp_path: Path) -> None:
    """It sees the devices of its host, but not the driver."""
    (name,) = re.findall(r"export APPTAINERENV_(\w+)=", (ROOT / "scripts" / "image").read_text())
    (tmp_path / "hpcai500").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "hpcai500").chmod(0o755)
    test = parse(definition)[-1].sections["test", ""]
    for given, expected in ({}, "self-test"), ({name: "yes"}, "self-test --no-gpu"):
        shell = ["/bin/sh", "-c", test]
        ended = subprocess.run(shell, env={"PATH": str(tmp_path), **given}, text=True, capture_output=True, check=True)
        assert ended.stdout.strip() == expected


def test_wheels_are_not_built_in_the_hosts_tmp(definition: Path) -> None:
    building = [text for stage in parse(definition) if "build-wheels" in (text := stage.sections.get(("post", ""), ""))]
    assert building
    for text in building:
        assert 0 < text.find("export TMPDIR=/source/tmp\n") < text.find("containers/build-wheels")


def test_every_argument_is_given_by_the_script_that_builds(definition: Path) -> None:
    asked = set(re.findall(r"\{\{ (\w+) \}\}", definition.read_text()))
    given = set(re.findall(r'--build-arg "(\w+)=', (ROOT / "scripts" / "image").read_text()))
    assert asked == given


def test_no_definition_or_list_names_a_server(definition: Path) -> None:
    files = [definition, *(ROOT / "containers").rglob("*"), *(ROOT / "scripts").iterdir()]
    for path in files:
        if path.is_file():
            named = re.findall(r"\w+://[\w.-]+", path.read_text())
            assert set(named) <= {"https://apptainer.org"}, path


@pytest.mark.parametrize(
    ("flavour", "cuda", "refusal"),
    [
        ("cpu", "None", None),
        ("cpu", "'13.0'", "has CUDA 13.0, but the cpu image needs a build with no CUDA"),
        ("cuda", "'13.2'", None),
        ("cuda", "None", "has no CUDA, but the cuda image needs a build with CUDA 13"),
        ("cuda12", "'12.6'", None),
        # Which has no code for V100.
        ("cuda12", "'12.8'", "has CUDA 12.8, but the cuda12 image needs a build with CUDA 12.6"),
    ],
)
def test_an_image_takes_the_torch_of_its_cuda_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flavour: str, cuda: str, refusal: str | None
) -> None:
    check_torch = runpy.run_path(str(ROOT / "scripts" / "wheelhouse"))["check_torch"]
    wheel = tmp_path / "torch-2.13.0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("torch/version.py", f"__version__ = '2.13.0'\ncuda: Optional[str] = {cuda}\n")
    with pytest.raises(SystemExit) if refusal else nullcontext():
        check_torch(flavour, wheel)
    assert (refusal or "") in capsys.readouterr().err


def test_what_nobody_pins_in_an_image_is_named(tmp_path: Path) -> None:
    # As the metadata of torch 2.13.0, cuda-toolkit 13.0.3 and cuda-bindings 13.0.3.
    for name, needs in {
        "torch": ["cuda-toolkit[nvjitlink]==13.0.3", "cuda-bindings<14,>=13.0.3", "triton~=3.8.0"],
        "cuda_toolkit": ["nvidia-nvjitlink<14,>=13.0.88; extra == 'nvjitlink'", "nvidia-cublas==13.1.*"],
        "cuda_bindings": ["cuda-pathfinder~=1.1"],
        "nvidia_nvjitlink": [], "cuda_pathfinder": [], "nvidia_cublas": ["nvidia-nvjitlink"], "triton": [],
    }.items():  # fmt: skip
        with zipfile.ZipFile(tmp_path / f"{name}-1.0-py3-none-any.whl", "w") as archive:
            lines = "".join(f"Requires-Dist: {need}\n" for need in needs)
            archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\n{lines}\ntext\n")
    floating = runpy.run_path(str(ROOT / "scripts" / "wheelhouse"))["floating"]
    assert floating(tmp_path, "cuda") == ["triton"]
    assert floating(tmp_path, "cpu") == ["cuda-bindings", "cuda-pathfinder", "nvidia-nvjitlink", "triton"]


# ----------------------------------------------------------------------------------------------------
# Plug-ins of an image: collected as wheels, with what they need that the image lacks.


def wheel(folder: Path, name: str, version: str = "1.0", *, needs: tuple[str, ...] = (), points: str = "") -> Path:
    """A wheel without code."""
    path, about = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    required = "".join(f"Requires-Dist: {need}\n" for need in needs)
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": points,
    }
    record = "".join(f"{about}/{file},,\n" for file in (*files, "RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**files, "RECORD": record}.items():
            archive.writestr(f"{about}/{file}", text)
    return path


def spirals(folder: Path, *needs: str) -> Path:
    points = "[hpcai500.workloads]\nspirals = hpcai500_spirals:PLUGIN\n"
    return wheel(folder, "hpcai500_spirals", needs=("hpcai500>=0.3", *needs), points=points)


@pytest.fixture
def wheelhouse(tmp_path: Path) -> Path:
    """That of an image for GPUs, in which our own wheel is not built yet."""
    folder = tmp_path / "wheelhouse-cuda"
    for name, version in (("torch", "2.13.0+cu130"), ("numpy", "2.3.1")):
        wheel(folder, name, version)
    return folder


def collect(wheelhouse: Path, *plugins: object) -> subprocess.CompletedProcess[str]:
    """Without a network."""
    line = [sys.executable, ROOT / "scripts" / "wheelhouse", "cuda", wheelhouse, "plugins", *map(str, plugins)]
    return subprocess.run(
        line, cwd=ROOT, env={**os.environ, "PIP_NO_INDEX": "1"}, text=True, capture_output=True, check=False
    )


def collected(wheelhouse: Path) -> set[str]:
    return {path.name for path in (wheelhouse / "plugins").iterdir()}


def test_a_plug_in_is_locked_beside_the_wheels_that_it_uses(wheelhouse: Path, tmp_path: Path) -> None:
    plugin = spirals(tmp_path, "torch>=2.11", "numpy", "rich; extra == 'pictures'")
    ended = collect(wheelhouse, plugin)
    assert ended.returncode == 0, ended.stderr
    assert collected(wheelhouse) == {plugin.name, "requirements.txt"}
    digest = hashlib.sha256(plugin.read_bytes()).hexdigest()
    assert (
        wheelhouse / "plugins" / "requirements.txt"
    ).read_text() == f"hpcai500_spirals==1.0 --hash=sha256:{digest}\n"
    assert collect(wheelhouse).returncode == 0
    assert collected(wheelhouse) == set()


def test_what_a_plug_in_needs_and_the_image_lacks_is_collected_too(
    wheelhouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "more"
    wheel(here, "words", "3.1", needs=("numpy>=2",))
    wheel(here, "numpy", "2.9.9")
    monkeypatch.setenv("PIP_FIND_LINKS", str(here))
    ended = collect(wheelhouse, spirals(tmp_path, "words~=3.0"))
    assert ended.returncode == 0, ended.stderr
    # Another numpy than the image's would change the other benchmarks.
    assert collected(wheelhouse) == {
        "hpcai500_spirals-1.0-py3-none-any.whl", "words-3.1-py3-none-any.whl", "requirements.txt",
    }  # fmt: skip


def test_a_plug_in_is_built_from_its_folder_which_stays_as_it_is(
    wheelhouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "spirals"
    (folder / "hpcai500_spirals").mkdir(parents=True)
    (folder / "hpcai500_spirals" / "__init__.py").touch()
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "hpcai500-spirals"\nversion = "2.0"\ndependencies = ["hpcai500"]\n'
        '[project.entry-points."hpcai500.workloads"]\nspirals = "hpcai500_spirals:PLUGIN"\n'
    )
    before = sorted(folder.rglob("*"))
    # As setuptools is here, and no network is needed.
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "false")
    ended = collect(wheelhouse, folder)
    assert ended.returncode == 0, ended.stderr
    assert "hpcai500_spirals-2.0-py3-none-any.whl" in collected(wheelhouse)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("needs", "points", "said"),
    [
        (("torch<2.0",), "[hpcai500.workloads]\na = b:C\n", "needs torch<2.0, but the image has torch 2.13.0+cu130"),
        ((), "[console_scripts]\na = b:c\n", "not a plug-in: x-1.0-py3-none-any.whl has no entry point"),
        (("not-there",), "[hpcai500.workloads]\na = b:C\n", "pip could not get the wheels"),
    ],
)
def test_a_plug_in_that_does_not_fit_is_refused_and_the_old_ones_stay(
    wheelhouse: Path, tmp_path: Path, needs: tuple[str, ...], points: str, said: str
) -> None:
    assert collect(wheelhouse, spirals(tmp_path)).returncode == 0
    before = collected(wheelhouse)
    ended = collect(wheelhouse, wheel(tmp_path, "x", needs=needs, points=points))
    assert ended.returncode == 69
    assert said in ended.stderr
    assert collected(wheelhouse) == before
    assert "no such folder or wheel" in collect(wheelhouse, tmp_path / "nothing.whl").stderr


def test_an_image_is_described_with_its_plug_ins(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    for path in (spirals(tmp_path), wheel(tmp_path, "numpy")):
        with zipfile.ZipFile(path) as archive:
            archive.extractall(packages)
    plugins = runpy.run_path(str(ROOT / "containers" / "describe"))["plugins"]
    assert plugins(tmp_path) == [{"name": "spirals", "package": "hpcai500_spirals", "version": "1.0"}]


def test_what_follows_the_build_is_the_same_in_both() -> None:
    cpu, cuda = parse(CPU)[-1], parse(CUDA)[-1]
    assert cpu.sections.keys() == cuda.sections.keys()
    for key in cpu.sections.keys() - {("help", ""), ("labels", "")}:
        assert cpu.sections[key] == cuda.sections[key], key
    # Help and labels differ in the image's name and in --nv alone.
    for key in (("labels", ""), ("help", "")):
        assert cpu.sections[key].count("\n") == cuda.sections[key].count("\n"), key
    assert "--nv" not in CPU.read_text()
    assert "--nv" in cuda.sections["help", ""]


def test_a_rank_that_loses_the_mount_of_its_image_leaves_no_core_file(definition: Path) -> None:
    final = parse(definition)[-1]
    for (name, _), text in final.sections.items():
        if name in ("runscript", "apprun"):
            assert "ulimit -S -c 0" in text


def test_every_app_is_a_command_and_in_the_help(definition: Path) -> None:
    final = parse(definition)[-1]
    apps = {argument: text for (name, argument), text in final.sections.items() if name == "apprun"}
    assert set(apps) == {"ic", "ewa", "doctor"}
    for name, text in apps.items():
        assert text.strip() == f'ulimit -S -c 0\n    exec hpcai500 {name} "$@"'
        assert f"{{{{ name }}}}.sif {name}" in final.sections["help", ""]
