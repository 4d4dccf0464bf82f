"""Benchmarks of other packages: what a plug-in gives (`Plugin`), how it is found, when it is loaded: docs/plugins.md.

Shared by both halves: nothing here imports torch, and neither may the module that a plug-in's entry point names.
"""

from __future__ import annotations

from hpcai500.plugins.plugin import Plugin

__all__ = ["Plugin"]
