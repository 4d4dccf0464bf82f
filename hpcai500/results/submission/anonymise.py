"""Anonymising: replaces names of hosts and users in a submission, and computes all hashes again.

Numbers, times and structure do not change, and a hash that did not match before does not match afterwards.
"""

from __future__ import annotations

import getpass
import hashlib
import ipaddress
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from hpcai500.campaign.journal import JOURNAL, Campaign, read_campaign
from hpcai500.errors import UsageError
from hpcai500.hosts import expand_hosts
from hpcai500.recipe import tables_hash
from hpcai500.record import FIRST_PREVIOUS, Event, event_line, last_hash, line_hash, parse_events
from hpcai500.results.submission.claim import claim_of
from hpcai500.results.submission.gather import Content, Gathered, content_bytes, content_of
from hpcai500.results.submission.manifest import ACCOUNTING, CAMPAIGN, LOGS, Anonymised, Form, LeftOut, kind_of

# ----------------------------------------------------------------------------------------------------
# Finding the names of hosts, their domains, and users.


# Keys of host names in events, descriptions and accounting.
_HOST_KEYS = frozenset({"host", "hosts", "covers", "slowest_host", "outliers", "node_list"})
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
# Slurm's short form of many hosts, `n[01-04]`.
HOST_LIST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\[[0-9,-]+\](?:[A-Za-z0-9._-]|\[[0-9,-]+\])*")
# Letters and digits, with the separators of host names between them.
RUN = re.compile(r"[A-Za-z0-9]+(?:[._-]+[A-Za-z0-9]+)*")
PIECE = re.compile(r"[A-Za-z0-9]+")
HOME = re.compile(r"(/(?:home[0-9]*|homes|users?|Users|people)/)([^/\s\"':;,)]+)")
_SUFFIXES = frozenset(
    {"csv", "json", "jsonl", "log", "txt", "out", "err", "pt", "toml", "py", "zip", "so", "sh", "sif", "h5", "pid"}
)
_NOBODY = frozenset({"localhost", "localhost.localdomain"})
# Accounts that are not people, and words that records use: replaced only within paths of home folders.
_COMMON = frozenset(
    {
        "root", "user", "users", "admin", "hpc", "hpcai500", "python", "data", "train", "test", "ubuntu", "slurm", "ic",
        "ewa",
    }
)  # fmt: skip
_PREFIXES = ("node", "host", "machine", "computer", "n-of-cluster")
_LEAST_USER = 3


@dataclass
class Found:
    """Names as found in the files."""

    hosts: set[str] = field(default_factory=set)
    domains: set[str] = field(default_factory=set)
    users: set[str] = field(default_factory=set)


def find_names(documents: Iterable[Any], texts: Iterable[str], here: str, user: str) -> Found:
    """Find all names in `documents` (JSON) and `texts`; `here` and `user` are the host and the user that pack.

    Raises:
        UsageError: a host's name looks like a number.
    """
    found = Found()
    strings: set[str] = set(texts)
    for document in documents:
        for key, text in _strings(document):
            strings.add(text)
            if key in _HOST_KEYS:
                found.hosts |= set(_hosts(text))
    found.hosts -= _NOBODY
    known = {host.lower() for host in found.hosts}
    # If a list in Slurm's short form includes a known host, all its names are hosts.
    for names in (_hosts(listed) for text in strings if "[" in text for listed in HOST_LIST.findall(text)):
        if any(name.lower() in known for name in names):
            found.hosts |= set(names)
    _learn_qualified(found, {run for text in strings for run in RUN.findall(text) if "." in run}, here)
    found.users = {user for text in strings for _, user in HOME.findall(text)} | ({user} if user else set())
    for host in found.hosts:
        if not any(character.isalpha() for character in host) and "." not in host:
            raise UsageError(
                f"--anonymise: the host name {host} looks like a number and cannot be replaced: submit without it"
            )
    return found


def _learn_qualified(found: Found, dotted: set[str], here: str) -> None:
    """Add qualified names: if n1 is a host, `n1.cluster.example.org` is, too, and so is every name in that domain."""
    found.domains = {domain for name in (*found.hosts, here) if _is_domain(domain := name.partition(".")[2])}
    known = {host.lower() for host in found.hosts}
    for name in dotted:
        host, _, domain = name.partition(".")
        last = domain.rpartition(".")[2]
        if host.lower() in known and _is_domain(domain) and last.isalpha() and last.lower() not in _SUFFIXES:
            found.hosts.add(name)
            found.domains.add(domain)
    domains = {domain.lower() for domain in found.domains}
    endings = tuple(f".{domain}" for domain in domains)
    found.hosts |= {name for name in dotted if name.lower().endswith(endings) and name.lower() not in domains}


