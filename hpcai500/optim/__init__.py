"""Layer 8: `optimizers` are the update rules that a recipe names, `schedules` the learning-rate policies."""
