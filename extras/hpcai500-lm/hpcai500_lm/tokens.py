"""Token sets: shards of plain token numbers, mapped into memory, and an index of them.

A set is a folder with `index.json` and shards: files of unsigned little-endian integers of 2 or 4 bytes. Sample i of a
part is a window of `length` tokens, and the token after each of them is its target; windows follow one another within a
shard, and none crosses into the next shard.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from hpcai500.errors import DataError

FORMAT = "hpcai500-lm-tokens-1"
INDEX = "index.json"
# Of samples: those of the recipes smoke, gpt2 and reference.
LENGTHS = (128, 1024, 8192)
_TYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
_SHARD = re.compile(r"[A-Za-z0-9_][\w.-]*\.bin")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# Read on every rank at the start, to find a copy of the set that differs: this many bytes at so many places of a shard.
_PROBE_BYTES, _PROBES = 4096, 16
# Tokens in one step of a complete reading.
_PIECE = 1 << 24


class Part(StrEnum):
    """What the shards are for."""

    TRAINING = "training"
    EVALUATION = "evaluation"


@dataclass(frozen=True)
class Shard:
    """A file of tokens, as the index describes it."""

    path: Path
    tokens: int
    sha256: str

    def samples(self, length: int) -> int:
        """How many windows of `length` tokens it has; the last target is the token after the window."""
        return (self.tokens - 1) // length


class Sequences:
    """The samples of one part: windows of `length` tokens.

    Raises:
        DataError: no shard is long enough.
    """

    def __init__(self, root: Path, part: Part, shards: Sequence[Shard], dtype: np.dtype[Any], length: int) -> None:
        self._shards, self._dtype, self._length, self._root = shards, dtype, length, root
        self._ends = np.cumsum([shard.samples(length) for shard in shards])
        if not len(self):
            raise DataError(
                f"{root}: no shard of the {part} part has the {length + 1} tokens of one sample: lower "
                "workload.sequence_length, or give a larger set"
            )

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @cached_property
    def _maps(self) -> list[npt.NDArray[Any]]:
        return [np.memmap(shard.path, self._dtype, "r", shape=(shard.tokens,)) for shard in self._shards]

    def read(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The samples `ids` as (N, length + 1) tokens: inputs are all but the last, targets all but the first."""
        found = np.empty((len(ids), self._length + 1), np.int64)
        shards = np.searchsorted(self._ends, ids, side="right")
        for row, (number, shard) in enumerate(zip(ids.tolist(), shards.tolist(), strict=True)):
            start = (number - (int(self._ends[shard - 1]) if shard else 0)) * self._length
            found[row] = self._maps[shard][start : start + self._length + 1]
        return found


