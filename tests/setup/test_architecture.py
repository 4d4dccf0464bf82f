"""The house: imports run one way, the halves meet in files, and what shall be done in one place is done there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "hpcai500"
# What only a job's node has. The login-node half starts in under half a second, on machines without any of it.
HEAVY = {"torch", "nvidia", "horovod", "mpi4py"}
# A unit is a module or folder directly under hpcai500/. It may import itself, the package's face, and those named here.
CORE = {"__init__", "_core"}
BASE = CORE | {
    "drawing",
    "errors",
    "files",
    "findings",
    "hosts",
    "interpreter",
    "job_options",
    "messages",
    "progress",
    "restarts",
    "stopping",
    "streams",
    "text",
    "toml_source",
}
CONTRACTS = BASE | {"methodology", "layers", "machine", "plugins", "recipe", "record", "run_progress"}
LOGIN: dict[str, set[str]] = {
    "drawing": {"errors", "files", "text"},
    "errors": set(),
    "files": {"errors"},
    "findings": {"errors", "streams"},
    "hosts": {"errors"},
    "interpreter": set(),
    "job_options": {"errors"},
    "messages": {"errors"},
    "progress": {"errors", "streams"},
    "restarts": {"hosts", "messages", "streams"},
    "stopping": {"errors", "files", "streams"},
    "streams": {"errors", "files"},
    "text": {"streams"},
    "toml_source": {"errors", "streams", "text"},
    "methodology": {"errors"},
    "layers": {"errors"},
    "plugins": {"errors", "layers"},
    "recipe": BASE | {"layers", "methodology", "plugins"},
    "machine": BASE | {"methodology", "recipe"},
    "run_progress": BASE | {"methodology"},
    "record": BASE | {"layers", "methodology", "recipe", "run_progress"},
    "system": CONTRACTS,
    "campaign": CONTRACTS | {"system"},
    "launch": CONTRACTS | {"campaign", "system"},
    "results": CONTRACTS | {"campaign", "system"},
    "ensemble": CONTRACTS | {"campaign", "launch", "results", "system"},
    "demo": CONTRACTS | {"ensemble", "results"},
    "cli": CONTRACTS | {"campaign", "demo", "ensemble", "launch", "results", "system"},
}
PARTS = CONTRACTS | {"system", "side_stream", "data", "comm", "optim", "measure"}
IN_JOB: dict[str, set[str]] = {
    "side_stream": set(),
    "data": PARTS,
    "comm": PARTS,
    "optim": PARTS,
    "measure": PARTS,
    "workloads": PARTS,
    "engine": PARTS | {"workloads"},
    "train": PARTS | {"engine", "workloads"},
    "self_test": PARTS | {"engine", "train", "workloads"},
}
NEUTRAL: dict[str, set[str]] = {"__init__": {"_core"}, "_core": set()}
MAY_IMPORT = LOGIN | IN_JOB | NEUTRAL


def unit_of(path: Path) -> str:
    """The name directly under hpcai500/ that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].partition(".")[0]


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of each import, wherever in the file: a late import crosses the halves too."""
    package = ("hpcai500", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = package[: len(package) + 1 - node.level] if node.level else ()
            base = ".".join((*parent, node.module)) if node.module else ".".join(parent)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in {"import_module", "__import__"}:
                yield node.lineno, str(node.args[0].value)


def is_command(name: str) -> bool:
    """Whether a module is a way in by command line, as train is: it may import any part, and no part may import it."""
    return name == "__main__" or name.endswith("command")


def violations(path: Path) -> list[str]:
    """`file:line` and the reason of each import that the table does not allow."""
    unit, found = unit_of(path), []
    allowed = MAY_IMPORT["train" if unit in IN_JOB and is_command(path.stem) else unit] | CORE | {unit}
    for line, module in imported_modules(path):
        top, _, rest = module.partition(".")
        if top == "hpcai500":
            other = rest.partition(".")[0]
            # `from hpcai500 import __version__` names no unit: it is the package's own surface.
            other = other if other in MAY_IMPORT else "__init__"
            if other not in allowed:
                found.append(f"{path.relative_to(ROOT)}:{line}: {unit} may not import hpcai500.{other}")
            if not is_command(path.stem) and other in IN_JOB and any(map(is_command, rest.split("."))):
                found.append(f"{path.relative_to(ROOT)}:{line}: hpcai500.{rest} is a command, which no part may import")
        elif top in HEAVY and unit not in IN_JOB:
            found.append(f"{path.relative_to(ROOT)}:{line}: {unit} is of the login-node half and may not import {top}")
    return found


MODULES = sorted(PACKAGE.rglob("*.py"))


def test_every_unit_is_in_the_table() -> None:
    unknown = {unit_of(path) for path in MODULES} - MAY_IMPORT.keys()
    assert not unknown, f"add {sorted(unknown)} to LOGIN or IN_JOB in {Path(__file__).name}, with what each may import"


def test_imports_follow_the_table() -> None:
    found = [line for path in MODULES if unit_of(path) in MAY_IMPORT for line in violations(path)]
    assert not found, "\n".join(found)


def test_no_login_unit_is_allowed_an_in_job_unit() -> None:
    assert not {unit: sorted(allowed & IN_JOB.keys()) for unit, allowed in LOGIN.items() if allowed & IN_JOB.keys()}


@pytest.mark.parametrize(
    ("unit", "statement", "reason"),
    [
        ("cli", "from hpcai500 import data", "may not import hpcai500.data"),
        ("cli", "def f():\n    import torch.nn", "may not import torch"),
        ("record", "import importlib\nimportlib.import_module('mpi4py.MPI')", "may not import mpi4py"),
        ("methodology", "from ..recipe import load", "may not import hpcai500.recipe"),
        ("data", "from hpcai500.cli import main", "may not import hpcai500.cli"),
        ("workloads", "import hpcai500.train", "may not import hpcai500.train"),
        ("train", "from .. import measure\nfrom ..measure.flops_command import main", "is a command"),
        ("optim", "from ..errors import RunError\nimport torch", None),
    ],
)
def test_the_check_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str, statement: str, reason: str | None
) -> None:
    package = tmp_path / "hpcai500"
    path = package / unit / "module.py"
    path.parent.mkdir(parents=True)
    path.write_text(statement, encoding="utf-8")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    monkeypatch.setitem(globals(), "PACKAGE", package)
    found = violations(path)
    assert (reason in found[0] if found else False) if reason else not found


def test_no_two_test_files_have_one_name() -> None:
    """pytest imports them by it, and then collects neither."""
    loose = (path for path in (ROOT / "tests").rglob("*.py") if not path.with_name("__init__.py").exists())
    names = Counter(path.name for path in loose if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize(
    ("pattern", "users"),
    [
        (r"FigureCanvasAgg|\.savefig\(|pyplot", {"drawing.py"}),
        # Whoever starts one anew must not forget the options: probes of single files are isolated besides.
        (r'sys\.executable(?!, "-I", |\)\.with_name)', {"interpreter.py"}),
        # Beside the streams, for programs of ours that read it, into a file of ours, or before the streams are ours.
        (
            r"sys\.std(out|err)\.write\(|^ *print\(",
            {
                "streams.py", "interpreter.py", "system/probe.py", "measure/convolutions.py",
                "results/submission/format_page.py",
            },
        ),
    ],
    ids=["figures", "interpreters", "output"],
)  # fmt: skip
def test_what_has_one_door_goes_through_it(pattern: str, users: set[str]) -> None:
    found = re.compile(pattern, re.MULTILINE)
    sources = {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in MODULES}
    assert {name for name, source in sources.items() if found.search(source)} == users


@pytest.mark.parametrize(
    "module",
    [
        "cli.commands",
        "data.command",
        "engine.replay_command",
        "engine.vote_command",
        "measure.flops_command",
        "measure.micro_command",
        "measure.preflight_command",
        "measure.profile_command",
        "measure.step_command",
        "measure.storage_command",
        "measure.system_command",
        "self_test.command",
        "train",
    ],
)
def test_a_command_loads_torch_only_when_it_needs_it(module: str) -> None:
    """It takes seconds, and OpenMP reads its variables when it is loaded: a command of the job sets them first."""
    slow = {"torch", "pycocotools", "matplotlib"} | ({"numpy", "rich", "PIL"} if module == "cli.commands" else set())
    assert not loaded_by(module) & slow


@pytest.mark.parametrize("module", ["workloads.ic", "workloads.ewa", "workloads.simple"])
def test_a_workload_does_not_load_the_compiler(module: str) -> None:
    """torch's compiler and COCO's code take a second of each start."""
    assert not loaded_by(module) & {"torch._dynamo", "pycocotools", "numba"}


def loaded_by(module: str) -> set[str]:
    """What the import of a module of ours loads in all."""
    code = f"import sys, hpcai500.{module}; print(*sys.modules)"
    return set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
