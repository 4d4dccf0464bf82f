"""Starts the in-job half: by token lists, never by shell strings, and without importing what is started.

`runs` is what `ic`, `ewa` and `campaign run` do; a `launcher` runs each job on the ranks there are; `measuring`,
`examination`, `scale` and `self_test` are the commands that measure. `slurm/` renders batch scripts and reads the
queue.
"""
