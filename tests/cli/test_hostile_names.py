"""No name, path, argument or value of a record does to a terminal what it likes, whatever command is told of it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from builders.campaigns import SHORT, write_campaign
from builders.commands import started_here
from builders.terminals import drawn_on

from hpcai500.cli import commands
from hpcai500.errors import RecipeError
from hpcai500.progress import track
from hpcai500.results.submission.pack import SubmitRequest, pack
from hpcai500.streams import escaped, prepare_streams, print_error, report_fatal, say, show

Said = Callable[[Callable[[], Any]], str]

# Clears the screen, and paints the verdict at its top; a line of its own; the same text from right to left; a letter of
# no width; the two that JSON and UTF-8 let through; a byte that is no text.
NAME = os.fsdecode(
    b"a\x1b[2J\x1b[1;1HVERIFIED\r\nVERIFIED  s.zip" + "\u202ebad\u2066\u200b\x7f\x9b31m".encode() + b"\xff"
)
SPELT = r"a\x1b[2J\x1b[1;1HVERIFIED\r\nVERIFIED  s.zip\u202ebad\u2066\u200b\u007f\x9b31m\udcff"


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of the parser that is no group, with the words that call it."""
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    for name, child in children.items():
        yield from leaves(child, (*path, name))


COMMANDS = dict(leaves(typer.main.get_command(commands.app)))
# Commands that become another program of ours, which is told the same.
BECOMING = [path for path in COMMANDS if path[0] in ("data", "flops")]


def call_lines(command: Any, name: str, *, options: bool = True) -> Iterator[list[str]]:
    """Arguments that hand `name` to a command: in place of all that it must be given, then to one of `options` each."""
    arguments = [one for one in command.params if one.param_type_name == "argument" or one.required]
    yield [word for one in arguments for word in _given(one, name)]
    for option in command.params:
        if options and option not in arguments and not option.is_flag:
            # Where a benchmark may stand, there is one: the command shall come to the option.
            needed = [_given(one, "ic" if str(one.metavar).startswith("ic|") else name) for one in arguments]
            yield [*(word for words in needed for word in words), *_given(option, name)]


def _given(parameter: Any, name: str) -> list[str]:
    value = "1" if parameter.metavar in ("N", "K") else name
    return [value] if parameter.param_type_name == "argument" else [parameter.opts[0], value]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What a path may lead to, each under that name."""
    folder = tmp_path_factory.mktemp("hostile")
    found = {kind: folder / kind / NAME for kind in ("missing", "file", "folder", "campaign", "submission")}
    for path in found.values():
        path.parent.mkdir()
    found["file"].write_bytes(b"anything")
    found["folder"].mkdir()
    hosts = (f"n1{NAME[:-1]}", "n2")
    write_campaign(found["campaign"], *SHORT, trials=2, hosts=hosts)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"], check=True)
    whole = write_campaign(folder / "whole", *SHORT, trials=2)
    pack(SubmitRequest(whole, found["submission"], "System", "Organisation", key=folder / "key"))
    return {**found, "record": found["campaign"] / "trial-01"}


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Said]:
    """Calls something, and returns all that it printed, on either stream; processes are not started."""

    start = subprocess.Popen.__init__

    def refuse(process: Any, command: Sequence[Any], *arguments: Any, **options: Any) -> None:
        if Path(command[0]).name != "ssh-keygen":
            raise FileNotFoundError(2, "no process is started here", str(command[0]))
        start(process, command, *arguments, **options)

    def become(program: Any, *_: Any) -> None:
        raise FileNotFoundError(2, "no process is started here", str(program))

    def run(body: Callable[[], Any]) -> str:
        with contextlib.suppress(SystemExit):
            body()
        sys.stdout.flush()
        return "".join(capfd.readouterr())

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    for name in ("execv", "execve", "execvp", "execvpe"):
        monkeypatch.setattr(os, name, become)
    # It asks a process of its own.
    monkeypatch.setattr(commands, "require_reachable", list)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, getattr(sys, stream))
    for place, name in ((sys, "excepthook"), (warnings, "formatwarning")):
        monkeypatch.setattr(place, name, getattr(place, name))
    before = signal.getsignal(signal.SIGTERM)
    yield run
    signal.signal(signal.SIGTERM, before)


def harm_in(text: str) -> list[str]:
    """What would do to a terminal what it likes: letters of no print, and a verdict that is a stranger's."""
    odd = {letter for letter in text if not letter.isprintable() and letter != "\n"}
    return sorted(odd) + re.findall(r"^\s*VERIFIED  s\.zip.*", text, re.MULTILINE)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("kind", ["missing", "file", "folder", "campaign", "record", "submission"])
