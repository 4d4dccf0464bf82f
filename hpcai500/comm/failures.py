"""What communication libraries throw, turned into our one-line errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from hpcai500.errors import CommunicationError

# Where in its source the library threw: `[../third_party/gloo/gloo/transport/tcp/pair.cc:547] `.
_PLACE = re.compile(r"\[[^\]\s]*\.(?:cc|cpp|h|hpp):\d+\]\s*")
# What Gloo adds to every lost connection.
_ADVICE = " This is typically caused by"


@contextmanager
def as_run_error(library: str, action: str) -> Iterator[None]:
    """Turn a library's error in this context into an error of ours that says what was tried.

    Raises:
        CommunicationError: whatever RuntimeError the library raised (torch's and Horovod's own errors are such).
    """
    try:
        yield
    except RuntimeError as error:
        raise CommunicationError(
            f"{action} over {library} failed: {first_line(error)}; another rank has ended or cannot be reached"
        ) from error


def first_line(error: BaseException) -> str:
    """What a library says, without the place in its source, its advice and the stack that it appends."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return _PLACE.sub("", lines[0]).partition(_ADVICE)[0].strip().rstrip(".")
