"""The checks of `hpcai500 doctor` that measure: what each rank does, and what its numbers amount to.

Each module has a part that measures, on the ranks, and one that judges plain numbers.
"""
