"""What it costs to refuse: a process that may not have more memory than docs/submission-format.md states opens them."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from written_submission import EVENTS, Member, members_of, small_files, with_file, write_submission, write_zip

from hpcai500.results.submission import manifest

# The stated bound, and what a Python that has loaded all this has mapped before it begins.
BOUND_BYTES = 1 << 30
_CODE = """
import resource, sys
from pathlib import Path
from hpcai500.errors import WrongAnswerError
from hpcai500.results.submission.archive import open_submission
pages = int(Path("/proc/self/statm").read_text().split()[0])
most = pages * resource.getpagesize() + int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_AS, (most, most))
try:
    open_submission(Path(sys.argv[1]), Path(sys.argv[2]))
except WrongAnswerError as error:
    print(error)
"""


def told_within(bound_bytes: int, path: Path, folder: Path) -> str:
    """Why `path` is refused, by a process that may take so much memory and no more; empty if it is not."""
    ended = subprocess.run(
        [sys.executable, "-c", _CODE, str(path), str(folder), str(bound_bytes)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-500:]
    assert ended.stdout.count("\n") <= 1
    return ended.stdout


def zeros(path: str, size: int) -> Member:
    return Member(path, bytes(size))


def test_a_zip_bomb_costs_next_to_nothing(tmp_path: Path) -> None:
    members = [zeros(f"logs/{number}.txt", 64 * manifest.MIB) for number in range(2)]
    path = write_zip(tmp_path / "bomb.zip", [*members, *members_of(small_files())])
    assert path.stat().st_size < manifest.MIB
    assert "a ZIP bomb" in told_within(64 * manifest.MIB, path, tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.txt"))


def test_a_bomb_in_one_file_is_refused_by_its_size(tmp_path: Path) -> None:
    members = [zeros("campaign/trial-01/ERROR", 8 * manifest.MIB), *members_of(small_files())]
    assert "expected at most" in told_within(
        64 * manifest.MIB, write_zip(tmp_path / "bomb.zip", members), tmp_path / "out"
    )


def test_a_million_events_cost_one_event(tmp_path: Path) -> None:
    path = write_submission(tmp_path / "s.zip", with_file(EVENTS, b'{"a":0}\n' * 1_000_000))
    told = told_within(64 * manifest.MIB, path, tmp_path / "out")
    assert f"more than {manifest.MOST_EVENTS} events" in told


@pytest.mark.parametrize("piece", [b"{},", b"[],", b'{"a":{}},', b"0,", b'"",'])
def test_a_huge_manifest_stays_within_the_bound(tmp_path: Path, piece: bytes) -> None:
    content = b'{"files": [' + piece * ((manifest.MANIFEST_BYTES - 30) // len(piece)) + b"0]}"
    members = [one for one in members_of(small_files()) if one.path != "manifest.json"]
    path = write_zip(tmp_path / "s.zip", [*members, Member("manifest.json", content)])
    assert "manifest.json" in told_within(BOUND_BYTES, path, tmp_path / "out")


@pytest.mark.slow
def test_as_many_values_as_are_allowed_stay_within_the_bound(tmp_path: Path) -> None:
    # Of the forms that were tried, the one that takes most: objects of one key each, and one wide character.
    pieces = b"".join(b'{"%07d":{}},' % number for number in range(manifest.MOST_VALUES // 4 - 100))
    content = '{"😀":['.encode() + pieces + b'"' + b"x" * (32 * manifest.MIB) + b'"]}'
    path = write_submission(tmp_path / "s.zip", with_file("campaign/trial-01/system.json", content))
    assert told_within(BOUND_BYTES, path, tmp_path / "out") == ""


def test_many_members_of_a_list_of_files_are_told_by_the_first_that_is_wrong(tmp_path: Path) -> None:
    content = b'{"files": [' + b"0," * 900_000 + b"0]}"
    members = [one for one in members_of(small_files()) if one.path != "manifest.json"]
    path = write_zip(tmp_path / "s.zip", [*members, Member("manifest.json", content)])
    assert told_within(512 * manifest.MIB, path, tmp_path / "out")


def test_a_checkpoint_is_hashed_in_pieces(tmp_path: Path) -> None:
    weights = "campaign/trial-01/checkpoints/epoch-0004-step-0000000.pt"
    path = write_submission(tmp_path / "s.zip", with_file(weights, bytes(200 * manifest.MIB)))
    assert zipfile.ZipFile(path).getinfo(weights).compress_type == zipfile.ZIP_STORED
    assert told_within(96 * manifest.MIB, path, tmp_path / "out") == ""
