"""Start Python with installed code only.

Python also imports files in the current folder (`-m`, `-c`), in folders that its environment names (PYTHONPATH and
others), and in the user's home. A file `pydantic.py` beside a submission would thus run in the process that verifies
it. So every interpreter that we start uses `python_command`, and the command line begins with `isolate`.

Before `isolate` is called, import only modules that Python itself has loaded: any other may come from such a folder.
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
# Names the variables of packages and of OpenSSL that `isolate` removed, for a user who needs one; in a job also those
# that bind threads (`engine.measurement`).
NOT_HEEDED = "HPCAI500_NOT_HEEDED"
_LEAD_TO_PACKAGES = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE")
# Each of these makes Python load or run other code, or skip assertions. (Python imports the categories of
# PYTHONWARNINGS.)
GIVE_CODE = (
    *(*_LEAD_TO_PACKAGES, "PYTHONPLATLIBDIR", "PYTHONPYCACHEPREFIX", "PYTHONSTARTUP", "PYTHONINSPECT"),
    *("PYTHONBREAKPOINT", "PYTHONWARNINGS", "PYTHONOPTIMIZE"),
)
# Each of these makes libcrypto, which hashlib loads, load libraries.
GIVE_LIBRARIES = ("OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_ENGINES")
# Lists of folders, with the separator that they allow beside `:`. An empty entry means the current folder, and a
# relative one is below it.
_FOLDERS = {"PATH": ":", "LD_LIBRARY_PATH": ";"}
# -E ignores harmless variables too. These are the commonly used ones, as options.
_OPTIONS = {
    "PYTHONUNBUFFERED": ("-u",),
    "PYTHONDONTWRITEBYTECODE": ("-B",),
    "PYTHONFAULTHANDLER": ("-X", "faulthandler"),
}


def python_command() -> list[str]:
    """The command that starts this Python without the current folder, its variables and the user's packages.

    The user's packages (`~/.local`) are kept if this package is one of them.
    """
    options = [option for name, words in _OPTIONS.items() if os.environ.get(name) for option in words]
    return [sys.executable, "-P", "-E", *([] if _is_in_user_site() else ["-s"]), *options]


def module_command(module: str, *arguments: str | Path) -> list[str]:
    """The command that runs `module` of this package in a new Python process."""
    return [*python_command(), "-m", f"hpcai500.{module}", *map(str, arguments)]


def isolate() -> None:
    """Start this process again, once, by the same command, if it could import code that is not installed.

    Its environment is then `without_code`. If the new process would not find this package, exit with a message.
    """
    environment = without_code(os.environ)
    is_isolated = sys.flags.safe_path and sys.flags.ignore_environment
    if not is_isolated and (environment != os.environ or _imports_other_code()):
        if _may_be_lost() and not _is_found_again(environment):
            sys.stderr.write(
                f"hpcai500: error: {ascii(_PACKAGE)[1:-1]} was found by PYTHONPATH or in the current folder, which are "
                "ignored: install hpcai500 with pip into a virtual environment, and unset PYTHONPATH\n"
            )
            sys.exit(69)  # ExitCode.ENVIRONMENT
        os.execve(sys.executable, [*python_command(), *sys.orig_argv[1:]], environment)
    if environment != os.environ:
        os.environ.clear()
        os.environ.update(environment)


def without_code(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without variables that make Python or libcrypto load code, and no current folder in its lists."""
    # The variable must stay if this package is in the folder of PYTHONUSERBASE.
    needed = ("PYTHONUSERBASE",) if _is_in_user_site() else ()
    removed = [name for name in (*GIVE_CODE, *GIVE_LIBRARIES) if name not in needed and environment.get(name)]
    kept = {name: value for name, value in environment.items() if name not in removed}
    for name, separator in _FOLDERS.items():
        listed = kept.pop(name, "").replace(separator, ":").split(":")
        folders = [folder for folder in listed if folder.startswith("/")]
        # An empty list would mean the current folder, too.
        kept |= {name: ":".join(folders)} if folders else {}
    ignored = [name for name in (*_LEAD_TO_PACKAGES, *GIVE_LIBRARIES) if name in removed]
    return {**kept, NOT_HEEDED: ", ".join(ignored)} if ignored else kept


def _may_be_lost() -> bool:
    """Whether this package is in a folder that `isolate` removes; it may be installed as well."""
    entries = [sys.path[0], *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    try:
        return os.path.dirname(_PACKAGE) in map(os.path.abspath, entries)  # noqa: PTH120 - as above
    except FileNotFoundError:  # the current folder is gone
        return False


def _is_found_again(environment: Mapping[str, str]) -> bool:
    """Whether a Python that `isolate` starts finds this same package; starts one to find out."""
    code = (
        "import importlib.util, os, sys; found = importlib.util.find_spec('hpcai500'); "
        "sys.exit(not found or os.path.realpath(os.path.dirname(found.origin)) != os.path.realpath(sys.argv[1]))"
    )
    return os.spawnve(os.P_WAIT, sys.executable, [*python_command(), "-c", code, _PACKAGE], environment) == 0


def _imports_other_code() -> bool:
    try:
        here = os.getcwd()  # noqa: PTH109 - as above
    except FileNotFoundError:
        here = ""
    uses_user_site = not sys.flags.no_user_site and site.getusersitepackages() in sys.path
    return sys.path[0] in ("", here) or (uses_user_site and not _is_in_user_site())


def _is_in_user_site() -> bool:
    return _PACKAGE.startswith(f"{site.getusersitepackages()}/")
