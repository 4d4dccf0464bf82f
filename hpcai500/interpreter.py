"""How our Python interpreters start: with the code that is installed, and none besides.

Python also imports what lies in the current folder (`-m`, `-c`), in folders that its environment names (PYTHONPATH and
others), and in the user's home. A file `pydantic.py` beside a submission would so become a part of who verifies it. So
every interpreter that we start is started by `python_command`, and the command line begins with `isolate`.

Until `isolate` is called, only what Python itself has loaded may be imported: anything else may be found elsewhere.
"""

from __future__ import annotations

import os
import site
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_PACKAGE = os.path.dirname(__file__)  # noqa: PTH120 - pathlib is not loaded yet
# Names those that `isolate` took away of the variables that lead to packages: one may be missed.
NOT_HEEDED = "HPCAI500_NOT_HEEDED"
_LEAD_TO_PACKAGES = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE")
# By each of these Python loads other code, runs code that it would not run, or leaves assertions out. (The categories
# of PYTHONWARNINGS are imported.)
GIVE_CODE = (
    *(*_LEAD_TO_PACKAGES, "PYTHONPLATLIBDIR", "PYTHONPYCACHEPREFIX", "PYTHONSTARTUP", "PYTHONINSPECT"),
    *("PYTHONBREAKPOINT", "PYTHONWARNINGS", "PYTHONOPTIMIZE"),
)
# Lists of folders. An empty entry and a relative one are the current folder, or lie in it.
_FOLDERS = ("PATH", "LD_LIBRARY_PATH")
# -E ignores the variables that do no harm, too. These are the ones that people set.
_OPTIONS = {
    "PYTHONUNBUFFERED": ("-u",),
    "PYTHONDONTWRITEBYTECODE": ("-B",),
    "PYTHONFAULTHANDLER": ("-X", "faulthandler"),
}


def python_command() -> list[str]:
    """The tokens that start this Python without the current folder, its variables and the user's packages.

    The user's packages (`~/.local`) are heeded where this package is one of them.
    """
    options = [option for name, words in _OPTIONS.items() if os.environ.get(name) for option in words]
    return [sys.executable, "-P", "-E", *([] if _is_in_user_site() else ["-s"]), *options]


def module_command(module: str, *arguments: str | Path) -> list[str]:
    """The tokens that run `module` of this package in a Python of its own."""
    return [*python_command(), "-m", f"hpcai500.{module}", *map(str, arguments)]


def isolate() -> None:
    """Start this process again, by the same command and once, where it may import code that is not installed.

    From then on its environment is `without_code`. Where PYTHONPATH leads to this very package, it would not be found
    again: then the process ends with a line that says so.
    """
    environment = without_code(os.environ)
    is_isolated = sys.flags.safe_path and sys.flags.ignore_environment
    if not is_isolated and (environment != os.environ or _imports_other_code()):
        if os.path.dirname(_PACKAGE) in os.environ.get("PYTHONPATH", "").split(os.pathsep):  # noqa: PTH120 - as above
            sys.stderr.write(
                f"hpcai500: error: {_PACKAGE} is found by PYTHONPATH, which is not heeded: install hpcai500 with pip "
                "into a virtual environment, and unset PYTHONPATH\n"
            )
            sys.exit(69)  # ExitCode.ENVIRONMENT
        os.execve(sys.executable, [*python_command(), *sys.orig_argv[1:]], environment)
    if environment != os.environ:
        os.environ.clear()
        os.environ.update(environment)


def without_code(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without what gives Python code, and without the current folder in lists of folders."""
    # Where this package was installed by PYTHONUSERBASE, the variable says where.
    heeded = ("PYTHONUSERBASE",) if _is_in_user_site() else ()
    lost = [name for name, value in environment.items() if value and name in GIVE_CODE and name not in heeded]
    kept = {name: value for name, value in environment.items() if name not in lost}
    for name in _FOLDERS:
        if name in kept:
            kept[name] = os.pathsep.join(folder for folder in kept[name].split(os.pathsep) if folder.startswith("/"))
    missed = [name for name in _LEAD_TO_PACKAGES if name in lost]
    return {**kept, NOT_HEEDED: ", ".join(missed)} if missed else kept


def _imports_other_code() -> bool:
    try:
        here = os.getcwd()  # noqa: PTH109 - as above
    except FileNotFoundError:
        here = ""
    heeds_user_site = not sys.flags.no_user_site and site.getusersitepackages() in sys.path
    return sys.path[0] in ("", here) or (heeds_user_site and not _is_in_user_site())


def _is_in_user_site() -> bool:
    return _PACKAGE.startswith(f"{site.getusersitepackages()}/")
