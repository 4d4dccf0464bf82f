"""`hpcai500 rank` as it is typed, on real submissions of campaigns that nobody ran."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from written_campaign import heads_given, write_campaign, write_heads

from hpcai500.results.submission.pack import SubmitRequest, pack

# Verification compares the packed sources with those that are installed, so both must be of one moment.
Packed = dict[str, Path]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    folder = tmp_path_factory.mktemp("submissions")
    key = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    wanted: dict[str, dict[str, Any]] = {"quick": {"trials": 10}, "few": {"trials": 3, "start_s": 1.6e9}}
    for name, campaign in wanted.items():
        written = write_campaign(folder / name, **campaign)
        request = SubmitRequest(written, folder / f"{name}.zip", f"System <b>{name}</b>", "A laboratory", key=key)
        pack(request)
    shutil.copy(folder / "quick.zip", folder / "quick-again.zip")
    (folder / "cut.zip").write_bytes((folder / "quick.zip").read_bytes()[:3000])
    return {name: folder / f"{name}.zip" for name in ("quick", "few", "quick-again", "cut")}


def rank(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from hpcai500.cli import main; raise SystemExit(main())", "rank"]
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_submissions_are_verified_ranked_and_put_on_a_site(packed: Packed, tmp_path: Path) -> None:
    ended = rank(*packed.values(), tmp_path / "gone.zip", "--json", "--published", "--html", tmp_path / "site")
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    [entry] = document["entries"]
    assert (entry["rank"], entry["system"], entry["level"]) == (1, "System <b>quick</b>", "hardware")
    assert entry["vflops"] == pytest.approx(9.4e14, rel=0.05)
    assert (entry["precision"], entry["world_size"], entry["trials"]) == ("bf16", 16, 10)
    listed = {Path(one["file"]).name: (one["status"], one["reason"]) for one in document["unverified"]}
    assert listed["few.zip"][0] == "not-rankable"
    assert listed["quick.zip"] == ("duplicate", "the same campaign as quick-again.zip, which is ranked")
    assert listed["cut.zip"][1].startswith("archive: ")
    assert "no such file" in listed["gone.zip"][1]
    assert len(document["published"]) == 9
    assert "few.zip: verified, not rankable" in ended.stderr
    pages = sorted((tmp_path / "site" / "submissions").iterdir())
    assert [page.name.endswith("-report.html") for page in pages] == [True, False] * 2
    index = (tmp_path / "site" / "index.html").read_text()
    assert "System &lt;b&gt;quick&lt;/b&gt;" in index
    everything = "".join(path.read_text() for path in (tmp_path / "site").rglob("*.*") if path.is_file())
    assert str(tmp_path) not in everything
    assert str(packed["quick"].parent) not in everything


def test_published_alone_prints_nine_systems() -> None:
    document = json.loads(rank("--published", "--json").stdout)
    assert [one["rank"] for one in document["entries"]] == list(range(1, 10))
    first = document["entries"][0]
    assert {"published_vflops", "vflops_n5", "vflops_n10"} <= set(first)
    text = rank("--published")
    assert text.returncode == 0
    assert "Fujitsu" in text.stdout
    _, _, explanations = text.stdout.partition("VFLOPS = ")
    assert max(map(len, explanations.splitlines())) <= 100


def test_with_heads_only_what_was_told_of_is_ranked(packed: Packed, tmp_path: Path) -> None:
    heads = write_heads(tmp_path / "heads", heads_given(packed["quick"].parent / "quick"))
    document = json.loads(rank(packed["quick"], packed["few"], "--heads", heads, "--json").stdout)
    assert [entry["system"] for entry in document["entries"]] == ["System <b>quick</b>"]
    [refused] = document["unverified"]
    assert refused["status"] == "unverified"
    assert refused["reason"].startswith("heads: no head of the campaign ")
    assert rank(packed["quick"], "--heads", tmp_path / "nowhere").returncode == 64


def test_a_ranking_of_nothing_is_a_ranking(packed: Packed) -> None:
    ended = rank(packed["cut"])
    assert ended.returncode == 0
    assert ended.stdout.startswith("No submission is ranked.\n\nNot ranked\n  unverified")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "rank: name submissions: hpcai500 rank FILE"),
        (("gone.zip",), "gone.zip: no such file"),
        (("gone.zip", "--level", "hardwar"), "--level hardwar: expected one of hardware, system, free"),
        (("--published", "--benchmark", "foo"), "--benchmark foo: expected one of ic, ewa"),
    ],
)
def test_what_cannot_be_understood_ends_with_64(arguments: tuple[str, ...], said: str) -> None:
    ended = rank(*arguments)
    assert ended.returncode == 64
    assert said in ended.stderr
    assert not ended.stdout


def test_a_folder_of_somebody_else_is_told_before_anything_is_verified(packed: Packed) -> None:
    ended = rank(packed["quick"], "--html", packed["quick"].parent)
    assert ended.returncode == 64
    assert "is no site of hpcai500" in ended.stderr
    assert "verified" not in ended.stderr
