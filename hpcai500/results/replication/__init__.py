"""Replication: another team repeats a submission, and the two are held against each other (V2.0 section 3.3)."""
