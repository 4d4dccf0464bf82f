"""Synthetic years: red noise on a globe, cyclones, rivers, what only looks like them, and the files that hold it."""
