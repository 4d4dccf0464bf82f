"""Campaigns: several runs of one recipe, planned before the first of them, so that none can be left out unnoticed.

`journal` is the plan and the journal on disk, `attempts` writes to it, `standing` says whether it is rankable, and why
not.
"""
