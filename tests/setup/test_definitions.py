"""Apptainer's definitions: their shell parses, they ask for nothing but what `make image` gives, and they are alike."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

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


def test_only_known_sections_with_shell_that_parses(definition: Path) -> None:
    for stage in parse(definition):
        for (name, _), text in stage.sections.items():
            assert name in SECTIONS
            if name in SHELL:
                checked = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
                assert checked.returncode == 0, checked.stderr


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


def test_what_follows_the_build_is_the_same_in_both() -> None:
    cpu, cuda = parse(CPU)[-1], parse(CUDA)[-1]
    assert cpu.sections.keys() == cuda.sections.keys()
    for key in cpu.sections.keys() - {("help", ""), ("labels", "")}:
        assert cpu.sections[key] == cuda.sections[key], key
    # Help and labels differ in the image's name and in --nv alone.
    for key in (("labels", ""), ("help", "")):
        assert cpu.sections[key].count("\n") == cuda.sections[key].count("\n"), key


def test_every_app_is_a_command_and_in_the_help(definition: Path) -> None:
    final = parse(definition)[-1]
    apps = {argument: text for (name, argument), text in final.sections.items() if name == "apprun"}
    assert set(apps) == {"ic", "ewa", "doctor"}
    for name, text in apps.items():
        assert text.strip() == f'exec hpcai500 {name} "$@"'
        assert f"{definition.stem}.sif {name}" in final.sections["help", ""]


def test_only_the_cuda_definition_asks_for_a_gpu() -> None:
    assert "--nv" not in CPU.read_text()
    assert "--nv" in parse(CUDA)[-1].sections["help", ""]
