"""Ensembles (V3.0): many base models that vote, each trained by a job of its own.

In the order of its life: `planning` (with `mapping`) fixes the plan in `journal`; `local` or `slurm` runs members,
each by `member`; `members` and `status` say how they stand; `collect` (with `counting` and `result`) makes one
result of them.
"""
