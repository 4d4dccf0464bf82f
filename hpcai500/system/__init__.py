"""The nodes of a job: their description, checks and power.

`node` describes a node (with `devices`, `network`, `software`, `mounts`, `container`), `tables` prints the description,
`doctor` checks the node; `power` has the power sources and `power_samples` their samples.
"""
