"""The engine: one training job, from connecting the ranks to the finished record. `hpcai500.train` starts it.

`job` is the whole sequence: `ranks` connects the processes, `warm_up` runs before the clock starts, `trainer` runs the
epochs, `updates` does each update (with stages: `pipeline`; distributed models: `sharded`), and `reporting` and
`evidence` write the record.
The `*_command` modules are separate programs: a replay of checkpoints and the vote of an ensemble.
"""