def pseudonyms(found: Found, here: str) -> dict[str, str]:
    """Return the pseudonym of each host and domain, by the name in lower case.

    Pseudonyms of hosts sort as the names do, so that sorted lists stay sorted.
    """
    shorts: dict[str, set[str]] = {}
    for name in found.hosts:
        shorts.setdefault(name.partition(".")[0].lower(), set()).add(name.partition(".")[2].lower())
    alone = {short for short, domains in shorts.items() if len(domains - {""}) < 2}
    identities = sorted({_identity(name, alone) for name in found.hosts})
    prefix = next(one for one in _PREFIXES if not any(one in PIECE.findall(name) for name in identities))
    width = max(3, len(str(len(identities))))
    numbers = {identity: f"{prefix}-{number:0{width}d}" for number, identity in enumerate(identities, 1)}
    chosen = {name: f"domain-{number:03d}" for number, name in enumerate(sorted(map(str.lower, found.domains)), 1)}
    for identity, number in numbers.items():
        # Short names, too.
        chosen.setdefault(identity.partition(".")[0], number)
    chosen |= {name.lower(): numbers[_identity(name, alone)] for name in found.hosts}
    if here and here.lower() not in _NOBODY:
        for name in (here.lower(), here.partition(".")[0].lower()):
            chosen.setdefault(name, "submitting-host")
    return chosen


def user_pseudonyms(found: Found) -> dict[str, str]:
    """Return the pseudonym of each user, by the name in lower case."""
    names = sorted({user.lower() for user in found.users} - {"root"})
    return {name: f"user-{number:03d}" for number, name in enumerate(names, 1)}


def _is_replaced_everywhere(user: str) -> bool:
    """Whether a user's name is replaced wherever it occurs, not only in paths of home folders."""
    return len(user) >= _LEAST_USER and user not in _COMMON


def _identity(name: str, alone: set[str]) -> str:
    short = name.partition(".")[0].lower()
    is_address = not any(character.isalpha() for character in name)
    return short if short in alone and not is_address else name.lower()


