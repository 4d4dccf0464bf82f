"""The example of docs/tutorials/benchmark.md, as it stands there: installed, run, and trained as an ensemble."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.commands import python_with

from hpcai500.campaign.standing import difference
from hpcai500.errors import DataError
from hpcai500.record import read_record

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorials" / "benchmark.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^`(spirals/[\w./-]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHORT = ("--set", "problem.epochs=2", "--set", "problem.target_quality=0.01")

# The end of `build`, with accuracies of classes whose mean is not the accuracy.
UNEVEN = """
    class Uneven(ArrayClassifier):
        def evaluate(self, model, on_batch):
            return replace(super().evaluate(model, on_batch), per_class={"inner": 0.125, "outer": 0.25})

    from dataclasses import replace

    return Uneven("""


@dataclass(frozen=True)
class Installed:
    """The example, installed: where, the Python that has it, and where its commands are run."""

    site: Path
    python: Path
    work: Path

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """`hpcai500 WORDS…`, which sees the plug-in."""
        line = [self.python.with_name("hpcai500"), *map(str, words)]
        return subprocess.run(line, capture_output=True, text=True, cwd=self.work, check=False)

    def changed(self, work: Path, file: str, old: str, new: str) -> Installed:
        """Another installation, in which a file differs."""
        site = work / "changed"
        shutil.copytree(self.site, site)
        path = site / "hpcai500_spirals" / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        return Installed(site, python_with(work / "python", site), self.work)


def published(beginning: str) -> Sequence[str]:
    """The words of a command of the page, after `hpcai500`."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"    $ hpcai500 {beginning}")]
    return shlex.split(line.removeprefix("    $ hpcai500 "), comments=True)


@pytest.fixture(scope="module")
def spirals(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The example's files, written as the page says and installed by its own line, but for where."""
    folder = tmp_path_factory.mktemp("page")
    files = BLOCK.findall(PAGE)
    assert len(files) == 5
    for name, text in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (line,) = re.findall(r"^    pip (install .*)$", PAGE, re.MULTILINE)
    words = [*shlex.split(line), "--quiet", "--disable-pip-version-check", "--no-index", "--target", "site"]
    subprocess.run([sys.executable, "-m", "pip", *words], cwd=folder, check=True, capture_output=True)
    return Installed(folder / "site", python_with(folder / "python", folder / "site"), folder)


def record(spirals: Installed, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((spirals.work / name / "result.json").read_text())
    return found


@pytest.fixture(scope="module")
def ran(spirals: Installed) -> Path:
    """A run of two epochs, on data that the plug-in made."""
    ended = spirals.run("spirals", "--out", "run", *SHORT)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "HPCAI500 RESULT PASS"
    return spirals.work / "run"


def test_it_trains_as_an_ensemble_whose_vote_is_better_than_its_members(spirals: Installed) -> None:
    planned = spirals.run(*published("ensemble plan"))
    assert planned.returncode == 0, planned.stderr
    ended = spirals.run(*published("ensemble run"))
    assert ended.returncode == 0, ended.stderr
    result, vote = record(spirals, "vote"), json.loads((spirals.work / "vote" / "vote.json").read_text())
    assert (result["benchmark"], result["members_done"], result["complete"]) == ("spirals", 3, True)
    alone = [member["value"] for member in vote["members"]]
    assert vote["value"] > sum(alone) / len(alone)
    assert vote["out_of_bag"]["samples"] > 300
    drawn = [
        next(event for event in read_record(path).events if event["key"] == "dataset")["value"]["drawn"]["share"]
        for path in sorted((spirals.work / "vote" / "members").glob("*/trial-01"))
    ]
    assert len(set(drawn)) == 3
    assert all(0.55 < share < 0.71 for share in drawn)


def test_a_result_is_scored_like_image_classification_and_cannot_be_ranked(spirals: Installed, ran: Path) -> None:
    result = record(spirals, "run")
    assert result["rankable"] is False
    # What every run of it has is last, so that a fault of one run is seen first.
    assert result["reasons"][-1] == "edition v3.0 has no benchmark spirals"
    assert all("data set" in reason for reason in result["reasons"][:-1])
    ratio = result["quality"]["achieved"] / result["quality"]["target"]
    assert result["penalty_coefficient"] == pytest.approx(ratio**5)
    again = spirals.run("score", ran, "--json")
    assert json.loads(again.stdout)["vflops"] == result["vflops"]


def test_two_ranks_train_it_by_the_published_line(spirals: Installed) -> None:
    ended = spirals.run(*published("spirals --procs"), "--out", "two", *SHORT)
    assert ended.returncode == 0, ended.stderr
    assert record(spirals, "two")["world_size"] == 2


def test_its_operations_are_counted_without_data(spirals: Installed) -> None:
    ended = spirals.run(*published("flops"), "--json")
    assert ended.returncode == 0, ended.stderr
    # 2 x 64, 64 x 64 and 64 x 5 multiply-adds, of two operations each.
    assert json.loads(ended.stdout)["forward_flops"] == 2 * (2 * 64 + 64 * 64 + 64 * 5)


def test_a_record_says_which_plug_in_ran_and_a_changed_one_is_noticed(
    spirals: Installed, ran: Path, tmp_path: Path
) -> None:
    told = json.loads(spirals.run("version", "--json").stdout)["plugins"]
    assert [(one["name"], one["package"], one["version"]) for one in told] == [("spirals", "hpcai500-spirals", "1.0")]
    assert read_record(ran).system["installation"]["plugins"] == told
    changed = spirals.changed(tmp_path, "workload.py", "nn.ReLU()", "nn.Tanh()")
    ended = changed.run("spirals", "--out", tmp_path / "other", *SHORT)
    assert ended.returncode == 0, ended.stderr
    said = difference(read_record(ran), read_record(tmp_path / "other"))
    assert said is not None
    assert said.endswith("plug-in differ")
    shown = spirals.run("compare", ran, tmp_path / "other").stdout
    (line,) = [line for line in shown.splitlines() if line.startswith("  plug-in")]
    plugins = [read_record(path).system["installation"]["plugins"][0] for path in (ran, tmp_path / "other")]
    words = [f"hpcai500-spirals, 1.0, {one['code_sha256'][:12]}" for one in plugins]
    assert re.split(r"\s{2,}", line.strip()) == ["plug-in", *words]


def test_a_campaign_tells_of_a_plug_in_that_is_not_the_planned_one(spirals: Installed, tmp_path: Path) -> None:
    campaign = tmp_path / "campaign"
    short = ("--set", "problem.epochs=1", *SHORT[2:])
    planned = spirals.run("campaign", "init", campaign, "--recipe", "spirals/reference", "--trials", "2", *short)
    assert planned.returncode == 0, planned.stderr
    changed = spirals.changed(tmp_path, "workload.py", "nn.ReLU()", "nn.Tanh()")
    ended = changed.run("campaign", "run", campaign, "--only", "1")
    assert ended.returncode == 0, ended.stderr
    assert "1.0 is installed with other code than this campaign was planned with" in ended.stderr
    status = json.loads(spirals.run("campaign", "status", campaign, "--json").stdout)
    assert "ran other code of the plug-in spirals than planned" in json.dumps(status)


def test_a_campaign_can_be_submitted_and_is_listed_without_a_rank(spirals: Installed, tmp_path: Path) -> None:
    campaign, file = tmp_path / "campaign", tmp_path / "mine.zip"
    # Its quality is not the mean over its classes, which are not of one size.
    uneven = spirals.changed(tmp_path, "workload.py", "    return ArrayClassifier(", UNEVEN)
    uneven.run("campaign", "init", campaign, "--recipe", "spirals/reference", "--trials", "1", *SHORT)
    assert uneven.run("campaign", "run", campaign).returncode == 0
    who = ("--system", "Example-1", "--organisation", "University of Example", "--unsigned")
    ended = uneven.run("submit", campaign, "-o", file, *who)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "not rankable: it will be verified, and listed without a rank" in ended.stderr
    for installation, severity, words in (
        (uneven, "note", "as installed here; its sources are not in the submission"),
        (spirals, "warning", "another is installed here (hpcai500-spirals 1.0, code "),
    ):
        findings = json.loads(installation.run("verify", file, "--json").stdout)["findings"]
        assert [one["name"] for one in findings if one["severity"] == "fail"] == ["signature"]
        (about,) = (one for one in findings if one["name"] == "plug-in")
        assert (about["severity"], words in about["evidence"]) == (severity, True)
    without = [Path(sys.executable).with_name("hpcai500"), "verify", file, "--json"]
    findings = json.loads(subprocess.run(without, capture_output=True, text=True, check=False).stdout)["findings"]
    assert "not compared" in next(one["evidence"] for one in findings if one["name"] == "plug-in")


def test_a_batch_script_runs_it(spirals: Installed) -> None:
    ended = spirals.run("slurm", "render", "spirals", "--nodes", "2", "--site", "local")
    assert ended.returncode == 0, ended.stderr
    assert "hpcai500-spirals-%j.out" in ended.stdout
    # By its short name: the plug-in is in the job's environment too.
    assert "spirals/reference" in ended.stdout
    wrong = spirals.run("slurm", "render", "spiral", "--nodes", "2")
    assert wrong.returncode == 64
    assert "slurm render: expected one of ic, ewa, spirals, got 'spiral'" in wrong.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("spirals", "--estimate"), 64, "runs of plug-ins cannot be estimated"),
        (("micro", "--recipe", "spirals/reference"), 64, "micro measures the shapes of ic and ewa"),
        (("rules", "spirals/reference"), 64, "edition v3.0 has no benchmark spirals"),
        (("ensemble", "plan", "staged", "--recipe", "spirals/reference", "--members", "2", "--stage", "/tmp"), 64,
         "data of spirals cannot be staged"),
        (("spirals", "--recipe", "ic/smoke"), 64, "ic/smoke: a recipe of ic; run `hpcai500 ic --recipe ic/smoke`"),
        (("scale", "spiral"), 64, "scale: expected one of ic, ewa, spirals, got 'spiral'"),
        (("profile", "spiral"), 64, "profile: expected one of ic, ewa, spirals, got 'spiral'"),
        (("data", "check", "spirals", "."), 69, "has no `check_data`"),
    ],
)  # fmt: skip
def test_what_does_not_work_is_said_in_one_line(
    spirals: Installed, words: tuple[str, ...], code: int, said: str
) -> None:
    ended = spirals.run(*words)
    assert ended.returncode == code
    assert said in ended.stderr
    assert ended.stderr.count("error:") == 1


