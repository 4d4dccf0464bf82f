"""`hpcai500 data make|check NAME` for plug-ins: their functions make and read, the order of things is ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_package import GOOD, write_package

from hpcai500.data.command import main
from hpcai500.data.derived import MANIFEST

WITH_DATA = GOOD.replace('workload="', 'make_data="{module}.data:make", check_data="{module}.data:check", workload="')
DATA = """\
from hpcai500.errors import DataError

def make(folder):
    (folder / "set.txt").write_text("1 2 3")

def check(folder):
    if (folder / "set.txt").read_text() != "1 2 3":
        raise DataError(f"{folder}: set.txt: not what make writes")
    return {"samples": 3}
"""


def tiny(site: Path, module: str, data: str = DATA, version: str = "1.0") -> None:
    folder = write_package(site, "tiny", module, WITH_DATA, package="hpcai500-tiny", version=version)
    (folder / "data.py").write_text(data)


def test_a_set_is_made_once_and_marked_as_made(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny(site, "tiny_made")
    assert main(["make", "tiny", str(tmp_path / "deep" / "set")]) == 0
    assert "made now, by the plug-in hpcai500-tiny 1.0" in capsys.readouterr().out
    marks = json.loads((tmp_path / "deep" / "set" / MANIFEST).read_text())
    assert marks == {"benchmark": "tiny", "package": "hpcai500-tiny", "version": "1.0"}
    (tmp_path / "deep" / "set" / "set.txt").write_text("changed by hand")
    assert main(["make", "tiny", str(tmp_path / "deep" / "set"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["written"] is False
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["set"]


def test_a_set_that_could_not_be_made_leaves_nothing_and_is_told_with_its_place(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny(site, "tiny_torn", "def make(folder):\n    (folder / 'half').write_text('x')\n    return 1 / 0\n")
    assert main(["make", "tiny", str(tmp_path / "set")]) == 1
    said = capsys.readouterr().err
    assert "tiny: make_data of the plug-in hpcai500-tiny 1.0 failed at " in said
    assert "data.py:3: ZeroDivisionError: division by zero" in said
    assert not (tmp_path / "set").exists()


def test_data_of_others_and_of_another_version_are_left_alone(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny(site, "tiny_shy", version="1.1")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "photo.jpeg").write_text("")
    assert main(["make", "tiny", str(tmp_path / "theirs")]) == 64
    assert "already has files, not made by this command" in capsys.readouterr().err
    (tmp_path / "old").mkdir()
    old = {"benchmark": "tiny", "package": "hpcai500-tiny", "version": "1.0"}
    (tmp_path / "old" / MANIFEST).write_text(json.dumps(old))
    assert main(["make", "tiny", str(tmp_path / "old")]) == 64
    assert "holds a synthetic set made with version 1.0, not 1.1" in capsys.readouterr().err


def test_a_set_is_checked_by_the_plug_in(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny(site, "tiny_checked")
    main(["make", "tiny", str(tmp_path / "set")])
    capsys.readouterr()
    assert main(["check", "tiny", str(tmp_path / "set"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"samples": 3}
    (tmp_path / "set" / "set.txt").write_text("1 2")
    assert main(["check", "tiny", str(tmp_path / "set")]) == 64
    assert "set.txt: not what make writes" in capsys.readouterr().err


def test_what_the_plug_in_does_not_do_is_told(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_package(site, "tiny", "tiny_mute", package="hpcai500-tiny")
    assert main(["make", "tiny", str(tmp_path / "set")]) == 69
    assert "has no `make_data`" in capsys.readouterr().err
    assert main(["repack", "tiny", str(tmp_path), str(tmp_path)]) == 64
