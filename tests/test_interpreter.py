"""No code of the current folder, or of Python's variables, becomes a part of us: whatever command is called there."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from builders.campaigns import SHORT, write_campaign
from builders.commands import python_with
from builders.needs import needs_horovod
from builders.runs import member_recipe, written
from typer.testing import CliRunner

from hpcai500 import _core
from hpcai500.cli.commands import app
from hpcai500.data import command as data_command
from hpcai500.drawing import drawn
from hpcai500.engine import replay_command, vote_command
from hpcai500.interpreter import module_command, python_command, without_code
from hpcai500.job_options import (
    MakeOptions,
    Measurement,
    MicroOptions,
    PreflightOptions,
    RepackOptions,
    ReplayOptions,
    StageOptions,
    StepOptions,
    SystemOptions,
    YearSet,
    as_argument,
    read_options,
)
from hpcai500.measure import flops_command, preflight_command, step_command
from hpcai500.results.submission.pack import SubmitRequest, pack
from hpcai500.system.software import package_code_hash

PACKAGE = Path(module_command.__code__.co_filename).parent
# Libraries, the standard library, and what Python imports by itself.
MODULES = ("pydantic", "typer", "numpy", "torch", "rich", "json", "subprocess", "dataclasses", "ctypes")
AT_START = ("hpcai500", "sitecustomize", "usercustomize")
PROGRAMS = ("ssh-keygen", "git", "lscpu", "mpirun", "horovodrun", "sacct", "squeue", "sbatch", "bash", "python")
# Tells which of them was imported or run, and goes on: one finding must not hide the next.
STRANGER = "import os\nos.write(os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT), b'{name}\\n')\n"
# What every interpreter of an installation runs first: tells how it was started.
TELL = """
import os, sys
flags = sys.flags
line = repr([flags.safe_path, flags.ignore_environment, flags.no_user_site, sys.orig_argv])
os.write(os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT), line.encode() + b"\\n")
"""
# A provider of libcrypto that says so when it is loaded.
PROVIDER = r"""
#include <stdio.h>
__attribute__((constructor)) static void run(void) {
    FILE* file = fopen("{log}", "a");
    fputs("libcrypto\n", file);
    fclose(file);
}
"""
OPENSSL_CONF = """
openssl_conf = all
[all]
providers = some
[some]
stranger = one
[one]
module = {library}
activate = 1
"""
# Stands for torch: what would compute ends before it begins.
TORCH = "import os\nos._exit(9)\n"
# What each command is called with, and whether it then starts processes of the in-job half.
TINY = "--set problem.dataset=synthetic-tiny --data {images}"
LINES: dict[str, tuple[str, bool]] = {
    "accept": ("{record} --example", False),
    "campaign heads": ("{campaign}", False),
    "campaign init": ("new --recipe ic/smoke --trials 2", False),
    "campaign run": ("{planned}", True),
    "campaign status": ("{campaign}", False),
    "compare": ("{record} {record} --json", False),
    "data anchors ewa": ("{images}", True),
    "data check ewa": ("{images}", True),
    "data check ic": ("{images}", True),
    "data index ic": ("{images}", True),
    "data make ewa": ("made --years 1979 --images-per-year 1", True),
    "data make ic": ("made --classes 2 --train-per-class 1", True),
    "data repack ewa": ("{images} repacked", True),
    "data stage ewa": ("{images} staged", True),
    "data stage ic": ("{images} staged", True),
    "doctor": ("ic --set accelerator.device=cpu --data {images}", True),
    "ensemble cancel": ("{ensemble}", False),
    "ensemble collect": ("{ensemble} --accept-incomplete", False),
    "ensemble member": ("{ensemble} --member 1", True),
    "ensemble plan": ("new --recipe ic/ensemble --members 2", False),
    "ensemble run": ("{ensemble}", True),
    "ensemble status": ("{ensemble}", False),
    "ensemble submit": ("{ensemble}", False),
    "ewa": ("--recipe ewa/smoke --data {weather} --procs 1", True),
    "export": ("{record} --mllog", False),
    "flops": ("ic", True),
    "ic": ("--recipe ic/smoke --out record " + TINY, True),
    "micro": ("--recipe ic/smoke --seconds 1", True),
    "profile": ("ic --recipe ic/smoke " + TINY, True),
    "rank": ("{submission}", False),
    "replicate": ("{submission} -o again", False),
    "report": ("{record} -o report.html", False),
    "roofline": ("{record}", False),
    "rules": ("ic/reference", False),
    "scale": ("ic --procs 1,2 --oversubscribe --recipe ic/smoke " + TINY, True),
    "score": ("{record}", False),
    "self-test": ("--procs 2", True),
    "slurm example": ("", False),
    "slurm render": ("ic --nodes 2", False),
    "storage": (". small --seconds 1", True),
    "submit": ("{campaign} -o s.zip --system S --organisation O --unsigned", False),
    "system": ("--procs 1", False),
    "timeline": ("{record}", False),
    "track": ("{record}", False),
    "verify": ("{submission} --replay {images} --device cpu", True),
    "version": ("", False),
    "demo": ("new-demo", False),
    "watch": ("{record}", False),
}


# Hashes of a figure.
DRAWS = """
import hashlib
from hpcai500.data import command as data_command
from hpcai500.drawing import drawn
def draw(figure):
    figure.text(0.1, 0.1, "micro.json is not signed")
    figure.subplots().set_title("a title")
