"""Optimizers and learning-rate policies (layer 8)."""
