"""From a plan to a verified submission inside the image, without root; then the same file in another installation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders.ranks import clean_environment
from image import Image

DATA = ["--classes", "3", "--train-per-class", "11", "--val-per-class", "4"]
PLAN = ["--recipe", "ic/smoke", "--trials", "2", "--data", "tiny-data"]
SIGNED = ["--system", "A", "--organisation", "B", "--key", "signing-key"]
TINY = [
    *("--set", "problem.dataset=synthetic-tiny", "--set", "problem.epochs=2", "--set", "problem.target_quality=0.01"),
    *("--set", "hyperparameters.batch_size=8", "--set", "workload.width=8", "--set", "workload.image_size=32"),
    *("--set", "workload.evaluation_resize=36"),
]


@pytest.fixture(scope="module")
def submission(image: Image) -> Path:
    """A campaign of two runs, planned, run, packed and signed by the image."""
    lines = [
        ["run", "IMAGE", "data", "make", "ic", "tiny-data", *DATA],
        ["run", "IMAGE", "campaign", "init", "plan", *PLAN, *TINY],
        ["run", "IMAGE", "campaign", "run", "plan"],
        ["exec", "IMAGE", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "signing-key"],
        ["run", "IMAGE", "submit", "plan", "-o", "s.zip", *SIGNED],
    ]
    for words in lines:
        ended = image.run(*words, seconds=600)
        assert ended.code == 0, ended.said
    return image.home / "s.zip"


def notes_of(document: dict[str, Any], name: str) -> list[str]:
    return [finding["evidence"] for finding in document["findings"] if finding["name"] == name]


def test_the_image_verifies_what_it_made_down_to_the_quality(image: Image, submission: Path) -> None:
    ended = image.run("run", "IMAGE", "verify", submission.name, "--replay", "tiny-data", "--json")
    assert ended.code == 0, ended.said
    document = json.loads(ended.out)
    assert (document["verdict"], document["rankable"]) == ("verified", False)
    replayed = notes_of(document, "replay-quality")
    assert len(replayed) == 2
    assert all("within" in evidence for evidence in replayed)


def test_an_installation_that_is_no_image_comes_to_the_same_verdict(image: Image, submission: Path) -> None:
    command = [Path(sys.executable).with_name("hpcai500"), "verify", submission, "--json"]
    ended = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    document = json.loads(ended.stdout)
    failed = [finding for finding in document["findings"] if finding["severity"] == "fail"]
    assert (ended.returncode, document["verdict"], failed) == (0, "verified", [])
    assert any("image" in evidence for evidence in notes_of(document, "image"))
