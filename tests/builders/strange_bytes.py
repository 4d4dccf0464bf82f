"""What a stranger may send to a port of ours: any bytes, any JSON, almost a message; in any pieces."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
from collections.abc import Sequence

from hypothesis import strategies as st

_NUMBERS = ["1e999", "-1e999", "NaN", "Infinity", "1" * 400, "-0", "1.0", "0.5", "9" * 19, "true", '"1"', "null", "1"]
_TEXTS = ['"\\ud800"', '"\\udfff\\ud800"', '"\\u0000"', '"' + "a" * 5000 + '"', '"' + "0" * 64 + '"', '""']
_DEEP = ["[" * 60_000, "[" * 400 + "]" * 400, '{"a":' * 300 + "1" + "}" * 300]


def strange_bytes(*fields: str, kinds: Sequence[str] = ("",)) -> st.SearchStrategy[bytes]:
    """Lines for a protocol whose messages have `fields`, and a `kind` out of `kinds`."""
    anything = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=10,
    ).map(json.dumps)
    value = st.sampled_from([*_NUMBERS, *_TEXTS, *_DEEP]) | anything
    kind = st.sampled_from(list(kinds)).map(json.dumps) | value
    pairs = st.dictionaries(st.sampled_from(fields), value, max_size=len(fields))
    message = st.builds(
        lambda kind, pairs: "{" + ",".join(f'"{name}":{text}' for name, text in {"kind": kind, **pairs}.items()) + "}",
        kind,
        pairs,
    )
    line = st.one_of(value, message, message).map(str.encode) | st.binary(max_size=3000)
    return st.lists(line, min_size=1, max_size=3).map(lambda lines: b"\n".join(lines) + b"\n")


def say_in_pieces(stream: socket.socket, said: bytes, cuts: Sequence[int]) -> None:
    """Send `said`, cut at `cuts`; the other end may hang up at any time."""
    places = [0, *sorted(cuts), len(said)]
    with contextlib.suppress(OSError):
        for start, end in itertools.pairwise(places):
            stream.sendall(said[start:end])
