"""Submissions: a campaign in one signed file.

`pack` writes one (`gather`, `anonymise`, `claim`, `signature`), `archive` opens an untrusted one; `manifest` holds the
format and its limits.
"""
