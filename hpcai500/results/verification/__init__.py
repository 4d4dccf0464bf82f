"""Verification: what of a submission holds when all of it is computed again."""
