"""Layer 8: `optimizers` has the update rules of recipes, `schedules` the learning-rate policies."""
