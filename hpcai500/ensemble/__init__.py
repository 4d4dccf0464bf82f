"""Ensembles (V3.0): many base models that vote, each trained by a job of its own: planned, staged, run, collected."""
