"""One line of such a log."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

_MARK = ":::MLLOG "
# What MLPerf's vocabulary has no word for.
OURS = "hpcai500_"

Kind = Literal["INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"]


@dataclass(frozen=True)
class Line:
    """What happened.

    Attributes:
        key: its name.
        value: any JSON value.
        time_ms: when (UNIX time).
        kind: whether something begins, ends, or is so.
        metadata: facts beside it.
    """

    key: str
    value: Any
    time_ms: int
    kind: Kind = "POINT_IN_TIME"
    metadata: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """As it stands in the log, in ASCII.

        Raises:
            ValueError: a number in it is not finite: JSON has none such.
        """
        fields = {
            "namespace": "",
            "time_ms": self.time_ms,
            "event_type": self.kind,
            "key": self.key,
            "value": self.value,
            "metadata": self.metadata,
        }
        # Parsers look for the last mark in a line: one within a text (a host's name) would cut the line in two.
        return _MARK + json.dumps(fields, allow_nan=False).replace(":::MLL", "\\u003a::MLL")
