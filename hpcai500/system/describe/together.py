"""Several looks at once, none of which can hold up the rest: a file system or a driver that hangs is left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Found = TypeVar("Found")


@dataclass(frozen=True)
class Look(Generic[Found]):
    """One look's end.

    Attributes:
        found: None where it failed.
        reason: why it failed.
        seconds: how long it took.
    """

    found: Found | None
    reason: str | None
    seconds: float


def together(looks: Mapping[str, Callable[[], Found]], patience_seconds: float) -> dict[str, Look[Found]]:
    """Run all of `looks`, each in a thread, and wait for them `patience_seconds` at most; in their order."""
    ended: dict[str, Look[Found]] = {}
    started = time.monotonic()

    def run(name: str, look: Callable[[], Found]) -> None:
        try:
            done = Look(look(), None, time.monotonic() - started)
        except Exception as error:  # noqa: BLE001 - who describes a machine must not end a run on it: it is said
            done = Look(None, f"{type(error).__name__}: {error}", time.monotonic() - started)
        ended[name] = done

    # A daemon does not keep the process from ending.
    threads = [threading.Thread(target=run, args=one, daemon=True, name=f"look-{one[0]}") for one in looks.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, started + patience_seconds - time.monotonic()))
    late = Look[Found](None, f"did not answer within {patience_seconds:g} s", patience_seconds)
    return {name: ended.get(name, late) for name in looks}
