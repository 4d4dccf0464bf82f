"""The lines for harnesses, as real runs print them, against what each adapter in recipes/harness/ looks for."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import types
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from builders.commands import hpcai500
from builders.runs import train_arguments, weather_arguments

from hpcai500.methodology.result import Result
from hpcai500.results.outcome import figure_of_merit_lines
from hpcai500.results.score import score_record

ROOT = Path(__file__).resolve().parents[2]
HARNESS = ROOT / "recipes" / "harness"
FIGURE = re.compile(r"HPCAI500 FOM (?P<name>[a-z0-9_]+)=(?P<value>\S+) (?P<unit>\S+)")


@dataclass
class StandInForRamble:
    """Ramble is on no package index. This takes down what a definition says, in Ramble's own words for it."""

    executables: dict[str, dict[str, Any]] = field(default_factory=dict)
    workloads: dict[str, list[str]] = field(default_factory=dict)
    variables: dict[str, list[str]] = field(default_factory=dict)
    figures: dict[str, dict[str, str]] = field(default_factory=dict)
    criteria: dict[str, dict[str, str]] = field(default_factory=dict)

    def module(self) -> types.ModuleType:
        """What stands where `ramble.appkit` would."""
        module = types.ModuleType("ramble.appkit")
        vars(module).update(
            ExecutableApplication=type("ExecutableApplication", (), {}),
            executable=lambda name, template, **how: self.executables.update({name: {"template": template, **how}}),
            workload=lambda name, executables: self.workloads.update({name: executables}),
            workload_variable=lambda name, default, description, workloads: self.variables.update({name: workloads}),
            figure_of_merit=lambda name, **how: self.figures.update({name: how}),
            success_criteria=lambda name, **how: self.criteria.update({name: how}),
        )
        return module


@pytest.fixture
def ramble(monkeypatch: pytest.MonkeyPatch) -> StandInForRamble:
    """What the application of recipes/harness/ramble says."""
    stand_in = StandInForRamble()
    monkeypatch.setitem(sys.modules, "ramble", types.ModuleType("ramble"))
    monkeypatch.setitem(sys.modules, "ramble.appkit", stand_in.module())
    path = HARNESS / "ramble" / "applications" / "hpcai500" / "application.py"
    runpy.run_path(str(path))
    return stand_in


@pytest.fixture(scope="module")
def jube() -> ET.Element:
    """The benchmark of recipes/harness/jube."""
    return ET.parse(HARNESS / "jube" / "hpcai500.xml").getroot()


@dataclass(frozen=True)
class Run:
    """A real run: what it printed on stdout, and its result."""

    output: str
    result: Result

    @property
    def figures(self) -> dict[str, tuple[str, str]]:
        """Value and unit of each figure of merit."""
        return figures_of(self.output)


def figures_of(output: str) -> dict[str, tuple[str, str]]:
    return {match["name"]: (match["value"], match["unit"]) for match in FIGURE.finditer(output)}


def run(record: Path, *words: str) -> Run:
    ended = hpcai500(*words, cwd=record.parent)
    assert ended.returncode in (0, 2), ended.stderr
    return Run(ended.stdout, score_record(record))


