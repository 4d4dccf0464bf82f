"""Years rewritten one chunk an image: estimated, resumable, read back before they are given their name."""
