"""Replication: another team repeats a submission, and both are compared (V2.0 section 3.3)."""
