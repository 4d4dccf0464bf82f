"""What all tests of the command line use."""

from __future__ import annotations

from builders.commands import typed

__all__ = ["typed"]
