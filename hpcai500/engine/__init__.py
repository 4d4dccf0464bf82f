"""The engine's parts: loop, precision, checkpoints, signals, tally, console. `hpcai500.train` puts them together."""
