"""Anonymising: names of hosts and users leave a submission, and all hashes are computed again over what is left.

Numbers, times and structure stay as they are, and so does what was broken: a hash that did not fit before does not fit
afterwards either.
"""

from __future__ import annotations

from hpcai500.results.submission.anonymising.campaign import anonymise

__all__ = ["anonymise"]
