"""Data sets: the layout they ship in, the order they are read in, and the loaders that turn them into batches.

Nothing is imported here: only the loaders need torch, and a check of a data set should not wait for it.
"""