def _strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield all strings of a JSON document, with their keys."""
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


# ----------------------------------------------------------------------------------------------------
# Replacing names in text: whole words in any case, never parts of other words.


_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])")
_MAC = re.compile(r"(?<![\w:-])[0-9A-Fa-f]{2}(?:([:-])[0-9A-Fa-f]{2})(?:\1[0-9A-Fa-f]{2}){4}(?![\w:-])")
_IPV6_PIECES = 7
# Values under these keys are words of the format, even if a host has the same name.
_FORMAT_KEYS = frozenset(
    {"schema", "key", "status", "benchmark", "edition", "backend", "metric", "convention", "launcher", "record"}
)
# Versions of four numbers look like addresses.
_VERSION_KEYS = frozenset(
    {"software", "installation", "driver", "device_software", "library", "version", "torch_build", "kernel", "firmware"}
)


class Replacer:
    """Replaces each name by its pseudonym.

    Args:
        names: pseudonyms of hosts and domains, by the name in lower case.
        users: pseudonyms of users, by the name in lower case.
    """

    def __init__(self, names: Mapping[str, str], users: Mapping[str, str]) -> None:
        self._users = users
        self._names = {**{user: word for user, word in users.items() if _is_replaced_everywhere(user)}, **names}
        # In keys, only names with digits are replaced: a host named like one of our keys would make files unreadable.
        self._keys = {name: word for name, word in names.items() if any(map(str.isdigit, name))}
        self._most_pieces = max((len(PIECE.findall(name)) for name in self._names), default=0)
        self._addresses: dict[str, str] = {}
        self._known: dict[tuple[str, bool], str] = {}

    def text(self, text: str, *, with_addresses: bool = True) -> str:
        """Return `text` without the names, and without addresses unless `with_addresses` is false."""
        found = self._known.get((text, with_addresses))
        if found is None:
            found = HOST_LIST.sub(lambda match: self._listed(match.group()), text)
            found = HOME.sub(lambda match: match[1] + self._users.get(match[2].lower(), match[2]), found)
            found = RUN.sub(lambda match: self._run(match.group()), found)
            if with_addresses:
                found = self._without_addresses(found)
            self._known[text, with_addresses] = found
        return found

    def value(self, value: Any, key: str = "", *, with_addresses: bool = True) -> Any:
        """Return a JSON document without the names, in its values and in keys that are names."""
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
        """Replace `n[01-02]` by node-001,node-002 if it includes a known host."""
        try:
            hosts = expand_hosts(text)
        except UsageError:
            return text
        if not any(host.lower() in self._names for host in hosts):
            return text
        return ",".join(self._names.get(host.lower(), host) for host in hosts)

    def _run(self, text: str) -> str:
        """Replace the longest known names in a text of letters, digits, dots, hyphens and underscores."""
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
        # A time of day has colons, too.
        if ":" in text and "::" not in text and text.count(":") < _IPV6_PIECES:
            return text
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return text
        return text if address.is_loopback or address.is_unspecified else self._address(text)

    def _address(self, text: str) -> str:
        return self._addresses.setdefault(text.lower(), f"address-{len(self._addresses) + 1:03d}")


# ----------------------------------------------------------------------------------------------------
# Rewriting: files first, then journal and records, which hold each other's hashes.


_JOURNAL = f"{CAMPAIGN}/{JOURNAL}"
_LONGEST_TRACE_BYTES = 64 * 2**20
_HASH_LENGTH = hashlib.sha256().digest_size * 2


def anonymise(
    campaign: Campaign,
    gathered: Gathered,
    folder: Path,
    here: str,
    user: str | None = None,
    *,
    longest_trace: int = _LONGEST_TRACE_BYTES,
) -> Anonymised:
    """Replace the files in `gathered` by anonymised ones, which are written into `folder`.

    Sources and checkpoints, which hold only numbers, are not changed.

    Args:
        folder: a new folder; the campaign is written into its `campaign/`.
        here: name of this host.
        user: name of the submitter; None asks the system.
        longest_trace: bytes; longer traces are left out.

    Raises:
        RecordError: the chain of a log is broken, so that it cannot be computed again.
        UsageError: a name cannot be replaced without changing the result.
    """
    _leave_unread_traces(gathered, longest_trace)
    user = _user() if user is None else user
    found = find_names(_documents(gathered), _texts(gathered), here, user)
    names = pseudonyms(found, here)
    rewriting = _Rewriting(gathered.files, folder, Replacer(names, user_pseudonyms(found)))
    gathered.files = rewriting.rewritten()
    gathered.left_out = [rewriting.left_out(one) for one in gathered.left_out]
    _require_same_claim(campaign, read_campaign(folder / CAMPAIGN))
    hosts = {names[host.lower()] for host in found.hosts}
    return Anonymised(hosts=len(hosts), original_campaign=campaign.identity, original_heads=rewriting.original_heads)


def _leave_unread_traces(gathered: Gathered, longest_bytes: int) -> None:
    """Leave out traces that cannot be searched for names: reading one takes ten times its size in memory."""
    for path in _paths(gathered, "bytes"):
        if "/trace/" in path and not path.endswith(".json"):
            gathered.leave(path, "--anonymise: not JSON, so that names in it cannot be found")
        elif path.endswith(".json") and content_bytes(gathered.files[path]) > longest_bytes:
            gathered.leave(path, f"--anonymise: over {longest_bytes >> 20} MiB, too large to search for names")
        else:
            continue
        del gathered.files[path]


def _paths(gathered: Gathered, form: Form) -> list[str]:
    return [path for path in sorted(gathered.files) if (kind := kind_of(path)) and kind.form == form]


def _documents(gathered: Gathered) -> Iterator[Any]:
    for path in _paths(gathered, "json lines"):
        yield from parse_events(whole_lines(content_of(gathered.files[path])), path)[0]
    for path in (*_paths(gathered, "json"), *(path for path in _paths(gathered, "bytes") if path.endswith(".json"))):
        try:
            yield json.loads(content_of(gathered.files[path]))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}: not JSON, so that names in it cannot be replaced: {error}") from error
    for path in _paths(gathered, "toml"):
        yield tomllib.loads(content_of(gathered.files[path]).decode())


def _texts(gathered: Gathered) -> Iterator[str]:
    for path in _paths(gathered, "text"):
        yield path
        yield content_of(gathered.files[path]).decode("utf-8", errors="replace")
    yield from _paths(gathered, "csv")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _require_same_claim(before: Campaign, after: Campaign) -> None:
    one, other = claim_of(before), claim_of(after)
    if (one.level, one.rankable, one.metrics, len(one.reasons)) != (
        other.level,
        other.rankable,
        other.metrics,
        len(other.reasons),
    ):
        raise UsageError(
            f"{before.path}: --anonymise would change the result, as the name of a host or a user is also a word in "
            "records: submit without --anonymise"
        )


def whole_lines(content: bytes) -> bytes:
    """Return `content` without an incomplete last line, which a crash leaves."""
    return content[: content.rfind(b"\n") + 1]


class _Rewriting:
    """Writes each file again, and replaces hashes of old content by those of the new content."""

    def __init__(self, files: Mapping[str, Content], folder: Path, replacer: Replacer) -> None:
        self._files, self._folder, self._replacer = files, folder, replacer
        self._hashes: dict[str, str] = {}
        self._new: dict[str, Content] = {}
        self.original_heads: dict[str, str] = {}

    def rewritten(self) -> dict[str, Content]:
        """Rewrite all files; return them by their new paths."""
        logs = [path for path in sorted(self._files) if _form(path) == "json lines"]
        marks = [path for path in self._files if path.endswith("/DONE")]
        for path in self._files:
            if path not in (*logs, *marks):
                self._rewrite_plain(path)
        # The journal's log first, which includes the logs of its records; then those that it does not name.
        for path in (_JOURNAL, *logs):
            if path not in self._new:
                self._rewrite_log(path)
        for path in marks:
            head = content_of(self._files[path]).decode("utf-8", errors="replace").strip()
            self._write(path, f"{self._hashes.get(head, head)}\n".encode())
        return self._new

    def left_out(self, one: LeftOut) -> LeftOut:
        return LeftOut(path=self._replacer.text(one.path)[:1000], reason=self._replacer.text(one.reason)[:1000])

    def _rewrite_plain(self, path: str) -> None:
        """Rewrite a file that holds no hash of a log."""
        form = _form(path)
        if form == "checkpoint" or not path.startswith((f"{CAMPAIGN}/", f"{ACCOUNTING}/", f"{LOGS}/")):
            self._new[path] = self._files[path]
            return
        content = content_of(self._files[path])
        if form == "toml":
            changed = self._recipe(content)
        elif form == "json" or path.endswith(".json"):
            changed = self._document(content, indent=2 if form == "json" else None)
        elif form == "csv":
            # Rows are numbers; the header names devices.
            header, end, rows = content.partition(b"\n")
            changed = self._text(header) + end + rows
        else:
            changed = self._text(content) if form == "text" else content
        self._hashes[hashlib.sha256(content).hexdigest()] = hashlib.sha256(changed).hexdigest()
        parent, _, name = path.rpartition("/")
        self._write(f"{parent}/{self._replacer.text(name)}", changed)

    def _recipe(self, content: bytes) -> bytes:
        tables = tomllib.loads(content.decode())
        changed = self._replacer.value(tables)
        self._hashes[tables_hash(tables)] = tables_hash(changed)
        return content if changed == tables else tomli_w.dumps(changed).encode()

    def _document(self, content: bytes, indent: int | None) -> bytes:
        document = json.loads(content)
        changed = self._replacer.value(document)
        if changed == document:
            return content
        return (json.dumps(changed, indent=indent, allow_nan=False) + ("\n" if indent else "")).encode()

    def _text(self, content: bytes) -> bytes:
        return self._replacer.text(content.decode("utf-8", errors="replace")).encode()

    def _rewrite_log(self, path: str) -> None:
        """Rewrite a log line by line: a record holds the hash of its first line in the journal, and that of its end."""
        content = whole_lines(content_of(self._files[path]))
        lines: list[bytes] = []
        for event, line in zip(parse_events(content, path)[0], content.split(b"\n"), strict=False):
            lines.append(self._next_line(event, line, lines))
            if path == _JOURNAL and event["key"] == "attempt_start":
                record = f"{CAMPAIGN}/{event['value']['record']}/events.jsonl"
                if record in self._files:
                    self._rewrite_log(record)
        if lines:
            self.original_heads[path] = last_hash(content)
        self._write(path, b"".join(line + b"\n" for line in lines))

    def _next_line(self, event: Event, old: bytes, lines: list[bytes]) -> bytes:
        previous = line_hash(lines[-1]) if lines else FIRST_PREVIOUS
        value = self._rehashed(self._replacer.value(event.get("value")))
        line = event_line({**event, "prev": previous, "value": value})
        self._hashes[line_hash(old)] = line_hash(line)
        return line

    def _rehashed(self, value: Any) -> Any:
        """Return `value` with each old hash replaced by the new one."""
        if isinstance(value, str):
            return self._hashes.get(value, value) if len(value) == _HASH_LENGTH else value
        if isinstance(value, list):
            return [self._rehashed(inner) for inner in value]
        if isinstance(value, dict):
            return {key: self._rehashed(inner) for key, inner in value.items()}
        return value

    def _write(self, path: str, content: bytes) -> None:
        target = self._folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        self._new[path] = target


def _form(path: str) -> Form:
    kind = kind_of(path)
    return kind.form if kind else "bytes"
