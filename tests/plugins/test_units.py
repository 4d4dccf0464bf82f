"""What samples hold: told by the workload, and shown wherever the rate of samples is shown."""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
from builders.plugins import Clipped

from hpcai500.results.watch import watch_of

LENGTH = 12
SHORT = ("problem.epochs=2",)


@pytest.fixture(scope="module")
def ran(clipped: Clipped) -> Path:
    return clipped.trained("units", *SHORT)


@pytest.fixture(scope="module")
def campaign(clipped: Clipped) -> Path:
    words = [word for text in SHORT for word in ("--set", text)]
    ended = clipped.run("campaign", "init", "planned", "--recipe", "clipped/reference", "--trials", "2", *words)
    assert ended.returncode == 0, ended.stderr
    ended = clipped.run("campaign", "run", "planned")
    assert ended.returncode == 0, ended.stderr
    assert "numbers_per_second" in ended.stdout
    return clipped.work / "planned"


def result_of(record: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((record / "result.json").read_text())
    return found


def test_a_result_has_the_unit_and_its_rate(ran: Path) -> None:
    result = result_of(ran)
    assert result["unit"] == {"name": "numbers", "per_sample": LENGTH}
    assert result["units_per_second"] == pytest.approx(LENGTH * result["images_per_second"])
    assert "uncertain" in result["utilisation_note"] if result["utilisation"] is None else 0 < result["utilisation"] < 1


def test_every_text_about_a_run_shows_it_and_calls_samples_by_their_name(clipped: Clipped, ran: Path) -> None:
    rate = result_of(ran)["units_per_second"]
    shown = clipped.run("score", ran).stdout
    assert " numbers/s (" in shown
    assert " samples/s)" in shown
    assert " a sample, analytic)" in shown
    assert f"HPCAI500 FOM numbers_per_second={rate:.6g} numbers/s" in shown
    assert "HPCAI500 FOM images_per_second=" in shown
    look = "\n".join(watch_of(ran).look().lines)
    assert " numbers/s (" in look
    assert clipped.run("report", ran, "-o", "page.html").returncode == 0
    page = (clipped.work / "page.html").read_text()
    assert " numbers/s" in page
    # Of a busy machine, the share is unknown, and the page says why.
    assert "the matrix-product rate of this run" in page or "share of the matrix-product rate unknown" in page
    for text in (shown, look, page):
        assert "images/s" not in text
        assert "FLOP an image" not in text


def test_runs_compared_with_each_other_show_it(clipped: Clipped, ran: Path) -> None:
    other = clipped.trained("other", *SHORT, "hyperparameters.seed=2")
    shown = clipped.run("compare", ran, other).stdout
    titles = ["Numbers per second", "Samples per second", "FLOPs per sample"]
    if result_of(ran)["utilisation"] and result_of(other)["utilisation"]:
        titles.append("Share of the matrix-product rate")
    assert all(title in shown for title in titles)
    assert "mage" not in shown.replace("image ", "")
    two = clipped.trained("two", *SHORT, "hyperparameters.batch_size=8", procs=2)
    scaling = clipped.run("scale", "--records", ran, two)
    assert scaling.returncode == 0, scaling.stderr
    assert " numbers/s " in scaling.stdout


def test_a_campaign_and_its_submission_have_its_mean(clipped: Clipped, campaign: Path) -> None:
    status = clipped.run("campaign", "status", campaign)
    assert " numbers/s " in status.stdout
    assert "numbers_per_second" in json.loads(clipped.run("campaign", "status", campaign, "--json").stdout)["metrics"]
    who = ("--system", "Example-1", "--organisation", "University of Example", "--unsigned")
    ended = clipped.run("submit", campaign, "-o", "mine.zip", *who)
    assert ended.returncode == 0, ended.stderr
    checked = clipped.run("verify", "mine.zip", "--json")
    findings = {one["name"]: one["severity"] for one in json.loads(checked.stdout)["findings"]}
    assert [name for name, severity in findings.items() if severity == "fail"] == ["signature"]
    (passed,) = (one["evidence"] for one in json.loads(checked.stdout)["findings"] if one["name"] == "events")
    assert " rates," in passed


CONTRACT = """
title = "Numbers"
[require]
rankable = false
[[criteria]]
metric = "numbers_per_second"
reference = {least}
unit = "numbers/s"
lower = 0.0
[[criteria]]
metric = "variation of numbers_per_second"
reference = 50
unit = "%"
upper = 0.0
"""


def test_the_status_of_a_campaign_is_in_columns_and_gives_each_reason_once(clipped: Clipped, campaign: Path) -> None:
    lines = clipped.run("campaign", "status", campaign).stdout.splitlines()
    columns = {line.index("variation ") for line in lines if line.endswith(" runs)")}
    assert len(columns) == 1
    assert sum("has no benchmark clipped" in line for line in lines) == 1


def test_a_contract_limits_the_rate_of_what_samples_hold(clipped: Clipped, campaign: Path, tmp_path: Path) -> None:
    mean = statistics.mean(result_of(campaign / f"trial-0{trial}")["units_per_second"] for trial in (1, 2))
    path = tmp_path / "contract.toml"
    for factor, verdict in ((0.99, "pass"), (1.01, "FAIL")):
        path.write_text(CONTRACT.format(least=factor * mean))
        (line, other) = [
            line for line in clipped.run("accept", path, campaign).stdout.splitlines() if "numbers_per_second" in line
        ][:2]
        assert line.endswith(verdict), line
        assert " numbers/s " in line
        assert "variation of numbers_per_second" in other
    path.write_text(CONTRACT.format(least=mean).replace("numbers", "words"))
    ended = clipped.run("accept", path, campaign)
    assert ended.returncode == 64
    assert "trial-01 are images_per_second and numbers_per_second" in ended.stderr


def test_a_rate_that_was_changed_in_the_result_is_found(clipped: Clipped, ran: Path, tmp_path: Path) -> None:
    record = shutil.copytree(ran, tmp_path / "forged")
    path = record / "result.json"
    honest = path.read_text()
    for key in ("units_per_second", "utilisation"):
        # The share is unknown on a busy machine: then none may be given.
        path.write_text(json.dumps({**json.loads(honest), key: 1.01 * (json.loads(honest)[key] or 0.5)}))
        ended = clipped.run("score", record)
        assert ended.returncode == 2
        assert f"{key} is" in ended.stderr
    path.write_text(json.dumps({**json.loads(honest), "unit": {"name": "numbers", "per_sample": 24}}))
    assert "unit is" in clipped.run("score", record).stderr
