"""Submissions: a campaign in one signed file."""
