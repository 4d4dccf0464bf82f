"""What the tests of results have in common."""

from __future__ import annotations

from builders.commands import typed

__all__ = ["typed"]
