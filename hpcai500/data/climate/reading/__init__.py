"""Batches for training: windows of images that share chunks, filled ahead by a thread."""
