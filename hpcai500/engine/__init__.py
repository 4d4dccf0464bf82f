"""The engine: one training job, from the ranks' meeting to the record. `hpcai500.train` starts it.

`job` is the whole of it, from top to bottom: `ranks` meet, `warm_up` precedes the clock, `trainer` runs epochs,
each update is one of `updates` (in stages: `pipeline`), and `reporting` and `evidence` write what the record says.
The `*_command` modules are programs beside it: a replay of checkpoints and the vote of an ensemble.
"""
