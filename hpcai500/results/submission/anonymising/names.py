"""Finds the names that a submission would give away: of hosts, their domains, and users."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcai500.errors import UsageError
from hpcai500.hostlist import expand_hosts

# Under these keys events, descriptions and accounting name hosts.
_HOST_KEYS = frozenset({"host", "hosts", "covers", "slowest_host", "outliers", "node_list"})
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
# Slurm's short form of many hosts.
HOST_LIST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\[[0-9,-]+\](?:[A-Za-z0-9._-]|\[[0-9,-]+\])*")
# Letters and digits, with what hosts' names have between them.
RUN = re.compile(r"[A-Za-z0-9]+(?:[._-]+[A-Za-z0-9]+)*")
PIECE = re.compile(r"[A-Za-z0-9]+")
HOME = re.compile(r"(/(?:home[0-9]*|homes|users?|Users|people)/)([^/\s\"':;,)]+)")
_SUFFIXES = frozenset(
    {"csv", "json", "jsonl", "log", "txt", "out", "err", "pt", "toml", "py", "zip", "so", "sh", "sif", "h5", "pid"}
)
_NOBODY = frozenset({"localhost", "localhost.localdomain"})
# Names of accounts that tell nobody's name, and words of records: replaced within paths of home folders alone.
_COMMON = frozenset(
    {
        "root",
        "user",
        "users",
        "admin",
        "hpc",
        "hpcai500",
        "python",
        "data",
        "train",
        "test",
        "ubuntu",
        "slurm",
        "ic",
        "ewa",
    }
)
_PREFIXES = ("node", "host", "machine", "computer", "n-of-cluster")
_LEAST_USER = 3


@dataclass
class Found:
    """Names as they were found, of hosts, of domains and of users."""

    hosts: set[str] = field(default_factory=set)
    domains: set[str] = field(default_factory=set)
    users: set[str] = field(default_factory=set)


def find_names(documents: Iterable[Any], texts: Iterable[str], here: str, user: str) -> Found:
    """All names in `documents` (JSON) and `texts`; `here` and `user` are those of who packs.

    Raises:
        UsageError: a host's name cannot be told from a number.
    """
    found = Found()
    strings: set[str] = set(texts)
    for document in documents:
        for key, text in _strings(document):
            strings.add(text)
            if key in _HOST_KEYS:
                found.hosts |= set(_hosts(text))
    found.hosts -= _NOBODY
    found.domains |= {domain for name in (*found.hosts, here) if _is_domain(domain := name.partition(".")[2])}
    known = {host.lower() for host in found.hosts}
    for text in strings:
        found.users |= {one for _, one in HOME.findall(text)}
        _learn_listed(found, text, known)
    known = {host.lower() for host in found.hosts}
    for text in strings:
        _learn_qualified(found, text, known)
    for text in strings:
        _learn_of_domain(found, text)
    if user:
        found.users.add(user)
    for host in found.hosts:
        if not any(character.isalpha() for character in host) and "." not in host:
            raise UsageError(f"--anonymise: the host {host} has a name that cannot be told from a number: leave it out")
    return found


def pseudonyms(found: Found, here: str) -> dict[str, str]:
    """What replaces each name of a host or a domain, by the name in small letters.

    The order of names stays: whatever was sorted by them is still sorted.
    """
    shorts: dict[str, set[str]] = {}
    for name in found.hosts:
        shorts.setdefault(name.partition(".")[0].lower(), set()).add(name.partition(".")[2].lower())
    alone = {short for short, domains in shorts.items() if len(domains - {""}) < 2}
    identities = sorted({_identity(name, alone) for name in found.hosts})
    prefix = next(one for one in _PREFIXES if not any(one in PIECE.findall(name) for name in identities))
    width = max(3, len(str(len(identities))))
    numbers = {identity: f"{prefix}-{number:0{width}d}" for number, identity in enumerate(identities, 1)}
    chosen = {f"{name}": f"domain-{number:03d}" for number, name in enumerate(sorted(map(str.lower, found.domains)), 1)}
    for identity, number in numbers.items():
        # A host is called by its short name as well.
        chosen.setdefault(identity.partition(".")[0], number)
    chosen |= {name.lower(): numbers[_identity(name, alone)] for name in found.hosts}
    if here and here.lower() not in _NOBODY:
        for name in (here.lower(), here.partition(".")[0].lower()):
            chosen.setdefault(name, "submitting-host")
    return chosen


def user_pseudonyms(found: Found) -> dict[str, str]:
    """What replaces each user's name, by the name in small letters."""
    names = sorted({user.lower() for user in found.users} - {"root"})
    return {name: f"user-{number:03d}" for number, name in enumerate(names, 1)}


def is_telling(user: str) -> bool:
    """Whether a user's name is one wherever it occurs."""
    return len(user) >= _LEAST_USER and user not in _COMMON


def _identity(name: str, alone: set[str]) -> str:
    short = name.partition(".")[0].lower()
    is_address = not any(character.isalpha() for character in name)
    return short if short in alone and not is_address else name.lower()


def _strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """All strings in a JSON document, with the key that they stand under."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _strings(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner, key)


def _hosts(text: str) -> list[str]:
    if "[" not in text and "," not in text:
        return [text] if _HOST.fullmatch(text) else []
    try:
        return [name for name in expand_hosts(text) if _HOST.fullmatch(name)]
    except UsageError:
        return []


def _is_domain(text: str) -> bool:
    return "." in text and any(character.isalpha() for character in text)


def _learn_qualified(found: Found, text: str, known: set[str]) -> None:
    """`n1.cluster.example.org` names a host where n1 is one."""
    if "." not in text:
        return
    for run in RUN.findall(text):
        short, _, domain = run.partition(".")
        last = domain.rpartition(".")[2]
        if short.lower() in known and _is_domain(domain) and last.isalpha() and last.lower() not in _SUFFIXES:
            found.hosts.add(run)
            found.domains.add(domain)


def _learn_listed(found: Found, text: str, known: set[str]) -> None:
    """Of a list in Slurm's short form that holds one of ours, all are hosts."""
    if "[" not in text:
        return
    for listed in HOST_LIST.findall(text):
        names = _hosts(listed)
        if any(name.lower() in known for name in names):
            found.hosts |= set(names)


def _learn_of_domain(found: Found, text: str) -> None:
    """Whatever is named in a known domain is a host of the site."""
    for domain in list(found.domains):
        if domain.lower() in text.lower():
            ending = f".{domain.lower()}"
            found.hosts |= {run for run in RUN.findall(text) if run.lower().endswith(ending) and run.lower() != domain}
