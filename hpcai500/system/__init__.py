"""What a job finds around it: whether a node is fit, and all that a record says of it.

`node` describes one (with `devices`, `network`, `software`, `mounts`, `container`), `tables` shows it, `doctor`
judges it; `power` has the sources of power and `power_samples` what they measured.
"""