for kind, content in drawn(draw, (4, 3), 100, ("svg", "png")).items():
    print(kind, hashlib.sha256(content).hexdigest())
"""


def commands(group: Any = None, before: str = "") -> Iterator[str]:
    """Every command of the command line."""
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}"


def put_strangers(folder: Path, names: tuple[str, ...], log: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"{name}.py").write_text(STRANGER.format(log=str(log), name=name))
    return folder


def python_free() -> dict[str, str]:
    """This process's environment, without what Python heeds."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def ended(command: Sequence[str | Path], **where: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **where)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Names of the strangers' files that ran."""
    path = tmp_path / "strangers"
    path.touch()
    return path


@pytest.fixture
def here(tmp_path: Path, log: Path) -> Path:
    """A folder that a stranger filled."""
    folder = put_strangers(tmp_path / "here", MODULES + AT_START, log)
    for name in PROGRAMS:
        program = folder / name
        program.write_text(f"#!/bin/sh\necho {name} >> {log}\n")
        program.chmod(0o755)
    return folder


@pytest.fixture
def hostile(tmp_path: Path, log: Path, here: Path) -> dict[str, str]:
    """An environment with all that Python heeds, but for what it runs before the first line of any program."""
    elsewhere = put_strangers(tmp_path / "elsewhere", MODULES, log)
    (tmp_path / "provider.c").write_text(PROVIDER.replace("{log}", str(log)))
    library = tmp_path / "provider.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "provider.c"], check=True)
    (tmp_path / "openssl.cnf").write_text(OPENSSL_CONF.format(library=library))
    # A traceback of horovodrun's own shows that its ranks failed, as they do here.
    path = [one for one in os.environ["PATH"].split(os.pathsep) if not Path(one, "horovodrun").exists()]
    return {
        **python_free(),
        "PATH": f":.:here:{os.pathsep.join(path)}",
        "PYTHONPATH": f":{elsewhere}",
        "PYTHONPYCACHEPREFIX": str(tmp_path / "cache"),
        "PYTHONUSERBASE": str(tmp_path / "user"),
        "PYTHONSTARTUP": str(here / "json.py"),
        "PYTHONINSPECT": "1",
        "PYTHONBREAKPOINT": "pydantic.stop",
        "OPENSSL_CONF": str(tmp_path / "openssl.cnf"),
    }


@pytest.fixture(scope="module")
def places(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What the commands are called with."""
    folder = tmp_path_factory.mktemp("places")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "us", "-f", folder / "key"], check=True)
    campaign = write_campaign(folder / "campaign", *SHORT, trials=2, package_code=package_code_hash())
    pack(SubmitRequest(campaign, folder / "s.zip", "System", "Organisation", key=folder / "key"))
    member = written(member_recipe("ic"), folder / "member.toml")
    plan = ["ensemble", "plan", folder / "ensemble", "--recipe", member, "--members", "2", "--data", images]
    tiny = ["--set", "problem.dataset=synthetic-tiny", "--data", images]
    for words in (["campaign", "init", folder / "planned", "--recipe", "ic/smoke", "--trials", "2", *tiny], plan):
        ended = CliRunner().invoke(app, list(map(str, words)))
        assert ended.exit_code == 0, (ended.output, ended.exception)
    record = campaign / "trial-01"
    (folder / "weather").mkdir()
    # Nothing gets so far as to read it.
    (folder / "weather" / "climo_1979.h5").touch()
    found = {name: folder / name for name in ("planned", "ensemble", "weather")}
    return {"images": images, "campaign": campaign, "record": record, "submission": folder / "s.zip", **found}


