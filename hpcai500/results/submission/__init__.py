"""Submissions: a campaign in one signed file.

`pack` writes one (`gather`, `anonymise`, `claim`, `signature`), `archive` opens a stranger's; `manifest` holds the
format and its limits.
"""
