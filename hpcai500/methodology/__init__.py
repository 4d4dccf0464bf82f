"""The papers' method as pure functions: numbers in, numbers out. No disk, no clock, no network.

`result` makes the result of a run from its `events`; `rules` (of the recipe) and `conduct` (of the events) say what
level and rank it may have; `trials` averages runs. docs/methodology.md derives every number.
"""