def whole(folder: Path) -> bytes:
    np.savez(folder / "spirals.npz", points=np.zeros((3, 2)))
    return (folder / "spirals.npz").read_bytes()


@pytest.mark.parametrize(
    "content",
    [lambda folder: None, lambda folder: b"", lambda folder: b"no arrays", whole, lambda folder: whole(folder)[:-30]],
    ids=["missing", "empty", "text", "other-arrays", "torn"],
)
def test_a_damaged_set_is_named_with_the_fix(
    spirals: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Callable[[Path], bytes | None]
) -> None:
    monkeypatch.syspath_prepend(str(spirals.site))
    if (found := content(tmp_path)) is not None:
        (tmp_path / "spirals.npz").write_bytes(found)
    with pytest.raises(DataError, match=r"no spirals\.npz, or a damaged one; hpcai500 data make spirals DIR makes one"):
        import_module("hpcai500_spirals.workload").build(None, tmp_path, None)


def test_a_broken_plug_in_spoils_no_other_command_and_is_told_by_its_own(spirals: Installed, tmp_path: Path) -> None:
    broken = spirals.changed(
        tmp_path, "__init__.py", "from hpcai500.plugins", "import not_there\nfrom hpcai500.plugins"
    )
    for words in (("--help",), ("ic", "--help"), ("version",), ("rules", "ic/reference"), ("spirals", "--help")):
        ended = broken.run(*words)
        assert ended.returncode == 0, ended.stderr
    assert "spirals Plug-in hpcai500-spirals 1.0." in " ".join(broken.run("--help").stdout.split())
    ended = broken.run("spirals")
    assert ended.returncode == 69
    (line,) = [line for line in ended.stderr.splitlines() if "error:" in line]
    expected = next(line for line in REFERENCE.splitlines() if "is broken: it cannot be loaded" in line)
    assert line == expected.strip().replace("sklearn", "not_there")