@dataclass(frozen=True)
class TokenSet:
    """A set on disk.

    Attributes:
        vocabulary: tokens are below it.
        shards: of each part, in order.
        facts: what else the index says, such as the tokenizer, or the best loss of a synthetic set.
        fingerprint: SHA-256 (hex) of all that the index says of the shards.
    """

    root: Path
    vocabulary: int
    dtype: np.dtype[Any]
    shards: Mapping[Part, tuple[Shard, ...]]
    facts: Mapping[str, Any]
    fingerprint: str

    def sequences(self, part: Part, length: int) -> Sequences:
        return Sequences(self.root, part, self.shards[part], self.dtype, length)

    def samples(self, length: int) -> str:
        """How many samples of `length` tokens each part has, and whether that is enough for a run."""
        counts = {part: sum(shard.samples(length) for shard in self.shards[part]) for part in Part}
        text = ", ".join(f"{count} for {part}" for part, count in counts.items())
        return text if all(counts.values()) else f"{text}: not enough for a run"

    def content_fingerprint(self) -> str:
        """SHA-256 (hex) of pieces of all shards, as this machine reads them: finds a copy that differs.

        Raises:
            DataError: a shard cannot be read.
        """
        digest = hashlib.sha256()
        for shard in self._all():
            size = shard.tokens * self.dtype.itemsize
            places = {max(0, size - _PROBE_BYTES) * probe // (_PROBES - 1) for probe in range(_PROBES)}
            try:
                with shard.path.open("rb") as stream:
                    for place in sorted(places):
                        stream.seek(place)
                        digest.update(stream.read(_PROBE_BYTES))
            except OSError as error:
                raise DataError(f"{shard.path}: cannot be read: {error.strerror}") from error
        return digest.hexdigest()

    def check(self) -> dict[str, Any]:
        """Read all shards, and compare them with the index; returns facts about the set.

        Raises:
            DataError: a shard is not the one that the index describes, or has a token that is not in the vocabulary.
        """
        for shard in self._all():
            digest = hashlib.sha256()
            tokens = np.memmap(shard.path, self.dtype, "r", shape=(shard.tokens,))
            for at in range(0, shard.tokens, _PIECE):
                piece = tokens[at : at + _PIECE]
                digest.update(piece.data)
                wrong = np.flatnonzero(piece >= self.vocabulary)
                if wrong.size:
                    raise DataError(
                        f"{shard.path}: token {at + int(wrong[0])} is {int(piece[wrong[0]])}, but the vocabulary of "
                        f"the set has {self.vocabulary}: write the set again"
                    )
            if digest.hexdigest() != shard.sha256:
                raise DataError(f"{shard.path}: not the file of the index: its SHA-256 differs; copy the set again")
        return {
            **{f"{part}_tokens": sum(shard.tokens for shard in self.shards[part]) for part in Part},
            **{f"samples_of_{length}_tokens": self.samples(length) for length in LENGTHS},
            "shards": sum(1 for _ in self._all()),
            "vocabulary": self.vocabulary,
            "bytes_per_token": self.dtype.itemsize,
            **self.facts,
        }

    def _all(self) -> Iterable[Shard]:
        return (shard for part in Part for shard in self.shards[part])


def check(folder: Path) -> dict[str, Any]:
    """Read all of the set in `folder`; returns facts about it.

    Raises:
        DataError: it is broken.
    """
    return open_set(folder).check()


# ----------------------------------------------------------------------------------------------------
# The index, which may come from anywhere.


def open_set(root: Path) -> TokenSet:
    """The set in the folder `root`; only the index and the sizes of the shards are read.

    Raises:
        DataError: there is no set, or its shards are missing or have other sizes.
    """
    path = root / INDEX
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(
            f"{root}: no {INDEX} in it: hpcai500 data make lm DIR makes a synthetic set, hpcai500-lm-tokens one of text"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read: {error}; write the set again") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DataError(f"{path}: not an index of tokens ({FORMAT}): write the set again")
    for key, kind in {"vocabulary": int, "dtype": str, "shards": dict, "facts": dict}.items():
        if not isinstance(document.get(key), kind) or isinstance(document.get(key), bool):
            raise DataError(f"{path}: {key}: expected {kind.__name__}, got {document.get(key)!r:.80}")
    if document["dtype"] not in _TYPES:
        raise DataError(f"{path}: dtype: expected {' or '.join(_TYPES)}, got {document['dtype']!r:.80}")
    dtype, vocabulary = _TYPES[document["dtype"]], document["vocabulary"]
    if not 2 <= vocabulary <= np.iinfo(dtype).max + 1:
        raise DataError(f"{path}: vocabulary: expected 2 to {np.iinfo(dtype).max + 1}, got {vocabulary}")
    shards = {part: tuple(_shards(root, path, part, document["shards"], dtype)) for part in Part}
    described = {key: document[key] for key in ("vocabulary", "dtype", "shards")}
    fingerprint = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
    return TokenSet(root, vocabulary, dtype, shards, document["facts"], fingerprint)


def _shards(root: Path, index: Path, part: Part, document: Mapping[str, Any], dtype: np.dtype[Any]) -> Iterable[Shard]:
    rows = document.get(part)
    if not isinstance(rows, list) or not rows:
        raise DataError(f"{index}: shards: expected a list of shards for {part}, got {rows!r:.80}")
    for row in rows:
        name, tokens, sha256 = (row.get(key) if isinstance(row, dict) else None for key in ("file", "tokens", "sha256"))
        if not (
            isinstance(name, str) and _SHARD.fullmatch(name) and isinstance(sha256, str) and _SHA256.fullmatch(sha256)
        ):
            raise DataError(f"{index}: shards: expected file (a name.bin), tokens and sha256 (hex), got {row!r:.200}")
        if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
            raise DataError(f"{index}: shards: {name}: expected a number of tokens, got {tokens!r:.80}")
        path = root / name
        try:
            size = path.stat().st_size
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}; copy the set again") from error
        if size != tokens * dtype.itemsize:
            raise DataError(
                f"{path}: has {size} bytes, but {tokens} tokens take {tokens * dtype.itemsize}: copy the set again"
            )
        yield Shard(path, tokens, sha256)


# ----------------------------------------------------------------------------------------------------
# Writing a set.


def write_set(
    folder: Path,
    vocabulary: int,
    parts: Mapping[Part, Iterable[Iterable[npt.NDArray[Any]]]],
    facts: Mapping[str, Any],
) -> None:
    """Write a set into `folder`: the shards of each part, and the tokens of each shard, in blocks.

    One block is in memory at a time. The index is written last: a folder without it is no set.

    Raises:
        DataError: a part has no tokens.
        OSError: the disk is full, or cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = "uint16" if vocabulary <= np.iinfo(np.uint16).max + 1 else "uint32"
    document: dict[str, Any] = {"format": FORMAT, "vocabulary": vocabulary, "dtype": name, "shards": {}}
    for part in Part:
        rows = document["shards"][part] = []
        for number, blocks in enumerate(parts[part]):
            path, digest, tokens = folder / f"{part}-{number:05d}.bin", hashlib.sha256(), 0
            with path.open("wb") as stream:
                for block in blocks:
                    content = np.ascontiguousarray(block, _TYPES[name])
                    stream.write(content.data)
                    digest.update(content.data)
                    tokens += content.size
            rows.append({"file": path.name, "tokens": tokens, "sha256": digest.hexdigest()})
        if not rows:
            raise DataError(f"{folder}: the {part} part has no tokens")
    document["facts"] = dict(facts)
    unfinished = folder / f".{INDEX}"
    unfinished.write_text(json.dumps(document, indent=1) + "\n")
    unfinished.replace(folder / INDEX)