def test_no_argument_of_a_command_and_nothing_under_it_reaches_the_terminal_as_it_is(
    path: tuple[str, ...],
    kind: str,
    hostile: dict[str, Path],
    said: Said,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = COMMANDS[path]
    documents = any("--json" in option.opts for option in command.params)
    # An option is a name, or a path to a file.
    for arguments in call_lines(command, str(hostile[kind]), options=kind in ("missing", "file")):
        for words in (arguments, [*arguments, "--json"]) if documents else (arguments,):
            monkeypatch.setattr(sys, "argv", ["hpcai500", *path, *words])
            assert harm_in(said(commands.run)) == [], words


@pytest.mark.parametrize("path", BECOMING, ids=" ".join)
def test_no_argument_of_a_program_that_a_command_becomes_reaches_the_terminal_as_it_is(
    path: tuple[str, ...], hostile: dict[str, Path], said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_here(monkeypatch)
    # Where nothing is, or an empty folder, a set would be made.
    for kind in ("file",) if "make" in path else ("missing", "file", "folder"):
        for words in call_lines(COMMANDS[path], str(hostile[kind])):
            monkeypatch.setattr(sys, "argv", ["hpcai500", *path, *words])
            assert harm_in(said(commands.run)) == [], words


def test_a_verdict_is_one_line_that_spells_its_file_out(
    hostile: dict[str, Path], said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["hpcai500", "verify", str(hostile["submission"])])
    first, *others = said(commands.run).splitlines()
    assert first.startswith("VERIFIED  /")
    assert f"{SPELT}: " in first
    assert not [line for line in others if line.lstrip().startswith("VERIFIED")]


def test_each_mistake_in_a_file_is_a_line_of_its_own_and_none_is_a_strangers(
    said: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "bad.toml"
    file.write_text('benchmark = "ic"\n"a\\nb" = 3\n[hyperparameters]\nbatch_sise = 3\n"c\\nVERIFIED  s.zip" = 1\n')
    commands_of_a_file = (
        ["rules", file],
        ["slurm", "render", "ic", "--nodes", "1", "--site", file],
        ["roofline", tmp_path, "--machine", file],
        ["accept", file, tmp_path],
    )
    for words in commands_of_a_file:
        monkeypatch.setattr(sys, "argv", ["hpcai500", *map(str, words)])
        lines = said(commands.run).splitlines()
        told = [line for line in lines if line.startswith(f"hpcai500: error: {file}")]
        assert len(told) >= 2, lines
        assert any(r": a\nb: unknown table or key" in line for line in told)
        assert [line for line in lines if line not in told] in ([], ["HPCAI500 RESULT INVALID"])


def test_an_error_of_several_lines_is_one_where_there_is_room_for_one() -> None:
    error = RecipeError("a.toml:1: first", "a.toml:2: second")
    assert (error.lines, str(error)) == (("a.toml:1: first", "a.toml:2: second"), "a.toml:1: first; a.toml:2: second")


def test_a_line_goes_where_it_is_sent_behind_its_prefix(said: Said) -> None:
    stream = io.StringIO()
    say("a\nb", stream=stream)
    say("a\nb", prefix="", stream=stream)
    assert stream.getvalue() == "hpcai500: a\\nb\na\\nb\n"
    assert said(lambda: report_fatal("lost\nVERIFIED")) == "hpcai500: error: lost\\nVERIFIED\n"


def test_a_traceback_and_a_warning_have_no_line_of_a_stranger(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCAI500_TRACEBACK", "1")

    def fail() -> None:
        prepare_streams()
        sys.stderr.write(warnings.formatwarning(UserWarning(NAME), UserWarning, "file.py", 1))
        try:
            raise ValueError(NAME)
        except ValueError as error:
            print_error(error)
            sys.excepthook(ValueError, error, error.__traceback__)

    text = said(fail)
    assert harm_in(text.replace("  VERIFIED  s.zip", "")) == []
    assert text.count("  Traceback (most recent call last):") == 2
    assert not re.search("^VERIFIED", text, re.MULTILINE)
    assert f"hpcai500: warning: {SPELT} (UserWarning, file.py:1)\n" in text
    assert f"hpcai500: error: {SPELT}\n" in text


def test_a_bar_on_a_terminal_and_lines_above_it_spell_names_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "400")
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb"):
        with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
            monkeypatch.setattr(sys, "stderr", terminal)
            prepare_streams()
            with track(2, NAME, NAME, doing=lambda: NAME) as bar:
                bar.advance()
                say(NAME)
                sys.stderr.write(f"{NAME}\n")
            sys.stderr.write(f"{NAME}\n")
        drawn = drawn_on(ours)
    assert drawn.count(SPELT) > 4
    for piece in ("\x1b[2J", "\x1b[1;1H", "\u202e", "\x7f", "\x9b", "\nVERIFIED  s.zip\u202e"):
        assert piece not in drawn
    assert "\x1b[" in drawn


def test_lines_and_documents_stay_what_they_are(said: Said) -> None:
    said(prepare_streams)
    assert said(lambda: show(["é 中", "", "b"])) == "é 中\n\nb\n"
    assert json.loads(said(lambda: show({"name": NAME}))) == {"name": NAME}
    assert escaped("a" * 9, 4) == "aaa…"
    # Also where a program knows nothing of `show`.
    assert said(lambda: sys.stdout.write(json.dumps({"name": "\x7f"}) + "\n")) == '{"name": "\\u007f"}\n'
