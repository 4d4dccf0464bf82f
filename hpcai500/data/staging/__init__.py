"""Copies of a data set on a node's own storage, whole or in part, that are read as the set itself."""
