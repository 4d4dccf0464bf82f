"""Verification: what of a submission holds when all of it is computed again.

`verify` opens a submission, makes the `context` that checks look at, and lists the checks: of its files
(`archive`), its `campaign`, its `dates`, each run (`run_events`, `run_numbers`, `run_system`) and `copies`.
`replay` is optional.
"""