@pytest.fixture(scope="module")
def torchless(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """`hpcai500` of an installation whose interpreters tell how they were started, and where they do."""
    folder = tmp_path_factory.mktemp("torchless")
    (folder / "packages").mkdir()
    (folder / "packages" / "sitecustomize.py").write_text(TELL.format(log=str(folder / "started")))
    (folder / "packages" / "torch.py").write_text(TORCH)
    return python_with(folder / "python", folder / "packages").with_name("hpcai500"), folder / "started"


def test_every_command_is_tried() -> None:
    assert sorted(commands()) == sorted(LINES)


def test_the_strangers_would_run_if_they_were_let(here: Path, hostile: dict[str, str], log: Path) -> None:
    python = python_command()[0]
    subprocess.run([python, "-c", "import numpy"], cwd=here, check=True)
    subprocess.run([python, "-P", "-c", "import torch"], cwd=here, env=hostile, check=True, stdin=subprocess.DEVNULL)
    subprocess.run(["sh", "-c", "git"], cwd=here, env=hostile, check=True)
    assert log.read_text().split() == ["numpy", "sitecustomize", "torch", "git"]
    log.write_text("")
    heeded = {**os.environ, "OPENSSL_CONF": hostile["OPENSSL_CONF"]}
    subprocess.run([python, "-P", "-c", "import hashlib; hashlib.sha256()"], env=heeded, check=True)
    assert set(log.read_text().split()) == {"libcrypto"}


@pytest.mark.parametrize("name", LINES)
def test_a_command_runs_no_strangers_code(
    name: str,
    here: Path,
    hostile: dict[str, str],
    log: Path,
    places: dict[str, Path],
    torchless: tuple[Path, Path],
) -> None:
    words, starts_jobs = LINES[name]
    command, started = torchless
    started.unlink(missing_ok=True)
    # Its folder is on PYTHONPATH by an empty entry: what Python itself imports from there comes before any program.
    for module in AT_START:
        (here / f"{module}.py").unlink()
    done = ended([command, *name.split(), *words.format(**places).split()], cwd=here, env=hostile)
    assert log.read_text() == "", done.stderr
    assert "Traceback" not in done.stderr
    interpreters = [ast.literal_eval(line) for line in started.read_text().splitlines()]
    # The first one was started by us, here.
    assert all(flags == [True, 1, 1] for *flags, _ in interpreters[1:]), interpreters
    jobs = [words for *_, words in interpreters if "-m" in words]
    assert bool(jobs) == starts_jobs, done.stdout + done.stderr


@needs_horovod
def test_a_horovodrun_that_path_finds_imports_nothing_from_here(
    here: Path, log: Path, torchless: tuple[Path, Path]
) -> None:
    code = (
        "from hpcai500.launch.launcher import run_horovod_ranks\n"
        "run_horovod_ranks('measure.convolutions', ['x'], 2, launcher='horovodrun')"
    )
    command, started = torchless
    started.unlink(missing_ok=True)
    python = command.with_name("python")
    path = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ended([python, "-P", "-E", "-c", code], cwd=here, env=path)
    assert "hpcai500.launch.rank_command" in started.read_text()
    assert log.read_text() == ""


def test_the_current_folder_gives_no_code_even_before_the_first_line(
    here: Path, log: Path, torchless: tuple[Path, Path]
) -> None:
    assert ended([torchless[0], "version"], cwd=here, env=python_free()).returncode == 0
    assert log.read_text() == ""


def test_our_own_interpreters_heed_no_variable_and_no_folder(here: Path, hostile: dict[str, str], log: Path) -> None:
    hostile["PYTHONPATH"] = str(here)
    hostile["PYTHONWARNINGS"] = "ignore::pydantic.Old"
    code = "import sys, json, hpcai500, numpy; assert not sys.flags.interactive; print(json.dumps(sys.path))"
    done = ended([*python_command(), "-c", code], cwd=here, env=hostile)
    assert (done.returncode, log.read_text()) == (0, ""), done.stderr
    assert not {"", str(here)} & set(json.loads(done.stdout))


def test_what_does_no_harm_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONFAULTHANDLER"):
        monkeypatch.delenv(name, raising=False)
    assert python_command()[1:] == ["-P", "-E", "-s"]
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    assert python_command()[4:] == ["-u", "-X", "faulthandler"]
    code = "import sys, faulthandler; print(sys.stdout.write_through, faulthandler.is_enabled())"
    assert subprocess.check_output([*python_command(), "-c", code], text=True).split() == ["True", "True"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"PYTHONPATH": "/a", "PYTHONSTARTUP": "/b"}, {"HPCAI500_NOT_HEEDED": "PYTHONPATH"}),
        (
            {"OPENSSL_CONF": "mine.cnf", "OPENSSL_MODULES": "/m", "OPENSSL_ENGINES": "/e", "PYTHONPATH": "/p"},
            {"HPCAI500_NOT_HEEDED": "PYTHONPATH, OPENSSL_CONF, OPENSSL_MODULES, OPENSSL_ENGINES"},
        ),
        (
            {"PATH": ":/bin:.:bin:/sbin", "LD_LIBRARY_PATH": "/lib:"},
            {"PATH": "/bin:/sbin", "LD_LIBRARY_PATH": "/lib"},
        ),
        # The dynamic linker knows another separator.
        ({"LD_LIBRARY_PATH": "/a;.;/b:lib;", "PATH": "/a;.:/b"}, {"LD_LIBRARY_PATH": "/a:/b", "PATH": "/a;.:/b"}),
        # An empty one is the current folder.
        *(({"PATH": path, "LD_LIBRARY_PATH": path}, {}) for path in ("", ".", ".:bin", "::")),
    ],
)  # fmt: skip
def test_an_environment_without_code(given: dict[str, str], kept: dict[str, str]) -> None:
    harmless = {"PYTHONHASHSEED": "0", "PYTHONHOME": "", "HOME": "/home/me"}
    assert without_code(given | harmless) == kept | harmless


