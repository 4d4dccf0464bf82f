"""Starts the in-job half: with token lists, never shell strings, and without importing what it starts.

`runs` is behind `ic`, `ewa` and `campaign run`; a `launcher` runs each job on the ranks; `measuring`, `examination`,
`scale` and `self_test` are behind the commands that measure. `slurm/` renders batch scripts and reads the queue.
"""
