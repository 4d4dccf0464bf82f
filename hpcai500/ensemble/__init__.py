"""V3.0: many base models, each trained by a job of its own, that vote: planned, staged, run, collected."""