@pytest.fixture(scope="module")
def uninstalled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A Python without this package, and a checkout of it with its core."""
    folder = tmp_path_factory.mktemp("uninstalled")
    venv.create(folder / "python", symlinks=True)
    (folder / "src" / "hpcai500").mkdir(parents=True)
    for path in (*PACKAGE.iterdir(), Path(_core.__file__)):
        (folder / "src" / "hpcai500" / path.name).symlink_to(path)
    return folder / "python" / "bin" / "python", folder / "src"


@pytest.mark.parametrize("path", ["{src}", "{src}/", "{src}/../src", "/nowhere:.", None])
@pytest.mark.parametrize("start", [["-m", "hpcai500.cli"], ["-c", "from hpcai500.cli import main; main()"]])
def test_a_checkout_that_is_not_installed_is_refused_with_the_way_out(
    uninstalled: tuple[Path, Path], tmp_path: Path, path: str | None, start: list[str]
) -> None:
    python, source = uninstalled
    environment = python_free() | ({"PYTHONPATH": path.format(src=source)} if path else {})
    here = tmp_path if path and "{src}" in path else source
    done = ended([python, *start, "version"], cwd=here, env=environment)
    assert (done.returncode, done.stdout) == (69, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("hpcai500: error: ")
    assert "was found by PYTHONPATH or in the current folder, which are ignored" in line
    assert "install hpcai500 with pip" in line


def test_a_checkout_that_is_installed_may_be_where_its_command_is_started() -> None:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = ended([python_command()[0], "-m", "hpcai500.cli", "version"], cwd=PACKAGE.parent, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_matplotlibrc_in_the_current_folder_changes_no_figure(tmp_path: Path) -> None:
    # All text white, on a white ground.
    hostile = "text.color: ffffff\nfont.size: 1\nsvg.fonttype: path\naxes.titlecolor: ffffff\n"
    command = [sys.executable, "-W", "error::DeprecationWarning:matplotlib", "-c", DRAWS]
    plain = ended(command, cwd=tmp_path)
    (tmp_path / "matplotlibrc").write_text(hostile)
    again = ended(command, cwd=tmp_path)
    assert (plain.returncode, again.returncode) == (0, 0), plain.stderr
    assert again.stdout == plain.stdout != ""


def test_no_figure_runs_tex() -> None:
    import matplotlib as mpl

    with mpl.rc_context({"text.usetex": True}):
        assert b">seen<" in drawn(lambda figure: figure.text(0.1, 0.1, "seen"), (4, 3), 100, ["svg"])["svg"]
        assert mpl.rcParams["text.usetex"], "others keep their settings"


# No text in any encoding: a path may hold such bytes.
ODD = os.fsdecode(b"a \xff'\"\n")


def measured(options: Any) -> Measurement[Any]:
    return Measurement(ODD, ("problem.epochs=1", f'a.b="{ODD}"'), Path(ODD), Path("doing"), options)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Measurement[StepOptions], measured(StepOptions(3, 0.1))),
        (Measurement[StepOptions], measured(StepOptions(classes=9))),
        (Measurement[MicroOptions], measured(MicroOptions(("gemm", "input"), 2.0, {"ic": Path(ODD)}))),
        (Measurement[SystemOptions], measured(SystemOptions({"data": None, "out": Path("runs")}))),
        (MakeOptions[YearSet], MakeOptions(Path(ODD), YearSet(class_shares=(0.1, 0.9)), as_json=True)),
        (RepackOptions, RepackOptions(Path(ODD), Path("d"), years=(1979, 1981))),
        (StageOptions, StageOptions(Path(ODD), Path("d"), (ODD,), name=ODD, limit_bytes=10**12, expand=Path(ODD))),
        (PreflightOptions, PreflightOptions("ic/smoke", (), Path("log"), ("ranks",), None, Path(ODD), None, 60.0)),
        (ReplayOptions, ReplayOptions(Path("r"), Path(ODD), Path("d"), Path("out"), held_back=Path("h"), device="cpu")),
    ],
)
def test_options_come_back_as_they_were(kind: type, told: Any) -> None:
    argument = as_argument(told)
    assert argument.isascii()
    assert read_options(kind, [argument]) == told


PROGRAMS_OF_JSON = [
    *(program.main for program in (replay_command, vote_command, step_command, preflight_command, flops_command)),
    lambda words: data_command.main(["check", "ic", *words]),
]


@pytest.mark.parametrize("main", PROGRAMS_OF_JSON)
@pytest.mark.parametrize("arguments", [[], ["--recipe", "x"], ["{}"], ["[1]"], ["{"], ['{"recipe": 3, "no": 4}']])
def test_a_command_that_is_started_by_hand_says_so_in_a_line(
    main: Callable[[Sequence[str]], int], arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("hpcai500: error: expected one argument, ")
    assert line.endswith(" as JSON: only other hpcai500 commands start this one")
