"""Replaces names in text: whole words in any case, never parts of other words."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any

from hpcai500.errors import UsageError
from hpcai500.hostlist import expand_hosts
from hpcai500.results.submission.anonymising.names import HOME, HOST_LIST, PIECE, RUN, is_telling

_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])")
_MAC = re.compile(r"(?<![\w:-])[0-9A-Fa-f]{2}(?:([:-])[0-9A-Fa-f]{2})(?:\1[0-9A-Fa-f]{2}){4}(?![\w:-])")
_IPV6_PIECES = 7
# Words of the format, whatever a host is called.
_FORMAT_KEYS = frozenset(
    {"schema", "key", "status", "benchmark", "edition", "backend", "metric", "convention", "launcher", "record"}
)
# Versions of four numbers look like addresses.
_VERSION_KEYS = frozenset(
    {"software", "installation", "driver", "device_software", "library", "version", "torch_build", "kernel", "firmware"}
)


class Replacer:
    """Replaces names; the same name by the same word, wherever it occurs.

    Args:
        names: of hosts and domains in small letters, and what replaces each.
        users: the same of users.
    """

    def __init__(self, names: Mapping[str, str], users: Mapping[str, str]) -> None:
        self._users = users
        self._names = {**{user: word for user, word in users.items() if is_telling(user)}, **names}
        # A host that is called like a key of our documents would make them unreadable.
        self._keys = {name: word for name, word in names.items() if any(map(str.isdigit, name))}
        self._most_pieces = max((len(PIECE.findall(name)) for name in self._names), default=0)
        self._addresses: dict[str, str] = {}
        self._known: dict[tuple[str, bool], str] = {}

    def text(self, text: str, *, with_addresses: bool = True) -> str:
        """`text` without the names."""
        found = self._known.get((text, with_addresses))
        if found is None:
            found = HOST_LIST.sub(lambda match: self._listed(match.group()), text)
            found = HOME.sub(lambda match: match.group(1) + self._home(match.group(2)), found)
            found = RUN.sub(lambda match: self._run(match.group()), found)
            if with_addresses:
                found = self._without_addresses(found)
            self._known[text, with_addresses] = found
        return found

    def value(self, value: Any, key: str = "", *, with_addresses: bool = True) -> Any:
        """A JSON document without the names, in its values and where a key is a name."""
        if isinstance(value, str):
            return value if key in _FORMAT_KEYS else self.text(value, with_addresses=with_addresses)
        if isinstance(value, list):
            return [self.value(inner, key, with_addresses=with_addresses) for inner in value]
        if isinstance(value, dict):
            return {
                self._keys.get(name.lower(), name): self.value(
                    inner, name, with_addresses=with_addresses and name not in _VERSION_KEYS
                )
                for name, inner in value.items()
            }
        return value

    def _listed(self, text: str) -> str:
        """`n[01-02]` as node-001,node-002, where it lists hosts of ours."""
        try:
            hosts = expand_hosts(text)
        except UsageError:
            return text
        if not any(host.lower() in self._names for host in hosts):
            return text
        return ",".join(self._names.get(host.lower(), host) for host in hosts)

    def _home(self, user: str) -> str:
        return self._users.get(user.lower(), user)

    def _run(self, text: str) -> str:
        """The longest names within letters, digits, dots, hyphens and underscores."""
        pieces = [match.span() for match in PIECE.finditer(text)]
        done, place, at = [], 0, 0
        while at < len(pieces):
            for last in range(min(at + self._most_pieces, len(pieces)) - 1, at - 1, -1):
                word = self._names.get(text[pieces[at][0] : pieces[last][1]].lower())
                if word is not None:
                    done += [text[place : pieces[at][0]], word]
                    place, at = pieces[last][1], last
                    break
            at += 1
        return "".join([*done, text[place:]])

    def _without_addresses(self, text: str) -> str:
        text = _MAC.sub(lambda match: self._address(match.group()), text)
        text = _IPV4.sub(lambda match: self._internet_address(match.group()), text)
        return _IPV6.sub(lambda match: self._internet_address(match.group()), text)

    def _internet_address(self, text: str) -> str:
        # A time of day has colons too.
        if ":" in text and "::" not in text and text.count(":") < _IPV6_PIECES:
            return text
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return text
        return text if address.is_loopback or address.is_unspecified else self._address(text)

    def _address(self, text: str) -> str:
        return self._addresses.setdefault(text.lower(), f"address-{len(self._addresses) + 1:03d}")
