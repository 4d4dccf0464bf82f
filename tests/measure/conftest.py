"""Commands in this process."""

from __future__ import annotations

from builders.commands import typed

__all__ = ["typed"]
