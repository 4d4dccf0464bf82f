"""What monitors say to each other, and the proofs that they share a secret."""

from __future__ import annotations

import hmac
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from hpcai500.messages import Connection, Message

# Of a line between ranks that have joined: it holds a reason at most.
LONGEST_LINE = 16384
# In characters, of which each may take six bytes.
_LONGEST_REASON = 2000

_Hex = Annotated[str, Field(max_length=64, pattern="^[0-9a-f]*$")]
_Text = Annotated[str, Field(max_length=_LONGEST_REASON + 100)]
_Rank = Annotated[int, Field(ge=0, lt=2**31)]
_Seconds = Annotated[float, Field(ge=0, le=1e9)]


class Challenge(Message):
    """Rank 0 to whoever connects: a number to prove the secret with."""

    kind: Literal["challenge"] = "challenge"
    number: _Hex


class Hello(Message):
    """A rank to rank 0: which one it is, its proof, and a number for rank 0 to prove the secret with."""

    kind: Literal["hello"] = "hello"
    rank: _Rank
    number: _Hex
    proof: _Hex


class Welcome(Message):
    """Rank 0 to a rank that it has taken in."""

    kind: Literal["welcome"] = "welcome"
    proof: _Hex


class Beating(Message):
    """A rank to rank 0: it lives, and this is what its main thread is at (`monitor_rules.Beat`)."""

    kind: Literal["beat"] = "beat"
    progress: Annotated[int, Field(ge=0, lt=2**63)]
    phase: _Text
    allowance: _Seconds


class Alive(Message):
    """Rank 0 to the others: it lives."""

    kind: Literal["alive"] = "alive"


class Failed(Message):
    """Any rank: it ends by an error of its own."""

    kind: Literal["failed"] = "failed"
    reason: _Text


class Verdict(Message):
    """Rank 0 to the others: who is lost (`monitor_rules.Lost`)."""

    kind: Literal["lost"] = "lost"
    rank: _Rank | None
    host: _Text
    reason: _Text
    seconds: _Seconds


class Goodbye(Message):
    """Any rank: it is done, and its end is no failure."""

    kind: Literal["goodbye"] = "goodbye"


Said = Challenge | Hello | Welcome | Beating | Alive | Failed | Verdict | Goodbye
SAID: TypeAdapter[Said] = TypeAdapter(Annotated[Said, Field(discriminator="kind")])
Peer = Connection[Said]


def proof(token: str, challenge: str, *words: object) -> str:
    """Shows knowledge of `token` without saying it: HMAC-SHA-256 over a number that the other side chose."""
    text = "\0".join((challenge, *map(str, words)))
    return hmac.new(token.encode(), text.encode(), "sha256").hexdigest()


def is_proof(given: str, token: str, challenge: str, *words: object) -> bool:
    """Whether `given` is the right `proof`."""
    return hmac.compare_digest(given.encode(), proof(token, challenge, *words).encode())


def shortened(reason: str) -> str:
    """A reason on one line that fits into a message; escapes for what UTF-8 cannot hold (of a file's name)."""
    text = " ".join(reason.encode(errors="backslashreplace").decode().split())
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} ..."
