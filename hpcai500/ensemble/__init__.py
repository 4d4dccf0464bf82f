"""Ensembles (V3.0): many base models that vote, each trained by its own job.

In order of use: `planning` (with `mapping`) writes the plan to `journal`; `local` or `slurm` runs members with
`member`; `members` and `status` report their state; `collect` (with `counting` and `result`) computes the result.
"""
