"""Whatever ends a rank, in words that the others hear and people read."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from hpcai500.engine.ranks import Ranks
from hpcai500.errors import HpcAi500Error, RunError


@contextmanager
def telling(ranks: Ranks) -> Iterator[None]:
    """Whatever ends this rank, the others hear of it; and what ended another one is what this one says."""
    try:
        yield
    except HpcAi500Error as error:
        explained = ranks.explained(error)
        if explained is not error:
            raise explained from error
        if ranks.leads:
            raise
        raise _of_ours(error)(f"{ranks.name}: {error}") from error
    except BaseException as error:
        ranks.explained(RunError(in_words(error)))
        raise


def _of_ours(error: HpcAi500Error) -> type[HpcAi500Error]:
    """The class of `error` that takes a message and nothing else."""
    return next(kind for kind in type(error).__mro__ if kind.__module__ == HpcAi500Error.__module__)


def in_words(error: BaseException) -> str:
    """What `error` says, for a record or another rank."""
    if isinstance(error, KeyboardInterrupt):
        return "stopped by a second SIGINT"
    return "".join(traceback.format_exception_only(error)).strip()
