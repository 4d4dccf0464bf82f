"""Reads the events of a trace file that may be large, and whose end may be missing because its writer was killed."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from hpcai500.errors import DataError

_CHUNK_BYTES = 1 << 20
# No event of a trace is as long; what has no end by then is none.
_LONGEST_EVENT = 8 << 20
_OPENING = re.compile(r"\s*\[")
_SPACE = re.compile(r"\s*")
_BETWEEN = re.compile(r"[\s,]*")
# `false`, or an escape (backslash, u and four digits): of these, json names the beginning.
_LONGEST_WORD = 6
_UNTERMINATED = "Unterminated string"

Event = dict[str, Any]


class JsonEvents:
    """The objects of the JSON array in the file `path`, one by one, in bounded memory; to be read once.

    Attributes:
        cut_off: the file ended inside an event, which is then left out; known when all have been read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cut_off = False
        self._text = ""
        self._at = 0
        self._event_at = 0
        self._line = 1
        self._gone = 0
        self._decoder = json.JSONDecoder()

    def __iter__(self) -> Iterator[Event]:
        """Each event.

        Raises:
            DataError: the file cannot be read, or is no array of objects; with line and character.
        """
        try:
            with self.path.open("rb") as stream:
                yield from self._events(stream)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read: {error.strerror}") from error

    def place(self) -> str:
        """Where the event stands that was read last: file, line and character, for error messages."""
        return self._place(self._event_at)

    def _events(self, stream: BufferedReader) -> Iterator[Event]:
        pieces = self._pieces(stream)
        self._more(pieces)
        self._skip(_OPENING)
        while True:
            self._skip(_BETWEEN)
            if self._at == len(self._text):
                if not self._more(pieces):
                    return
            elif self._text[self._at] == "]":
                self._require_end(pieces)
                return
            else:
                found = self._next(pieces)
                if found is None:
                    return
                yield found

    def _next(self, pieces: Iterator[str]) -> Event | None:
        """The event that begins here; None where the file ends in it."""
        while True:
            try:
                event, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                # An error before the end of what is there is no matter of more text, but for an open string or word.
                is_open = error.pos >= len(self._text) - _LONGEST_WORD or error.msg.startswith(_UNTERMINATED)
                if not is_open or len(self._text) - self._at > _LONGEST_EVENT:
                    raise self._damaged(error.msg, error.pos) from error
                if self._more(pieces):
                    continue
                self.cut_off = True
                return None
            if not isinstance(event, dict):
                raise self._damaged(f"expected an event, got {type(event).__name__}", self._at)
            self._event_at, self._at = self._at, end
            return event

    def _require_end(self, pieces: Iterator[str]) -> None:
        self._at += 1
        while True:
            self._skip(_SPACE)
            if self._at < len(self._text):
                raise self._damaged("something follows the closing bracket", self._at)
            if not self._more(pieces):
                return

    def _skip(self, what: re.Pattern[str]) -> None:
        found = what.match(self._text, self._at)
        if found is None:
            raise self._damaged("expected an array of events, `[` first", self._at)
        self._at = found.end()

    def _more(self, pieces: Iterator[str]) -> bool:
        """Take in the next piece and forget what was read; False at the end of the file."""
        piece = next(pieces, "")
        self._line += self._text.count("\n", 0, self._at)
        self._gone += self._at
        self._text = self._text[self._at :] + piece
        self._at = 0
        return bool(piece)

    def _pieces(self, stream: BufferedReader) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")()
        read = 0
        try:
            while content := stream.read(_CHUNK_BYTES):
                text = decoder.decode(content)
                read += len(content)
                if text:
                    yield text
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.path}: not a text file in UTF-8 ({error.reason} at byte {read + error.start})"
            ) from error

    def _place(self, at: int) -> str:
        return f"{self.path}:{self._line + self._text.count(chr(10), 0, at)} (character {self._gone + at})"

    def _damaged(self, what: str, at: int) -> DataError:
        return DataError(f"{self._place(at)}: damaged, or no timeline: {what}")
