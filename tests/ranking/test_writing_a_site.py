"""Where a site may go: into an empty folder, or over a site of ours; nobody else's file is ever removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcai500.errors import UsageError
from hpcai500.results.ranking.site_folder import MARKER, check_place, write_site

FILES = {"index.html": "one", "method/rules.html": "rules"}


def there(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and path.name != MARKER
    }


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_or_empty_folder_takes_a_site(tmp_path: Path, exists: bool) -> None:
    target = tmp_path / "a" / "site"
    if exists:
        target.mkdir(parents=True)
    write_site(target, FILES)
    assert there(target) == FILES
    assert [path.name for path in target.parent.iterdir()] == ["site"]


def test_a_site_of_ours_is_replaced_whole(tmp_path: Path) -> None:
    write_site(tmp_path / "site", FILES)
    (tmp_path / "site").chmod(0o755)
    write_site(tmp_path / "site", {"index.html": "two", "submissions/x.html": "x"})
    assert there(tmp_path / "site") == {"index.html": "two", "submissions/x.html": "x"}
    assert (tmp_path / "site").stat().st_mode & 0o777 == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match=r"holds thesis.tex and is no site of hpcai500; give --html an empty folder"):
        write_site(tmp_path, FILES)
    assert there(tmp_path) == {"thesis.tex": "years of work"}


def test_a_file_that_was_added_to_our_site_is_not_removed(tmp_path: Path) -> None:
    write_site(tmp_path / "site", FILES)
    (tmp_path / "site" / "CNAME").write_text("ranking.example")
    with pytest.raises(UsageError, match="holds CNAME, which hpcai500 did not write and would remove"):
        write_site(tmp_path / "site", FILES)
    assert there(tmp_path / "site")["CNAME"] == "ranking.example"


@pytest.mark.parametrize("marker", ["", "[]", "{}", '{"schema": "hpcai500-site-1", "files": 7}', '{"schema": "other"}'])
def test_a_marker_that_is_none_makes_no_site_ours(tmp_path: Path, marker: str) -> None:
    (tmp_path / MARKER).write_text(marker)
    with pytest.raises(UsageError, match="is no site of hpcai500"):
        check_place(tmp_path)


def test_a_file_and_a_link_are_no_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(UsageError, match="not a folder"):
            check_place(tmp_path / name)


def test_a_site_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    write_site(tmp_path / "site", FILES)
    with pytest.raises(UsageError, match="cannot be written"):
        write_site(tmp_path / "site", {"index.html": "two", "x" * 300: "a name too long for any disk"})
    assert there(tmp_path / "site") == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_ctrl_c_between_the_two_renames_brings_the_old_site_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_site(tmp_path / "site", FILES)
    rename, done = Path.rename, []

    def stopped(path: Path, target: Path) -> Path:
        done.append(path)
        if len(done) == 2:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", stopped)
        with pytest.raises(KeyboardInterrupt):
            write_site(tmp_path / "site", {"index.html": "two"})
    assert there(tmp_path / "site") == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_half_a_character_is_written_as_a_question_mark(tmp_path: Path) -> None:
    write_site(tmp_path / "site", {"index.html": "a\ud800b"})
    assert there(tmp_path / "site") == {"index.html": "a?b"}
