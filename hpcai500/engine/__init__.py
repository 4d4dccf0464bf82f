"""The engine: one training job, from the ranks' meeting to the record. `hpcai500.train` starts it."""
