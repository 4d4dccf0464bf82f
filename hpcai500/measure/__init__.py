"""Measurements inside a job: operations, time, and the machine that it runs on.

`micro` (with `products` and `bandwidth`) measures ceilings, `preflight` is the measuring half of `doctor`, `trace`,
`sampling` and `launch_gaps` make a profile, `flops` counts operations. Each `*_command` is the program of one rank.
"""
