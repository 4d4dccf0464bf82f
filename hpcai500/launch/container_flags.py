"""Options of `apptainer exec` that a site file may not have: those that hide its variables from a rank. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

# --compat means --containall, which means --cleanenv; so do these variables, which Apptainer reads as options.
_LOSING_OPTIONS = ("cleanenv", "containall", "compat")
_LOSING_LETTERS = "eC"
# The rest of such a word is a value: -B/data/eC.
_LETTERS_WITH_VALUE = "BHSWo"


def require_one_word(flag: str) -> str:
    """`flag`, which Apptainer gets as one word.

    Raises:
        ValueError: it is two of them; a value after `=` may have spaces.
    """
    option, _, rest = flag.partition(" ")
    if option.startswith("-") and rest and "=" not in option:
        raise ValueError(
            f'{flag!r} would be one word: write "{option}", "{rest.strip()}": each flag and each value is a string'
        )
    return flag


def losing_flag(flags: Iterable[str]) -> str | None:
    """The first of `flags` that keeps the launcher's variables from a rank, which would not know which one it is."""
    return next(filter(_loses, flags), None)


def losing_variable(names: Iterable[str]) -> str | None:
    """The first of the variables `names` that does the same."""
    losing = {f"{runtime}_{option}".upper() for runtime in ("apptainer", "singularity") for option in _LOSING_OPTIONS}
    return next((name for name in names if name in losing), None)


def _loses(flag: str) -> bool:
    if flag.startswith("--"):
        return flag[2:].partition("=")[0] in _LOSING_OPTIONS
    letters = re.split(f"[={_LETTERS_WITH_VALUE}]", flag[1:])[0] if flag.startswith("-") else ""
    return any(letter in letters for letter in _LOSING_LETTERS)
