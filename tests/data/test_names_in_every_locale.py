"""A set whose names are UTF-8, read from shells of every locale: names are bytes, so it is the same set."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from builders.commands import HPCAI500
from builders.data import settle, write_tree

# "straße" in the shell's locale is not printable in ISO-8859-1 if its UTF-8 bytes are taken for letters.
NAMES = "caf\u00e9", "stra\u00dfe", "\u65e5\u672c"
UTF8 = {"LC_ALL": "C.UTF-8"}
ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
# Of the Debian package locales, as localedef's input. A system without it still tests ASCII.
HAS_SOURCES = Path("/usr/share/i18n/charmaps/ISO-8859-1.gz").exists()


@pytest.fixture(params=["ascii", *(["latin-1"] if HAS_SOURCES else [])])
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a shell in which names are not read as UTF-8."""
    if request.param == "ascii":
        return ASCII
    folder = tmp_path_factory.mktemp("locales")
    subprocess.run(["localedef", "-i", "en_US", "-f", "ISO-8859-1", folder / "en_US.ISO-8859-1"], check=True)
    return {"LC_ALL": "en_US.ISO-8859-1", "LOCPATH": str(folder), "PYTHONUTF8": "0"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three classes, in a folder whose own name is not ASCII either."""
    return write_tree(tmp_path / "S\u00e4tze", NAMES, train=4, val=2)


def asked(variables: dict[str, str], *words: object, code: int = 0) -> Any:
    """What `hpcai500 WORDS --json` prints in a shell with these variables."""
    command = [*HPCAI500, *(os.fsencode(str(word)) for word in words), "--json"]
    ended = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, check=False)
    assert ended.returncode == code, ended.stderr.decode(errors="replace")
    return json.loads(ended.stdout)


def test_a_check_finds_the_same_set(root: Path, shell: dict[str, str], user_cache: Path) -> None:
    (root / f"val/{NAMES[1]}/\u00fcber.JPEG").write_bytes(b"broken")
    settle(root)
    expected, found = (asked(variables, "data", "check", "ic", root, code=64) for variables in (UTF8, shell))
    changing = ("seconds", "bytes_per_second")
    assert {k: v for k, v in found.items() if k not in changing} == {
        k: v for k, v in expected.items() if k not in changing
    }
    assert [one["name"] for one in found["per_class"]] == list(NAMES)
    assert [one["path"] for one in found["broken"]] == [f"val/{NAMES[1]}/\u00fcber.JPEG"]
    assert found["root"] == str(root)


@pytest.mark.parametrize("first_in_utf8", [True, False])
def test_what_is_kept_and_staged_is_used_in_another_locale(
    root: Path, tmp_path: Path, shell: dict[str, str], first_in_utf8: bool
) -> None:
    one, other = (UTF8, shell) if first_in_utf8 else (shell, UTF8)
    content = asked(one, "data", "check", "ic", root)["content_fingerprint"]
    first = asked(one, "data", "stage", "ic", root, tmp_path / "node/\u00e9")
    assert first["copied"] == 18
    again = asked(other, "data", "stage", "ic", root, tmp_path / "node/\u00e9")
    assert (again["copied"], again["fingerprint"], again["source"]) == (0, first["fingerprint"], str(root))
    verified = asked(other, "data", "stage", "ic", root, tmp_path / "node/\u00e9", "--verify", "--for", "n\u00e4me")
    assert (verified["verified"], verified["damaged"], verified["copied"]) == (18, 0, 0)
    code = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from hpcai500.data.imagenet.index import load_content_fingerprint, load_index\n"
        "indices = [load_index(Path(root)) for root in sys.argv[1:]]\n"
        "assert all((index.root / path).is_file() for index in indices for path in index.val.paths)\n"
        "print(json.dumps([load_content_fingerprint(index) for index in indices]))\n"
    )
    assert asked_python(other, code, root, tmp_path / "node/\u00e9") == [content, content]
    released = asked(one, "data", "stage", "ic", root, tmp_path / "node/\u00e9", "--release", "--for", "n\u00e4me")
    assert released["released"] == ["n\u00e4me"]
    assert released["needed_by"] == ["default"]


def asked_python(variables: dict[str, str], code: str, *words: object) -> Any:
    """What a program prints as JSON in a shell with these variables."""
    command = [HPCAI500[0], "-c", code, *(os.fsencode(str(word)) for word in words)]
    return json.loads(subprocess.check_output(command, env={**os.environ, **variables}))


def test_names_are_shown_in_the_letters_of_the_terminal(root: Path, shell: dict[str, str]) -> None:
    command = [*HPCAI500, "data", "check", "ic", os.fsencode(str(root))]
    said = subprocess.check_output(command, env={**os.environ, **shell})
    # Where the locale is C, Python's own mode of UTF-8 is on in the processes that we start.
    lines = said.decode("iso8859-1" if "LOCPATH" in shell else "utf-8").splitlines()
    for name in NAMES[:2]:
        assert any(line.split()[:1] == [name] for line in lines), lines
    assert f"set                  {root}" in lines


def test_a_run_records_the_same_names(root: Path, tmp_path: Path, shell: dict[str, str]) -> None:
    for path in (root / f"val/{NAMES[2]}").iterdir():
        path.unlink()
    (root / f"val/{NAMES[2]}").rmdir()
    settle(root)
    record = tmp_path / "r\u00e4cord"
    settings = (
        "problem.epochs=1", "hyperparameters.batch_size=4", "workload.width=8", "hyperparameters.warmup_epochs=0",
    )  # fmt: skip
    sets = [word for setting in settings for word in ("--set", setting)]
    asked(shell, "ic", "--recipe", "ic/smoke", "--data", root, "--out", record, *sets, code=2)
    events = [json.loads(line) for line in (record / "events.jsonl").read_text("utf-8").splitlines()]
    [dataset] = [event["value"] for event in events if event["key"] == "dataset"]
    assert dataset["root"] == str(root)
    assert dataset["classes_not_evaluated"] == [NAMES[2]]
    assert dataset["ignored_files"] == 0