@pytest.fixture(scope="module")
def runs(images: Path, weather: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """`ic` on two ranks, which passes, and `ewa` on one, which misses its target."""
    folder = tmp_path_factory.mktemp("runs")
    ic, ewa = folder / "ic", folder / "ewa"
    return [
        run(ic, "ic", *train_arguments(images, ic), "--procs", "2"),
        run(ewa, "ewa", *weather_arguments(weather, ewa, "problem.target_quality=0.99")),
    ]


def all_that_can_be_printed(runs: list[Run]) -> dict[str, str]:
    """Unit of each figure of merit, had every number of these runs been known."""
    known: dict[str, str] = {}
    for one in runs:
        classes = one.result.quality.per_class
        quality = one.result.quality.model_copy(update={"per_class": dict.fromkeys(classes, 0.5) if classes else None})
        power = dict.fromkeys(("energy_joules", "watts", "flops_per_watt", "vflops", "vflops_per_watt"), 1.0) | {
            "utilisation": 0.5
        }
        assert one.result.goodput is not None
        interrupted = dict.fromkeys(("mean_between_interruptions_seconds", "recovery_seconds"), 1.0)
        goodput = one.result.goodput.model_copy(update=interrupted)
        told = {"quality": quality, "time_to_quality_seconds": 1.0, "goodput": goodput}
        result = one.result.model_copy(update={**told, **power})
        known.update({name: unit for name, (_, unit) in figures_of("\n".join(figure_of_merit_lines(result))).items()})
    return known


def matched(pattern: str, output: str) -> str | None:
    """The group of the only line that `pattern` matches from its start, as Ramble and JUBE do it."""
    found = [match.group(1) for line in output.splitlines() if (match := re.match(pattern, line))]
    assert len(found) < 2, f"{pattern} matches {len(found)} lines"
    return found[0] if found else None


def require_reads(patterns: Mapping[str, str | None], run: Run) -> None:
    """Each pattern finds its figure in what a run printed, and no other."""
    read = {name: matched(pattern or "", run.output) for name, pattern in patterns.items()}
    assert {name: value for name, value in read.items() if value} == {
        name: value for name, (value, _) in run.figures.items()
    }


def test_jube_looks_for_each_figure_in_its_unit_and_shows_it(jube: ET.Element, runs: list[Run]) -> None:
    figures = next(one for one in jube.iter("patternset") if one.get("name") == "figures")
    patterns = {pattern.get("name", ""): pattern for pattern in figures}
    verdict = patterns.pop("verdict")
    assert {name: pattern.get("unit") for name, pattern in patterns.items()} == all_that_can_be_printed(runs)
    for one, said in zip(runs, ("PASS", "FAIL"), strict=True):
        require_reads({name: pattern.text for name, pattern in patterns.items()}, one)
        assert matched(verdict.text or "", one.output) == said
    table = next(one for one in jube.iter("table") if one.get("name") == "figures")
    assert {"verdict_last", "exit_code", *patterns} <= {column.text for column in table}


def test_ramble_looks_for_each_figure_in_its_unit(ramble: StandInForRamble, runs: list[Run]) -> None:
    assert {name: how["units"] for name, how in ramble.figures.items()} == all_that_can_be_printed(runs)
    assert all(re.compile(how["fom_regex"]).groupindex == {how["group_name"]: 1} for how in ramble.figures.values())
    for one in runs:
        require_reads({name: how["fom_regex"] for name, how in ramble.figures.items()}, one)


def test_ramble_knows_a_run_that_passed_from_one_that_did_not(ramble: StandInForRamble, runs: list[Run]) -> None:
    (criterion,) = ramble.criteria.values()
    assert criterion["mode"] == "string"
    passed = [any(re.match(criterion["match"], line) for line in one.output.splitlines()) for one in runs]
    assert passed == [True, False]


def test_ramble_runs_both_benchmarks_with_their_options(ramble: StandInForRamble) -> None:
    assert ramble.workloads == {"ic": ["train"], "ewa": ["train"]}
    assert set(ramble.variables) == {"hpcai500", "options"}
    template = ramble.executables["train"]["template"]
    assert template.startswith("{hpcai500} {workload_name} --out ")
    assert template.endswith(" {options}")


def test_the_page_names_each_figure_with_its_unit(runs: list[Run]) -> None:
    page = (ROOT / "docs" / "harness.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z0-9_]+)` \| (\S+) \|", page, re.MULTILINE))
    assert rows == all_that_can_be_printed(runs)


@pytest.mark.parametrize(("number", "code"), [(0, 0), (1, 2), (0, 1)])
def test_the_shell_script_of_the_page_passes_only_what_passed(
    runs: list[Run], tmp_path: Path, number: int, code: int
) -> None:
    page = (ROOT / "docs" / "harness.md").read_text(encoding="utf-8")
    lines = page.partition("## A shell script\n\n")[2].partition("\n\n")[0]
    script = "\n".join(line.removeprefix("    ") for line in lines.splitlines())
    # What this run has printed, and an exit code: nothing is trained again.
    (tmp_path / "printed").write_text(runs[number].output)
    (tmp_path / "hpcai500").write_text(f"#!/bin/sh\ncat printed\nexit {code}\n")
    (tmp_path / "hpcai500").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        ["sh", "-c", script], env={"PATH": path}, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    passes = (number, code) == (0, 0)
    assert ended.returncode == (0 if passes else 1)
    expected = runs[0].figures["images_per_second"][0] if passes else f"failed: {code}"
    assert ended.stdout.strip() == expected


def test_many_ranks_time_enough_steps_for_an_interval_and_one_rank_none(runs: list[Run]) -> None:
    together, alone = (one.result for one in runs)
    assert together.parallel_efficiency_interval is not None
    assert len(together.parallel_efficiency_starts or ()) == 1
    assert (together.parallel_efficiency is None) == (together.parallel_efficiency_note is not None)
    assert alone.parallel_efficiency_interval is alone.parallel_efficiency_note is None


def test_the_verdict_is_the_last_line_and_said_once(runs: list[Run]) -> None:
    for one, verdict in zip(runs, ("PASS", "FAIL"), strict=True):
        assert one.output.splitlines()[-1] == f"HPCAI500 RESULT {verdict}"
        assert one.output.count("HPCAI500 RESULT") == 1
        assert one.output.count("HPCAI500 FOM flops=") == 1
        assert "VFLOPS      not shown: problem.target_quality is " in one.output
