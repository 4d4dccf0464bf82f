"""Words of bash: whatever a token holds, the shell must read it as that one token."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence

_WIDTH = 116


class Expression(str):
    """A word in which $NAME stands for a value; other words are taken as they are."""

    __slots__ = ()


def word(token: str) -> str:
    """`token` as one word, of printable characters: scripts are read, and shown on terminals."""
    if isinstance(token, Expression):
        return f'"{token}"'
    if token.isprintable():
        return shlex.quote(token)
    plain = set(range(0x20, 0x7F)) - set(rb"\'")
    letters = (chr(byte) if byte in plain else rf"\x{byte:02x}" for byte in os.fsencode(token))
    return f"$'{''.join(letters)}'"


def array(name: str, tokens: Sequence[str], *, append: bool = False, indent: str = "") -> Iterator[str]:
    """Lines that set the array `name`, or append to it; an option stands beside its value."""
    phrases, opening = list(_phrases(tokens)), f"{indent}{name}{'+' if append else ''}=("
    if len(whole := f"{opening}{' '.join(phrases)})") <= _WIDTH:
        yield whole
        return
    yield opening
    line = ""
    for phrase in phrases:
        if line and len(f"{indent}    {line} {phrase}") > _WIDTH:
            yield f"{indent}    {line}"
            line = ""
        line = f"{line} {phrase}".strip()
    yield f"{indent}    {line}"
    yield f"{indent})"


def comment(text: str) -> Iterator[str]:
    """`text` as comment lines, however many lines it has."""
    for line in text.splitlines() or [""]:
        yield f"# {line}".rstrip()


def _phrases(tokens: Sequence[str]) -> Iterator[str]:
    for at, token in enumerate(tokens):
        if at and _takes_value(tokens[at - 1], token):
            continue
        value = tokens[at + 1 : at + 2]
        words = [token, *value] if value and _takes_value(token, value[0]) else [token]
        yield " ".join(map(word, words))


def _takes_value(option: str, value: str) -> bool:
    return option.startswith("-") and "=" not in option and not value.startswith("-")
